"""Logs in memory, and what a reader finds in them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from tests.support.stores.forgetful import ForgetfulStorage
from wal.segments.frame import Frame, FrameKind
from wal.segments.scan import Scanned, read_frame, scan_segment
from wal.segments.writer import LogWriter, Pending, SegmentIdentity, SegmentLimits
from wal.storage import MemoryStorage, Storage
from wal.storage.local import LocalStorage

_names = itertools.count()


def name(sequence: int) -> str:
    return f"s/blocks/r/{7:016x}/{sequence:08d}.seg"


def memory() -> MemoryStorage:
    return MemoryStorage(f"segments-{next(_names)}")


def writer(
    storage: Storage,
    *,
    size_bytes: int = 1 << 30,
    age_seconds: float = 1e9,
    now: Callable[[], float] = lambda: 1000.0,
    rewrite: bool = True,
    failpoints: bool = False,
    first_uid: int = 0xA000000000000001,
) -> LogWriter:
    return LogWriter(
        storage,
        name,
        identity=SegmentIdentity(stream="s", writer="r", epoch=7, timeline=1),
        limits=SegmentLimits(size_bytes=size_bytes, age_seconds=age_seconds),
        now=now,
        new_uid=itertools.count(first_uid).__next__,
        rewrite=rewrite,
        failpoints=failpoints,
    )


def segment(storage: Storage, contents: Sequence[tuple[bytes, bytes]]) -> str:
    """One segment that holds a block frame per (metadata, payload); its path."""
    log = writer(storage)
    for metadata, payload in contents:
        log.append(FrameKind.BLOCK, metadata, payload)
    log.sync()
    path = log.current_path
    assert path is not None
    log.close()
    return path


def contents(found: Sequence[Scanned]) -> list[tuple[bytes, bytes]]:
    """(metadata, payload) of every block frame found, in order."""
    return [
        (item.metadata, item.payload.to_pybytes())
        for item in found
        if isinstance(item, Frame) and item.header.kind == FrameKind.BLOCK
    ]


def durable(storage: Storage) -> list[tuple[bytes, bytes]]:
    """What a reader finds in all segments, in order of their sequence."""
    return [pair for path in storage.list("s") for pair in contents(list(scan_segment(storage, path)))]


def add(log: LogWriter, label: str, size: int = 20) -> Pending:
    pending = log.append(FrameKind.BLOCK, label.encode(), [label.encode(), bytes(size)])
    pending.tag = label
    return pending


def served(storage: ForgetfulStorage | LocalStorage, pending: Pending) -> bytes:
    assert pending.handle is not None
    frame = read_frame(storage, pending.handle)
    assert frame.payload.to_pybytes().rstrip(b"\0") == frame.metadata
    return frame.metadata
