"""Damaged copies of blocks in a host's block directory: kept under another name, because each may be the last copy.

A copy ``<block id>.block`` (or ``.copy``) becomes ``<block id>.block.damaged``, then ``.damaged-2`` and so on. Nobody serves
it. It counts against the quota, and the driver's order to delete the block deletes it too: so what bounds these files is what
bounds blocks. The journal names each block's metadata, length and checksum, so a copy of which only the header or the
metadata is damaged can be made whole again.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import pyarrow as pa

from forebay.model.errors import CorruptionError, StoreError
from forebay.model.values import Block
from wal.blocks import (
    BLOCK_SUFFIX,
    COPY_SUFFIX,
    StoredBlock,
    cached_path,
    encode_meta,
    local_frame,
    local_path,
    read_local,
    write_local_frame,
)
from wal.digests import check_digest
from wal.frame import HEADER_LENGTH, aligned

_MARK = ".damaged"
#: of a filesystem without hard links, such as exFAT and some network shares
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS})
_NAME = re.compile(
    rf"(?P<block_id>.+)(?:{re.escape(BLOCK_SUFFIX)}|{re.escape(COPY_SUFFIX)}){re.escape(_MARK)}(?:-\d+)?"
)


def set_aside(path: Path) -> Path:
    """Gives the damaged copy ``path`` another name, and returns it; no file is replaced. A kill leaves the file under one of the
    names, or both. Raises OSError."""
    for target in _names(path):
        try:
            os.link(path, target)
        except FileExistsError:
            if not target.samefile(path):
                continue
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if target.exists():  # nobody else makes such names: a host has one agent
                continue
            os.rename(path, target)
            return target
        os.unlink(path)
        return target
    raise AssertionError("there is always another name")


def block_of(name: str) -> str | None:
    """The id of the block whose damaged copy has this file name; None for every other file."""
    match = _NAME.fullmatch(name)
    return match["block_id"] if match is not None else None


def copies_set_aside(directory: str | Path, stream: str, block_id: str) -> Iterator[Path]:
    """The damaged copies of that block. Raises ValueError as ``wal.blocks.local_path``."""
    for path in (local_path(directory, stream, block_id), cached_path(directory, stream, block_id)):
        for target in _names(path):
            if not target.exists():
                break
            yield target


def read_set_aside(path: Path, block: Block) -> StoredBlock:
    """What the damaged copy holds of ``block``, if its payload is the one that the journal names; else CorruptionError. Raises
    FileNotFoundError, StoreError."""
    try:
        data = pa.py_buffer(path.read_bytes())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from None
    start = HEADER_LENGTH + aligned(len(encode_meta(block.meta)))
    if data.size < block.handle.length or block.handle.length < start:
        raise CorruptionError(str(path), data.size, f"block {block.id} has {block.handle.length} bytes")
    payload = data.slice(start, block.handle.length - start)
    if google_crc32c.value(payload) != block.handle.checksum:
        raise CorruptionError(
            str(path), start, f"the payload is not the one that the journal names for block {block.id}"
        )
    check_digest(block.meta.sha256, payload, str(path))
    return StoredBlock(block.meta, payload, block.handle.checksum)


def put_back(directory: str | Path, path: Path, block: Block) -> Path:
    """Writes the whole copy that the damaged one ``path`` still holds of ``block``, durably, and deletes the damaged one. Returns
    the whole one's path. May be repeated after a kill. Raises CorruptionError as :func:`read_set_aside`, StoreError."""
    stored = read_set_aside(path, block)
    suffix = COPY_SUFFIX if f"{COPY_SUFFIX}{_MARK}" in path.name else BLOCK_SUFFIX
    frame = local_frame(block.meta, stored.payload)
    written = write_local_frame(directory, block.meta, frame, durable=True, suffix=suffix)
    if read_local(written).checksum != block.handle.checksum:
        raise CorruptionError(str(written), 0, "what was written is not what is read")
    drop_set_aside(path)
    return written


def drop_set_aside(path: Path) -> None:
    """Deletes a damaged copy beside which a whole one is. Raises StoreError."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{path} can't be deleted: {error.strerror}") from None


def _names(path: Path) -> Iterator[Path]:
    number = 1
    while True:
        yield path.with_name(f"{path.name}{_MARK}" + (f"-{number}" if number > 1 else ""))
        number += 1
