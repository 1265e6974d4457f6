"""The cursor of a query: its users, and queries without one."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from forebay import messages as m
from forebay.model.errors import RefusedError, UsageError
from pyspark_forebay.intake import client, cursor
from pyspark_forebay.intake.stream import IntakeStreamReader
from tests.support.kafka.polling import PATIENCE_SECONDS
from tests.support.state.asked_intake import ALL, Taken, begun
from tests.support.state.tracked import TOPIC


def test_query_that_cannot_begin_leaves_no_cursor(taken: Taken) -> None:
    """INV-6: it may be started repeatedly."""
    taken.take()
    options = {"tracker": "http://127.0.0.1:1", "startingOffsets": f'{{"{TOPIC}": {{"0": 99}}}}'}
    reader = IntakeStreamReader(options, new_id=lambda: "q")
    for _ in range(2):
        with pytest.raises(UsageError, match="is too high: the stream has taken in offsets up to"):
            reader.latestOffset(reader.initialOffset(), ALL)
        assert not taken.tracked.state.cursors
        assert not taken.held(0)
    assert "/v1/cursors/earliest" not in taken.driver.asked  # no option needs it


def test_query_with_a_dropped_cursor_fails_every_call_without_a_request(
    taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-4: also while the driver is unavailable."""
    monkeypatch.setattr(cursor, "HEARTBEAT_SECONDS", 0.01)
    taken.take()
    reader = begun()
    at = reader.latestOffset(reader.initialOffset(), ALL)
    taken.driver.post("/v1/cursors/drop", m.DropCursorRequest(cursor="query-q"), m.OperatorAnswer)
    assert reader._planner is not None and reader._planner._cursor is not None
    reader._planner._cursor._thread.join(PATIENCE_SECONDS)  # its heartbeat was refused
    asked = len(taken.driver.asked)
    for call in (lambda: reader.latestOffset(at, ALL), lambda: reader.partitions(at, at), lambda: reader.commit(at)):
        with pytest.raises(RefusedError, match="cursor query-q does not exist: dropped by"):
            call()
    reader.stop()
    assert len(taken.driver.asked) == asked
    assert taken.driver.closed == 1


def test_each_user_of_a_cursor_has_its_own_key(taken: Taken) -> None:
    """INV-4: an epoch can be guessed."""
    count = map(str, itertools.count())
    at: dict[str, Any] = {}
    digests = set()
    for _ in range(2):
        reader = IntakeStreamReader({"tracker": "http://127.0.0.1:1"}, new_id=lambda: next(count))
        at = reader.latestOffset(at, ALL)
        digests |= {cursor.key_digest for cursor in taken.tracked.state.cursors.values()}
        reader.stop()
    assert len(digests) == 2 and "" not in digests


def test_query_waits_for_a_cursor_in_use_but_not_for_a_refused_one(
    taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-6: its user may have been killed; waiting changes nothing else."""
    monkeypatch.setattr(client, "PAUSE_SECONDS", 0.0)
    taken.take()
    answers = [
        RefusedError("there are too many", "conflict"),
        *[RefusedError("another user reads by it", "in-use")] * 2,
    ]

    def refuse(path: str) -> None:
        if path == "/v1/cursors/open" and answers:
            raise answers.pop(0)

    taken.driver.before = refuse
    reader = begun()
    with pytest.raises(RefusedError, match="there are too many"):
        reader.latestOffset(reader.initialOffset(), ALL)
    assert len(answers) == 2
    reader.latestOffset(reader.initialOffset(), ALL)
    assert not answers
    reader.stop()
