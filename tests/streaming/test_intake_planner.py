"""The planner of a query over an intake, with the driver's decisions and no server."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from forebay import messages as m
from forebay.access import Access
from forebay.errors import AccessError, LostBlockError, RangeNotHeldError, UnreachableError, UsageError
from pyspark_forebay import intake
from pyspark_forebay.intake_batch import IntakeBatchReader
from pyspark_forebay.intake_stream import IntakeStreamReader
from tests.support.asked_intake import Taken, asked_in_process
from tests.support.tracked import TOPIC

ALL = ReadAllAvailable()


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Taken:
    return asked_in_process(monkeypatch)


def begun(identity: str = "q") -> IntakeStreamReader:
    return IntakeStreamReader({"tracker": "http://127.0.0.1:1"}, lambda: identity)


def records(tasks: list[Any]) -> dict[str, int]:
    """Records that the tasks read, by range."""
    found = {}
    for task in tasks:
        for part in task.value.parts:
            found |= {r.label: part.records for r in part.reference.ranges if r.label not in part.unwanted}
    return found


def test_a_partition_that_came_after_a_batch_was_planned_stays_held_while_that_batch_is_read(taken: Taken) -> None:
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
def test_a_partition_that_came_while_the_query_was_away_stays_held_when_it_comes_back(taken: Taken, call: str) -> None:
    """INV-8: Spark begins with the batch that was not finished, which does not name the partition."""
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


def test_a_query_whose_beginning_is_refused_holds_nothing(taken: Taken) -> None:
    """INV-6: it may be started again and again."""
    taken.take()
    options = {"tracker": "http://127.0.0.1:1", "startingOffsets": f'{{"{TOPIC}": {{"0": 99}}}}'}
    reader = IntakeStreamReader(options, lambda: "q")
    for _ in range(2):
        with pytest.raises(UsageError, match="beyond what the stream has taken in"):
            reader.latestOffset(reader.initialOffset(), ALL)
        assert not taken.tracked.state.cursors
        assert not taken.held(0)


def test_of_a_partition_that_was_not_held_what_is_gone_of_it_is_told(taken: Taken) -> None:
    """INV-5: its cursor was forgotten meanwhile, say."""
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
    with pytest.raises(RangeNotHeldError, match=r"t/1\[0, 10\): the WAL has it no more"):
        again.partitions(start, end)


def batch_of(**options: str) -> IntakeBatchReader:
    return IntakeBatchReader({"tracker": "http://127.0.0.1:1", **options})


def test_what_is_to_be_told_is_told_once(taken: Taken, caplog: pytest.LogCaptureFixture) -> None:
    """A trigger each few hundred milliseconds would fill the log with it. Headers that are not taken in, and a gap."""
    taken.take()
    taken.lose(0, 25)
    taken.take()
    reader = IntakeStreamReader(
        {"tracker": "http://127.0.0.1:1", "includeHeaders": "true", "startingOffsets": f'{{"{TOPIC}": {{"0": 5}}}}'},
        lambda: "q",
    )
    end = reader.latestOffset(reader.initialOffset(), ALL)
    with caplog.at_level(logging.WARNING, "forebay.source"):
        for _ in range(2):
            assert records(reader.partitions({}, end)) == {"t/0[0, 10)": 5, "t/0[25, 35)": 10}
    told = [record.getMessage() for record in caplog.records]
    assert [words.partition(":")[0] for words in told] == ["t/0[10, 25) was lost in Kafka", "option includeHeaders"]
    reader.stop()


def test_a_block_that_must_be_looked_into_for_a_time_and_is_gone_fails_the_query_or_is_passed_over(
    taken: Taken, caplog: pytest.LogCaptureFixture
) -> None:
    """INV-5."""
    taken.take()
    with pytest.raises(LostBlockError, match='failOnDataLoss" to "false"'):
        batch_of(startingTimestamp="1").partitions()
    with (
        caplog.at_level(logging.WARNING, "forebay.source"),
        pytest.raises(UsageError, match="t/0 has no record at or after 1 ms"),
    ):
        batch_of(startingTimestamp="1", failOnDataLoss="false").partitions()
    assert "failOnDataLoss is false: looking further" in caplog.text


@pytest.mark.parametrize(
    ("path", "answer", "options"),
    [
        ("blocks", m.BlocksAnswer(blocks=(), reached=(0,)), {}),
        ("times", m.TimesAnswer(found=(m.TimedBlock(reached=0),)), {"startingTimestamp": "1"}),
    ],
)
def test_a_driver_whose_answers_do_not_go_on_is_not_asked_for_ever(
    path: str, answer: m.Message, options: dict[str, str], taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-6."""
    taken.take()
    post = taken.driver.post

    def posted(asked: str, body: Any, kind: Any) -> Any:
        assert len(taken.driver.asked) < 20
        found = post(asked, body, kind)
        return answer if asked == f"/v1/cursors/{path}" else found

    monkeypatch.setattr(taken.driver, "post", posted)
    with pytest.raises(UsageError, match=f"the driver's answer about {path} does not go on"):
        batch_of(startingOffsets=f'{{"{TOPIC}": {{"0": 0}}}}', **options).partitions()


def test_a_token_that_is_refused_is_not_shown_again_and_a_stop_ends_the_waiting(
    taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-6: either would wait for minutes."""
    asked: list[str] = []
    outcome: list[Exception] = [AccessError("a reader's token is needed")]

    def refused(path: str, answer: Any) -> Any:
        asked.append(path)
        raise outcome[0]

    monkeypatch.setattr(taken.driver, "get", refused)
    waiting = intake.Intake(("http://127.0.0.1:1",), Access(), 600.0)
    with pytest.raises(AccessError):
        waiting.look()
    assert len(asked) == 1
    outcome[0] = UnreachableError("away")
    waiting.close()
    with pytest.raises(UnreachableError, match="the query is stopping"):
        waiting.look()
    assert len(asked) == 2


def test_progress_of_a_query_over_what_is_not_kafkas_is_refused() -> None:
    with pytest.raises(UsageError, match="the stream is not of Kafka, which keeps groups"):
        intake.Progress("g", {}, ())


def test_a_checkpoint_whose_last_batch_another_source_planned_is_left_to_that(taken: Taken) -> None:
    """INV-3: its ends are offsets of Kafka's; read from blocks, it might be another batch."""
    taken.take()
    reader = begun()
    for start, end in (({TOPIC: {"0": 0}}, {TOPIC: {"0": 5}}), ({}, {TOPIC: {"0": 5}, "#cursor": "q"})):
        with pytest.raises(UsageError, match="was planned by another source"):
            reader.partitions(start, end)
    assert not taken.tracked.state.cursors
    end = reader.latestOffset({TOPIC: {"0": 0}}, ALL)  # where that has ended, the query goes on over the intake
    assert records(reader.partitions({TOPIC: {"0": 0}}, end)) == {"t/0[0, 10)": 10}
    reader.stop()


def test_what_a_query_does_not_read_is_not_held_for_it_also_if_it_came_later(taken: Taken) -> None:
    """INV-8: it would fill the disk."""
    taken.add(1)
    taken.take(0)
    taken.take(1)
    reader = IntakeStreamReader({"tracker": "http://127.0.0.1:1", "assign": f'{{"{TOPIC}": [0]}}'}, lambda: "q")
    at = reader.latestOffset(reader.initialOffset(), ALL)
    assert not taken.held(1)
    taken.add(2)
    taken.take(2)
    assert taken.held(2)
    taken.take(0)
    reader.latestOffset(at, ALL)
    assert not taken.held(2)
    reader.stop()


def test_all_is_held_before_it_is_asked_where_a_query_begins(taken: Taken) -> None:
    """INV-8: it could be gone by then."""
    taken.take()
    held: list[bool] = []
    taken.driver.before = lambda path: held.append(taken.held(0)) if path == "/v1/cursors/earliest" else None
    options = {"tracker": "http://127.0.0.1:1", "startingOffsets": "earliest"}
    reader = IntakeStreamReader(options, lambda: "q")
    reader.latestOffset(reader.initialOffset(), ALL)
    assert held == [True]
    reader.stop()


def test_a_checkpoint_that_was_put_back_holds_what_is_left_of_partitions_that_it_does_not_name(taken: Taken) -> None:
    """INV-8: the cursor had moved on in them."""
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


def test_a_query_that_is_ahead_of_the_intake_waits_for_it(taken: Taken) -> None:
    """A journal that was rebuilt may have positions to take in anew."""
    taken.take()
    reader = begun()
    ahead = {TOPIC: {"0": 20}, "#cursor": "query-q"}
    assert reader.latestOffset(ahead, ALL) == ahead
    for _ in range(2):
        taken.take()
    assert records(reader.partitions(ahead, reader.latestOffset(ahead, ALL))) == {"t/0[20, 30)": 10}
    reader.stop()
