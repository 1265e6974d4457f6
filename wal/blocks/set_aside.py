"""Damaged copies of blocks in a host's block directory: kept under another name, because each may be the last copy.

A copy ``<block id>.block`` (or ``.copy``) becomes ``<block id>.block.damaged``, the next one ``.damaged-2`` and so on. The
agent does not serve it. It counts against the quota, and the driver's order to delete the block deletes it too, so these files
have the same bounds as blocks. The journal has each block's metadata, length and checksum. So a copy with an intact payload can
be restored even if its header or metadata is damaged.
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
from wal.blocks.digests import check_digest
from wal.blocks.local_copies import BLOCK_SUFFIX, COPY_SUFFIX, cached_path, local_path, read_local
from wal.blocks.local_writing import local_frame, write_local_frame
from wal.blocks.stored import StoredBlock, encode_meta
from wal.segments.frame import HEADER_LENGTH, aligned

_MARK = ".damaged"
#: errors of filesystems without hard links, such as exFAT and some network shares
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS})
_NAME = re.compile(
    rf"(?P<block_id>.+)(?:{re.escape(BLOCK_SUFFIX)}|{re.escape(COPY_SUFFIX)}){re.escape(_MARK)}(?:-\d+)?"
)


def set_aside(path: Path) -> Path:
    """Rename the damaged copy ``path`` and return its new path; never replace a file.

    A kill leaves the file under one of the two names, or under both. Raises OSError.
    """
    for target in _names(path):
        try:
            os.link(path, target)
        except FileExistsError:
            if not target.samefile(path):
                continue
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if target.exists():  # only the agent makes such names, and a host has one agent
                continue
            os.rename(path, target)
            return target
        os.unlink(path)
        return target
    raise AssertionError("there is always another name")


def block_of(name: str) -> str | None:
    """Return the id of the block whose damaged copy has this file name; None for any other file."""
    match = _NAME.fullmatch(name)
    return match["block_id"] if match is not None else None


def copies_set_aside(directory: str | Path, stream: str, block_id: str) -> Iterator[Path]:
    """Yield the paths of the block's damaged copies. Raises ValueError as ``wal.blocks.local_path``."""
    for path in (local_path(directory, stream, block_id), cached_path(directory, stream, block_id)):
        for target in _names(path):
            if not target.exists():
                break
            yield target


def read_set_aside(path: Path, block: Block) -> StoredBlock:
    """Return ``block`` from the damaged copy ``path``, if its payload is the one that the journal names.

    Raises CorruptionError if it is not; FileNotFoundError, StoreError.
    """
    try:
        data = pa.py_buffer(path.read_bytes())
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(f"{path} can't be read: {error.strerror}") from None
    start = HEADER_LENGTH + aligned(len(encode_meta(block.meta)))
    if data.size < block.handle.length or block.handle.length < start:
        raise CorruptionError(
            str(path), data.size, f"the file ends here, but block {block.id} has {block.handle.length} bytes"
        )
    payload = data.slice(start, block.handle.length - start)
    if google_crc32c.value(payload) != block.handle.checksum:
        raise CorruptionError(
            str(path), start, f"the payload is not the one that the journal names for block {block.id}"
        )
    check_digest(block.meta.sha256, payload, str(path))
    return StoredBlock(block.meta, payload, block.handle.checksum)


def put_back(directory: str | Path, path: Path, block: Block) -> Path:
    """Restore ``block`` from the damaged copy ``path``: write a whole copy, durably, then delete the damaged one.

    Return the whole copy's path. May be repeated after a kill. Raises CorruptionError as :func:`read_set_aside`, StoreError.
    """
    stored = read_set_aside(path, block)
    suffix = COPY_SUFFIX if f"{COPY_SUFFIX}{_MARK}" in path.name else BLOCK_SUFFIX
    frame = local_frame(block.meta, stored.payload)
    written = write_local_frame(directory, block.meta, frame, durable=True, suffix=suffix)
    if read_local(written).checksum != block.handle.checksum:
        raise CorruptionError(str(written), 0, "the bytes read back are not the bytes written; check this host's disk")
    drop_set_aside(path)
    return written


def drop_set_aside(path: Path) -> None:
    """Delete a damaged copy of a block that has a whole copy. Raises StoreError."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{path} can't be deleted: {error.strerror}") from None


def _names(path: Path) -> Iterator[Path]:
    number = 1
    while True:
        yield path.with_name(f"{path.name}{_MARK}" + (f"-{number}" if number > 1 else ""))
        number += 1
