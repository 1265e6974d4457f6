"""Writing of local copies: under a temporary name, renamed when they are whole, synced in a stream without a WAL.

``wal.blocks.local_copies`` says which bytes a copy has and under which name.
"""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from forebay.model.errors import OutOfSpaceError, StoreError
from forebay.model.values import BlockMeta
from forebay.process.secret_file import make_private_folder
from wal.blocks.local_copies import BLOCK_SUFFIX, local_path
from wal.blocks.room import LocalRoom
from wal.blocks.stored import encode_meta
from wal.segments.encoding import encode_frame
from wal.segments.frame import FrameKind
from wal.storage.directories import sync_above, sync_directory

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from wal.segments.payload import Payload

TEMPORARY_SUFFIX = ".tmp"
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def local_frame(meta: BlockMeta, payload: Buffer | Sequence[Buffer] | Payload) -> list[Buffer]:
    """Return the bytes of a copy, as buffers. ``payload``: one bytes-like object, a sequence of them, or a ``Payload``."""
    return list(encode_frame(FrameKind.BLOCK, uid=0, offset=0, index=0, metadata=encode_meta(meta), payload=payload))


def write_local(
    directory: str | Path, meta: BlockMeta, payload: Buffer | Sequence[Buffer] | Payload, room: LocalRoom | None = None
) -> Path:
    """Write a host's own copy of a block under a temporary name, and rename it when it is whole. Not synced. Can be repeated.

    ``payload``: as for :func:`local_frame`. Raises OutOfSpaceError (from ``room`` or the filesystem) or StoreError, and leaves no
    temporary file behind.
    """
    return write_local_frame(directory, meta, local_frame(meta, payload), room)


def write_local_frame(
    directory: str | Path,
    meta: BlockMeta,
    frame: Sequence[Buffer],
    room: LocalRoom | None = None,
    durable: bool = False,
    suffix: str = BLOCK_SUFFIX,
) -> Path:
    """Write a copy as :func:`write_local` does, from the bytes that :func:`local_frame` returned.

    ``durable``: sync the file and its name before returning. ``suffix``: the suffix of the file's name.
    """
    path = local_path(directory, meta.stream, meta.id).with_suffix(suffix)
    if room is not None:
        room.take(sum(memoryview(part).nbytes for part in frame))
    temporary = path.with_name(f".{path.name}{TEMPORARY_SUFFIX}")
    try:
        make_private_folder(path.parent)
        try:
            _write_file(temporary, frame, durable)
            temporary.rename(path)
            if durable:
                sync_names(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise OutOfSpaceError(f"{path} can't be written: {error.strerror}") from None
        raise StoreError(f"{path} can't be written: {error.strerror}") from None
    return path


def make_durable(path: Path) -> None:
    """Sync the copy ``path`` and its name. Raises StoreError."""
    try:
        with path.open("rb") as file:
            os.fsync(file.fileno())
        sync_names(path.parent)
    except OSError as error:
        raise StoreError(f"{path} can't be made durable: {error.strerror}") from None


def sync_names(folder: Path) -> None:
    """Make the names of the copies in a stream's ``folder`` durable, with the names of all folders above. Raises OSError."""
    sync_directory(folder)
    sync_directory(folder.parent)
    _sync_above_once(folder.parent)


@functools.cache
def _sync_above_once(directory: Path) -> None:
    """The process that made the block directory, or a folder above it, may have been killed before it synced the name."""
    sync_above(directory)


def _write_file(path: Path, parts: Sequence[Buffer], durable: bool) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb", buffering=0) as file:
        for part in parts:
            rest = memoryview(part).cast("B")
            while rest:
                rest = rest[file.write(rest) :]
        if durable:
            os.fsync(file.fileno())
