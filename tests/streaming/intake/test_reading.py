"""The reading of blocks in tasks of a query over an intake."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.model.errors import LostBlockError, UnreadableBlockError
from pyspark_forebay.intake.planning import BlockPart, IntakeTask
from pyspark_forebay.intake.reading import merged_kafka_options, read_part, read_task
from pyspark_forebay.options.source import read_options
from tests.support.columns import column_values
from tests.support.rows import block, filler
from tests.support.stored import Stored


def rows(task: IntakeTask, **options: str) -> int:
    read = read_options({"tracker": "http://127.0.0.1:1", **options}, streaming=False)
    return sum(batch.num_rows for batch in read_task(read, task))


def test_only_wanted_rows_of_a_block_are_read(tmp_path: Path) -> None:
    """INV-2."""
    stored = Stored(tmp_path)
    ranges = {("a", 0): filler(20), ("a", 1): filler(5), ("b", 0): filler(5)}
    part = BlockPart(stored.add(*block(ranges, headers=False)), {"a/0": (3, 6)}, frozenset({"b/0[0, 5)"}), 8)
    found: dict[str, list[int]] = {}
    for batch in read_part(part, stored.plan(), headers=False):
        name = f"{batch.column('topic')[0]}/{batch.column('partition')[0]}"
        found.setdefault(name, []).extend(column_values(batch, "offset"))
    assert found == {"a/0": [3, 4, 5], "a/1": [0, 1, 2, 3, 4]}


def test_kafka_options_of_the_query_override_those_of_the_driver() -> None:
    told = {"bootstrap.servers": "driver-s:1", "client.id": "x"}
    read = read_options({"tracker": "http://127.0.0.1:1", "kafka.bootstrap.servers": "own:1"}, streaming=False)
    assert merged_kafka_options(read, told) == {"bootstrap.servers": "own:1", "client.id": "x"}
    read = read_options({"tracker": "http://127.0.0.1:1"}, streaming=False)
    assert merged_kafka_options(read, told) == told
    assert merged_kafka_options(read, {"client.id": "x"}) == {}  # an intake that is not of Kafka


def test_missing_block_is_omitted_without_fail_on_data_loss_and_unreachable_block_is_not(
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
