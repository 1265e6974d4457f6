"""A block as a frame: its metadata as bytes, and a host's local copy of it.

A local copy is the frame of the block once more (uid 0, offset 0, index 0) as a file of its own: it checks itself. It
is not synced: the WAL is the promise, a copy that a power cut tore fails its check and the next tier answers. Without a WAL
the copies are the promise, and are synced.
A copy that the host's agent was given has the same bytes under another name (``COPY_SUFFIX``).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from forebay.model.errors import CorruptionError, OutOfSpaceError, StoreError
from forebay.model.values import BlockMeta, check_name
from forebay.process.secret_file import make_private_folder
from wal.frame import FLAG_ENCRYPTED, UNDECODABLE, Frame, FrameKind, aligned, decode_frame, encode_frame

BLOCK_SUFFIX = ".block"
#: of a copy that somebody gave to the host's agent: no receiver of this host wrote it
COPY_SUFFIX = ".copy"
TEMPORARY_SUFFIX = ".tmp"

#: a copy is given up rather than leave less than this part of the filesystem free: the WAL may share it
FREE_SHARE_MIN = 0.05
#: copies after which a writer counts the directory anew, since others write and delete there too
COPIES_PER_COUNT = 64

_BLOCK_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}-[0-9a-f]{1,16}-[0-9]{1,20}")
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(BlockMeta)


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A block as a tier holds it: its frame has passed its checks. ``payload`` lies in memory mapped from the tier, and is sealed
    where ``meta.key_id`` names a key."""

    meta: BlockMeta
    payload: Any
    checksum: int


def encode_meta(meta: BlockMeta) -> bytes:
    """The metadata of a BLOCK frame: a msgpack map (docs/FORMAT.md)."""
    return _encoder.encode(meta)


def decode_meta(data: Any, path: str, offset: int) -> BlockMeta:
    """The metadata of the BLOCK frame at ``offset`` of ``path``. Fields this release does not know are ignored.

    Raises CorruptionError for anything that is not a block's metadata.
    """
    try:
        return _decoder.decode(data)
    except (*UNDECODABLE, ValueError) as error:
        raise CorruptionError(path, offset, f"not the metadata of a block: {error}") from None


def block_of_frame(frame: Frame, path: str) -> StoredBlock:
    """The block in ``frame``, which was read from ``path``; its payload may be sealed (``wal.encryption``).

    Raises CorruptionError if it is a frame of another kind, or if its flag and its metadata contradict each other.
    """
    if frame.header.kind != FrameKind.BLOCK:
        raise CorruptionError(path, frame.offset, f"expected a block, found a frame of kind {frame.header.kind}")
    meta = decode_meta(frame.metadata, path, frame.offset)
    if bool(frame.header.flags & FLAG_ENCRYPTED) != (meta.key_id is not None):
        raise CorruptionError(
            path, frame.offset, f"block {meta.id}: flag and metadata differ on whether it is encrypted"
        )
    return StoredBlock(meta, frame.payload, frame.header.payload_checksum)


# ---- local copies ----------------------------------------------------------------------------------------------------


def local_path(directory: str | Path, stream: str, block_id: str) -> Path:
    """Where a host keeps its copy of a block. Raises ValueError for names that no stream or block can have.

    Both come from outside (HTTP, commands), and neither can lead out of ``directory``.
    """
    check_name("stream", stream)
    if not _BLOCK_ID.fullmatch(block_id):
        raise ValueError(f"block {block_id!r}: a block is named <receiver>-<epoch, hexadecimal>-<sequence>")
    return Path(directory, stream, block_id + BLOCK_SUFFIX)


def cached_path(directory: str | Path, stream: str, block_id: str) -> Path:
    """Where a host keeps the copy of a block that its agent was given. Raises ValueError as :func:`local_path`."""
    return local_path(directory, stream, block_id).with_suffix(COPY_SUFFIX)


def has_room(size_bytes: int, used_bytes: int, quota_bytes: int, free_bytes: int, total_bytes: int) -> bool:
    """Whether a copy of ``size_bytes`` may be made in a directory that holds ``used_bytes`` of its quota, on a
    filesystem of ``total_bytes`` with ``free_bytes`` left."""
    return used_bytes + size_bytes <= quota_bytes and free_bytes - size_bytes >= total_bytes * FREE_SHARE_MIN


class LocalRoom:
    """One writer's view of how full its host's block directory is: a running total, counted anew now and then.

    Other receivers and the agent change the directory too, so the quota may be passed by what they write between two
    counts; the filesystem's own free space is asked each time.
    """

    def __init__(self, directory: str | Path, quota_bytes: int) -> None:
        self._directory = Path(directory)
        self._quota_bytes = quota_bytes
        self._used_bytes = 0
        self._copies_to_count = 0

    def count_anew(self) -> None:
        """The next :meth:`take` counts: for who waits until there is room."""
        self._copies_to_count = 0

    def take(self, size_bytes: int) -> None:
        """Reserves ``size_bytes``. Raises OutOfSpaceError if there is no room for them."""
        if self._copies_to_count == 0:
            self._used_bytes = used_bytes(self._directory)
            self._copies_to_count = COPIES_PER_COUNT
        self._copies_to_count -= 1
        try:
            system = os.statvfs(self._directory)
        except FileNotFoundError:
            make_private_folder(self._directory)
            system = os.statvfs(self._directory)
        free, total = system.f_bavail * system.f_frsize, system.f_blocks * system.f_frsize
        if not has_room(size_bytes, self._used_bytes, self._quota_bytes, free, total):
            raise OutOfSpaceError(
                f"no room for a copy of {size_bytes} bytes in {self._directory}: "
                f"{self._used_bytes} of {self._quota_bytes} bytes used, {free} free on its filesystem"
            )
        self._used_bytes += size_bytes


def local_files(directory: str | Path) -> Iterator[os.DirEntry[str]]:
    """Every file that lies where copies lie, whole or temporary; nothing if the directory is not there."""
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as streams:
        for stream in streams:
            if stream.is_dir(follow_symlinks=False):
                with contextlib.suppress(FileNotFoundError), os.scandir(stream.path) as files:
                    yield from (file for file in files if file.is_file(follow_symlinks=False))


def used_bytes(directory: str | Path) -> int:
    """Bytes of all files where copies lie."""
    total = 0
    for file in local_files(directory):
        with contextlib.suppress(FileNotFoundError):  # deleted since it was listed
            total += file.stat(follow_symlinks=False).st_size
    return total


def local_frame(meta: BlockMeta, payload: Any) -> list[Any]:
    """The bytes of a copy, as buffers. ``payload``: one bytes-like object or a sequence of them."""
    return list(encode_frame(FrameKind.BLOCK, uid=0, offset=0, index=0, metadata=encode_meta(meta), payload=payload))


def write_local(directory: str | Path, meta: BlockMeta, payload: Any, room: LocalRoom | None = None) -> Path:
    """Writes a host's own copy of a block: to a temporary name, renamed when whole. Not synced. Can be repeated.

    ``payload``: one bytes-like object or a sequence of them. Raises OutOfSpaceError (by ``room`` or the filesystem) or
    StoreError, and leaves no temporary file behind.
    """
    return write_local_frame(directory, meta, local_frame(meta, payload), room)


def write_local_frame(
    directory: str | Path,
    meta: BlockMeta,
    frame: Sequence[Any],
    room: LocalRoom | None = None,
    durable: bool = False,
    suffix: str = BLOCK_SUFFIX,
) -> Path:
    """As :func:`write_local`, of the bytes that :func:`local_frame` gave. ``durable``: file and name are synced on return.
    ``suffix``: of the file's name."""
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
                sync_directory(path.parent)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        if error.errno in _NO_SPACE:
            raise OutOfSpaceError(f"{path}: {error.strerror}") from None
        raise StoreError(f"{path}: {error.strerror}") from None
    return path


def sync_directory(path: Path) -> None:
    """The names in it, and its own, are durable on return. Raises OSError."""
    for folder in (path, path.parent):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _write_file(path: Path, parts: Sequence[Any], durable: bool) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb", buffering=0) as file:
        for part in parts:
            rest = memoryview(part).cast("B")
            while rest:
                rest = rest[file.write(rest) :]
        if durable:
            os.fsync(file.fileno())


def read_local(path: str | Path) -> StoredBlock:
    """A local copy, mapped into memory and verified. Raises FileNotFoundError, CorruptionError, NewerVersionError."""
    try:
        with pa.memory_map(str(path)) as file:
            data = file.read_buffer()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(f"{path}: {error}") from None
    return read_stored(data, str(path))


def read_stored(data: Any, path: str) -> StoredBlock:
    """A local copy whose bytes are ``data``, verified. Raises CorruptionError or NewerVersionError."""
    frame = decode_frame(data, path, 0, uid=0, expected_offset=0)
    if aligned(frame.length) != len(data):
        raise CorruptionError(path, frame.length, f"the block's file has {len(data)} bytes")
    return block_of_frame(frame, path)
