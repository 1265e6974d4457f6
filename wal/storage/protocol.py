"""Where the log's bytes are kept: one small interface over fsspec, with the syncs that fsspec lacks.

Paths are relative to the storage's root and use ``/``. Errors: ``FileExistsError`` and ``FileNotFoundError`` where
named, :class:`~forebay.model.errors.OutOfSpaceError` for lack of space or quota, :class:`~forebay.model.errors.StoreError` for
everything else. Constructors do no I/O. A storage may be used by several threads, an :class:`AppendFile` by one at a
time.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from forebay.model.errors import OutOfSpaceError, StoreError

if TYPE_CHECKING:
    from typing_extensions import Buffer

Paths = list[str]  # where a method named ``list`` hides the type

#: names of temporary files that a kill may leave behind: no path has such a part
TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")

_PATH = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)*")

#: such as batch=7/part-0.parquet or _forebay/a; no part can climb out
_FOLDER_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_=.-]*(/[A-Za-z0-9_][A-Za-z0-9_=.-]*)*")


class TransientError(StoreError):
    """A failure that may soon be over, so the request is worth another attempt."""


class AppendFile(Protocol):
    """One file being written. After any error it is poisoned: every later ``append`` and ``sync`` raises StoreError."""

    def append(self, data: Buffer) -> None:
        """Writes all of ``data`` at the end, or raises and leaves any part of it behind. Not durable."""

    def sync(self) -> None:
        """Everything appended is durable on return. Never called again on this file if it fails."""

    def close(self) -> None:
        """Without a sync; may be repeated; never raises: a failure here says nothing that ``sync`` did not."""


class Storage(Protocol):
    """``appendable``: whether files can be created and appended to. Where they can't, everything is written as whole
    objects, by ``put_new`` and ``replace``."""

    url: str

    @property
    def appendable(self) -> bool: ...

    def create(self, path: str) -> AppendFile:
        """A new, empty file; its name and its new parents are durable on return. Raises FileExistsError; StoreError on
        a store that is not appendable."""

    def put_new(self, path: str, data: Buffer) -> None:
        """The whole object, durable on return: it appears whole or not at all. Raises FileExistsError, and then what has the name
        is durable.

        After another error the object may be there or not, and on a remote store come later; calling again with the very same
        bytes is safe. An object of that name with the very same bytes is taken for this call's own: each writer's bytes hold its
        name or a random number.
        """

    def replace(self, path: str, data: Buffer) -> None:
        """The whole object in place of what was there, atomically; durable on return. May be repeated."""

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Bytes ``[offset, offset + length)``, fewer where the file ends. Raises FileNotFoundError."""

    def size(self, path: str) -> int:
        """Bytes. Raises FileNotFoundError."""

    def exists(self, path: str) -> bool: ...

    def list(self, prefix: str) -> Paths:
        """Every file below the folder ``prefix`` ("" is the root), sorted; none if there is no such folder."""

    def delete(self, path: str) -> None:
        """Durable on return; no error if the file is absent, so it may be repeated."""

    def free_bytes(self) -> int | None:
        """Bytes that can still be written; None where the store can't tell."""

    @property
    def requests(self) -> Mapping[str, int]:
        """What was asked of a remote store since this process began, repeated attempts too: requests by kind (``put``,
        ``get``, ``head``, ``list``, ``delete``), and ``bytes_out`` and ``bytes_in``. Empty on file and memory."""


def check_path(path: str) -> str:
    """Returns ``path`` if each of its parts begins with a letter or digit, so that none climbs out of the root and
    none is a temporary file's name. Raises ValueError otherwise.
    """
    if not is_path(path):
        raise ValueError(f"path {path!r}: parts are letters, digits, '.', '_', '-', the first a letter or digit")
    return path


class Folders(Protocol):
    """A folder with folders in it. Paths are relative, with ``/``. Raises StoreError and OutOfSpaceError, and what is named."""

    url: str

    def put(self, path: str, data: Buffer) -> None:
        """A whole file in place of what was there; the folders above it are made. Durable after :meth:`sync_folder`."""

    def read(self, path: str) -> bytes:
        """Raises FileNotFoundError."""

    def folders(self, path: str) -> Sequence[str]:
        """Names of the folders in ``path``, sorted; none if it is not there."""

    def move_folder(self, old: str, new: str) -> None:
        """Moves all of ``old`` at once; the folders above ``new`` are made. Durable on return.

        Raises FileExistsError if ``new`` is there (an empty local folder counts as absent), FileNotFoundError if ``old`` is not.
        It may have been moved though one of the two is raised: an earlier attempt failed, or its answer was lost, after the move.
        What is there then is durable.
        """

    def delete_folder(self, path: str) -> None:
        """With all in it. No error if it is not there."""

    def sync_folder(self, path: str) -> None:
        """All that was written below ``path``, by whomever, is durable on return, as far as the store lets one ask for it."""


@runtime_checkable
class LeavesTemporaries(Protocol):
    """A storage whose killed writers may leave hidden temporary files behind, which no reader ever looks at."""

    def left_over(self, prefix: str, before_seconds: float) -> Paths:
        """Temporary files below the folder ``prefix`` that were last written before that time (since 1970). Relative
        paths, which no other method takes."""

    def remove_left_over(self, path: str) -> None:
        """Removes what :meth:`left_over` found; no error if it is gone. Raises ValueError for any other file."""


@runtime_checkable
class KeepsFolders(Protocol):
    """A storage whose folders outlive the files in them, and are looked into at every listing."""

    def remove_folder(self, path: str) -> None:
        """Removes the folder if nothing is in it, not even hidden files. No error if it is absent or in use; whoever writes
        there at the same time makes it again."""


@runtime_checkable
class TriesAgain(Protocol):
    """A remote store, which tries again by itself for a while."""

    def tried_for(self, seconds: float) -> Storage:
        """The same store over the same client, for a caller that tries again by itself and wants to hear of it sooner."""


@runtime_checkable
class SendsParts(Protocol):
    """A store of whole objects that takes large ones in parts, by requests of another kind than small ones."""

    @property
    def sends_parts(self) -> bool:
        """Whether an object can be so large that it is sent in parts."""

    def put_new_in_parts(self, path: str, data: Buffer) -> None:
        """As ``put_new``, sent as a large object is, whatever its size."""


def is_path(path: str) -> bool:
    return _PATH.fullmatch(path) is not None


def check_folder_path(path: str) -> str:
    """Returns ``path``. Raises ValueError if it could climb out of the root, or a part of it is hidden."""
    if not _FOLDER_PATH.fullmatch(path):
        raise ValueError(
            f"path {path!r}: parts are letters, digits, '=', '.', '_', '-', the first a letter, digit or '_'"
        )
    return path


def not_appendable(url: str) -> StoreError:
    return StoreError(f"{url} keeps whole objects: nothing can be appended there")


def store_error(error: OSError, what: str) -> StoreError:
    """``error`` as an error of the store: OutOfSpaceError for ENOSPC and EDQUOT."""
    kind = OutOfSpaceError if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreError
    return kind(f"{what}: {error.strerror or error}")
