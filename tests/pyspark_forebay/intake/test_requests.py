"""Requests of a planner to the driver: bounded, without repeated warnings, and with a stop that ends a wait."""

from __future__ import annotations

import logging
from typing import Any, cast

import msgspec
import pytest

from driver.journal.events import IncarnationBegun, IncarnationStart
from driver.journal.transitions import apply
from forebay import messages as m
from forebay.model.errors import AccessError, UnreachableError, UsageError
from forebay.security.access import Access
from pyspark_forebay.intake import client
from pyspark_forebay.intake.stream import IntakeStreamReader
from tests.support.state.asked_intake import ALL, Taken, batch_of, begun, records
from tests.support.state.tracked import TOPIC


def test_repeated_warnings_are_logged_once(taken: Taken, caplog: pytest.LogCaptureFixture) -> None:
    """A trigger every few hundred milliseconds would fill the log. The warnings are missing headers, and a gap."""
    taken.take()
    taken.lose(0, 25)
    taken.take()
    reader = IntakeStreamReader(
        {"tracker": "http://127.0.0.1:1", "includeHeaders": "true", "startingOffsets": f'{{"{TOPIC}": {{"0": 5}}}}'},
        new_id=lambda: "q",
    )
    end = reader.latestOffset(reader.initialOffset(), ALL)
    with caplog.at_level(logging.WARNING, "forebay.source"):
        for _ in range(2):
            assert records(reader.partitions({}, end)) == {"t/0[0, 10)": 5, "t/0[25, 35)": 10}
    logged = [record.getMessage() for record in caplog.records]
    assert [message.partition(":")[0] for message in logged] == [
        "t/0[10, 25) was lost in Kafka",
        "option includeHeaders",
    ]
    reader.stop()


@pytest.mark.parametrize(
    ("path", "answer", "options"),
    [
        ("blocks", m.BlocksAnswer(blocks=(), reached=(0,)), {}),
        ("times", m.TimesAnswer(found=(m.TimedBlock(reached=0),)), {"startingTimestamp": "1"}),
    ],
)
def test_answers_without_progress_end_the_request(
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
    with pytest.raises(UsageError, match=f"the driver's answer about {path} makes no progress"):
        batch_of(startingOffsets=f'{{"{TOPIC}": {{"0": 0}}}}', **options).partitions()


def test_refused_token_is_not_retried_and_a_stop_ends_the_wait(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6: either would wait for minutes. After the time has passed there is no second request."""
    asked: list[str] = []
    outcome: list[Exception] = [AccessError("a query's token is needed")]

    def refused(path: str, answer: Any) -> Any:
        asked.append(path)
        raise outcome[0]

    monkeypatch.setattr(taken.driver, "get", refused)
    waiting = client.Intake(("http://127.0.0.1:1",), Access(), 600.0)
    with pytest.raises(AccessError):
        waiting.describe()
    assert len(asked) == 1
    outcome[0] = UnreachableError("away")
    with pytest.raises(UnreachableError, match="away"):
        client.Intake(("http://127.0.0.1:1",), Access(), 0.0).describe()
    assert len(asked) == 2
    waiting.close()
    with pytest.raises(UnreachableError, match="the query is stopping"):
        waiting.describe()
    assert len(asked) == 3


def test_block_in_two_answers_is_read_once(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-2: an answer holds a limited number of blocks, and a block of several partitions may be in two answers."""
    taken.take()
    post = taken.driver.post
    reached = [5]

    def posted(path: str, body: Any, kind: Any) -> Any:
        found = post(path, body, kind)
        return (
            msgspec.structs.replace(found, reached=(reached.pop(),)) if path.endswith("/blocks") and reached else found
        )

    monkeypatch.setattr(taken.driver, "post", posted)
    (task,) = batch_of().partitions()
    assert [part.records for part in task.value.parts] == [10] and not reached


def test_trigger_waits_for_min_offsets_unless_no_more_can_arrive(taken: Taken) -> None:
    """With Trigger.AvailableNow, which reads what existed when it began; and at the end of an incarnation."""
    some = {"tracker": "http://127.0.0.1:1", "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "6"}
    some["maxTriggerDelay"] = "1h"
    start: dict[str, Any] = {TOPIC: {"0": 0}, "#cursor": "query-q"}
    taken.take()
    now, always = (IntakeStreamReader(some, new_id=cast(Any, lambda name=name: name)) for name in ("now", "always"))
    now.prepareForTriggerAvailableNow()
    taken.take()

    def triggers(reader: IntakeStreamReader, at: dict[str, Any], count: int) -> list[int]:
        found = []
        for _ in range(count):
            at = reader.latestOffset(at, reader.getDefaultReadLimit())
            found.append(at[TOPIC]["0"])
        return found

    assert triggers(now, start, 3) == [6, 10, 10]
    now.stop()
    assert triggers(always, start, 5) == [6, 12, 18, 18, 18]
    apply(
        taken.tracked.state, IncarnationBegun(IncarnationStart(TOPIC, 0, 0, "id-2"), taken.tracked.now_ms, "recreated")
    )
    assert triggers(always, {TOPIC: {"0": 18}, "#cursor": "query-q"}, 1) == [0]  # where the next incarnation begins
    always.stop()


def test_query_ahead_of_the_intake_waits(taken: Taken) -> None:
    """After a rebuild, the journal may have to take in records again."""
    taken.take()
    reader = begun()
    ahead = {TOPIC: {"0": 20}, "#cursor": "query-q"}
    assert reader.latestOffset(ahead, ALL) == ahead
    for _ in range(2):
        taken.take()
    assert records(reader.partitions(ahead, reader.latestOffset(ahead, ALL))) == {"t/0[20, 30)": 10}
    reader.stop()
