"""Pages of a listing of an object store: one request each, so that each has a time-out and retries of its own.

The file systems' own listing is one call for all pages. Its time-out would limit how many objects a store may hold.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

#: maximum number of names in a page, which is also what S3 and Google's store allow
NAMES_MAX = 1_000
#: names of objects with their prefix, and the token of the next page; "" after the last one
Page = tuple[Sequence[str], str]


async def _s3_page(files: Any, bucket: str, prefix: str, token: str) -> Page:
    more = {"ContinuationToken": token} if token else {}
    answer = await files._call_s3(
        "list_objects_v2", Bucket=bucket, Prefix=prefix, MaxKeys=NAMES_MAX, **files.req_kw, **more
    )
    return [found["Key"] for found in answer.get("Contents", ())], answer.get("NextContinuationToken") or ""


async def _gs_page(files: Any, bucket: str, prefix: str, token: str) -> Page:
    asked = {"prefix": prefix, "pageToken": token or None, "maxResults": NAMES_MAX}
    answer = await files._call("GET", "b/{}/o", bucket, **asked, json_out=True)
    return [found["name"] for found in answer.get("items", ())], answer.get("nextPageToken") or ""


async def _abfs_page(files: Any, container: str, prefix: str, token: str) -> Page:
    async with files.service_client.get_container_client(container) as client:
        # an account with a hierarchical namespace also lists folders, which the metadata tells apart
        blobs = client.list_blobs(name_starts_with=prefix, include=["metadata"], results_per_page=NAMES_MAX)
        found = blobs.by_page(token or None)
        names = [blob.name async for blob in await anext(found) if (blob.metadata or {}).get("hdi_isfolder") != "true"]
        return names, found.continuation_token or ""


#: scheme → reads the page of a token, "" for the first one: file system, bucket, prefix, token
PAGES: dict[str, Callable[[Any, str, str, str], Awaitable[Page]]] = {"s3": _s3_page, "gs": _gs_page, "abfs": _abfs_page}
