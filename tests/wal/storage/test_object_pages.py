"""Pages of listings as no test server answers them, by clients that answer what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from fsspec.asyn import get_loop  # type: ignore[import-untyped]

from forebay.model.errors import StoreError
from wal.storage import object_pages, objects
from wal.storage.objects import ObjectStorage


def s3_page(answer: dict[str, Any]) -> object_pages.Page:
    async def call(*_: object, **__: object) -> dict[str, Any]:
        return answer

    files = SimpleNamespace(_call_s3=call, req_kw={})
    found: object_pages.Page = asyncio.run(object_pages.PAGES["s3"](files, "b", "s/", ""))  # type: ignore[arg-type]
    return found


def test_listing_that_is_cut_short_without_a_token_is_refused() -> None:
    """As by a server that knows only the first version of the request: the rest would be missing without an error."""
    with pytest.raises(StoreError, match="s3://b/s/ can't be listed: the store has further names"):
        s3_page({"Contents": [{"Key": "s/a"}], "IsTruncated": True, "NextMarker": "s/a"})


def test_last_page_ends_the_listing_whatever_token_it_has() -> None:
    assert s3_page({"Contents": [{"Key": "s/a"}], "IsTruncated": False, "NextContinuationToken": "t"}) == (["s/a"], "")
    assert s3_page({"IsTruncated": False}) == ([], "")
    assert s3_page({"IsTruncated": True, "NextContinuationToken": "t"}) == ([], "t")


@pytest.mark.parametrize(
    ("metadata", "listed"),
    [
        (None, True),
        ({"hdi_isfolder": "true"}, False),
        ({"Hdi_isfolder": "true"}, False),
        ({"is_directory": "true"}, False),
        ({"other": "true", "hdi_isfolder": "false"}, True),
    ],
)
def test_folders_of_a_hierarchical_account_are_not_listed(metadata: dict[str, str] | None, listed: bool) -> None:
    class Pages:
        continuation_token = None

        def __aiter__(self) -> Pages:
            return self

        async def __anext__(self) -> AsyncIterator[Any]:
            async def blobs() -> AsyncIterator[Any]:
                yield SimpleNamespace(name="s/a", metadata=metadata)

            return blobs()

    class Container:
        async def __aenter__(self) -> Container:
            return self

        async def __aexit__(self, *_: object) -> None: ...

        def list_blobs(self, **_: object) -> Any:
            return SimpleNamespace(by_page=lambda token: Pages())

    files = SimpleNamespace(service_client=SimpleNamespace(get_container_client=lambda name: Container()))
    found: object_pages.Page = asyncio.run(object_pages.PAGES["abfs"](files, "c", "s/", ""))  # type: ignore[arg-type]
    assert found == (["s/a"] if listed else [], "")


@pytest.mark.parametrize("scheme", ["s3", "gs", "abfs"])
def test_listing_of_a_bucket_that_does_not_exist_is_an_error_of_the_store(
    monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """A FileNotFoundError would be that of a deleted segment."""

    async def absent(*_: object) -> object_pages.Page:
        raise FileNotFoundError("the bucket")

    monkeypatch.setattr(objects, "PAGES", {scheme: absent})
    monkeypatch.setattr(ObjectStorage, "_open", lambda self: SimpleNamespace(loop=get_loop()))
    with pytest.raises(StoreError, match="can't be listed: there is no bucket or container 'absent-bucket'"):
        ObjectStorage(scheme, "absent-bucket/wal", {}).list("s")
