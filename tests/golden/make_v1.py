"""Made the golden files of format version 1: ``python -m tests.golden.make_v1 DIRECTORY``.

The files under ``v1`` are never edited and never made again; a new version of the format gets a folder and a script
of its own. This script stays so that tests can compare what today's writer makes of the same contents, byte by byte.
It writes to an empty or new directory only.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import msgspec

from forebay.model.identifiers import numbered
from forebay.model.values import BlockMeta, BlockRange, Gap, block_id
from wal.blocks import encode_meta
from wal.segments import layout
from wal.segments.frame import Frame, FrameKind
from wal.segments.scan import scan_segment
from wal.segments.writer import LogWriter, SegmentIdentity, SegmentLimits
from wal.storage import MemoryStorage, Storage

STREAM, RECEIVER, EPOCH, TIMELINE = "flights", "r-1", numbered(1, 7), 1
BLOCKS_PATH = layout.block_segment(STREAM, RECEIVER, EPOCH, 1)
SWAPPED_PATH = layout.block_segment(STREAM, RECEIVER, EPOCH, 2)
JOURNAL_PATH = layout.journal_segment(STREAM, EPOCH, 1)
UID, CREATED_SECONDS = 0x0123456789ABCDEF, 1_700_000_000.25

Content = tuple[FrameKind, bytes, bytes]


def _held(partition: int, start: int, until: int, records: int, gap: Gap | None = None) -> BlockRange:
    return BlockRange(
        topic="flights",
        partition=partition,
        incarnation=1,
        from_offset=start,
        until_offset=until,
        records=records,
        leader_epoch=3,
        digest="00112233445566ff",
        token=numbered(1, 12),
        bytes=200 * records,
        max_timestamp_ms=1_700_000_000_123 if records else -1,
        preceding_gap=gap,
    )


def _meta(sequence: int, *ranges: BlockRange) -> BlockMeta:
    return BlockMeta(
        id=block_id(RECEIVER, EPOCH, sequence),
        stream=STREAM,
        receiver_id=RECEIVER,
        epoch=EPOCH,
        sequence=sequence,
        ranges=ranges,
        records=sum(held.records for held in ranges),
        created_ms=1_700_000_000_200,
        host="host-1",
    )


def block_contents() -> list[Content]:
    """Payloads here are opaque bytes; ``arrow.seg`` has a real one."""
    metas = [
        _meta(1, _held(0, 0, 10, 10), _held(1, 5, 9, 2)),
        _meta(2, _held(0, 10, 12, 0)),
        _meta(3, _held(0, 50, 60, 7, Gap(12, 50, "deleted by retention"))),
        _meta(4, _held(1, 9, 10, 1)),
    ]
    payloads = [b"ten and two records", b"", bytes(range(64)), b"one record\r\n" * 30]
    return [(FrameKind.BLOCK, encode_meta(meta), payload) for meta, payload in zip(metas, payloads, strict=True)]


def journal_contents() -> list[Content]:
    """A snapshot, a group of events and finished batches; what they hold is the driver's (docs/FORMAT.md)."""
    encode = msgspec.msgpack.encode
    return [
        (FrameKind.SNAPSHOT, encode({"next": 2, "epoch": EPOCH}), encode({"stream": STREAM, "lineage": TIMELINE})),
        (
            FrameKind.EVENTS,
            encode({"first": 2, "count": 2, "epoch": EPOCH}),
            encode([{"event": "first", "n": 1}, {"event": "second", "n": 2}]),
        ),
        (FrameKind.HISTORY, b"", encode([{"batch_id": numbered(1, 1), "number": 1}])),
    ]


def write_segment(path: str, contents: list[Content]) -> bytes:
    """Return the bytes that the current writer makes of ``contents``."""
    storage: Storage = MemoryStorage("golden")
    storage.delete(path)
    log = LogWriter(
        storage,
        lambda sequence: path,
        identity=SegmentIdentity(STREAM, RECEIVER if "/blocks/" in path else "driver", EPOCH, TIMELINE),
        limits=SegmentLimits(size_bytes=1 << 30, age_seconds=1e9),
        now=lambda: CREATED_SECONDS,
        new_uid=lambda: UID,
    )
    for kind, metadata, payload in contents:
        log.append(kind, metadata, payload)
    log.sync()
    log.close()
    return storage.read(path)


def frames_of(path: str, data: bytes) -> list[Frame]:
    storage = MemoryStorage("golden")
    storage.replace(path, data)
    return [item for item in scan_segment(storage, path) if isinstance(item, Frame)]


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]


def with_header(data: bytes, offset: int, at: int, value: bytes) -> bytes:
    """A header as a newer release would write it: its checksum matches."""
    header = bytearray(data[offset : offset + 60])
    header[at : at + len(value)] = value
    return data[:offset] + bytes(header) + struct.pack("<I", google_crc32c.value(bytes(header))) + data[offset + 64 :]


def variants(good: bytes) -> Iterator[tuple[str, bytes]]:
    """Every bad file, made from the good one. Frames are counted from 0, the segment's header."""
    frames = frames_of(BLOCKS_PATH, good)
    second, last = frames[2], frames[-1]
    first = frames[1]
    yield "torn-in-header", good[: last.offset + 40]
    yield "torn-in-payload", good[: last.offset + last.header.payload_start + 100]
    yield "torn-zeros", good[: last.offset] + bytes(len(good) - last.offset)
    yield "flipped-segment-header", _flipped(good, 30)
    yield "flipped-header", _flipped(good, second.offset + 17)
    yield "flipped-metadata", _flipped(good, second.offset + 70)
    yield "flipped-payload", _flipped(good, first.offset + first.header.payload_start + 3)
    yield "flipped-last-payload", _flipped(good, last.offset + last.header.payload_start + 3)
    yield "newer-version", with_header(good, second.offset, 8, struct.pack("<H", 2))
    yield "newer-flag", with_header(good, second.offset, 12, struct.pack("<I", 1))


def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise SystemExit(f"{directory} is not empty: golden files are never written over")
    good = write_segment(BLOCKS_PATH, block_contents())
    files = {"good": good, "journal": write_segment(JOURNAL_PATH, journal_contents()), **dict(variants(good))}
    files["arrow"] = write_segment(BLOCKS_PATH, [arrow_content()])
    for name, data in files.items():
        (directory / f"{name}.seg").write_bytes(data)


def arrow_content() -> Content:
    from tests.support.state.rows import ODD_ROWS, block, filler

    meta, payload = block(
        {("flights", 0): ODD_ROWS, ("flights", 1): filler(5, 40)},
        receiver_id=RECEIVER,
        stream=STREAM,
        headers=True,
        compression="lz4",
    )
    return FrameKind.BLOCK, encode_meta(meta), payload.to_pybytes()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
