"""Keyed state as a job gets it (:class:`KeyedState`): rows by key that live from batch to batch, exactly once with each batch."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from driver.batches.job.time_windows import milliseconds
from driver.journal.versions import StateCommit, StateVersion
from forebay.model.errors import UsageError
from forebay.process import failpoints
from wal.keyed import files
from wal.keyed.files import Manifest
from wal.keyed.schema import StateSchema, as_table, without_views
from wal.keyed.shard import Shards, ShardWritten, StatePlan, UpdateFunction, check_shards, still_needed
from wal.keyed.tasks import ChangedReader, ExpiredReader, ShardReader, split, with_keys
from wal.storage import Storage, StorageOptions, open_storage

#: maximum numbers of states that one run of a batch opens, and of earlier versions that a state keeps
STATES_MAX = 100
VERSIONS_MAX = 10_000


class _Runs:
    """Numbers runs. A journal epoch is led by one process, so epoch and number name a run once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.newest = 0

    def next(self) -> int:
        with self._lock:
            self.newest += 1
            return self.newest


_runs = _Runs()


def newest_run() -> int:
    """Return the number of the newest run that has opened a state in this process; 0: there is none."""
    return _runs.newest


class ShardTasks(Protocol):
    """Works on the shards of a state: in this process, or in Spark's tasks."""

    def write(self, plan: StatePlan, rows: Any, deleted: Any) -> Sequence[ShardWritten]:
        """Write ``rows`` and delete the keys ``deleted`` (None: none). Durable on return."""

    def update(self, plan: StatePlan, rows: Any, function: UpdateFunction) -> Sequence[ShardWritten]:
        """Call ``function`` for each shard that has ``rows``, and write what it returns. Durable on return."""

    def frame(self, plan: StatePlan, reader: ShardReader) -> Any:
        """Return a DataFrame with one task for each shard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateOptions:
    """How a job uses a state. ``columns``: the user's schema. Other fields: as in ``Batch.state``."""

    name: str
    columns: pa.Schema
    key: str | Sequence[str]
    shards: int
    timeout: float | str | None
    versions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRun:
    """The run of a batch that uses a state, and the store. ``version``: the newest version of the state; None: it has none."""

    stream: str
    batch_id: int
    epoch: int
    time_ms: int
    version: StateVersion | None
    url: str
    storage: StorageOptions
    key_file: str | None


class KeyedState:
    """Rows by key that live from batch to batch. ``batch.state(…)`` returns it.

    It shows the state as it was **before** this batch, and takes what this batch changes: one :meth:`write` or :meth:`update`.
    The change becomes the state when the batch is completed, by the same event of the journal. So a batch that runs again, after
    a failure, a crash or on another driver, sees the state before it, never what its own earlier run wrote.

    Rows are in shards, by a hash of their key. Spark's tasks read and write the shards in parallel.
    """

    __slots__ = ("_left_out", "_options", "_plan", "_run", "_store", "_tasks", "_updated", "_written")

    def __init__(self, run: StateRun, options: StateOptions, tasks: ShardTasks) -> None:
        """Open the state. Raises UsageError, CorruptionError, StoreError."""
        schema = StateSchema.checked(options.name, options.key, options.columns)
        check_shards(options.name, options.shards, files.SHARDS_MAX)
        if not 1 <= options.versions <= VERSIONS_MAX:
            raise UsageError(f"state {options.name!r}: versions must be 1 to {VERSIONS_MAX}, not {options.versions}")
        timeout_ms = _timeout_ms(options)
        self._store: Storage = open_storage(run.url, run.storage)
        known = _known(self._store, run, options, schema)
        forgotten_ms = known.forgotten_ms if known is not None else 0
        expired_ms = forgotten_ms if timeout_ms is None else max(forgotten_ms, run.time_ms - timeout_ms)
        self._left_out = schema.left_out_of(known.columns, known.left_out) if known is not None else ()
        self._run = run
        self._options = options
        self._tasks = tasks
        self._written: tuple[ShardWritten, ...] | None = None
        self._updated = False  # by update(), whose function gets the rows that time out now
        self._plan = StatePlan(
            url=run.url,
            storage=run.storage,
            key_file=run.key_file,
            schema=schema,
            shards=known.shards if known is not None else ((),) * options.shards,
            folder=files.run_folder(run.stream, options.name, run.batch_id, run.epoch, _runs.next()),
            forgotten_ms=forgotten_ms,
            expired_ms=expired_ms,
            time_ms=max(run.time_ms, expired_ms + 1),
        )

    def __repr__(self) -> str:
        return f"<KeyedState {self.name!r}: key {list(self._plan.schema.key)}, {len(self._plan.shards)} shards>"

    @property
    def name(self) -> str:
        """The state's name, unique in the stream."""
        return self._plan.schema.name

    @property
    def df(self) -> Any:
        """The state before this batch as a DataFrame, with one task for each shard. Rows that have timed out are left out."""
        return self._tasks.frame(self._plan, Shards.read)

    def read(self) -> pa.Table:
        """Return the state before this batch as a table, read in the driver's process without Spark."""
        return self._here(Shards.read)

    @property
    def expired(self) -> Any:
        """The rows that time out in this batch, as a DataFrame. Each row times out once, in the first batch whose time is
        ``timeout`` or more after the batch that updated it last. A key that :meth:`update` writes in this batch does not time
        out, so ask after :meth:`update`. A key that :meth:`write` sets or deletes does: its old row, which :attr:`df` does not
        show, is in this result."""
        return self._tasks.frame(self._plan, self._expired_reader)

    def read_expired(self) -> pa.Table:
        """Return the rows of :attr:`expired` as a table, read in the driver's process without Spark."""
        return self._here(self._expired_reader)

    @property
    def changed(self) -> Any:
        """The rows that this run has written, as a DataFrame; deleted keys are left out."""
        return self._tasks.frame(self._plan, ChangedReader(self._deltas))

    def read_changed(self) -> pa.Table:
        """Return the rows of :attr:`changed` as a table, read in the driver's process without Spark."""
        return self._here(ChangedReader(self._deltas))

    def write(self, rows: Any = None, *, delete: Any = None) -> None:
        """Set the rows of the keys in ``rows``, and delete the keys in ``delete``.

        Both are a Spark DataFrame, or a pyarrow Table or record batches: ``rows`` with all columns of the state, ``delete`` with
        its key columns; other columns are left out. No key may occur twice. Other keys keep their rows. A run of a batch may call
        either ``write`` or ``update``, once for each state. The files are durable on return, and count when the batch is
        completed. Raises UsageError, StoreError.
        """
        self._begin_write()
        if rows is None:
            rows = self._plan.schema.columns.empty_table()
        self._written = tuple(self._tasks.write(self._plan, rows, delete))

    def update(self, rows: Any, function: UpdateFunction) -> None:
        """Change the state by ``function(known, rows)``, called once for each shard for which there are ``rows``.

        ``rows``: a DataFrame, Table or record batches with the key columns and any others. ``function`` gets two pyarrow tables:
        the shard's rows in the state, and its part of ``rows``. The first table contains a row that times out in this batch only
        if its key is also in ``rows``. ``function`` returns the rows to set as a Table, or a pair of these and the keys to
        delete. If ``rows`` is a DataFrame, ``function`` runs in Spark's tasks, possibly more than once for a shard. All else is
        as in :meth:`write`.
        """
        if not callable(function):
            raise UsageError(f"state {self.name!r}: update needs a function, not {type(function).__name__}")
        self._begin_write()
        self._written = tuple(self._tasks.update(self._plan, rows, function))
        self._updated = True

    def _commit(self) -> StateCommit | None:
        """Store the manifest of what this run has changed. Return what the journal names when the batch is completed; None if
        nothing changed. Called when the job has returned. Raises StoreError."""
        plan, run = self._plan, self._run
        shards = {number: still_needed(of, plan.expired_ms) for number, of in enumerate(plan.shards)}
        shards.update((written.shard, written.files) for written in self._written or ())
        has_expired = any(f.oldest_ms <= plan.expired_ms for of in plan.shards for f in of)
        if not self._written and not has_expired:
            return None
        failpoints.hit("state.before-manifest")
        path = files.manifest_path(plan.folder)
        digest = files.put_manifest(
            self._store,
            path,
            Manifest(
                format=files.FORMAT,
                stream=run.stream,
                name=self.name,
                batch_id=run.batch_id,
                epoch=run.epoch,
                key=plan.schema.key,
                schema=plan.schema.columns.serialize().to_pybytes(),
                forgotten_ms=plan.expired_ms,
                shards=tuple(shards[number] for number in range(len(plan.shards))),
                left_out=self._left_out,
            ),
        )
        failpoints.hit("state.after-manifest")
        return StateCommit(self.name, path, digest, self._options.versions)

    @property
    def _deltas(self) -> Mapping[int, ShardWritten]:
        return {written.shard: written for written in self._written or ()}

    @property
    def _expired_reader(self) -> ExpiredReader:
        return ExpiredReader(self._deltas if self._updated else {})

    def _begin_write(self) -> None:
        if self._written is not None:
            raise UsageError(
                f"state {self.name!r}: this run of the batch has changed it already; write all rows in one call"
            )
        failpoints.hit("state.before-write")

    def _here(self, reader: ShardReader) -> pa.Table:
        shards = self._plan.open()
        return pa.concat_tables(reader(shards, number) for number in range(len(self._plan.shards)))


class LocalShards:
    """Works on the shards in this process, one after the other."""

    def write(self, plan: StatePlan, rows: Any, deleted: Any) -> Sequence[ShardWritten]:
        schema, shards = plan.schema, plan.open()
        table = schema.conform(rows, schema.columns, "the rows")
        keys = schema.conform(
            schema.keys.empty_table() if deleted is None else deleted, schema.keys, "the keys to delete"
        )
        removed = dict(split(keys, schema.key, len(plan.shards)))
        written = dict(split(table, schema.key, len(plan.shards)))
        return [
            shards.write(number, written.get(number, table.slice(0, 0)), removed.get(number, keys.slice(0, 0)))
            for number in sorted({*written, *removed})
        ]

    def update(self, plan: StatePlan, rows: Any, function: UpdateFunction) -> Sequence[ShardWritten]:
        shards = plan.open()
        what = f"state {plan.schema.name!r}: the rows of an update"
        table = with_keys(without_views(as_table(rows, what), what), plan.schema)
        parts = split(table, plan.schema.key, len(plan.shards))
        made = (shards.update(number, part, function) for number, part in parts)
        return [written for written in made if written is not None]

    def frame(self, plan: StatePlan, reader: ShardReader) -> Any:
        raise UsageError(
            'a DataFrame of a state needs Spark: set driver.engine = "spark", or use read(), read_expired() or read_changed()'
        )


def commit_states(opened: Mapping[str, KeyedState]) -> tuple[StateCommit, ...]:
    """Store the manifests of the states that a run has changed. Return what the journal names with the completion."""
    commits = (state._commit() for state in opened.values())
    return tuple(commit for commit in commits if commit is not None)


def _timeout_ms(options: StateOptions) -> int | None:
    if options.timeout is None:
        return None
    return milliseconds(options.timeout, f"state {options.name!r}: timeout")


def _known(store: Storage, run: StateRun, options: StateOptions, schema: StateSchema) -> Manifest | None:
    """Return the newest version of the state; None if there is none. Raises UsageError if the job's options contradict it."""
    if run.version is None:
        return None
    if run.version.batch_id >= run.batch_id:
        raise UsageError(
            f"state {options.name!r}: another output of batch {run.batch_id} has changed it: a state belongs to one output"
        )
    manifest = files.read_manifest(store, run.version.manifest, run.version.sha256)
    schema.check_successor_of(manifest.key, manifest.columns, manifest.left_out)
    if len(manifest.shards) != options.shards:
        raise UsageError(
            f"state {options.name!r} has {len(manifest.shards)} shards: set shards = {len(manifest.shards)}, or copy its rows to "
            "a state with another name"
        )
    return manifest
