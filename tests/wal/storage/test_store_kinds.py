"""The registry of stores: each kind opens, and each is in the contract's tests."""

from __future__ import annotations

import pytest

from forebay.model.errors import UsageError
from forebay.settings.stores import SCHEMES_WITH_FOLDERS, STORE_KINDS
from tests.support.stores.contract import STORES
from wal.storage import open_folders, open_storage

#: URLs of the form that each kind's entry shows
URLS = {
    "file": "file:///tmp/a-store",
    "s3": "s3://bucket/prefix",
    "gs": "gs://bucket/prefix",
    "abfs": "abfs://container@account/prefix",
    "hdfs": "hdfs://name-node:8020/folder",
    "memory": "memory://name",
}


def test_each_kind_of_store_is_in_the_contracts_tests() -> None:
    assert {name.partition("-")[0] for name in STORES} == set(STORE_KINDS)


@pytest.mark.parametrize("scheme", list(STORE_KINDS))
def test_each_kind_of_store_opens_by_its_scheme_without_io(scheme: str) -> None:
    assert open_storage(URLS[scheme]).url == URLS[scheme]


@pytest.mark.parametrize("scheme", list(STORE_KINDS))
def test_folders_open_only_where_the_kind_says_that_its_store_moves_them(scheme: str) -> None:
    if scheme in SCHEMES_WITH_FOLDERS:
        assert open_folders(URLS[scheme]).url == URLS[scheme]
    else:
        with pytest.raises(UsageError, match="can move a folder in one step"):
            open_folders(URLS[scheme])


def test_a_url_of_an_unknown_scheme_is_refused_with_the_forms_of_all_kinds() -> None:
    with pytest.raises(UsageError) as refused:
        open_storage("ftp://host/folder")
    for kind in STORE_KINDS.values():
        assert kind.url in str(refused.value)
