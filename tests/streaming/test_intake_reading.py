"""What a task of a query over an intake does with a block that it can't read."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.errors import LostBlockError, UnreadableBlockError
from pyspark_forebay.intake_plan import BlockPart, IntakeTask
from pyspark_forebay.intake_reading import read_task
from pyspark_forebay.options import read_options
from tests.support.rows import block, filler
from tests.support.stored import Stored


def rows(task: IntakeTask, **options: str) -> int:
    read = read_options({"tracker": "http://127.0.0.1:1", **options}, streaming=False)
    return sum(batch.num_rows for batch in read_task(read, task))


def test_without_fail_on_data_loss_a_block_is_left_out_that_is_gone_and_none_that_is_out_of_reach(
    tmp_path: Path,
) -> None:
    """INV-5."""
    stored = Stored(tmp_path)
    references = [stored.add(*block({("a", 0): filler(20)}, headers=False), local=False)]
    task = IntakeTask(stored.plan(), tuple(BlockPart(reference) for reference in references))
    assert rows(task) == 20
    segment = tmp_path / "wal" / references[0].handle.path
    aside = segment.rename(segment.with_suffix(".aside"))
    with pytest.raises(LostBlockError, match='failOnDataLoss" to "false"'):
        rows(task)
    assert rows(task, failOnDataLoss="false") == 0
    segment.mkdir()  # the store fails
    for options in ({}, {"failOnDataLoss": "false"}):
        with pytest.raises(UnreadableBlockError) as caught:
            rows(task, **options)
        assert type(caught.value) is UnreadableBlockError
    segment.rmdir()
    aside.rename(segment)
    assert rows(task, failOnDataLoss="false") == 20
