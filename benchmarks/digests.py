"""The cost of the SHA-256 of a block's payload: in a receiver, which computes it, and in a task, which compares it.

Blocks of 50,000 records of 200 bytes, not compressed: compression would reduce the bytes to be hashed. Receiver: CPU of the
SHA-256, against the CPU of everything that its encoding thread does for a block, including the SHA-256. Task: blocks read from a
WAL in the page cache, with the SHA-256 in the journal against without it, bare and with an aggregate that reads each value.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import msgspec
import pyarrow as pa

from benchmarks.measured import Measured, alternate, ratio
from benchmarks.setup import Setup
from benchmarks.stored_blocks import pending_ranges, store, totals
from receiver.blocks.encoded_block import EncodingOptions, encode
from receiver.blocks.pending_block import PendingBlock
from wal.blocks import local_path, read_local
from wal.reading import BlockReference, ReadPlan, read_block

RECORDS = 1_000_000


def measure(setup: Setup) -> Iterator[Measured]:
    with setup.folder() as folder:
        stored = store(folder, setup.records(RECORDS))
        settings = stored.settings
        copy = read_local(local_path(settings.agent.blocks, settings.stream, stored.blocks[0].id))
        pending = PendingBlock(copy.meta.epoch, 1, tuple(pending_ranges(stored)))
        encoding = EncodingOptions(
            stream=settings.stream, receiver_id="r1", host="h1", headers=False, compression="none"
        )
        payload = b"".join(encode(pending, encoding, 0).payload)
        pairs = alternate(
            setup.runs,
            partial(_cpu, lambda: hashlib.sha256(payload).digest(), len(stored.blocks)),
            partial(_cpu, lambda: encode(pending, encoding, 0), len(stored.blocks)),
        )
        yield ratio("digests", "receiver: CPU of the SHA-256 / of encoding a block with it", pairs, "s")
        plan = ReadPlan(wal_url=settings.wal.url, tiers=("wal",))
        named = [BlockReference.of(block) for block in stored.blocks]
        unnamed = [msgspec.structs.replace(reference, sha256=msgspec.UNSET) for reference in named]
        for what, use in (
            ("task: reading from the WAL", _nothing),
            ("the same, and an aggregate of values", _aggregate),
        ):
            sides = [partial(_rate, references, plan, use, stored.records) for references in (named, unnamed)]
            yield ratio("digests", f"{what}, compared / not", alternate(setup.runs, *sides), "records/s")


def _cpu(run: Callable[[], object], times: int) -> float:
    begun = time.process_time()
    for _ in range(times):
        run()
    return max(time.process_time() - begun, 1e-9)


def _rate(
    references: Sequence[BlockReference],
    plan: ReadPlan,
    use: Callable[[Sequence[pa.RecordBatch]], object],
    records: int,
) -> float:
    begun = time.perf_counter()
    for reference in references:
        use(read_block(reference, plan).batches)
    return records / (time.perf_counter() - begun)


def _nothing(batches: Sequence[pa.RecordBatch]) -> None:
    pass


def _aggregate(batches: Sequence[pa.RecordBatch]) -> object:
    return totals(batches, True)
