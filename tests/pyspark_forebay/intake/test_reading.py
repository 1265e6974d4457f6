"""The reading of blocks in tasks of a query over an intake."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from forebay.model.errors import LostBlockError, UnreadableBlockError
from forebay.model.records import DATAFRAME_SCHEMA
from pyspark_forebay.intake.planning import BlockPart, IntakeTask
from pyspark_forebay.intake.reading import merged_kafka_options, read_part, read_task
from pyspark_forebay.options.source import read_options
from tests.support.state.columns import column_values
from tests.support.state.rows import block, filler
from tests.support.state.stored import Stored
from wal.blocks import local_path


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
    of_driver = {"bootstrap.servers": "driver-s:1", "client.id": "x"}
    read = read_options({"tracker": "http://127.0.0.1:1", "kafka.bootstrap.servers": "own:1"}, streaming=False)
    assert merged_kafka_options(read, of_driver) == {"bootstrap.servers": "own:1", "client.id": "x"}
    read = read_options({"tracker": "http://127.0.0.1:1"}, streaming=False)
    assert merged_kafka_options(read, of_driver) == of_driver
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


def small_blocks(stored: Stored, count: int, *, headers: bool = False, local: bool = True) -> list[BlockPart]:
    """Return ``count`` blocks of 10 records in each of two topics, whose offsets follow each other."""
    made = []
    for number in range(count):
        rows = filler(10, number * 10)
        content = block({("a", 0): rows, ("b", 1): rows}, sequence=number + 1, headers=headers)
        made.append(BlockPart(stored.add(*content, local=local), records=20))
    return made


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize(("stored_headers", "wanted"), [(False, False), (True, False), (True, True), (False, True)])
def test_small_blocks_of_a_task_are_read_together_with_the_rows_of_each_alone(
    tmp_path: Path, stored_headers: bool, wanted: bool, local: bool
) -> None:
    """INV-2."""
    stored = Stored(tmp_path)
    first, *between, last = small_blocks(stored, 9, headers=stored_headers, local=local)
    first = msgspec.structs.replace(first, cuts={"a/0": (4, 10)}, unwanted=frozenset({"b/1[0, 10)"}))
    last = msgspec.structs.replace(last, cuts={"a/0": (80, 81), "b/1": (80, 85)})
    plan = stored.plan(headers=wanted)
    options = read_options({"tracker": "http://127.0.0.1:1", "includeHeaders": str(wanted).lower()}, streaming=False)
    found = list(read_task(options, IntakeTask(plan, (first, *between, last))))
    alone = [batch for part in (first, *between, last) for batch in read_part(part, plan, wanted)]
    assert pa.Table.from_batches(found).equals(pa.Table.from_batches(alone))
    assert {batch.schema for batch in found} == {DATAFRAME_SCHEMA(wanted)}
    assert [batch.num_rows for batch in found] == [6, 140, 1, 5], (
        "one batch of the seven blocks that are read as a whole"
    )


@pytest.mark.parametrize("unwanted", [frozenset(), frozenset({"b/1[20, 30)"})], ids=["whole", "in part"])
def test_lost_block_among_small_ones_is_omitted_alone(
    tmp_path: Path, unwanted: frozenset[str], caplog: pytest.LogCaptureFixture
) -> None:
    """INV-5."""
    stored = Stored(tmp_path)
    parts = small_blocks(stored, 5)
    parts[2] = msgspec.structs.replace(parts[2], unwanted=unwanted)
    lost = parts[2].reference
    task = IntakeTask(stored.plan("local"), tuple(parts))
    local_path(stored.blocks_directory, lost.stream, lost.id).unlink()
    with pytest.raises(LostBlockError, match=rf'{lost.id} .*failOnDataLoss" to "false"'):
        rows(task)
    options = read_options({"tracker": "http://127.0.0.1:1", "failOnDataLoss": "false"}, streaming=False)
    found = pa.Table.from_batches(read_task(options, task))
    offsets = [row["offset"] for row in found.select(["topic", "offset"]).to_pylist() if row["topic"] == "a"]
    assert offsets == [*range(20), *range(30, 50)]
    assert found.num_rows == 80
    assert [lost.id in message for message in caplog.messages] == [True]
