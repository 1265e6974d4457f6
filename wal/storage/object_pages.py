"""Pages of a listing of an object store: one request each, so that each has a time-out and retries of its own.

The file systems' own listing is one call for all pages. Its time-out would limit how many objects a store may hold.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from forebay.model.errors import StoreError

#: maximum number of names in a page, which is also what S3 and Google's store allow
NAMES_MAX = 1_000
#: names of objects with their prefix, and the token of the next page; "" after the last one
Page = tuple[Sequence[str], str]


async def _s3_page(files: Any, bucket: str, prefix: str, token: str) -> Page:
    more = {"ContinuationToken": token} if token else {}
    answer = await files._call_s3(
        "list_objects_v2", Bucket=bucket, Prefix=prefix, MaxKeys=NAMES_MAX, **files.req_kw, **more
    )
    names = [found["Key"] for found in answer.get("Contents", ())]
    if not answer.get("IsTruncated"):
        return names, ""
    if not (following := answer.get("NextContinuationToken")):
        raise StoreError(
            f"s3://{bucket}/{prefix} can't be listed: the store has further names, and gives no token for them"
        )
    return names, following


async def _gs_page(files: Any, bucket: str, prefix: str, token: str) -> Page:
    asked = {"prefix": prefix, "pageToken": token or None, "maxResults": NAMES_MAX}
    answer = await files._call("GET", "b/{}/o", bucket, **asked, json_out=True)
    return [found["name"] for found in answer.get("items", ())], answer.get("nextPageToken") or ""


async def _abfs_page(files: Any, container: str, prefix: str, token: str) -> Page:
    async with files.service_client.get_container_client(container) as client:
        blobs = client.list_blobs(name_starts_with=prefix, include=["metadata"], results_per_page=NAMES_MAX)
        found = blobs.by_page(token or None)
        names = [blob.name async for blob in await anext(found) if not _is_folder(blob.metadata or {})]
        return names, found.continuation_token or ""


def _is_folder(metadata: Mapping[str, str]) -> bool:
    """Whether an entry is a folder: accounts with a hierarchical namespace list these too, as adlfs knows."""
    return any(key.lower() in ("hdi_isfolder", "is_directory") and value == "true" for key, value in metadata.items())


#: scheme → reads the page of a token, "" for the first one: file system, bucket, prefix, token
PAGES: dict[str, Callable[[Any, str, str, str], Awaitable[Page]]] = {"s3": _s3_page, "gs": _gs_page, "abfs": _abfs_page}
