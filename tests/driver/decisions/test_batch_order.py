"""Which batch begins next, what its window reaches, and what completion out of order leaves behind: decisions alone."""

from __future__ import annotations

import random

import pytest

from driver.decisions.batch_order import following, window
from driver.decisions.replay import RewindTo
from driver.journal import events as ev
from driver.journal import history
from driver.journal.state import BrokenInvariant, State
from driver.journal.transitions import apply
from driver.tracker.requests import (
    Allocate,
    Archived,
    BeginReplay,
    CleanedUp,
    CleanLocalCopies,
    Complete,
    CompleteOutput,
    KeepWindow,
)
from forebay import messages as m
from forebay.model.errors import RefusedError
from tests.support.state.tracked import STREAM, Tracked


class Batches(Tracked):
    """One receiver; each batch has one block of ten offsets, with a local copy, in a segment of its own."""

    def begin(self) -> Batches:
        self.partitions = 1
        self.epoch = self.register()
        self.token = self.claim(self.epoch).view.token
        self.archived: list[history.FinishedBatch] = []
        return self

    def allocate(self) -> int:
        number = self.state.batch_count + 1
        path = f"{STREAM}/blocks/r1/{self.epoch:016x}/{number:08d}.seg"
        self.take_in(self.epoch, self.token, self.state.partitions["t/0"].position + 10, path=path, local=True)
        return self.batch()

    def archive_all(self) -> list[int]:
        done = history.finished(self.state)
        if done:
            self.say(Archived(tuple(batch.batch_id for batch in done)))
        self.archived += done
        return [batch.number for batch in done]

    def rewind(self, batch_id: int) -> None:
        self.say(BeginReplay(RewindTo(batch_id), tuple(self.archived), self.state.archived_number, "ann"))

    def superfluous(self) -> int:
        """Local copies that may go."""
        return sum(len(blocks) for blocks in self.state.index.superfluous.values())


def batches(**settings: int) -> Batches:
    return Batches(**settings).begin()  # type: ignore[arg-type]


def test_batches_begin_in_order_and_none_twice() -> None:
    t = batches()
    first, second = t.allocate(), t.allocate()
    in_work: set[tuple[int, int]] = set()
    for expected in (first, second):
        found = following(t.state, in_work)
        assert found is not None and found[0].batch_id == expected
        in_work.add((0, expected))
    assert following(t.state, in_work) is None


def test_a_replay_begins_alone_and_runs_alone() -> None:
    """INV-3: in order, and beside nothing else."""
    t = batches()
    first = t.allocate()
    t.complete(first)
    second, third = t.allocate(), t.allocate()
    t.rewind(first)
    assert following(t.state, {(0, second)}) is None, "what is in work ends first"
    found = following(t.state, set())
    assert found is not None and (found[0].batch_id, found[1]) == (first, 1)
    assert following(t.state, {(1, first)}) is None
    t.say(Complete(first, 1, 1, 1))
    assert following(t.state, {(1, first)}) is None, "its worker does not know yet that it has ended"
    found = following(t.state, set())
    assert found is not None and (found[0].batch_id, found[1]) == (second, 0)
    del third


def test_completed_positions_clean_up_and_history_follow_the_prefix_whatever_ends_first() -> None:
    """INV-3, INV-8."""
    t = batches()
    first, second, third = t.allocate(), t.allocate(), t.allocate()
    t.complete(third)
    t.complete(second)
    assert t.state.partitions["t/0"].completed == 0
    assert t.state.completed_number == 0
    assert t.superfluous() == 0
    assert t.archive_all() == []
    t.complete(first)
    assert t.state.partitions["t/0"].completed == 30
    assert t.superfluous() == 3
    assert t.archive_all() == [1, 2, 3]


def test_a_slow_batch_bounds_how_far_others_run_ahead() -> None:
    """INV-6: what is completed out of order can't leave the journal's state."""
    t = batches(max_queued_batches=3)
    slow = t.allocate()
    for _ in range(2):
        t.complete(t.allocate())
    t.take_in(t.epoch, t.token, 100)
    assert t.say(Allocate(1, 2)) is None
    t.complete(slow)
    assert t.say(Allocate(1, 2)) is not None


def test_a_window_holds_the_batches_before_it_until_it_is_completed() -> None:
    """INV-8: not archived, not cleaned up; the same on every rerun (INV-3)."""
    t = batches()
    t.say(KeepWindow(2))
    ids = []
    for _ in range(4):
        ids.append(t.allocate())
        t.complete(ids[-1])
    assert t.archive_all() == [1, 2]
    assert t.superfluous() == 2
    fifth = t.allocate()
    reached = [batch.batch_id for batch in window(t.state, t.state.batches[fifth], False)]
    assert reached == ids[2:]
    assert t.archive_all() == []
    t.complete(fifth)
    assert t.archive_all() == [3]


def test_a_window_ends_where_a_batch_before_it_is_not_held() -> None:
    """It touches without a gap."""
    t = batches()
    t.say(KeepWindow(3))
    ids = [t.allocate() for _ in range(4)]
    del t.state.batches[ids[1]]
    assert [batch.batch_id for batch in window(t.state, t.state.batches[ids[3]], False)] == [ids[2]]


def test_a_batch_that_a_window_reaches_back_to_can_not_be_archived() -> None:
    """INV-8."""
    t = batches()
    t.say(KeepWindow(1))
    first = t.allocate()
    t.complete(first)
    with pytest.raises(BrokenInvariant, match="INV-8"):
        apply(t.state, ev.BatchesArchived((first,)))


def test_a_smaller_window_releases_batches_and_a_larger_one_contains_those_still_held() -> None:
    t = batches()
    t.say(KeepWindow(3))
    ids = []
    for _ in range(3):
        ids.append(t.allocate())
        t.complete(ids[-1])
    assert t.superfluous() == 0
    t.say(KeepWindow(1))
    assert t.superfluous() == 2
    t.say(KeepWindow(2))
    assert t.superfluous() == 1
    assert t.archive_all() == [1]
    t.say(KeepWindow(5))
    fourth = t.allocate()
    assert [b.batch_id for b in window(t.state, t.state.batches[fourth], False)] == ids[1:]


def test_batches_that_a_longer_window_contains_meanwhile_are_archived_later() -> None:
    """INV-8: the window grew after clean-up had read which batches leave, and while it wrote the history."""
    t = batches()
    t.say(KeepWindow(1))
    ids = []
    for _ in range(3):
        ids.append(t.allocate())
        t.complete(ids[-1])
    leaving = tuple(batch.batch_id for batch in history.finished(t.state))
    assert leaving == tuple(ids[:2])
    t.say(KeepWindow(2))
    t.say(Archived(leaving))
    assert t.state.archived_number == 1
    fourth = t.allocate()
    assert [b.batch_id for b in window(t.state, t.state.batches[fourth], False)] == ids[1:]
    assert not t.decide(Archived(tuple(ids[1:2]))).events
    t.complete(fourth)
    assert t.archive_all() == [2]


def test_an_unchanged_window_costs_no_event() -> None:
    t = batches()
    t.say(KeepWindow(1))
    assert not t.decide(KeepWindow(1)).events


def test_windows_in_a_replay_reach_what_its_batches_had_before_them() -> None:
    """INV-3, INV-8: held until the replay has passed them."""
    t = batches()
    t.say(KeepWindow(2))
    ids = []
    for _ in range(5):
        ids.append(t.allocate())
        t.complete(ids[-1])
    t.archive_all()
    t.rewind(ids[3])
    for batch_id in ids[3:]:
        number = ids.index(batch_id)
        reached = [b.batch_id for b in window(t.state, t.state.replaying[batch_id], True)]
        assert reached == ids[number - 2 : number]
        for block_id in (b for one in reached for b in t.state.batch_of if t.state.batch_of[b] == one):
            assert not t.state.index.superfluous.get("h1", {}).keys() & {block_id}
        t.say(Complete(batch_id, 1, 1, 1))
        assert t.state.index == t.state.build_index()
    assert not t.state.replay_window


def test_a_loss_in_its_window_is_accepted_for_the_batch_that_can_not_read_it() -> None:
    """INV-5: otherwise the batch could never run."""
    t = batches()
    t.say(KeepWindow(1))
    first = t.allocate()
    t.complete(first)
    second = t.allocate()
    label = t.state.blocks[t.state.batches[first].block_ids[0]].meta.ranges[0].label
    t.say(m.AcceptLossRequest(batch_id=second, ranges=(label,), cause="ann"))
    assert t.state.batches[second].lost == (label,)
    assert t.state.batches[first].lost == ()


def test_an_output_is_done_once_and_a_rerun_knows_it() -> None:
    """INV-3: also in a replay, which makes each output again, once."""
    t = batches()
    first = t.allocate()
    t.say(CompleteOutput(first, "a", 1))
    with pytest.raises(RefusedError):
        t.say(CompleteOutput(first, "a", 1))
    assert t.state.batches[first].outputs == ("a",)
    t.complete(first)
    with pytest.raises(RefusedError):
        t.say(CompleteOutput(first, "b", 1))
    t.rewind(first)
    assert t.state.replaying[first].outputs == ()
    t.say(CompleteOutput(first, "a", 1, 1))
    assert t.state.replaying[first].outputs == ("a",)
    for output, replay in (("a", 1), ("b", 2), ("b", 0)):
        with pytest.raises(RefusedError):
            t.say(CompleteOutput(first, output, 1, replay))


def test_an_interval_without_blocks_gives_a_batch_only_if_that_is_wanted() -> None:
    t = batches()
    assert t.say(Allocate(1, 2)) is None
    empty = t.say(Allocate(1, 2, empty=True))
    assert t.state.batches[empty].tasks == ()
    t.complete(empty)
    assert t.archive_all() == [1]
    assert t.archived[0].ranges == ()
    assert Tracked().say(Allocate(1, 2, empty=True)) is not None
    nothing = Tracked(partitions=0)
    nothing.state.created = False
    assert nothing.say(Allocate(1, 2, empty=True)) is None, "before the stream is created"


def test_empty_batches_never_take_more_room_than_others() -> None:
    """INV-6."""
    t = batches(max_queued_batches=2)
    made = [t.say(Allocate(1, 2, empty=True)) for _ in range(4)]
    assert [batch is not None for batch in made] == [True, True, False, False]


@pytest.mark.parametrize("seed", range(6))
def test_the_index_is_that_of_the_state_under_windows_replays_and_jobs_side_by_side(seed: int) -> None:
    """INV-7, INV-8: whatever the order, and what a batch or a window needs is never superfluous."""
    draw = random.Random(seed)
    t = batches(max_queued_batches=4)
    for _ in range(250):
        unfinished = t.state.unfinished()
        kind = draw.choice(
            ("allocate", "complete", "complete", "archive", "window", "clean", "cleaned", "replay", "again")
        )
        if kind == "allocate" and t.state.batch_count - t.state.completed_number < 4:
            t.allocate()
        elif kind == "complete" and unfinished:
            t.complete(draw.choice(unfinished).batch_id)
        elif kind == "archive":
            t.archive_all()
        elif kind == "window":
            t.say(KeepWindow(draw.randrange(4)))
        elif kind == "clean":
            t.say(CleanLocalCopies())
        elif kind == "cleaned" and t.state.cleanups:
            t.say(CleanedUp(min(t.state.cleanups)))
        elif kind == "replay" and not t.state.replay and t.state.completed_number:
            t.rewind(draw.randrange(1, t.state.completed_number + 1))
        elif kind == "again" and t.state.replay:
            t.say(Complete(next(iter(t.state.replaying)), 1, 1, t.state.replay.replay))
        assert t.state.index == t.state.build_index()
        superfluous = {block for blocks in t.state.index.superfluous.values() for block in blocks}
        assert not superfluous & needed(t.state)


def needed(state: State) -> set[str]:
    found = set(state.waiting)
    for batch in state.unfinished():
        for one in (batch, *window(state, batch, False)):
            found.update(one.block_ids)  # type: ignore[union-attr]
    for again in (*state.replaying.values(), *state.replay_window.values()):
        found.update(block for task in again.tasks for block in task)
    return found
