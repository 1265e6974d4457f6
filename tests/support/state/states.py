"""A keyed state over batches as a journal would complete them, without a driver; and one read from its files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from driver.batches.job.batch import Batch
from driver.batches.job.keyed_state import KeyedState, commit_states
from driver.batches.job.work import BatchWork
from driver.journal.state import State
from driver.journal.transitions.keyed_states import states_committed
from driver.journal.versions import StateCommit
from forebay.model.identifiers import numbered
from tests.support.state.columns import schema_of
from tests.support.state.stored import Stored
from wal.keyed import files
from wal.keyed.rows import newest, present
from wal.storage import Storage

COUNTS = schema_of(key=pa.string(), count=pa.int64())


class StateLine:
    """Runs batches in order. ``run_job``: runs the job with an engine."""

    def __init__(
        self, root: Path, run_job: Callable[[Stored, BatchWork, Any], Any], stored: Stored | None = None
    ) -> None:
        self.stored = stored or Stored(root)
        self.state = State(stream="s", timeline=1)
        self._run_job = run_job
        self.epoch = numbered(1, 1)

    def work(self, number: int, time_ms: int = 0, **fields: Any) -> BatchWork:
        versions = {name: known.versions[-1] for name, known in self.state.keyed.items() if known.versions}
        return BatchWork(
            numbered(1, number), number, time_ms or 1_700_000_000_000 + number * 1_000, False, (), stream="s",
            epoch=self.epoch, versions=versions, **fields,
        )  # fmt: skip

    def run(
        self, number: int, job: Callable[[Batch], Any], *, complete: bool = True, time_ms: int = 0, **fields: Any
    ) -> tuple[StateCommit, ...]:
        """Run the batch and store its manifests. Unless ``complete`` is False, the journal has its completion."""
        work = self.work(number, time_ms, **fields)
        self._run_job(self.stored, work, job)
        commits = commit_states(work.opened)
        if complete:
            states_committed(self.state, work.batch_id, commits)
            self.state.events += 1
        return commits


def counts(batch: Batch, **options: Any) -> KeyedState:
    return batch.state("counts", COUNTS, "key", **{"shards": 4, **options})


def table(**rows: int) -> pa.Table:
    return pa.table({"key": list(rows), "count": list(rows.values())}, schema=COUNTS)


def as_dict(rows: pa.Table) -> dict[str, int]:
    keys: list[Any] = rows.column("key").to_pylist()
    values: list[Any] = rows.column("count").to_pylist()
    assert len(set(keys)) == len(keys), "a key occurs twice"
    return dict(zip(keys, values, strict=True))


def read_past_the_driver(wal: Storage, state: State, name: str) -> pa.Table:
    """Return the rows of a state that has no timeout, sorted by key."""
    version = state.keyed[name].versions[-1]
    manifest = files.read_manifest(wal, version.manifest, version.sha256)
    key = list(manifest.key)
    shards = [newest([files.read_rows(wal, None, f) for f in shard], key) for shard in manifest.shards if shard]
    rows = present(pa.concat_tables(shards), 0).select(manifest.columns.names)
    return rows.sort_by([(column, "ascending") for column in key])
