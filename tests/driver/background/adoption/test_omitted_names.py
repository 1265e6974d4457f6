"""A search of the WAL finds orphans that a store's listing omits: a listing may be older than the newest objects."""

from __future__ import annotations

import msgspec
import pytest

from driver.background import adoption
from driver.decisions.clean_up import CleanSegment
from driver.journal import events as ev
from driver.journal import receiver_limits
from driver.journal.state import State
from driver.journal.transitions import apply, receivers
from forebay import messages as m
from tests.support.state.orphans import Stream
from tests.support.state.tracked import STREAM, TOPIC
from wal.decisions.retention import SegmentFacts
from wal.segments import layout


@pytest.fixture
def t(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Stream:
    """A stream that records gaps, and whose WAL lists nothing."""
    stream = Stream(on_gap="record", objects=getattr(request, "param", False))
    monkeypatch.setattr(stream.wal, "list", lambda folder: [])
    return stream


def leave_orphan(t: Stream) -> None:
    """Let r1 give partition 0 up without having reported a block."""
    epoch = t.register("r1", "i1")
    token = t.claim(epoch).view.token
    t.orphan(epoch, (0, 0, 40, token))
    t.say(m.ReleaseRequest(receiver_id="r1", epoch=epoch, releases=(m.Release(topic=TOPIC, partition=0, token=token),)))


def adopted(t: Stream) -> list[tuple[int, int]]:
    return [(held.from_offset, held.until_offset) for held in t.adopted()]


@pytest.mark.parametrize("t", [False, True], indirect=True, ids=["files", "objects"])
def test_orphans_of_an_ended_epoch_none_of_whose_segments_is_listed(t: Stream) -> None:
    """INV-2."""
    epoch, token = t.dead_writer()
    t.orphan(epoch, (0, 0, 20, token))
    t.orphan(epoch, (0, 20, 40, token))
    t.faulted(low=40)
    t.round()
    assert (adopted(t), t.partition.gaps) == ([(0, 20), (20, 40)], [])


def test_orphans_of_an_epoch_that_ended_under_an_older_release(t: Stream) -> None:
    """INV-2: its journal names only those that could write."""
    epoch, token = t.dead_writer()
    t.state.ended_epochs.clear()
    t.orphan(epoch, (0, 0, 40, token))
    t.faulted(low=40)
    t.round()
    assert (adopted(t), t.partition.gaps) == ([(0, 40)], [])


def test_orphans_of_an_epoch_that_has_a_barrier_since_an_earlier_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-2: also by a driver that starts after it."""
    t = Stream(on_gap="record", objects=True)
    epoch, token = t.dead_writer()
    t.orphan(epoch, (0, 0, 40, token))
    t.faulted(low=40)
    t.round(until_step="search")
    assert t.state.unbarred == []
    monkeypatch.setattr(t.wal, "list", lambda folder: [])
    t.round(t.new_adopter("d2"))
    assert (adopted(t), t.partition.gaps) == ([(0, 40)], [])


def test_orphans_of_a_receiver_that_runs_on(t: Stream) -> None:
    """INV-2."""
    leave_orphan(t)
    t.faulted(low=40)
    t.round()
    assert (adopted(t), t.partition.gaps) == ([(0, 40)], [])


def test_orphans_of_a_receiver_that_was_forgotten(t: Stream) -> None:
    """INV-2."""
    leave_orphan(t)
    apply(t.state, ev.ReceiversForgotten(("r1",)))
    t.faulted(low=40)
    t.round()
    assert (adopted(t), t.partition.gaps) == ([(0, 40)], [])


def test_orphans_of_a_receiver_whose_id_gave_way_to_another(t: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-2."""
    leave_orphan(t)
    monkeypatch.setattr(receiver_limits, "RECEIVERS_MAX", len(t.state.receivers))
    t.register("r3", "i3")
    assert "r1" not in t.state.receivers
    monkeypatch.undo()
    monkeypatch.setattr(t.wal, "list", lambda folder: [])
    t.faulted(low=40)
    t.round()
    assert (adopted(t), t.partition.gaps) == ([(0, 40)], [])


@pytest.mark.parametrize("t", [False, True], indirect=True, ids=["files", "objects"])
def test_clean_up_during_a_search_makes_it_begin_again(t: Stream) -> None:
    """INV-2: the name of a deleted segment is free, and looks like the end of its epoch."""
    epoch, token = t.dead_writer()
    first = t.orphan(epoch, (1, 0, 5, token)).handle.path
    t.orphan(epoch, (0, 0, 40, token))
    t.faulted(low=40)

    def clean() -> None:
        t.say(CleanSegment(SegmentFacts(first, True, False, ()), "r1", epoch, t.now_ms))
        t.wal.delete(first)

    t.between["search"] = clean
    assert t.round() == adoption.ROUND_SECONDS
    assert (adopted(t), t.partition.gaps) == ([], [])
    t.round()
    assert (adopted(t), t.partition.gaps) == ([(0, 40)], [])


def test_orphans_in_a_segment_before_one_that_has_accepted_blocks(t: Stream) -> None:
    """INV-2: the journal counts this segment, and nothing after it is missing in the WAL."""
    epoch = t.register("r1", "i1")
    first, other = t.claim(epoch).view.token, t.claim(epoch, 1).view.token
    t.orphan(epoch, (0, 0, 40, first))
    t.take_in(epoch, other, 5, partition=1, path=layout.block_segment(STREAM, "r1", epoch, 2))
    t.register("r1", "i2")
    t.faulted(low=40)
    t.round()
    assert (adopted(t), t.partition.gaps) == ([(0, 40)], [])


def test_the_newest_ended_epochs_are_remembered_with_what_was_deleted_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6, INV-7."""
    monkeypatch.setattr(receivers, "ENDED_MAX", 2)
    t = Stream()
    epochs = []
    for number in range(5):
        epochs.append(t.register("r1", f"i{number}"))
        if number != 2:
            t.claim(epochs[-1])
    path = layout.block_segment(STREAM, "r1", epochs[1], 7)
    t.say(CleanSegment(SegmentFacts(path, True, False, ()), "r1", epochs[1], t.now_ms))
    assert [(ended.epoch, ended.segments) for ended in t.state.ended_epochs] == [(epochs[1], 7), (epochs[3], 0)], (
        "one without a claim wrote nothing"
    )
    replayed = State(stream=STREAM, timeline=1)
    for event in t.events:
        apply(replayed, event)
    assert replayed == t.state == msgspec.msgpack.decode(msgspec.msgpack.encode(t.state), type=State)
