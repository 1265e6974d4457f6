"""What the cursor of a query keeps: partitions that it reads or may read, and no others."""

from __future__ import annotations

import pytest

from forebay import messages as m
from forebay.model.errors import RangeNotHeldError
from pyspark_forebay.intake.stream import IntakeStreamReader
from tests.support.state.asked_intake import ALL, Taken, begun, records
from tests.support.state.tracked import TOPIC


def test_partition_created_after_a_batch_was_planned_is_kept(taken: Taken) -> None:
    """INV-8: the batch does not name it, and the next one reads it from its beginning."""
    taken.take()
    reader = begun()
    start = reader.latestOffset(reader.initialOffset(), ALL)
    taken.take()
    end = reader.latestOffset(start, ALL)
    taken.add(1)
    taken.take(1)
    assert records(reader.partitions(start, end)) == {"t/0[10, 20)": 10}
    assert taken.held(1)
    reader.commit(end)
    assert taken.held(1)
    after = reader.latestOffset(end, ALL)
    assert records(reader.partitions(end, after)) == {"t/1[0, 10)": 10}
    reader.commit(after)
    assert not taken.held(1)


@pytest.mark.parametrize("call", ["plans its last batch again", "commits it"])
def test_partition_created_while_the_query_was_stopped_is_kept(taken: Taken, call: str) -> None:
    """INV-8: Spark begins with the unfinished batch, which does not name the partition."""
    taken.take()
    reader = begun()
    start = reader.latestOffset(reader.initialOffset(), ALL)
    taken.take()
    end = reader.latestOffset(start, ALL)
    reader.stop()
    taken.add(1)
    taken.take(1)
    again = begun("again")
    if call == "commits it":
        again.commit(end)
    else:
        again.partitions(start, end)
    assert taken.held(1)


def test_deleted_records_of_an_unkept_partition_are_reported(taken: Taken) -> None:
    """INV-5: its cursor may have expired meanwhile."""
    taken.take()
    reader = begun()
    start = reader.latestOffset(reader.initialOffset(), ALL)
    reader.stop()
    taken.tracked.say(m.DropCursorRequest(cursor="query-q"))
    taken.add(1)
    taken.take(1)
    state = taken.tracked.state
    (gone,) = (path for path, share in state.index.segments.items() if path.endswith("1.seg"))
    state.cleaning_segments[gone] = True
    again = begun("again")
    end = again.latestOffset(start, ALL)
    with pytest.raises(RangeNotHeldError, match=r"t/1\[0, 10\): the WAL no longer has it"):
        again.partitions(start, end)


def test_cursor_keeps_no_partitions_that_the_query_does_not_read(taken: Taken) -> None:
    """INV-8: also partitions that are created later; they would fill the disk."""
    taken.add(1)
    taken.take(0)
    taken.take(1)
    reader = IntakeStreamReader({"tracker": "http://127.0.0.1:1", "assign": f'{{"{TOPIC}": [0]}}'}, new_id=lambda: "q")
    at = reader.latestOffset(reader.initialOffset(), ALL)
    assert not taken.held(1)
    assert not taken.held(0)  # it begins behind what was there
    taken.add(2)
    taken.take(2)
    assert taken.held(2)
    taken.take(0)
    for _ in range(2):
        reader.latestOffset(at, ALL)
        assert not taken.held(2)
    assert taken.driver.asked.count("/v1/cursors/move") == 2  # where it begins, and of the partition, once
    end = reader.latestOffset(at, ALL)
    reader.stop()
    taken.tracked.say(m.DropCursorRequest(cursor="query-q"))
    again = IntakeStreamReader(
        {"tracker": "http://127.0.0.1:1", "assign": f'{{"{TOPIC}": [0]}}'}, new_id=lambda: "again"
    )
    again.partitions(at, end)
    assert not taken.held(2)
    again.stop()


def test_cursor_keeps_everything_before_the_start_is_determined(taken: Taken) -> None:
    """INV-8: records could be deleted before."""
    taken.take()
    held: list[bool] = []

    def asked(path: str) -> None:
        if path == "/v1/cursors/open":
            taken.take()  # since it looked
        if path == "/v1/cursors/earliest":
            held.append(taken.held(0))

    taken.driver.before = asked
    options = {"tracker": "http://127.0.0.1:1", "startingOffsets": "earliest"}
    reader = IntakeStreamReader(options, new_id=lambda: "q")
    reader.latestOffset(reader.initialOffset(), ALL)
    assert held == [True]
    reader.stop()
    reader = begun()
    assert reader.latestOffset(reader.initialOffset(), ALL)["#start"] == {TOPIC: {"0": 30}}
    reader.stop()


def test_restored_checkpoint_keeps_partitions_that_it_does_not_name(taken: Taken) -> None:
    """INV-8: the cursor had moved on in these partitions."""
    taken.take()
    reader = begun()
    start = reader.latestOffset(reader.initialOffset(), ALL)
    taken.add(1)
    taken.take(1)
    reader.commit(reader.latestOffset(start, ALL))
    assert not taken.held(1)
    reader.stop()
    again = begun("again")
    again.commit(start)  # Spark begins with the batch that this checkpoint has last
    assert taken.held(1)
    again.stop()
