"""Blocks as a receiver stores them, made without Kafka, and the aggregate that all readers compute from them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.setup import PARTITIONS, RECORD_BYTES, values
from driver.batches.job.work import BatchWork
from driver.decisions.packing import pack
from forebay.model.arrow_columns import bytes_column, numbers_column
from forebay.model.columns import Columns
from forebay.model.digest import digest
from forebay.model.identifiers import numbered
from forebay.model.payload import decode_block, encode_block
from forebay.model.records import SOURCE_SCHEMA, RangeRows, as_source
from forebay.model.values import Block, BlockMeta, BlockRange, TopicPartition, block_id
from forebay.settings.reading.load import from_values
from forebay.settings.schema import Settings
from receiver.blocks.pending_block import PendingRange, Piece
from wal.blocks import encode_meta, local_path, read_local
from wal.blocks.digests import completed
from wal.blocks.local_writing import write_local
from wal.reading import BlockReference, this_host
from wal.segments.frame import FrameKind
from wal.segments.writer import LogWriter, SegmentIdentity, SegmentLimits
from wal.storage import open_storage

BLOCK_RECORDS = 50_000
STREAM = "bench"
TOPIC = "records"
#: processes that read: Spark's tasks, and the peer's
PROCESSES = 2

#: records of the blocks that are made and synced together: blocks of few records would take minutes otherwise
_SYNCED_RECORDS = 50_000
#: more blocks are made in processes of their own, because one process takes minutes for 100,000
PARALLEL_ABOVE = 5_000
_EPOCH = numbered(1, 1)


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """Stored blocks. ``files``: the local copy of each of ``blocks``, and the place where its Arrow stream begins."""

    settings: Settings
    blocks: tuple[Block, ...]
    files: tuple[tuple[str, int], ...]
    records: int

    @property
    def work(self) -> BatchWork:
        """Return all blocks as one batch, packed as the driver packs them."""
        by_id = {block.id: BlockReference.of(block) for block in self.blocks}
        tasks = tuple(tuple(by_id[name] for name in task) for task in pack(self.blocks, PROCESSES))
        return BatchWork(numbered(1, 1), 1, 0, False, tasks)


def store(directory: Path, records: int, block_records: int = BLOCK_RECORDS) -> StoredBlocks:
    """Store ``records`` records of 200 bytes in a WAL and as local copies.

    Each block has ``block_records`` records (or all, if fewer), with a range of every partition.
    """
    settings = from_values({
        "stream": STREAM,
        "kafka": {"topics": [TOPIC], "bootstrap.servers": "127.0.0.1:1"},
        "wal": {"url": f"file://{directory}/wal"},
        "driver": {"journal": f"file://{directory}/journal"},
        "agent": {"blocks": f"{directory}/blocks"},
        "spark": {"spark.master": f"local[{PROCESSES}]", "spark.driver.memory": "2g"},
    })  # fmt: skip
    uids = itertools.count(1)
    writer = LogWriter(
        open_storage(settings.wal.url, settings.storage),
        lambda sequence: f"{STREAM}/blocks/r1/{_EPOCH:016x}/{sequence:08}.seg",
        identity=SegmentIdentity(STREAM, "r1", _EPOCH, 1),
        limits=SegmentLimits(size_bytes=settings.wal.segment_size, age_seconds=3600.0),
        now=lambda: 0.0,
        new_uid=lambda: next(uids),
    )
    blocks, files = [], []
    rows = min(block_records, records) // PARTITIONS
    count = records // (rows * PARTITIONS)
    together = max(1, min(PARALLEL_ABOVE // PROCESSES, _SYNCED_RECORDS // (rows * PARTITIONS)))
    firsts = range(1, count + 1, together)
    with ExitStack() as open_:
        if count > PARALLEL_ABOVE:
            pool = open_.enter_context(ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")))
            parts = pool.map(
                _blocks, repeat(settings.agent.blocks), repeat(rows), firsts, repeat(together), repeat(count)
            )
        else:
            parts = (_blocks(settings.agent.blocks, rows, first, together, count) for first in firsts)
        for made in parts:
            appended = [writer.append(FrameKind.BLOCK, encode_meta(meta), payload) for meta, payload in made]
            writer.sync()
            for (meta, payload), pending in zip(made, appended, strict=True):
                assert pending.handle is not None
                blocks.append(Block(meta, pending.handle, True))
                path = local_path(settings.agent.blocks, STREAM, meta.id)
                files.append((str(path), pending.handle.length - len(memoryview(payload))))
    writer.close()
    return StoredBlocks(settings, tuple(blocks), tuple(files), sum(block.meta.records for block in blocks))


def _blocks(directory: str, rows: int, first: int, together: int, count: int) -> list[tuple[BlockMeta, Any]]:
    """Make up to ``together`` of ``count`` blocks from number ``first`` on, and write their local copies."""
    made = [_block(sequence, rows) for sequence in range(first, min(first + together, count + 1))]
    for meta, payload in made:
        write_local(directory, meta, payload)
    return made


def _block(sequence: int, rows: int) -> tuple[BlockMeta, Any]:
    """Return the ``sequence``-th block: ``rows`` rows of each partition."""
    ranges, parts = [], []
    first = (sequence - 1) * rows
    for partition in range(PARTITIONS):
        made = values(rows, RECORD_BYTES, seed=sequence * PARTITIONS + partition)
        offsets, times = np.arange(first, first + rows), np.full(rows, 1_700_000_000_000)
        columns = [
            bytes_column([key for key, _ in made]),
            bytes_column([value for _, value in made]),
            numbers_column(offsets, pa.int64()),
            numbers_column(times, pa.int64()),
            numbers_column(np.zeros(rows, np.int32), pa.int32()),
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=SOURCE_SCHEMA(False))
        parts.append(RangeRows(TopicPartition(TOPIC, partition), [batch]))
        ranges.append(
            BlockRange(
                TOPIC,
                partition,
                1,
                first,
                first + rows,
                rows,
                0,
                digest([batch]),
                _EPOCH + partition,
                rows * RECORD_BYTES,
                0,
            )
        )
    meta = BlockMeta(
        id=block_id("r1", _EPOCH, sequence), stream=STREAM, receiver_id="r1", epoch=_EPOCH, sequence=sequence,
        ranges=tuple(ranges), records=rows * PARTITIONS, created_ms=0, host=this_host(),
    )  # fmt: skip
    return completed(meta, encode_block(parts, False), None)


# ---- the aggregate: for each of 1,000 keys its records, the bytes of their values, and what is found in them -----------

#: key, records, bytes of values, and of how many values SOUGHT is a part
Totals = list[tuple[bytes, int, int, int]]
SOUGHT = "00"


def totals(batches: Iterable[pa.RecordBatch], look_inside: bool) -> Totals:
    """Return the aggregate over batches with columns ``key`` and ``value``; without ``look_inside`` no value's bytes are read."""
    parts = [_measures(batch.column("key"), batch.column("value"), look_inside) for batch in batches]
    wanted: Any = [("bytes", "count"), ("bytes", "sum"), ("found", "sum")]
    found: Any = pa.concat_tables(parts).group_by("key", use_threads=False).aggregate(wanted)
    columns = [found.column(name).to_pylist() for name in ("key", "bytes_count", "bytes_sum", "found_sum")]
    return list(zip(*columns, strict=True))


def _measures(key: Any, value: Any, look_inside: bool) -> pa.Table:
    lengths: Any = pc.binary_length(value)
    found: Any = pc.match_substring(value, SOUGHT) if look_inside else pc.equal(lengths, cast(Any, 0))
    return pa.table({"key": key, "bytes": lengths, "found": found})


def merged(parts: Sequence[Totals]) -> Totals:
    """Return the totals of all parts, ordered by key."""
    sums: dict[bytes, tuple[int, int, int]] = {}
    for key, records, size, found in itertools.chain.from_iterable(parts):
        before = sums.get(key, (0, 0, 0))
        sums[key] = (before[0] + records, before[1] + size, before[2] + found)
    return sorted((key, *numbers) for key, numbers in sums.items())


def plain_totals(files: Sequence[tuple[str, int]], look_inside: bool) -> Totals:
    """Return the aggregate over the Arrow streams in ``files`` with pyarrow alone, without any check."""

    def batches() -> Iterable[pa.RecordBatch]:
        for path, offset in files:
            with pa.memory_map(path) as file:
                file.seek(offset)
                with pa.ipc.open_stream(file) as reader:
                    yield from reader

    return totals(batches(), look_inside)


def pending_ranges(stored: StoredBlocks) -> list[PendingRange]:
    """Return the ranges of one block before it is encoded."""
    copy = read_local(local_path(stored.settings.agent.blocks, STREAM, stored.blocks[0].id))
    return [
        PendingRange(
            tp=held.tp,
            incarnation=1,
            token=1,
            from_offset=held.from_offset,
            until_offset=held.until_offset,
            leader_epoch=0,
            topic_id="",
            preceding_gap=None,
            pieces=tuple(_piece(batch, held.tp) for batch in batches),
        )
        for held, batches in decode_block(copy.payload, copy.meta)
    ]


def _piece(batch: pa.RecordBatch, tp: object) -> Piece:
    rows = as_source(batch)
    offsets = rows.column("offset")
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    return Piece(first, Columns(tp, 1, first, last, rows.num_rows, rows.nbytes, 0, 0, rows))  # type: ignore[arg-type]
