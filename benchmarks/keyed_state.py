"""Keyed state of a million keys, in one process, against a raw pyarrow join of the same tables in memory.

A batch has 100,000 rows of as many keys, nine in ten of them known. The function of ``update`` joins them with the known rows and
adds up. The state's side reads eight shards from files in the page cache, checks their SHA-256, finds the newest row of each key,
joins, and stores deltas and a manifest, synced. The raw side is the join and the addition alone. The second figure reads the
whole state as a table, against the same join with all rows of the state.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.measured import Measured, alternate, ratio
from benchmarks.setup import Setup
from driver.batches.job.keyed_state import KeyedState, LocalShards, StateOptions, commit_states
from driver.batches.job.work import BatchWork
from driver.batches.local_engine import open_state
from driver.journal.versions import StateVersion
from wal.reading import ReadPlan

KEYS, ROWS = 1_000_000, 100_000
COLUMNS: list[pa.Field[Any]] = [
    pa.field("key", pa.string()),
    pa.field("count", pa.int64()),
    pa.field("sum", pa.float64()),
]
SCHEMA = pa.schema(COLUMNS)
OPTIONS = StateOptions(name="counts", columns=SCHEMA, key="key", shards=8, timeout=None, versions=2)


class _States:
    """A state in ``folder``, whose batches complete one after the other."""

    def __init__(self, folder: Path) -> None:
        self._plan = ReadPlan(wal_url=f"file://{folder}/wal")
        self._versions: dict[str, StateVersion] = {}
        self._number = 0

    def begin(self) -> tuple[BatchWork, KeyedState]:
        self._number += 1
        work = BatchWork(
            self._number, self._number, self._number, False, (), stream="s", epoch=1, versions=self._versions
        )
        work.opened["counts"] = state = open_state(work, self._plan, OPTIONS, LocalShards())
        return work, state

    def complete(self, work: BatchWork) -> None:
        (commit,) = commit_states(work.opened)
        self._versions = {"counts": StateVersion(work.batch_id, commit.manifest, commit.sha256)}


def measure(setup: Setup) -> Iterator[Measured]:
    keys, rows = setup.records(KEYS), setup.records(ROWS)
    known = _rows(np.arange(keys))
    batch = _rows(np.arange(rows) * (keys // rows) + keys // 10)  # the last tenth of them is new
    with setup.folder() as folder:
        states = _States(folder)
        work, state = states.begin()
        state.write(known)
        states.complete(work)
        pairs = alternate(setup.runs, partial(_update, states, batch), partial(_join, known, batch))
        yield ratio("state", "a batch changes a state of a million keys / raw join", pairs, "rows/s")
        pairs = alternate(setup.runs, partial(_read, states, keys), partial(_join, batch, known))
        yield ratio("state", "reading a state of a million keys / raw join of all of them", pairs, "rows/s")


def _rows(numbers: np.ndarray) -> pa.Table:
    texts = pc.binary_join_element_wise("customer", pa.array(numbers).cast(pa.string()), "-")
    ones = np.ones(len(numbers))
    return pa.table([texts, pa.array(ones.astype(np.int64)), pa.array(ones)], schema=SCHEMA)


def add(known: pa.Table, rows: pa.Table) -> pa.Table:
    """Return the known rows of the keys in ``rows``, with the values of ``rows`` added."""
    both = rows.join(known, "key", join_type="left outer", right_suffix="_known")
    sums: list[Any] = []
    for name in ("count", "sum"):
        known_values: Any = both.column(f"{name}_known")
        sums.append(pc.add(both.column(name), pc.fill_null(known_values, pa.scalar(0, known_values.type))))
    return pa.table([both.column("key"), *sums], schema=SCHEMA)


def _update(states: _States, rows: pa.Table) -> float:
    begun = time.perf_counter()
    work, state = states.begin()
    state.update(rows, add)
    states.complete(work)
    return rows.num_rows / (time.perf_counter() - begun)


def _join(known: pa.Table, rows: pa.Table) -> float:
    begun = time.perf_counter()
    add(known, rows)
    return rows.num_rows / (time.perf_counter() - begun)


def _read(states: _States, keys: int) -> float:
    begun = time.perf_counter()
    assert states.begin()[1].read().num_rows >= keys
    return keys / (time.perf_counter() - begun)
