"""A look into a block: some of its records, read as a task reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from driver.http.observation.blocks import ReadableBlock
from forebay import messages as m
from forebay.model.errors import RefusedError, UnreadableBlockError, UsageError
from forebay.security.access import Access
from forebay.settings.schema import Settings
from forebay.sources.kind import source_kind
from wal.reading import BlockReference, ReadPlan, read_block

#: bounds of one answer
RECORDS_MAX, VALUE_BYTES_MAX, HEADERS_MAX = 100, 65_536, 100
#: number of records, and of bytes of each key, value and all headers, if the client does not say
RECORDS, VALUE_BYTES = 20, 4_096
#: maximum length of a block's frame that the driver reads into its memory
FRAME_BYTES_MAX = 512 << 20


def records_answer(
    settings: Settings,
    found: ReadableBlock,
    agent_urls: Mapping[str, str],
    *,
    first: int,
    limit: int,
    bytes_max: int,
) -> m.RecordsAnswer:
    """Return ``limit`` records of a block, from number ``first`` on. Reads the block's bytes, so it can take seconds.

    Keys, values and headers are cut off after ``bytes_max`` bytes. Raises UsageError for arguments outside their bounds, and
    RefusedError if no tier has the block.
    """
    if not 1 <= limit <= RECORDS_MAX:
        raise UsageError(f"limit is from 1 to {RECORDS_MAX}, not {limit}")
    if not 0 <= bytes_max <= VALUE_BYTES_MAX:
        raise UsageError(f"bytes_max is from 0 to {VALUE_BYTES_MAX}, not {bytes_max}")
    if first < 0:
        raise UsageError(f"from is the number of a record, from 0, not {first}")
    block = found.block
    if block.handle.length > FRAME_BYTES_MAX:
        raise RefusedError(
            f"block {block.id} has {block.handle.length} bytes, too many to look into it; `forebay wal export` reads it",
            "conflict",
        )
    try:
        read = read_block(BlockReference.of(block), _plan(settings, found, agent_urls))
    except UnreadableBlockError as error:
        raise RefusedError(str(error), "conflict") from None
    total = sum(batch.num_rows for batch in read.batches)
    entries = tuple(_entries(_slices(read.batches, first, limit), bytes_max))
    return m.RecordsAnswer(total=total, records=entries, tier=read.tier or "")


def _plan(settings: Settings, found: ReadableBlock, agent_urls: Mapping[str, str]) -> ReadPlan:
    return ReadPlan(
        wal_url=settings.wal.url,
        storage=settings.storage,
        blocks_directory=settings.agent.blocks,
        agent_urls=agent_urls,
        lost=found.lost,
        headers=found.block.meta.headers,
        key_file=settings.wal.key_file,
        kafka=source_kind(settings).kafka_access(),
        topic_ids=found.topic_ids,
        access=Access.of_tasks(settings),
    )


def _slices(batches: Sequence[pa.RecordBatch], first: int, limit: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows ``[first, first + limit)`` of all batches."""
    for batch in batches:
        if limit <= 0:
            return
        shown = batch.slice(min(first, batch.num_rows), limit)
        first = max(0, first - batch.num_rows)
        limit -= shown.num_rows
        if shown.num_rows:
            yield shown


def _entries(batches: Iterator[pa.RecordBatch], bytes_max: int) -> Iterator[m.RecordEntry]:
    for batch in batches:
        columns: dict[str, Any] = {name: batch.column(name) for name in batch.schema.names}
        times = columns["timestamp"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_pylist()
        headers = columns["headers"].to_pylist() if "headers" in columns else [None] * batch.num_rows
        rows = zip(
            columns["topic"].to_pylist(),
            columns["partition"].to_pylist(),
            columns["offset"].to_pylist(),
            times,
            *_cut(columns["key"], bytes_max),
            *_cut(columns["value"], bytes_max),
            headers,
            strict=True,
        )
        for topic, partition, offset, time_ms, key, key_bytes, value, value_bytes, held in rows:
            shown, cut_off = _headers(held or (), bytes_max)
            yield m.RecordEntry(
                topic=topic,
                partition=partition,
                offset=offset,
                timestamp_ms=-1 if time_ms is None else time_ms,
                key=key,
                value=value,
                key_bytes=key_bytes or 0,
                value_bytes=value_bytes or 0,
                truncated=cut_off or max(key_bytes or 0, value_bytes or 0) > bytes_max,
                headers=shown,
            )


def _cut(column: Any, bytes_max: int) -> tuple[list[bytes | None], list[int | None]]:
    """Return the first ``bytes_max`` bytes of each item, and the whole lengths."""
    lengths = pc.binary_length(column).to_pylist()
    shown = pc.binary_slice(column, 0, bytes_max)
    return shown.to_pylist(), lengths


def _headers(held: Sequence[Mapping[str, Any]], bytes_max: int) -> tuple[tuple[m.HeaderEntry, ...], bool]:
    """Return headers with at most ``bytes_max`` bytes together, and whether some are cut off or left out."""
    shown: list[m.HeaderEntry] = []
    left = bytes_max
    for header in held[:HEADERS_MAX]:
        name, value = str(header["key"]), header["value"]
        size = len(name.encode()) + len(value or b"")
        if size > left:
            return tuple(shown), True
        left -= size
        shown.append(m.HeaderEntry(name=name, value=value))
    return tuple(shown), len(held) > HEADERS_MAX
