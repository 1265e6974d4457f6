"""What Spark's tasks, or the driver's process, do with the rows and shards of a keyed state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from wal.keyed.schema import StateSchema
from wal.keyed.shard import Shards, ShardWritten
from wal.keyed.sharding import shard_numbers

#: column with the shard of each row, while rows are on their way to their shard's task
SHARD = "__shard"

#: reads one shard: the rows as the user sees them
ShardReader: TypeAlias = Callable[[Shards, int], pa.Table]


@dataclass(frozen=True, slots=True)
class ExpiredReader:
    """Reads the rows that time out. ``written``: what the run has written by an update, by shard."""

    written: Mapping[int, ShardWritten]

    def __call__(self, shards: Shards, number: int) -> pa.Table:
        written = self.written.get(number)
        return shards.read_expired(number, None if written is None else written.delta)


@dataclass(frozen=True, slots=True)
class ChangedReader:
    """Reads the rows that the run has written. ``written``: what it has written, by shard."""

    written: Mapping[int, ShardWritten]

    def __call__(self, shards: Shards, number: int) -> pa.Table:
        written = self.written.get(number)
        return shards.empty() if written is None else shards.read_changed(written.delta)


def with_keys(table: pa.Table, schema: StateSchema) -> pa.Table:
    """Return ``table`` with its key columns cast to those of the state, so that equal keys are in the same shard."""
    keys = schema.conform(table, schema.keys, "the rows")
    for name in schema.key:
        table = table.set_column(table.schema.get_field_index(name), name, keys.column(name))
    return table


def split(table: pa.Table, key: Sequence[str], shards: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield each shard that has rows in ``table``, with these rows."""
    numbers = shard_numbers(table, key, shards)
    for number in pc.unique(numbers).to_pylist():
        assert number is not None
        yield number, table.filter(pc.equal(numbers, pa.scalar(number, pa.int32())))


def numbered(batches: Iterator[pa.RecordBatch], schema: StateSchema, count: int) -> Iterator[pa.RecordBatch]:
    """Append the shard of each row."""
    for batch in batches:
        keyed = with_keys(pa.Table.from_batches([batch]), schema)
        numbers = shard_numbers(keyed, schema.key, count)
        yield pa.RecordBatch.from_arrays([*batch.columns, numbers], names=[*batch.schema.names, SHARD])
