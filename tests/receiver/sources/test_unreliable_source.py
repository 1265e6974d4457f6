"""Unreliable custom sources behind the Source protocol: offsets by claim, records kept until they are accepted."""

from __future__ import annotations

from forebay.model.columns import Columns, Start
from tests.support.state.custom_sources import Q, Queue, offsets, point, unreliable


def test_unreliable_records_are_numbered_from_the_claimed_position() -> None:
    adapter = unreliable(Queue(20))
    assert adapter.poll(100, 0) == [], "poll is not called before the claim"
    adapter.start([Start(Q, 40, -1, 3)])
    assert offsets(adapter.poll(100, 0)) == [("q", 3, 40, 46)]
    assert offsets(adapter.poll(5, 0)) == [("q", 3, 47, 51)]
    adapter.pause([Q])
    assert adapter.poll(5, 0) == []


def test_only_unaccepted_records_are_returned_again_under_a_new_claim() -> None:
    own = Queue(20)
    adapter = unreliable(own)
    adapter.start([Start(Q, 0, -1, 1)])
    first = [adapter.poll(100, 0)[0] for _ in range(2)]
    adapter.commit({Q: point(7)})
    adapter.start([Start(Q, 7, -1, 2)])
    again = [*adapter.poll(100, 0), *adapter.poll(100, 0)]
    assert offsets(again) == [("q", 2, 7, 13), ("q", 2, 14, 19)], "polled records keep their offsets"
    assert isinstance(again[0], Columns) and isinstance(first[1], Columns)
    assert again[0].batch is first[1].batch and own.begun == 1
    adapter.commit_sync({Q: point(20)}, 1.0)
    adapter.start([Start(Q, 20, -1, 3)])
    own.values = [b"new"]
    assert offsets(adapter.poll(100, 0)) == [("q", 3, 20, 20)]


def test_start_beyond_kept_records_numbers_from_there_and_keeps_them() -> None:
    """A machine that reports [0, 7) again starts at 7. If that report is refused too, [0, 7) must still be kept."""
    own = Queue(14)
    adapter = unreliable(own)
    adapter.start([Start(Q, 0, -1, 1)])
    adapter.poll(100, 0)
    adapter.start([Start(Q, 7, -1, 2)])
    assert offsets(adapter.poll(100, 0)) == [("q", 2, 7, 13)]
    adapter.start([Start(Q, 0, -1, 3)])
    assert offsets([*adapter.poll(100, 0), *adapter.poll(100, 0)]) == [("q", 3, 0, 6), ("q", 3, 7, 13)]


def test_accepted_records_are_dropped() -> None:
    """INV-2, INV-6: they are not kept for ever, and never returned again."""
    adapter = unreliable(Queue(20))
    adapter.start([Start(Q, 0, -1, 1)])
    adapter.poll(100, 0)
    adapter.poll(100, 0)
    adapter.commit({Q: point(10)})
    adapter.start([Start(Q, 0, -1, 2)])
    assert offsets(adapter.poll(100, 0)) == [("q", 2, 7, 13)], "only a part of the second batch is accepted"


def test_stop_is_called_also_without_start() -> None:
    own = Queue()
    adapter = unreliable(own)
    adapter.close()
    assert own.ended
