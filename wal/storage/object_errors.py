"""Errors of object stores' clients, translated to the errors of :mod:`wal.storage.protocol`."""

from __future__ import annotations

import asyncio
import errno
import os

from forebay.model.errors import DeniedError, OutOfSpaceError, StoreError, UsageError
from wal.storage.protocol import TransientError

#: packages whose clients' errors are the store's; any other error is a bug in this program
_CLIENTS = frozenset({"botocore", "aiobotocore", "aiohttp", "gcsfs", "google", "azure", "adlfs", "s3fs"})
#: errors that no retry resolves, by the name of the client's error or the store's code
_HOPELESS = frozenset(
    {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "ParamValidationError", "NoRegionError",
     "UnauthorizedSSOTokenError", "NoSuchBucket", "InvalidBucketName"}
)  # fmt: skip
#: access is denied, whatever the status: names of errors of a client without credentials, and codes of stores
_DENIED = frozenset(
    {
        "NoCredentialsError",
        "PartialCredentialsError",
        "InvalidAccessKeyId",
        "SignatureDoesNotMatch",
        "AccessDenied",
        "ExpiredToken",
        "InvalidToken",
        "XAdminUserNotFound",
    }
)  # fmt: skip - the last one: versitygw's code, with 404, for an unknown access key
_TRANSIENT_STATUS = frozenset({408, 409, 425, 429})


class BrokenConnectionError(TransientError):
    """The connection ended before the answer was read. If this was a put, the store may have carried it out."""


class UploadEndedError(TransientError):
    """The store does not know the upload in parts any more. An earlier attempt, whose answer was lost, or a proxy that repeats
    requests has completed or aborted it."""


class BeyondTheEndError(Exception):
    """The requested range begins at or after the object's end."""


def translated(error: Exception, what: str, seconds: float) -> Exception:
    """Return the client's error as an error that callers of a storage expect. Return errors that are not a store's unchanged."""
    if isinstance(error, StoreError | UsageError):
        return error
    status, code = _answer(error)
    if status == 412 or isinstance(error, FileExistsError):
        return FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), what)
    if status == 416:
        return BeyondTheEndError()
    names = {code, *(type(link).__name__ for link in _chain(error))}
    reason = str(error) or type(error).__name__
    if status in (401, 403) or names & _DENIED:
        short = code if code and not code.isdigit() else "" if status is None else f"HTTP {status}"
        return DeniedError(f"{what}: {reason}{f' (HTTP {status}, {short})' if status else ''}", short or reason)
    if names & _HOPELESS:
        return StoreError(f"{what}: {reason}")
    if status == 404 or isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), what)
    if status == 507 or code in ("QuotaExceeded", "XMinioStorageFull"):
        return OutOfSpaceError(f"{what}: {reason}")
    if isinstance(error, asyncio.TimeoutError | TimeoutError):
        return TransientError(f"{what}: no answer within {seconds:.3g} s")
    if status is not None:
        passing = status >= 500 or status in _TRANSIENT_STATUS
        text = f"{what}: {reason} (HTTP {status}{f', {code}' if code and not code.isdigit() else ''})"
        return TransientError(text) if passing else StoreError(text)
    if isinstance(error, PermissionError):
        return StoreError(f"{what}: {reason}")
    if isinstance(error, OSError) or _package(error) in _CLIENTS:
        silent = any(name.endswith(("Timeout", "TimeoutError")) for name in names)
        return (TransientError if silent else BrokenConnectionError)(f"{what}: {reason}")
    return error


def _chain(error: BaseException) -> list[BaseException]:
    links = [error]
    while (cause := links[-1].__cause__) is not None and len(links) < 8:
        links.append(cause)
    return links


def _package(error: BaseException) -> str:
    return type(error).__module__.partition(".")[0]


def _answer(error: BaseException) -> tuple[int | None, str]:
    """Return the status and the code of the store's answer; None and "" without an answer."""
    for link in _chain(error):
        response = getattr(link, "response", None)
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return (status if isinstance(status, int) else None), str(response.get("Error", {}).get("Code", ""))
        if _package(link) not in ("gcsfs", "google", "azure"):
            continue  # aiohttp reports an answer that ended early as a 400
        for name in ("status_code", "status", "code"):
            value = getattr(link, name, None)
            if isinstance(value, int) and 400 <= value < 600:
                return value, ""
    return None, ""
