"""One shard of a keyed state, read and written in a Spark task or in the driver's process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from forebay.model.errors import UsageError
from forebay.process import failpoints
from wal.blocks.encryption import KeyRing, load_keys
from wal.keyed import rows as rows_
from wal.keyed.files import ShardFile, put_rows, read_rows
from wal.keyed.schema import DELETED, StateSchema
from wal.storage import Storage, StorageOptions, open_storage

#: of the rows of a shard and its new rows, makes the rows to write, or these and the keys to delete
UpdateFunction: TypeAlias = Callable[[pa.Table, pa.Table], Any]


class ShardWritten(msgspec.Struct, frozen=True):
    """What one run wrote to one shard. ``files``: all files of the shard after the write; ``delta``: what is new in them."""

    shard: int
    files: tuple[ShardFile, ...]
    delta: ShardFile


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePlan:
    """How tasks read and write the shards of a keyed state.

    ``shards``: for each shard its files as they were before the batch. ``folder``: of this run. ``forgotten_ms``: rows last
    updated at or before this time have timed out in an earlier batch; ``expired_ms``: in this batch or before. ``time_ms``:
    the time of the updates of this run.
    """

    url: str
    storage: StorageOptions
    key_file: str | None
    schema: StateSchema
    shards: tuple[tuple[ShardFile, ...], ...]
    folder: str
    forgotten_ms: int
    expired_ms: int
    time_ms: int

    def __repr__(self) -> str:
        return f"<StatePlan of {self.folder}>"

    def open(self) -> Shards:
        """Open the store, in the process that reads or writes the shards."""
        return Shards(self, open_storage(self.url, self.storage), load_keys(self.key_file))


class Shards:
    """The shards of a state, in the store."""

    def __init__(self, plan: StatePlan, storage: Storage, keys: KeyRing | None) -> None:
        self._plan = plan
        self._storage = storage
        self._keys = keys

    def read(self, shard: int) -> pa.Table:
        """Return the rows that the shard had before the batch, without those that have timed out."""
        return self._of_user(rows_.present(self._newest(shard), self._plan.expired_ms))

    def read_expired(self, shard: int, written: ShardFile | None = None) -> pa.Table:
        """Return the rows of the shard that time out in this batch. ``written``: what this run has written to the shard: its
        keys do not time out."""
        plan, key = self._plan, self._plan.schema.key
        found = rows_.timed_out(self._newest(shard), plan.forgotten_ms, plan.expired_ms)
        if written is not None:
            found = rows_.without_keys(found, self._read(written), key)
        return self._of_user(found)

    def read_changed(self, written: ShardFile) -> pa.Table:
        """Return the rows that this run has written to a shard, without deletions."""
        table = self._read(written)
        return self._of_user(table.filter(pc.invert(table.column(DELETED))))

    def empty(self) -> pa.Table:
        """Return no rows, with the user's columns."""
        return self._plan.schema.columns.empty_table()

    def write(self, shard: int, rows: pa.Table, deleted: pa.Table) -> ShardWritten:
        """Write ``rows`` and delete the keys ``deleted``; durable on return. Raises UsageError, StoreError."""
        return self._write(shard, rows, deleted, None)

    def update(self, shard: int, rows: pa.Table, function: UpdateFunction) -> ShardWritten | None:
        """Write what ``function`` makes of the shard's rows and ``rows``. None: it changes nothing. Raises as :meth:`write`,
        and what ``function`` raises."""
        schema = self._plan.schema
        known = self._newest(shard)
        made = function(self._of_user(self._known_for(known, schema.conform(rows, schema.keys, "the rows"))), rows)
        changed, deleted = made if isinstance(made, tuple) else (made, None)
        what = "the rows that the function returned"
        changed = schema.conform(changed, schema.columns, what)
        deleted = schema.keys.empty_table() if deleted is None else schema.conform(deleted, schema.keys, what)
        if not changed.num_rows and not deleted.num_rows:
            return None
        return self._write(shard, changed, deleted, known)

    def _write(self, shard: int, rows: pa.Table, deleted: pa.Table, known: pa.Table | None) -> ShardWritten:
        plan = self._plan
        table = rows_.delta(plan.schema, rows, deleted, plan.time_ms)
        before = plan.shards[shard]
        written = put_rows(self._storage, self._keys, plan.folder, shard, table)
        failpoints.hit("state.mid-write")
        if before and not rows_.is_due(before[0].rows, [*(file.rows for file in before[1:]), table.num_rows]):
            return ShardWritten(shard, (*before, written), written)
        if not before and not deleted.num_rows:
            return ShardWritten(shard, (written,), written)
        merged = rows_.newest([self._newest(shard) if known is None else known, table], plan.schema.key)
        merged = rows_.present(merged, plan.expired_ms)
        files = (put_rows(self._storage, self._keys, plan.folder, shard, merged),) if merged.num_rows else ()
        return ShardWritten(shard, files, written)

    def _known_for(self, known: pa.Table, keys: pa.Table) -> pa.Table:
        """Return the rows that have not timed out, and those that time out in this batch if they have one of ``keys``."""
        plan = self._plan
        lasting = rows_.present(known, plan.expired_ms)
        ending = rows_.timed_out(known, plan.forgotten_ms, plan.expired_ms)
        others = rows_.without_keys(ending, keys, plan.schema.key)
        return pa.concat_tables([lasting, rows_.without_keys(ending, others, plan.schema.key)])

    def _newest(self, shard: int) -> pa.Table:
        files = self._plan.shards[shard]
        if not files:
            return self._plan.schema.of_files.empty_table()
        return rows_.newest([self._read(file) for file in files], self._plan.schema.key)

    def _read(self, file: ShardFile) -> pa.Table:
        return self._plan.schema.evolved(read_rows(self._storage, self._keys, file))

    def _of_user(self, table: pa.Table) -> pa.Table:
        return table.select(self._plan.schema.columns.names)


def still_needed(files: Sequence[ShardFile], expired_ms: int) -> tuple[ShardFile, ...]:
    """Return the files of a shard; none if all of its rows have timed out."""
    return tuple(files) if any(file.newest_ms > expired_ms for file in files) else ()


def check_shards(name: str, shards: int, most: int) -> None:
    """Raise UsageError unless a state can have so many shards."""
    if not 1 <= shards <= most:
        raise UsageError(f"state {name!r}: shards must be 1 to {most}, not {shards}")
