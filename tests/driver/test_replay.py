"""Rewinding the cursor: completed batches run again, in order, marked, and nothing else changes."""

from __future__ import annotations

import msgspec
import pytest

from driver import history
from driver.block_index import BlockIndex
from driver.events import ReplayBegun, ReplayedBatch
from driver.history import FinishedBatch
from driver.replay import RewindTo, plan, refuse
from driver.state import BrokenInvariant, State, apply
from driver.tracker import BeginReplay, CleanedUp, CleanLocalCopies, CleanSegment, Complete
from forebay import messages as m
from forebay.errors import RefusedError, UsageError
from tests.support.tracked import STREAM, Tracked
from wal.retention import FrameFacts, SegmentFacts


class Rewound(Tracked):
    """``batches``: completed batches of one block each, in segments of their own, at 1000 ms, 2000 ms, …; all but the last
    are in ``archived``."""

    archived: list[FinishedBatch]

    def work(self, batches: int = 4) -> list[int]:
        self.archived = []
        self.epoch = self.register()
        token = self.claim(self.epoch).view.token
        ids = []
        for number in range(1, batches + 1):
            self.now_ms = number * 1_000
            self.take_in(self.epoch, token, number * 10, path=self.path(number), local=True)
            ids.append(self.batch())
            self.complete(ids[-1])
            if number < batches:
                self.keep_in_history()
        return ids

    def path(self, number: int) -> str:
        return f"{STREAM}/blocks/r1/{self.epoch:016x}/{number:08d}.seg"

    def keep_in_history(self) -> None:
        done = history.finished(self.state)
        self.archived += done
        self.archive(*(batch.batch_id for batch in done))

    def rewind(self, batch: int = 0, time_ms: int = 0, cause: str = "ann@desk: mended the job") -> m.OperatorAnswer:
        request = BeginReplay(RewindTo(batch, time_ms), tuple(self.archived), self.state.archived_number, cause)
        answer = self.say(request)
        assert isinstance(answer, m.OperatorAnswer)
        return answer

    def replayed(self, batch_id: int) -> None:
        self.say(Complete(batch_id, self.now_ms, 1, len(self.state.replays)))

    def clean(self, number: int, now_ms: int = 1_000_000) -> CleanSegment:
        frames = tuple(
            FrameFacts(block.id, block.meta.ranges)
            for block in self.state.blocks.values()
            if block.handle.path == self.path(number)
        )
        return CleanSegment(SegmentFacts(self.path(number), True, False, frames), "r1", self.epoch, now_ms)

    def delete(self, number: int) -> None:
        self.copy()
        (action,) = self.decide(self.clean(number)).actions
        self.say(CleanedUp(action.number))

    def without_local_copies(self) -> None:
        self.say(CleanLocalCopies())
        for number in list(self.state.cleanups):
            self.say(CleanedUp(number))


def test_a_replay_holds_the_batch_and_all_later_ones_in_order_wherever_they_are_kept() -> None:
    """The last one is still in the journal's state, the others in the history alone."""
    t = Rewound()
    ids = t.work()
    t.rewind(ids[1])
    assert list(t.state.replaying) == ids[1:]
    assert t.state.replay is not None
    assert (t.state.replay.batches, t.state.replay.completed, t.state.replay.cause) == (
        3,
        0,
        "ann@desk: mended the job",
    )
    for batch_id in ids[1:]:
        t.replayed(batch_id)
    assert t.state.replay is None
    assert t.state.replays[0].completed_ms == t.now_ms


def test_batches_are_named_by_id_by_number_or_by_time() -> None:
    t = Rewound()
    ids = t.work()
    for to in (RewindTo(batch=ids[2]), RewindTo(batch=3), RewindTo(time_ms=3_000), RewindTo(time_ms=2_001)):
        assert [b.batch_id for b in plan(t.state, t.archived, to).batches] == ids[2:], to
    with pytest.raises(RefusedError, match="no completed batch is batch 9"):
        t.rewind(9)
    with pytest.raises(RefusedError, match="at or after time 9000 ms"):
        t.rewind(time_ms=9_000)


def test_positions_counts_and_the_completed_prefix_stay_as_they_were() -> None:
    t = Rewound()
    ids = t.work()
    before = (t.state.completed_number, t.state.batches_completed, t.state.records_completed, t.state.partitions["t/0"])
    before = msgspec.msgpack.encode(before)  # type: ignore[assignment]
    t.rewind(ids[0])
    for batch_id in ids:
        t.replayed(batch_id)
    after = (t.state.completed_number, t.state.batches_completed, t.state.records_completed, t.state.partitions["t/0"])
    assert msgspec.msgpack.encode(after) == before


def test_a_second_replay_waits_for_the_end_of_the_first() -> None:
    t = Rewound()
    ids = t.work()
    t.rewind(ids[3])
    with pytest.raises(RefusedError, match="replay 1 is under way"):
        t.rewind(ids[0])
    t.replayed(ids[3])
    t.rewind(ids[0])
    assert len(t.state.replays) == 2


def test_batches_that_moved_to_the_history_while_it_was_read_are_asked_for_again() -> None:
    t = Rewound()
    ids = t.work()
    stale = BeginReplay(RewindTo(ids[0]), tuple(t.archived), t.state.archived_number, "")
    t.keep_in_history()
    with pytest.raises(RefusedError) as refused:
        t.say(stale)
    assert refused.value.code == "stale"


def test_a_replayed_batch_completes_in_order_and_once() -> None:
    t = Rewound()
    ids = t.work()
    t.rewind(ids[2])
    with pytest.raises(BrokenInvariant, match="not the next one"):
        t.replayed(ids[3])
    t.replayed(ids[2])
    with pytest.raises(RefusedError, match="completed already"):
        t.replayed(ids[2])
    with pytest.raises(RefusedError, match="completed already"):
        t.say(Complete(ids[3], 5, 1, 7))


def test_nothing_that_a_replay_needs_is_cleaned_up_until_it_has_run() -> None:
    """INV-8: neither segments nor local copies, though their horizon has passed."""
    t = Rewound()
    ids = t.work(2)
    t.keep_in_history()
    t.copy()
    t.rewind(ids[0])
    t.copy()
    t.say(CleanLocalCopies())
    assert not t.state.cleanups
    assert not t.decide(t.clean(1)).events
    t.replayed(ids[0])
    t.say(CleanLocalCopies())
    (cleanup,) = t.state.cleanups.values()
    assert len(cleanup.blocks) == 1
    t.say(CleanedUp(cleanup.number))
    t.copy(1)
    assert not t.decide(t.clean(1)).events, "the other copy has the replay under way"
    t.copy(1)
    assert t.decide(t.clean(1)).actions
    assert not t.decide(t.clean(2)).events


def test_the_index_and_a_replayed_journal_agree_through_a_replay() -> None:
    """INV-7."""
    t = Rewound()
    ids = t.work()
    t.rewind(ids[1])
    steps = [
        t.keep_in_history,
        lambda: t.replayed(ids[1]),
        lambda: t.say(CleanLocalCopies()),
        lambda: t.replayed(ids[2]),
        lambda: t.replayed(ids[3]),
    ]
    for step in steps:
        step()
        fresh = State(stream=STREAM, lineage=1)
        for event in t.events:
            apply(fresh, event)
        assert fresh == t.state
        decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(t.state), type=State)
        assert t.state.index == BlockIndex.of(t.state) == fresh.index == decoded.index


def test_a_rewind_beyond_the_horizon_is_refused_and_told_from_where_on_it_is_possible() -> None:
    """INV-5: a replay that would meet a hole never begins."""
    t = Rewound()
    ids = t.work()
    t.without_local_copies()
    t.delete(1)
    t.decide(t.clean(2))  # its deletion is only intended
    found = plan(t.state, t.archived, RewindTo(ids[0]))
    assert [b.batch_id for b in found.lacking] == ids[:2]
    assert f"possible from batch {ids[2]} (number 3) on" in refuse(found)
    for batch_id in ids[:2]:
        with pytest.raises(RefusedError, match=f"possible from batch {ids[2]}"):
            t.rewind(batch_id)
    t.rewind(ids[2])


def test_an_event_that_would_need_what_is_being_deleted_breaks_an_invariant() -> None:
    t = Rewound()
    t.work(2)
    t.without_local_copies()
    batch = t.archived[0]
    t.copy()
    t.decide(t.clean(1))
    begun = ReplayBegun(1, (ReplayedBatch(batch.batch_id, batch.number, batch.time_ms, batch.tasks),), 1, "")
    with pytest.raises(BrokenInvariant, match="INV-8"):
        apply(t.state, begun)


def test_a_loss_is_accepted_for_a_replayed_batch_and_its_first_run_stays_as_it_was() -> None:
    t = Rewound()
    ids = t.work(2)
    t.rewind(ids[1])
    with pytest.raises(UsageError, match="name ranges of it"):
        t.say(m.AcceptLossRequest(batch_id=ids[1], ranges=("t/0[0, 6)",)))
    t.say(m.AcceptLossRequest(batch_id=ids[1], ranges=("t/0[10, 20)",), cause="ann@desk: disk died"))
    assert t.state.replaying[ids[1]].lost == ("t/0[10, 20)",)
    assert t.state.batches[ids[1]].lost == ()
    assert t.state.replays[0].lost == {"t/0[10, 20)": "ann@desk: disk died"}
    with pytest.raises(RefusedError):
        t.say(m.AcceptLossRequest(batch_id=ids[0], ranges=("t/0[0, 10)",)))


def test_what_was_lost_the_first_time_is_not_read_in_the_replay_either() -> None:
    t = Rewound()
    t.work(1)
    token = t.state.partitions["t/0"].token
    t.take_in(t.epoch, token, 30, path=t.path(2))
    batch = t.batch()
    t.say(m.AcceptLossRequest(batch_id=batch, ranges=("t/0[10, 30)",), cause="ann@desk"))
    t.complete(batch)
    t.rewind(batch)
    assert t.state.replaying[batch].lost == ("t/0[10, 30)",)


def test_who_says_so_is_kept_printable_and_short() -> None:
    t = Rewound()
    ids = t.work(1)
    t.rewind(ids[0], cause="x\n\x1b[31m" + "y" * 1_000)
    cause = t.state.replays[0].cause
    assert cause.isprintable()
    assert len(cause) <= 300
