"""The engine without Spark: the same rows in the same order, and a clear error where Spark is needed."""

from __future__ import annotations

from typing import Any, cast

import pytest

from driver.batches.job.batch import Batch
from driver.batches.job.work import BatchWork
from driver.batches.local_engine import LocalEngine
from driver.batches.tasks.reading import records, unreadable
from forebay.model.errors import UnreadableBlockError, UsageError
from tests.support.state.rows import block, filler
from tests.support.state.stored import Stored


def work(stored: Stored) -> BatchWork:
    one = stored.add(*block({("a", 0): filler(3), ("a", 1): filler(2)}, sequence=1))
    two = stored.add(*block({("a", 0): filler(2, start=3)}, sequence=2))
    return BatchWork(1 << 40 | 1, 1, 1_700_000_000_000, True, ((one,), (two,)))


def test_read_gives_the_packed_order_lazily_and_counts_the_tiers(stored: Stored) -> None:
    """INV-3."""
    seen: list[tuple[int, int]] = []

    def job(batch: Batch) -> None:
        assert batch.rerun
        assert batch.records == 7
        rows = batch.read()
        next(rows)
        seen.extend((r.partition, r.offset) for r in records(batch.read()))

    counts = LocalEngine(stored.settings(), dict).run(work(stored), job)
    assert seen == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (0, 3), (0, 4)]
    assert dict(counts.items()) == {"local": 2 + 3}  # the first block twice, the second once


@pytest.mark.parametrize("name", ["df", "rdd", "arrow"])
def test_rows_that_need_spark_are_refused_with_the_reason(stored: Stored, name: str) -> None:
    with pytest.raises(UsageError, match=rf"batch\.{name} needs Spark"):
        LocalEngine(stored.settings(), dict).run(work(stored), lambda batch: getattr(batch, name))


def test_an_unreadable_block_ends_the_job(stored: Stored) -> None:
    """INV-5."""
    lost = work(stored)
    for path in [*stored.blocks_directory.rglob("*.block"), *(stored.root / "wal").rglob("*.seg")]:
        path.unlink()
    with pytest.raises(UnreadableBlockError, match=r"a/0\[0, 3\)"):
        LocalEngine(stored.settings(), dict).run(lost, cast(Any, lambda batch: list(batch.read())))


def test_an_unreadable_block_is_found_behind_other_exceptions() -> None:
    marked = RuntimeError(
        "Traceback …\n x.UnreadableBlockError: <forebay-unreadable>no tier…</forebay-unreadable>\n\tat org"
    )
    wrapped = ValueError("mine")
    wrapped.__cause__ = marked
    assert str(unreadable(wrapped)) == "no tier…"
    own = UnreadableBlockError("as read in the driver")
    assert unreadable(own) is own
    assert unreadable(ValueError("other")) is None
