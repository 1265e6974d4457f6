"""The interfaces of stores: ``Storage``, which every store has, and protocols for what only some stores can do.

Paths are relative to the store's root and use ``/``. Methods raise ``FileExistsError`` and ``FileNotFoundError`` where their
docstrings say so, :class:`~forebay.model.errors.OutOfSpaceError` for lack of space or quota, and
:class:`~forebay.model.errors.StoreError` for everything else. Constructors do no I/O. Several threads may use a storage at the
same time; only one at a time may use an :class:`AppendFile`.
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

#: names of temporary files that a killed writer may leave behind; no path has such a part
TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")

_PATH = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(/[A-Za-z0-9][A-Za-z0-9_.-]*)*")

#: such as batch=7/part-0.parquet or _forebay/a; no part can climb out
_FOLDER_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_=.-]*(/[A-Za-z0-9_][A-Za-z0-9_=.-]*)*")


class TransientError(StoreError):
    """A temporary failure: the caller may retry the request."""


class AppendFile(Protocol):
    """One file being written. Any error poisons it: every later ``append`` and ``sync`` raises StoreError."""

    def append(self, data: Buffer) -> None:
        """Write all of ``data`` at the end of the file; not durable. After an error any part of it may have been written."""

    def sync(self) -> None:
        """Make everything appended durable. If this fails, it is never called again on this file."""

    def close(self) -> None:
        """Close the file without a sync. May be repeated. Never raises: only ``sync`` says what is durable."""


class Storage(Protocol):
    """A store of files.

    ``appendable``: whether files can be created and appended to. If not, everything is written as whole objects, by ``put_new``
    and ``replace``.
    """

    url: str

    @property
    def appendable(self) -> bool: ...

    def create(self, path: str) -> AppendFile:
        """Create an empty file; its name and its new parent folders are durable on return.

        Raises FileExistsError; StoreError on a store that is not appendable.
        """

    def put_new(self, path: str, data: Buffer) -> None:
        """Create the object, durable on return. It appears whole or not at all.

        Raises FileExistsError if another object has the name; that object is durable then. After any other error the object may
        exist or not, and on a remote store it may appear later; it is safe to call again with the same bytes. An existing object
        with the same bytes counts as this call's own, since each writer's bytes contain its name or a random number.
        """

    def replace(self, path: str, data: Buffer) -> None:
        """Replace the object, or create it, atomically; durable on return. May be repeated."""

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return the bytes ``[offset, offset + length)``; fewer if the file ends before. Raises FileNotFoundError."""

    def size(self, path: str) -> int:
        """Return the file's size in bytes. Raises FileNotFoundError."""

    def exists(self, path: str) -> bool: ...

    def list(self, prefix: str) -> Paths:
        """Return the paths of all files below the folder ``prefix`` ("" is the root), sorted; none if there is no such folder."""

    def delete(self, path: str) -> None:
        """Delete the file; durable on return. No error if it does not exist, so it may be repeated."""

    def free_bytes(self) -> int | None:
        """Return how many bytes can still be written; None if the store does not know."""

    @property
    def requests(self) -> Mapping[str, int]:
        """Counts of what this process has sent to a remote store, retries included.

        Requests by kind (``put``, ``get``, ``head``, ``list``, ``delete``), ``bytes_out`` and ``bytes_in``. Empty for file and
        memory.
        """


def check_path(path: str) -> str:
    """Return ``path``. Raises ValueError unless each of its parts begins with a letter or digit.

    So a path can't lead out of the root, and can't be the name of a temporary file.
    """
    if not is_path(path):
        raise ValueError(
            f"invalid path {path!r}: each part must consist of letters, digits, '.', '_' and '-', and begin with a letter "
            "or digit"
        )
    return path


class Folders(Protocol):
    """A root folder whose subfolders can be moved in one step. Paths are relative and use ``/``.

    Methods raise StoreError and OutOfSpaceError, and what their docstrings name.
    """

    url: str

    def make_folder(self, path: str) -> None:
        """Create the folder, and its parent folders if they do not exist. Give it a name that no folder has had before."""

    def put(self, path: str, data: Buffer) -> None:
        """Write the whole file, replacing it if it exists. Durable after :meth:`sync_folder`.

        Raises FileNotFoundError if its folder does not exist: a folder that another process has deleted or moved away is never
        created again.
        """

    def read(self, path: str) -> bytes:
        """Return the file's bytes. Raises FileNotFoundError."""

    def folders(self, path: str) -> Sequence[str]:
        """Return the names of the folders in ``path``, sorted; none if it does not exist."""

    def move_folder(self, old: str, new: str) -> None:
        """Move the folder ``old`` to ``new`` in one step, and make the parent folders of ``new``. Durable on return.

        Raises FileExistsError if ``new`` exists (an empty local folder counts as absent), FileNotFoundError if ``old`` does not.
        The folder may have been moved although one of these is raised: an earlier attempt failed, or its answer was lost, after
        the move. What exists then is durable.
        """

    def delete_folder(self, path: str) -> None:
        """Delete the folder with everything in it. No error if it does not exist."""

    def sync_folder(self, path: str) -> None:
        """Make durable all that any process has written below ``path``, as far as the store has a request for it.

        May raise FileNotFoundError if the folder does not exist.
        """


@runtime_checkable
class LeavesTemporaries(Protocol):
    """A storage whose killed writers may leave hidden temporary files behind. No reader looks at these."""

    def left_over(self, prefix: str, before_seconds: float) -> Paths:
        """Return the temporary files below the folder ``prefix`` that were last written before that time.

        ``before_seconds``: since 1970. The paths are relative; only :meth:`remove_left_over` takes them.
        """

    def remove_left_over(self, path: str) -> None:
        """Delete a file that :meth:`left_over` returned; no error if it does not exist. Raises ValueError for any other file."""


@runtime_checkable
class KeepsFolders(Protocol):
    """A storage in which a folder stays when its last file is deleted. Such folders slow down every listing."""

    def remove_folder(self, path: str) -> None:
        """Delete the folder if it contains nothing, not even a hidden file. No error if it does not exist or is not empty.

        A process that writes there at the same time creates the folder again.
        """


@runtime_checkable
class TriesAgain(Protocol):
    """A remote store that retries failed requests by itself for some time."""

    def tried_for(self, seconds: float) -> Storage:
        """Return the same store over the same client, retrying for at most ``seconds``: for a caller that retries by itself."""


@runtime_checkable
class AsksTogether(Protocol):
    """A remote store that sends several requests at the same time, so that the caller waits for one round trip."""

    def existing(self, paths: Sequence[str]) -> Paths:
        """Return those of ``paths`` that exist, in their order."""


@runtime_checkable
class FillsPageCache(Protocol):
    """A store in this host's files, whose appended bytes stay in the system's page cache."""

    def past_cache(self) -> Storage:
        """Return the same store, whose large appends need no page cache: for a writer whose bytes are rarely read from here."""


@runtime_checkable
class SendsParts(Protocol):
    """A store of whole objects that sends large objects in parts, by other requests than small objects."""

    @property
    def sends_parts(self) -> bool:
        """Whether an object can be large enough to be sent in parts."""

    def put_new_in_parts(self, path: str, data: Buffer) -> None:
        """Create the object as ``put_new`` does, but send it in parts whatever its size."""


@runtime_checkable
class DatesObjects(Protocol):
    """A remote store that keeps the time of each write by its own clock."""

    def written_seconds(self, path: str) -> float | None:
        """Return when the object was written, in seconds since 1970 by the store's clock; None if the store does not say.

        The resolution may be one second. Raises FileNotFoundError.
        """


def existing(storage: Storage, paths: Sequence[str]) -> Paths:
    """Return those of ``paths`` that exist, in their order; by concurrent requests if the store can. Raises StoreError."""
    if isinstance(storage, AsksTogether):
        return storage.existing(paths)
    return [path for path in paths if storage.exists(path)]


def is_path(path: str) -> bool:
    return _PATH.fullmatch(path) is not None


def check_folder_path(path: str) -> str:
    """Return ``path``. Raises ValueError if it could lead out of the root, or if one of its parts is hidden."""
    if not _FOLDER_PATH.fullmatch(path):
        raise ValueError(
            f"invalid path {path!r}: each part must consist of letters, digits, '=', '.', '_' and '-', and begin with a letter, "
            "a digit or '_'"
        )
    return path


def not_appendable(url: str) -> StoreError:
    return StoreError(f"{url} stores whole objects: it can't create files to append to")


def store_error(error: OSError, what: str) -> StoreError:
    """Return ``error`` as a StoreError that begins with ``what``; OutOfSpaceError for ENOSPC and EDQUOT."""
    kind = OutOfSpaceError if error.errno in (errno.ENOSPC, errno.EDQUOT) else StoreError
    return kind(f"{what}: {error.strerror or error}")
