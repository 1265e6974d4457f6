"""When a log's end passed an offset, from the ends read over time."""

from __future__ import annotations

import pytest

from driver.background.end_history import POINTS_MAX, EndHistory
from forebay.model.values import TopicPartition

TP = TopicPartition("t", 0)


def test_age_is_interpolated_between_two_reads() -> None:
    history = EndHistory()
    for now, end in ((0.0, 100), (5.0, 200), (10.0, 200), (15.0, 400)):
        history.note(now, {TP: end})
    assert history.seconds_since(TP, 150, 20.0) == pytest.approx(17.5)
    assert history.seconds_since(TP, 300, 20.0) == pytest.approx(7.5)
    assert history.seconds_since(TP, 400, 20.0) == 0.0
    assert history.seconds_since(TP, 99, 20.0) is None
    assert history.seconds_since(TopicPartition("t", 1), 0, 20.0) is None


def test_a_pause_in_writing_is_no_age() -> None:
    """Records written after an hour of silence are young."""
    history = EndHistory()
    for second in range(0, 3_600, 5):
        history.note(float(second), {TP: 100})
    history.note(3_600.0, {TP: 200})
    assert history.seconds_since(TP, 100, 3_600.0) == pytest.approx(5.0)


def test_number_of_points_is_bounded_and_old_points_lie_further_apart() -> None:
    """INV-6."""
    history = EndHistory()
    for number in range(10_000):
        history.note(number * 5.0, {TP: number * 10})
        times, ends = history._points[TP]
        assert len(times) == len(ends) <= POINTS_MAX
    assert history.seconds_since(TP, 99_900, 50_000.0) == pytest.approx(50.0, abs=10.0)
    oldest = ends[0]
    assert history.seconds_since(TP, oldest + 1, 50_000.0) is not None


def test_log_that_was_cut_back_begins_again() -> None:
    history = EndHistory()
    history.note(0.0, {TP: 100})
    history.note(5.0, {TP: 50})
    assert history.seconds_since(TP, 40, 10.0) is None
    history.note(10.0, {TP: 60})
    assert history.seconds_since(TP, 50, 10.0) == pytest.approx(5.0)
    history.note(15.0, {})
    assert history.seconds_since(TP, 50, 15.0) is None
