"""Where blocks are kept beside the WAL: local copies in memory against on disk, and a replica against none.

Local copies: a folder in ``/dev/shm`` against one on the disk of the WAL, whose files the kernel keeps in its page cache. A task
reads all blocks and each value of them. The receiver's store writes blocks of 50,000 records of 200 bytes to the WAL and to the
folder, as one receiver does without a limit; the copies of all but the last 32 blocks are deleted meanwhile, as after a batch.

Replica: a task reads the blocks of a lost host from the agent of the host with the replicas, against the WAL on S3 behind a link
of 20 ms. These blocks have 5,000 records, as those of a receiver of 25,000 records/s. The receiver's store writes large blocks
with a replica against without. The agent runs on this machine, so it uses the receiver's cores.
"""

from __future__ import annotations

import os
import queue
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from benchmarks.block_serving import running_agent
from benchmarks.measured import Measured, alternate, ratio
from benchmarks.object_wal import LATENCY_SECONDS, slow_link
from benchmarks.setup import Setup
from benchmarks.stored_blocks import STREAM, StoredBlocks, pending_ranges, store, totals
from forebay.http.connections import connections
from forebay.messages import ReplicaHost
from forebay.model.values import BlockMeta
from forebay.process.clock import SystemClock
from forebay.security.access import NO_ACCESS
from receiver.blocks.encoded_block import EncodingOptions
from receiver.blocks.pending_block import PendingBlock, PendingRange
from receiver.inputs import BlockStored, Input
from receiver.stores.optional_replicas import REPLICA_SECONDS_MAX, OptionalReplicas
from receiver.stores.replication import AgentReplicaSender
from receiver.stores.store import StoreOptions
from receiver.stores.wal_store import WalStore
from tests.support.stores.s3 import BUCKET, ENVIRONMENT, s3_server
from wal.blocks import local_path, read_local
from wal.blocks.sending import give_copy
from wal.reading import BlockReference, ReadPlan, read_blocks
from wal.segments.writer import SegmentLimits
from wal.storage import open_storage, past_cache

RECORDS = 2_000_000
#: of the blocks of a lost host, and in each of them
LOST_RECORDS, LOST_BLOCK_RECORDS = 500_000, 5_000
#: blocks that the receiver's store writes in a run, and copies that are kept meanwhile
WRITTEN, KEPT = 100, 32
_HOST = "h1"
_MEMORY = Path("/dev/shm")  # noqa: S108  the memory of this machine, which the benchmark measures


def measure(setup: Setup) -> Iterator[Measured]:
    with setup.folder() as folder, _memory() as memory:
        stored = store(folder, setup.records(RECORDS))
        yield from _local_copies(setup, stored, folder, memory)
        blocks = pending_ranges(stored)
    with setup.folder() as folder:
        yield from _replicas(setup, blocks, folder)


@contextmanager
def _memory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="forebay-bench-", dir=_MEMORY))
    try:
        yield path
    finally:
        shutil.rmtree(path)


# ---- local copies in memory ------------------------------------------------------------------------------------------


def _local_copies(setup: Setup, stored: StoredBlocks, folder: Path, memory: Path) -> Iterator[Measured]:
    on_disk = Path(stored.settings.agent.blocks)
    in_memory = memory / "read"
    shutil.copytree(on_disk, in_memory)
    references = [BlockReference.of(block) for block in stored.blocks]
    sides = [
        partial(_read, references, ReadPlan(wal_url="", blocks_directory=str(place), tiers=("local",)), stored.records)
        for place in (in_memory, on_disk)
    ]
    pairs = alternate(setup.runs, *sides)
    yield ratio("levels", "a task reads local copies in memory / on disk", pairs, "records/s")
    shutil.rmtree(in_memory)
    blocks = pending_ranges(stored)
    count = max(4, int(WRITTEN * setup.scale))
    writes = alternate(
        setup.runs,
        lambda: _write(folder / "w", blocks, count, copies=memory / "copies"),
        lambda: _write(folder / "w", blocks, count, copies=folder / "copies"),
    )
    yield ratio("levels", "a receiver stores blocks, local copies in memory / on disk", writes, "MB/s")


def _read(references: Sequence[BlockReference], plan: ReadPlan, records: int) -> float:
    """Return the records per second of one task that reads each value."""
    began = time.perf_counter()
    for read in read_blocks(references, plan):
        assert set(read.counts.ranges) == set(plan.tiers), read.counts
        totals(read.batches, True)
    return records / (time.perf_counter() - began)


def _write(
    wal: Path, ranges: Sequence[PendingRange], count: int, copies: Path, replica: ReplicaHost | None = None
) -> float:
    """Return the megabytes per second that a receiver's store makes durable."""
    inputs: queue.SimpleQueue[Input] = queue.SimpleQueue()
    clock = SystemClock()
    sender = AgentReplicaSender(REPLICA_SECONDS_MAX, NO_ACCESS, durable=False)
    made = WalStore(
        EncodingOptions(stream=STREAM, receiver_id="r1", host=_HOST, headers=False, compression="none"),
        StoreOptions(timeout_seconds=30.0, gather_bytes=32_000_000),
        clock=clock,
        tell=inputs.put,
        storage=past_cache(open_storage(f"file://{wal}")),
        limits=SegmentLimits(size_bytes=128_000_000, age_seconds=3600.0),
        check_timeline=False,
        local_directory=copies,
        local_quota_bytes=1 << 40,
        replicas=OptionalReplicas(sender, clock) if replica is not None else None,
    )
    made.open_epoch(1)
    kept: deque[BlockMeta] = deque()
    size = 0
    try:
        with made:
            if replica is not None:
                made.replicate_to(replica)
            began = time.perf_counter()
            for sequence in range(1, count + 1):
                made.put(PendingBlock(1, sequence, tuple(ranges)))
            for _ in range(count):
                event = inputs.get(timeout=60)
                assert isinstance(event, BlockStored) and event.block.local, event
                assert replica is None or event.block.other_hosts, "the agent took no replica"
                size += event.block.handle.length
                kept.append(event.block.meta)
                if len(kept) > KEPT:
                    local_path(copies, STREAM, kept.popleft().id).unlink()
            return size / 1e6 / (time.perf_counter() - began)
    finally:
        shutil.rmtree(wal, ignore_errors=True)
        shutil.rmtree(copies, ignore_errors=True)


# ---- a replica -------------------------------------------------------------------------------------------------------


def _replicas(setup: Setup, blocks: Sequence[PendingRange], folder: Path) -> Iterator[Measured]:
    host = "h2"
    stored = store(folder, setup.records(LOST_RECORDS), LOST_BLOCK_RECORDS)
    replicas = [msgspec.structs.replace(BlockReference.of(b), host="lost", other_hosts=(host,)) for b in stored.blocks]
    with (
        setup.folder() as other,
        setup.folder() as served,
        running_agent(other) as (agent, _),
        s3_server(served) as server,
        slow_link(server.port) as (url, _),
    ):
        os.environ.update(ENVIRONMENT)
        s3, options = f"s3://{BUCKET}/wal", {"s3": {"endpoint_url": url}}
        _upload(stored, s3, options)
        with connections(agent, NO_ACCESS) as pool:
            for block in stored.blocks:
                copy = read_local(local_path(stored.settings.agent.blocks, STREAM, block.id))
                give_copy(pool, agent, copy.meta, copy.payload, timeout_seconds=30)
        plan = ReadPlan(wal_url=s3, storage=options, agent_urls={host: agent})
        sides = [
            partial(_read, replicas, msgspec.structs.replace(plan, tiers=(tier,)), stored.records)
            for tier in ("agent", "wal")
        ]
        what = f"a task reads a lost host's blocks from replicas / from S3, {LATENCY_SECONDS * 1000:.0f} ms away"
        yield ratio("levels", what, alternate(setup.runs, *sides), "records/s")
        count = max(4, int(WRITTEN * setup.scale))
        target = ReplicaHost(host="h1", url=agent)
        writes = alternate(
            setup.runs,
            lambda: _write(folder / "w", blocks, count, folder / "copies", target),
            lambda: _write(folder / "w", blocks, count, folder / "copies"),
        )
        yield ratio("levels", "a receiver stores blocks with a replica / without", writes, "MB/s")


def _upload(stored: StoredBlocks, url: str, options: dict[str, dict[str, str]]) -> None:
    """Put the segments of the WAL on S3, under the same names."""
    source, target = open_storage(stored.settings.wal.url), open_storage(url, options)
    for path in sorted({block.handle.path for block in stored.blocks}):
        target.put_new(path, source.read(path))
