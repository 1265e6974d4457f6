"""Repeats of an event are logged after growing delays."""

from __future__ import annotations

import logging

import pytest

from forebay.kafka.client.client_errors import ClientErrors
from forebay.process.clock import ManualClock
from forebay.process.reminder import Reminder


def test_event_that_repeats_is_logged_once_and_then_after_delays_that_double_to_their_bound() -> None:
    reminder = Reminder(first_seconds=60.0, max_seconds=240.0)
    logged = [now for now in range(1200) if reminder.is_due(float(now))]
    assert logged == [0, 60, 180, 420, 660, 900, 1140]
    assert reminder.omitted == 1200 - len(logged)


def test_series_ends_when_no_event_came_for_the_delay() -> None:
    reminder = Reminder(first_seconds=60.0)
    assert reminder.is_due(0.0) and not reminder.is_due(30.0)
    assert reminder.is_due(91.0)
    assert not reminder.is_due(120.0)
    assert reminder.is_due(151.0), "the delays begin anew"


def test_other_text_is_logged_within_the_first_delay() -> None:
    reminder = Reminder(first_seconds=60.0)
    assert reminder.is_due(0.0, "refused")
    assert not reminder.is_due(10.0, "reset")
    assert reminder.is_due(60.0, "refused")
    assert not reminder.is_due(110.0, "reset")
    assert reminder.is_due(121.0, "reset")
    assert not reminder.is_due(150.0, "reset")


def test_lines_of_librdkafka_about_a_dead_broker_are_logged_after_growing_delays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    errors = ClientErrors(logging.getLogger("forebay.kafka"), clock)
    for _ in range(400):
        errors.log(
            logging.WARNING, "%s [%s] %s", "REQTMOUT", "client-1", "[thrd:b/1]: Timed out FetchRequest in flight"
        )
        errors.log(
            logging.ERROR, "%s [%s] %s", "FAIL", "client-1", "[thrd:b/1]: Connect failed (after 1ms in state CONNECT)"
        )
        clock.advance(1)
    lines = [line.getMessage() for line in caplog.records]
    assert len(lines) == 3
    assert lines[0] == "REQTMOUT [client-1] [thrd:b/1]: Timed out FetchRequest in flight"
    assert lines[1].endswith("in flight (59 more since the last line)")
    errors.log(logging.WARNING, "%s [%s] %s", "MAXPOLL", "client-1", "Application maximum poll interval exceeded")
    assert len(caplog.records) == 4, "another kind has delays of its own"
