"""``wal verify``, against a plain sequential read with checksum of the same files.

Blocks of one megabyte in segments of 64 MB, as a receiver's log writer writes them, with the journal that names them. Ours does
what the command does: it reads the journal, scans all segments on all processors, verifies headers, metadata and payloads, and
compares places and blocks with the journal. Peer: it reads the files one after the other in pieces of 4 MB, with one CRC-32C over
each file.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

import google_crc32c

from benchmarks.journal_opening import STREAM
from benchmarks.measured import Measured, Threshold, alternate, ratio
from benchmarks.setup import Setup
from deploy.commands.wal.verification import verified
from driver.journal import events as ev
from driver.journal.log import opening as journal
from driver.journal.transitions import apply
from forebay.model.identifiers import numbered
from forebay.model.values import Block, BlockMeta, BlockRange, block_id
from wal.blocks import encode_meta
from wal.blocks.digests import completed
from wal.segments.frame import FrameKind
from wal.segments.layout import block_segment
from wal.segments.writer import LogWriter, SegmentIdentity, SegmentLimits
from wal.storage import open_storage

BLOCKS = 1_000
BLOCK_BYTES = 1_000_000
_PIECE_BYTES = 4 << 20


def measure(setup: Setup) -> Iterator[Measured]:
    blocks = max(20, int(BLOCKS * setup.scale))
    with setup.folder() as folder:
        write(folder, blocks)
        pairs = alternate(setup.runs, lambda: _verify(folder, blocks), lambda: _read(folder))
    yield ratio(
        "verify", "against a read with checksum", pairs, "MB/s", Threshold(0.5, at_least=True),
        f"{blocks * BLOCK_BYTES / 1e6:,.0f} MB",
    )  # fmt: skip
    with setup.folder() as folder:
        write(folder, blocks, digests=True)
        pairs = alternate(setup.runs, lambda: _verify(folder, blocks), lambda: _read(folder))
    yield ratio("verify", "the same, with the SHA-256 of each block", pairs, "MB/s")


def write(folder: Path, blocks: int, digests: bool = False) -> None:
    """Write a WAL of ``blocks`` blocks, and its journal.

    ``digests``: with digests, as receivers write them; False: as older releases.
    """
    wal = open_storage(f"file://{folder}/wal")
    uids = itertools.count(1)
    led, state = journal.lead(
        open_storage(f"file://{folder}/journal"), STREAM, "bench", 0, lambda: 0.0, lambda: next(uids), wal=wal
    )
    epoch, token = numbered(1, 1), numbered(1, 1)
    writer = LogWriter(
        wal,
        lambda sequence: block_segment(STREAM, "r1", epoch, sequence),
        identity=SegmentIdentity(STREAM, "r1", epoch, 1),
        limits=SegmentLimits(size_bytes=64_000_000, age_seconds=1e9),
        now=lambda: 0.0,
        new_uid=lambda: next(uids),
    )
    events: list[ev.Event] = [
        ev.StreamCreated((ev.IncarnationStart("records", 0, 0),), 0, "earliest"),
        ev.ReceiverRegistered("r1", "bench", "1", epoch),
        ev.ClaimGiven("records", 0, "r1", epoch, token),
    ]
    for number in range(blocks):
        held = BlockRange("records", 0, 1, number, number + 1, 1, 0, "0" * 16, token)
        meta = BlockMeta(block_id("r1", epoch, number + 1), STREAM, "r1", epoch, number + 1, (held,), 1, 0, "bench")
        payload = os.urandom(BLOCK_BYTES)
        if digests:
            meta, payload = completed(meta, payload, None)
        pending = writer.append(FrameKind.BLOCK, encode_meta(meta), payload)
        writer.sync()
        assert pending.handle is not None
        events.append(ev.BlockAdded(Block(meta, pending.handle, False)))
    writer.close()
    for event in events:
        apply(state, event)
    led.append(events)
    led.sync()
    led.close()


def _verify(folder: Path, blocks: int) -> float:
    begun = time.perf_counter()
    found = verified(open_storage(f"file://{folder}/wal"), STREAM, open_storage(f"file://{folder}/journal"))
    seconds = time.perf_counter() - begun
    assert found.counts == {"whole": blocks}, found.counts
    return found.bytes / 1e6 / seconds


def _read(folder: Path) -> float:
    total = 0
    begun = time.perf_counter()
    for path in sorted(Path(folder, "wal").rglob("*.seg")):
        checksum = 0
        with path.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                checksum = google_crc32c.extend(checksum, piece)
                total += len(piece)
    return total / 1e6 / (time.perf_counter() - begun)
