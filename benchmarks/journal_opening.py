"""Opening a journal with 100,000 waiting blocks read-only, against a plain sequential read and parse of the same files.

The journal is written as a driver writes it, with snapshots: blocks of one receiver, four ranges each, one event per frame (the
smallest possible group commit). Ours is ``driver.journal.log.reading.read``: it verifies all checksums, checks the places of
frames and the numbers of events, and applies the events to the state. Peer: it reads the same files whole, cuts frames by the
lengths in their headers, and decodes payloads by msgspec into the same types, without a check or a state. Both run in their own
process, with Python's default garbage collection.
"""

from __future__ import annotations

import itertools
import json
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from benchmarks.measured import Measured, Threshold, alternate, ratio
from benchmarks.setup import PARTITIONS, Setup
from driver.journal import events as ev
from driver.journal.log import opening
from driver.journal.log import reading as journal
from driver.journal.state import State
from driver.journal.transitions import apply
from forebay.model.identifiers import numbered
from forebay.model.values import Block, BlockMeta, BlockRange, Handle, block_id
from wal.storage import open_storage

BLOCKS = 100_000
STREAM = "bench"
EPOCH = TOKEN = numbered(1, 1)
_HEADER = struct.Struct("<8sHBBIQQIIQ")  # docs/FORMAT.md: up to the payload's length
_EVENTS, _SNAPSHOT = 3, 4


def measure(setup: Setup) -> Iterator[Measured]:
    blocks = setup.records(BLOCKS)
    with setup.folder() as folder:
        write(folder, blocks)
        pairs = alternate(setup.runs, lambda: _timed("read", folder, blocks), lambda: _timed("parse", folder, blocks))
    yield ratio("journal", "time to open", pairs, "s", Threshold(2.0, at_least=False), f"{blocks:,} waiting blocks")


def write(folder: Path, blocks: int) -> None:
    """Write a journal of one stream in which ``blocks`` blocks wait."""
    uids = itertools.count(1)
    opened, state = opening.lead(open_storage(f"file://{folder}"), STREAM, "bench", 0, lambda: 0.0, lambda: next(uids))
    added = (ev.BlockAdded(waiting_block(number)) for number in range(blocks))
    for event in itertools.chain(first_events(), added):
        apply(state, event)
        opened.append([event])
        if opened.snapshot_due():
            opened.sync()
            opened.snapshot()
            opened.drop_superseded()
            opened.await_deletion()
    opened.sync()
    opened.close()


def first_events() -> list[ev.Event]:
    """Return the events by which one receiver owns all partitions."""
    starts = tuple(ev.IncarnationStart("records", number, 0) for number in range(PARTITIONS))
    return [
        ev.StreamCreated(starts, 0, "earliest"),
        ev.ReceiverRegistered("r1", "bench", "1", EPOCH),
        *(ev.ClaimGiven("records", number, "r1", EPOCH, TOKEN + number) for number in range(PARTITIONS)),
    ]


def waiting_block(number: int) -> Block:
    epoch, token = EPOCH, TOKEN
    first = number * 1_000
    ranges = tuple(
        BlockRange(
            "records",
            partition,
            1,
            first,
            first + 1_000,
            1_000,
            0,
            f"{number:016x}",
            token + partition,
            200_000,
            number,
        )
        for partition in range(PARTITIONS)
    )
    meta = BlockMeta(
        id=block_id("r1", epoch, number + 1), stream=STREAM, receiver_id="r1", epoch=epoch, sequence=number + 1,
        ranges=ranges, records=4_000, created_ms=number, host="bench",
    )  # fmt: skip
    path = f"{STREAM}/blocks/r1/{epoch:016x}/{number // 150 + 1:08}.seg"
    return Block(meta, Handle(path, number % 150 * 850_000, 840_000, number), True)


# ---- in a process of their own --------------------------------------------------------------------------------------


def _timed(how: str, folder: Path, blocks: int) -> float:
    command = [sys.executable, "-m", "benchmarks.journal_opening", how, str(folder)]
    seconds, found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=600).stdout)
    assert found == blocks, f"{how} found {found} of {blocks} blocks"
    return float(seconds)


def read(folder: str) -> int:
    found = journal.read(open_storage(f"file://{folder}"), STREAM)
    assert found.state is not None
    return len(found.state.waiting)


def parse(folder: str) -> int:
    """Return the number of blocks in the segments from the newest snapshot on."""
    events = msgspec.msgpack.Decoder(tuple[ev.Event, ...])
    snapshots = msgspec.msgpack.Decoder(State)
    blocks = 0
    kept: list[object] = []
    for path in sorted(Path(folder, STREAM).glob("epoch-*/*.seg")):
        data = path.read_bytes()
        offset = 0
        while offset < len(data):
            _, _, kind, _, _, _, _, _, metadata, length = _HEADER.unpack_from(data, offset)
            begin = offset + 64 + -(-metadata // 64) * 64
            payload = memoryview(data)[begin : begin + length]
            if kind == _SNAPSHOT:
                state = snapshots.decode(payload)
                kept = [state]
                blocks = len(state.blocks)
            elif kind == _EVENTS:
                decoded = events.decode(payload)
                kept.append(decoded)
                blocks += sum(isinstance(event, ev.BlockAdded) for event in decoded)
            offset = begin + -(-length // 64) * 64
    return blocks


if __name__ == "__main__":
    function = {"read": read, "parse": parse}[sys.argv[1]]
    begun = time.monotonic()
    counted = function(sys.argv[2])
    print(json.dumps([time.monotonic() - begun, counted]))
