"""Readers of frames: blocks, segments, journal, history and snapshot copies."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec

from deploy.commands.recovery.journal import _kinds
from driver.journal import events as ev
from driver.journal import history
from driver.journal.files import claim_path
from driver.journal.log import reading as journal
from driver.journal.state import State
from driver.journal.statistics import BatchStatistics
from forebay.model.block_runs.decoding import decode_run, open_block
from forebay.model.errors import CorruptionError, ForebayError, MissingKeyError, NewerVersionError
from forebay.model.identifiers import numbered
from forebay.model.payload import decode_block
from forebay.model.values import Block, BlockMeta, Handle
from tests.fuzz.reader import Reader, new_store, store_of
from tests.support.state.rows import ODD_ROWS, block, filler
from wal.blocks import block_of_frame, decode_meta, encode_meta, read_stored
from wal.blocks.encryption import KeyRing, plain_payload
from wal.segments import layout
from wal.segments.encoding import encode_frame
from wal.segments.frame import Frame, FrameKind, decode_frame
from wal.segments.scan import Damage, Newer, TornTail, read_frame, scan_segment, segment_header
from wal.segments.writer import LogWriter, SegmentIdentity, SegmentLimits
from wal.storage import MemoryStorage

KEYS = KeyRing({"k": b"k" * 32})
EPOCH = numbered(1, 1)
BLOCKS = layout.block_segment("s", "r1", EPOCH, 1)
JOURNAL = layout.journal_segment("s", EPOCH, 1)
HISTORY = layout.history_segment("s", EPOCH, 1)
COPY = layout.snapshot_copy("s", EPOCH, 1)


def _segment(path: str, contents: Iterable[tuple[FrameKind, bytes, Any]]) -> bytes:
    storage = new_store()
    log = LogWriter(
        storage, lambda _: path, identity=SegmentIdentity("s", "r1", EPOCH, 1),
        limits=SegmentLimits(size_bytes=1 << 30, age_seconds=1e9),
        now=lambda: 0.0, new_uid=lambda: 77,
    )  # fmt: skip
    for kind, metadata, payload in contents:
        log.append(kind, metadata, payload)
    log.sync()
    log.close()
    return storage.read(path)


def _block_frames() -> list[tuple[Any, Any]]:
    made = [
        block({("a", 0): ODD_ROWS, ("b", 1): filler(40)}, headers=True, sequence=1),
        block({("a", 0): filler(60)}, sequence=2, compression="lz4"),
        block({("a", 0): filler(60), ("a", 1): []}, sequence=3, compression="zstd"),
    ]
    return [*made, KEYS.seal(*block({("a", 0): filler(30)}, sequence=4))]


def _one_frame(kind: FrameKind, metadata: bytes, payload: Any) -> bytes:
    return b"".join(encode_frame(kind, uid=0, offset=0, index=0, metadata=metadata, payload=payload))


def _read_frame(data: bytes) -> None:
    stored = block_of_frame(decode_frame(data, "p", 0), "p")
    decode_block(plain_payload(stored.meta, stored.payload, KEYS, "p"), stored.meta, verify_digests=True)


def _read_copy(data: bytes) -> None:
    stored = read_stored(data, "p")
    decode_block(plain_payload(stored.meta, stored.payload, KEYS, "p"), stored.meta)


def _scan(data: bytes) -> None:
    """A scan raises nothing: it yields everything in order, and each of its frames can be read by a handle."""
    storage = store_of(BLOCKS, data)
    for payloads in (True, False):
        reached = 0
        for item in scan_segment(storage, BLOCKS, payloads=payloads):
            assert reached <= item.offset < max(len(data), 1)
            reached = item.offset + 1
            if isinstance(item, (Damage, Newer)):
                assert item.offset < item.until <= len(data)
            elif isinstance(item, TornTail):
                assert item.offset + item.length == len(data)
            elif isinstance(item, Frame):
                segment_header(item)
                if payloads:
                    handle = Handle(BLOCKS, item.offset, item.length, item.header.payload_checksum)
                    assert read_frame(storage, handle).metadata == item.metadata


def _journal(state: State, *groups: list[ev.Event]) -> bytes:
    encode = msgspec.msgpack.encode
    contents: list[tuple[FrameKind, bytes, Any]] = [
        (FrameKind.SNAPSHOT, encode({"next": state.events, "epoch": EPOCH}), encode(state))
    ]
    first = state.events
    for group in groups:
        contents.append(
            (FrameKind.EVENTS, encode({"first": first, "count": len(group), "epoch": EPOCH}), encode(group))
        )
        first += len(group)
    return _segment(JOURNAL, contents)


COUNTED = BatchStatistics(
    records=5, bytes=50, scheduling_delay_ms=1, processing_ms=2, total_delay_ms=4, end_to_end_ms=9, tiers={"local": 1},
    error="ValueError: x",
)  # fmt: skip


def _journal_bytes() -> bytes:
    meta = block({("a", 0): filler(5)})[0]
    held = msgspec.structs.replace(meta.ranges[0], token=numbered(1, 1))
    meta = msgspec.structs.replace(meta, ranges=(held,))
    added = Block(meta, Handle(BLOCKS, 64, 640, 7), True)
    start = ev.IncarnationStart("a", 0, 0, "an-id")
    return _journal(
        State(stream="s", timeline=1),
        [ev.StreamCreated((start,), 1, "earliest")],
        [ev.ReceiverRegistered("r1", "h1", "i1", EPOCH), ev.ClaimGiven("a", 0, "r1", EPOCH, numbered(1, 1))],
        [ev.BlockAdded(added), ev.BatchAllocated(numbered(1, 1), 1, 5, ((meta.id,),))],
        [ev.BatchCompleted(numbered(1, 1), 6, 1, COUNTED), ev.CleanupIntended(1, "h1", (meta.id,)), ev.CleanupDone(1)],
        [ev.BatchesArchived((numbered(1, 1),)), ev.CursorOpened("c", numbered(1, 2), "u", {"a/0": (1, 0)}, 7)],
        [ev.CursorMoved("c", {"a/0": (1, 5)}, 8), ev.CursorEnded("c", 9, "dropped by a person")],
    )


def _read_journal(data: bytes) -> None:
    storage = store_of(JOURNAL, data)
    storage.replace(claim_path("s", EPOCH), b"{}")
    journal.read(storage, "s")


def _history_bytes() -> bytes:
    ranges = (history.FinishedRange("a", 0, 1, 0, 5, 5, 50),)
    finished = [
        history.FinishedBatch(numbered(1, n), n, 1, 2, 1, 5, ranges, (("r1-1-1",),), statistics=COUNTED) for n in (1, 2)
    ]
    return _segment(
        HISTORY,
        [
            (FrameKind.HISTORY, b"", msgspec.msgpack.encode(finished[:1])),
            (FrameKind.HISTORY, b"", msgspec.msgpack.encode(finished)),
        ],
    )


def _payloads() -> dict[bytes, Any]:
    return {payload.to_pybytes(): meta for meta, payload in _block_frames() if meta.key_id is None}


def _together(payload: bytes, meta: BlockMeta) -> Callable[[bytes], None]:
    """Return the reading of a block that is decoded together with the block before it."""

    def read(data: bytes) -> None:
        before = open_block(payload, meta)
        decode_run([before, open_block(data, meta, before)], verify_digests=True)

    return read


def stored_readers() -> dict[str, Reader]:
    """Return the readers of what receivers, drivers and agents store."""
    frames = _block_frames()
    encoded = tuple(_one_frame(FrameKind.BLOCK, encode_meta(meta), payload) for meta, payload in frames)
    segment = _segment(BLOCKS, [(FrameKind.BLOCK, encode_meta(meta), payload) for meta, payload in frames])
    metadata = tuple(encode_meta(meta) for meta, _ in frames)
    encrypted_meta, encrypted = frames[-1]
    journal_bytes = _journal_bytes()
    state = msgspec.msgpack.encode(journal.read(_with_claim(journal_bytes), "s").state)
    copy = _segment(COPY, [(FrameKind.SNAPSHOT, msgspec.msgpack.encode({"next": 3, "epoch": EPOCH}), state)])
    damaged = (CorruptionError, NewerVersionError)
    of_a_block = (*damaged, MissingKeyError)
    return {
        "frame": Reader(honest=encoded, read=_read_frame, allowed=of_a_block, framed=True),
        "local copy": Reader(honest=encoded, read=_read_copy, allowed=of_a_block, framed=True),
        "segment": Reader(honest=(segment,), read=_scan, allowed=(), framed=True),
        "metadata": Reader(
            honest=metadata, read=lambda data: decode_meta(data, "p", 0), allowed=(CorruptionError,)
        ),
        "sealed": Reader(
            honest=(encrypted.to_pybytes(),), read=lambda data: KEYS.open(encrypted_meta, data, "p"),
            allowed=(CorruptionError,),
        ),
        # an event of a newer release has no class
        "journal": Reader(honest=(journal_bytes,), read=_read_journal, allowed=(ForebayError,), framed=True),
        "history": Reader(
            honest=(_history_bytes(),), read=lambda data: list(history.read(store_of(HISTORY, data), "s")),
            allowed=damaged, framed=True,
        ),
        "snapshot copy": Reader(
            honest=(copy,), read=lambda data: journal.snapshot_in(store_of(COPY, data), COPY), allowed=damaged, framed=True
        ),
        **{
            f"payload-{number}": Reader(
                honest=(payload,), read=partial(decode_block, meta=meta, verify_digests=True), allowed=(CorruptionError,)
            )
            for number, (payload, meta) in enumerate(_payloads().items())
        },
        **{
            f"payload-{number} after another one": Reader(honest=(payload,), read=_together(payload, meta), allowed=(ValueError,))
            for number, (payload, meta) in enumerate(_payloads().items())
        },
        "kinds of a journal's events": Reader(
            honest=(msgspec.msgpack.encode([{"event": "stream-created", "cause": "earliest"}]),), read=_kinds, allowed=()
        ),
    }  # fmt: skip


def _with_claim(data: bytes) -> MemoryStorage:
    storage = store_of(JOURNAL, data)
    storage.replace(claim_path("s", EPOCH), b"{}")
    return storage
