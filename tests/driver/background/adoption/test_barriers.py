"""Barriers before a search: blocks that a fenced writer may still write are found, or can no longer be written."""

from __future__ import annotations

import msgspec
import pytest

from driver.background import adoption
from driver.decisions.clean_up import CleanSegment
from driver.journal.state import State
from driver.journal.transitions import apply, receivers
from driver.tracker import Tracker
from forebay import messages as m
from forebay.model.errors import StoreError
from forebay.model.identifiers import numbered
from tests.support.state.orphans import Stream
from tests.support.state.tracked import STREAM, TOPIC, Tracked, tracker_options
from wal.decisions.retention import SegmentFacts
from wal.segments import layout


def first_name(epoch: int, sequence: int = 1, receiver: str = "r1") -> str:
    return layout.block_segment(STREAM, receiver, epoch, sequence)


def unbarred(t: Tracked) -> list[tuple[str, int, int]]:
    return [(ended.receiver_id, ended.epoch, ended.segments) for ended in t.state.unbarred]


@pytest.mark.parametrize("on_gap", ["stop", "record"])
def test_before_the_search_the_next_name_of_a_fenced_writer_is_taken_from_it(on_gap: str) -> None:
    """INV-2: else what it sent may land when the gap that holds it was recorded."""
    t = Stream(on_gap=on_gap, objects=True)
    epoch, _ = t.dead_writer()
    assert unbarred(t) == [("r1", epoch, 0)]
    t.faulted(low=40)
    t.round()
    with pytest.raises(FileExistsError):
        t.wal.put_new(first_name(epoch), b"what the writer had sent")
    assert unbarred(t) == []
    assert bool(t.partition.gaps) == (on_gap == "record")
    assert not t.wal.exists(first_name(t.state.receivers["r2"].epoch, receiver="r2"))


def test_what_landed_after_all_is_adopted_and_the_name_after_it_taken() -> None:
    t = Stream(on_gap="record", objects=True)
    epoch, token = t.dead_writer()
    t.faulted(low=40)
    t.between["bar"] = lambda: t.orphan(epoch, (0, 0, 40, token))
    t.round()
    assert [(r.from_offset, r.until_offset) for r in t.adopted()] == [(0, 40)]
    assert t.wal.exists(first_name(epoch, 2)) and not t.partition.gaps


def test_files_that_are_appended_to_have_no_barriers() -> None:
    t = Stream(on_gap="record")
    epoch, _ = t.dead_writer()
    t.faulted(low=40)
    t.round()
    assert t.partition.gaps
    assert not t.wal.exists(first_name(epoch))


@pytest.mark.parametrize("step", ["bar", "search"])
def test_killed_around_its_barriers_a_search_begins_with_them_again(step: str) -> None:
    """Before them, and where they are in the WAL and the journal does not know."""
    t = Stream(on_gap="record", objects=True)
    epoch, _ = t.dead_writer()
    t.faulted(low=40)
    before = msgspec.msgpack.encode(t.state)
    t.round(until_step=step)
    there = t.wal.list(layout.block_folder(STREAM, "r1"))
    assert there == ([] if step == "bar" else [first_name(epoch)])
    t.state = msgspec.msgpack.decode(before, type=State)
    t.tracker = Tracker(t.state, numbered(1, 2), tracker_options(on_gap="record"))
    t.beat(t.state.receivers["r2"].epoch, "r2")
    t.round(t.new_adopter("d2"))
    assert t.wal.list(layout.block_folder(STREAM, "r1")) == [first_name(epoch)]
    assert (unbarred(t), bool(t.partition.gaps)) == ([], True)


def test_no_search_begins_while_a_barrier_can_not_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    t = Stream(on_gap="record", objects=True)
    t.dead_writer()
    t.faulted(low=40)

    def away(*_: object) -> None:
        raise StoreError("memory://: no answer")

    with monkeypatch.context() as patched:
        patched.setattr(t.wal, "put_new", away)
        assert t.round() == adoption.BLOCKED_SECONDS
    assert "no answer" in t.tracker.describe_fault(t.partition)
    assert not t.partition.gaps
    t.round()
    assert t.partition.gaps


def test_a_barrier_that_clean_up_overtook_is_made_again_before_the_search() -> None:
    t = Stream(on_gap="record", objects=True)
    epoch, _ = t.dead_writer()
    t.faulted(low=40)
    put_new = t.wal.put_new

    def put_then_clean(path: str, data: bytes) -> None:
        put_new(path, data)
        if path == first_name(epoch):
            t.say(CleanSegment(SegmentFacts(path, True, False, ()), "r1", epoch, t.now_ms))

    t.wal.put_new = put_then_clean  # type: ignore[method-assign,assignment]
    assert t.round() == adoption.ROUND_SECONDS
    assert (unbarred(t), t.partition.gaps) == ([("r1", epoch, 1)], [])
    t.round()
    assert t.wal.exists(first_name(epoch, 2))
    assert (unbarred(t), bool(t.partition.gaps)) == ([], True)


def test_an_epoch_is_barred_only_if_it_ended_while_it_could_write() -> None:
    t = Stream()
    quiet = t.register("r1", "i1")
    t.register("r1", "i2")
    released = t.register("r3", "i1")
    token = t.claim(released, receiver="r3").view.token
    release = m.Release(topic=TOPIC, partition=0, token=token)
    t.say(m.ReleaseRequest(receiver_id="r3", epoch=released, releases=(release,)))
    t.register("r3", "i2")
    assert unbarred(t) == []
    fenced = t.register("r4", "i1")
    t.claim(fenced, receiver="r4")
    t.faulted()
    t.say(m.FenceRequest(topic=TOPIC, partition=0, receiver_id="r4"))
    assert unbarred(t) == [("r4", fenced, 0)]
    assert quiet < fenced


def test_the_journal_knows_behind_which_segments_of_an_epoch_nothing_was_deleted() -> None:
    """INV-7: those that held what was accepted, and those that clean-up deletes, before and after the epoch's end."""
    t = Stream()
    epoch = t.register("r1", "i1")
    token = t.claim(epoch).view.token
    t.take_in(epoch, token, 5, path=first_name(epoch, 2))
    t.take_in(epoch, token, 9, path=first_name(epoch, 4))
    t.register("r1", "i2")
    assert unbarred(t) == [("r1", epoch, 4)]
    t.say(CleanSegment(SegmentFacts(first_name(epoch, 3), True, False, ()), "r1", epoch, t.now_ms))
    assert unbarred(t) == [("r1", epoch, 4)]
    t.say(CleanSegment(SegmentFacts(first_name(epoch, 7), True, False, ()), "r1", epoch, t.now_ms))
    assert unbarred(t) == [("r1", epoch, 7)]
    replayed = State(stream=STREAM, timeline=1)
    for event in t.events:
        apply(replayed, event)
    assert replayed == t.state


def test_newest_epochs_without_a_barrier_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6: also where barriers are never made."""
    monkeypatch.setattr(receivers, "UNBARRED_MAX", 2)
    t = Stream()
    epochs = []
    for number in range(4):
        epochs.append(t.register("r1", f"i{number}"))
        t.claim(epochs[-1])
    assert [epoch for _, epoch, _ in unbarred(t)] == epochs[1:3]
