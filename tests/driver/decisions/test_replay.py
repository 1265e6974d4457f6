"""Rewinding the cursor: completed batches run again, in order, marked, and nothing else changes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

import msgspec
import pytest

from deploy.commands.inspection.audit import exceptions
from driver.decision_loop.rewinding import begin_replay
from driver.decisions.clean_up import CleanSegment
from driver.decisions.replay import Horizon, RewindTo, needed, plan, refuse
from driver.journal import history
from driver.journal.events import ReplayBegun, ReplayedBatch, WindowChanged
from driver.journal.history import FinishedBatch, HistoryWriter
from driver.journal.state import BrokenInvariant, State
from driver.journal.state_parts import Rebuild
from driver.journal.transitions import apply, replays
from driver.journal.versions import KeyedVersions, StateVersion
from driver.tracker.requests import BeginReplay, CleanedUp, CleanLocalCopies, Complete
from forebay import messages as m
from forebay.model.errors import RefusedError, UsageError
from forebay.model.identifiers import numbered
from recovery.audit import report
from tests.support.state.tracked import STREAM, Tracked
from wal.decisions.retention import FrameFacts, SegmentFacts
from wal.segments import layout
from wal.storage.memory import MemoryStorage

numbers = itertools.count(1)


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

    def rewind(self, batch: int = 0, time_ms: int = 0, cause: str = "ann@desk: corrected the job") -> m.OperatorAnswer:
        request = BeginReplay(RewindTo(batch, time_ms), tuple(self.archived), self.state.archived_number, cause)
        answer = self.say(request)
        assert isinstance(answer, m.OperatorAnswer)
        return answer

    def replayed(self, batch_id: int) -> None:
        assert self.state.replay is not None
        self.say(Complete(batch_id, self.now_ms, 1, self.state.replay.replay))

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
        "ann@desk: corrected the job",
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
    steps: list[Callable[[], object]] = [
        t.keep_in_history,
        lambda: t.replayed(ids[1]),
        lambda: t.say(CleanLocalCopies()),
        lambda: t.replayed(ids[2]),
        lambda: t.replayed(ids[3]),
    ]
    for step in steps:
        step()
        fresh = State(stream=STREAM, timeline=1)
        for event in t.events:
            apply(fresh, event)
        assert fresh == t.state
        decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(t.state), type=State)
        assert t.state.index == t.state.build_index() == fresh.index == decoded.index


def test_a_rewind_beyond_the_horizon_is_refused_with_the_first_possible_batch() -> None:
    """INV-5: a replay that would meet a missing range never begins."""
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


def test_the_first_possible_batch_is_one_whose_keyed_states_are_kept() -> None:
    t = Rewound()
    ids = t.work()
    version = StateVersion(ids[2], "s/state/x/manifest.json", b"0" * 32)
    t.state.keyed["x"] = KeyedVersions((version,), dropped_id=ids[1])
    found = plan(t.state, t.archived, RewindTo(ids[0]))
    assert (found.state, found.lacking) == ("x", ())
    assert found.possible_from is not None
    assert found.possible_from.batch_id == ids[3]
    assert plan(t.state, t.archived, RewindTo(ids[3])).possible


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
    with pytest.raises(UsageError, match="name one or more of these ranges"):
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


def test_the_cause_is_kept_printable_and_short() -> None:
    t = Rewound()
    ids = t.work(1)
    t.rewind(ids[0], cause="x\n\x1b[31m" + "y" * 1_000)
    cause = t.state.replays[0].cause
    assert cause.isprintable()
    assert len(cause) <= 300


# ---- what is read of the history -------------------------------------------------------------------------------------


class NotingStorage(MemoryStorage):
    """``seen``: numbers of the history's segments in the order in which they were read."""

    seen: list[int]

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        place = layout.parse_history(path)
        assert place is not None
        if place.sequence not in self.seen:
            self.seen.append(place.sequence)
        return super().read(path, offset, length)


class Kept(Rewound):
    """The archived batches in a store, batch N in segment N, N from 1 on."""

    def keep(self, batches: Iterable[FinishedBatch] = ()) -> Kept:
        self.storage = NotingStorage(f"replay-{next(numbers)}")
        writer = HistoryWriter(
            self.storage, STREAM, numbered(1, 1), segment_bytes=1, now=lambda: 1.0, new_uid=lambda: next(numbers)
        )
        for batch in batches or self.archived:
            writer.append((batch,))
        writer.close()
        self.storage.seen = []
        return self

    def begin(self, batch: int = 0, time_ms: int = 0) -> list[int]:
        """Asks as a driver is asked; the ids of what runs again."""
        begin_replay(self.ask, self.storage, STREAM, m.ReplayRequest(batch=batch, time_ms=time_ms))
        return list(self.state.replaying)


@pytest.mark.parametrize(("target", "seen"), [(20, []), (19, [19]), (17, [19, 18, 17]), (1, list(range(19, 0, -1)))])
@pytest.mark.parametrize("by_id", [False, True])
def test_the_history_is_read_no_further_back_than_the_named_batch(target: int, seen: list[int], by_id: bool) -> None:
    """INV-6. The twentieth is still in the journal's state."""
    t = Kept()
    ids = t.work(20)
    t.keep()
    assert t.begin(batch=ids[target - 1] if by_id else target) == ids[target - 1 :]
    assert t.storage.seen == seen


@pytest.mark.parametrize(("target", "seen"), [(20, [19, 18]), (17, [19, 18, 17, 16, 15]), (1, list(range(19, 0, -1)))])
def test_the_window_of_the_first_batch_is_read_too(target: int, seen: list[int]) -> None:
    t = Kept()
    ids = t.work(20)
    apply(t.state, WindowChanged(batches=2))
    t.keep()
    assert t.begin(batch=target) == ids[target - 1 :]
    assert t.storage.seen == seen
    assert list(t.state.replay_window) == ids[max(0, target - 3) : target - 1]


def test_by_time_and_for_deleted_batches_the_history_is_read_back_to_the_rewind_horizon() -> None:
    """INV-5: a replay beyond it is refused, and the error names the first possible batch."""
    t = Kept()
    ids = t.work(20)
    t.without_local_copies()
    for number in range(1, 15):
        t.delete(number)
    t.keep()
    for asked in ({"batch": 3}, {"batch": ids[2]}, {"batch": 14}, {"time_ms": 3_000}, {"time_ms": 14_000}):
        t.storage.seen.clear()
        with pytest.raises(RefusedError, match=f"of batch {ids[13]} .* possible from batch {ids[14]} [(]number 15[)]"):
            t.begin(**asked)
        assert t.storage.seen == [19, 18, 17, 16, 15, 14], asked
    with pytest.raises(RefusedError, match=f"no completed batch is at or after .*the newest one is {ids[19]}"):
        t.begin(time_ms=21_000)
    with pytest.raises(RefusedError, match="no completed batch is batch 21"):
        t.begin(batch=21)
    t.storage.seen.clear()
    assert t.begin(time_ms=17_500) == ids[17:]
    assert t.storage.seen == [19, 18, 17, 16, 15, 14]


@pytest.mark.parametrize("window", [0, 2])
def test_a_replay_that_needs_a_batch_that_the_history_lost_is_refused(window: int) -> None:
    """INV-5: it would leave that batch out, and say nothing."""
    t = Kept()
    ids = t.work(12)
    apply(t.state, WindowChanged(batches=window))
    t.keep()
    path = layout.history_segment(STREAM, numbered(1, 1), 7)
    whole = t.storage.read(path)
    t.storage.delete(path)
    t.storage.put_new(path, whole[:-64])
    asked: dict[str, int]
    for asked in ({"batch": 3}, {"batch": ids[2]}, {"batch": 7}, {"time_ms": 3_000}, {"time_ms": 7_500}):
        with pytest.raises(RefusedError, match=r"has lost batch number 7.* possible from number 8 on"):
            t.begin(**asked)
    assert needed(history.read_back(t.storage, STREAM), Horizon.of(t.state), RewindTo())[-1].number == 8
    assert t.begin(time_ms=9_500) == ids[9:]


def test_a_batch_that_came_into_the_history_twice_runs_once_and_hides_none() -> None:
    """A driver was killed between the history and the journal: the next one's first segment begins with what is there."""
    t = Kept()
    ids = t.work(6)
    t.keep([*t.archived[:4], *t.archived[2:4], *t.archived[4:]])
    assert t.begin(batch=2) == ids[1:]


def test_batches_dissolved_by_a_rebuild_are_not_run_again_and_not_searched() -> None:
    """INV-3: a driver that slept through the rebuild may have put it into the history; its blocks are in a later batch."""
    t = Kept()
    t.work(5)
    t.keep_in_history()
    t.state.rebuilds = [Rebuild(2, 1, "ann", "copy", known_number=2, repeated=(), attested=(), batch_count=4)]
    fifth = msgspec.structs.replace(t.archived.pop(), batch_id=numbered(2, 5))
    t.keep([*t.archived, fifth])
    segments = history.read_back(t.storage, STREAM)
    assert [batch.number for batch in needed(segments, Horizon.of(t.state), RewindTo(batch=2))] == [5, 2]
    assert t.storage.seen == [5, 4, 3, 2]
    assert [batch.number for batch in plan(t.state, [*t.archived, fifth], RewindTo(batch=1)).batches] == [1, 2, 5]


# ---- how many are remembered -----------------------------------------------------------------------------------------


def test_all_ended_replays_except_the_newest_are_forgotten_and_their_numbers_not_reused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """INV-6, INV-7: by ``apply`` alone; the audit says how many there were."""
    monkeypatch.setattr(replays, "REPLAYS_KEPT", 3)
    t = Rewound()
    ids = t.work(1)
    for number in range(1, 6):
        t.rewind(ids[0], cause=f"the {number}th")
        t.replayed(ids[0])
    assert [(replay.replay, replay.cause) for replay in t.state.replays] == [(n, f"the {n}th") for n in (3, 4, 5)]
    fresh = State(stream=STREAM, timeline=1)
    for event in t.events:
        apply(fresh, event)
    assert fresh == t.state
    t.rewind(ids[0])
    assert t.state.replay is not None and t.state.replay.replay == 6
    shown = report(t.state, t.archived)
    assert ([replay.replay for replay in shown.replays], shown.older_replays) == ([4, 5, 6], 3)
    assert any(what.startswith("replays 1 to 3: ") for what, *_ in exceptions(shown))


def test_a_snapshot_of_an_older_release_with_more_replays_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    t = Rewound()
    ids = t.work(1)
    for _ in range(5):
        t.rewind(ids[0])
        t.replayed(ids[0])
    snapshot = msgspec.msgpack.encode(t.state)
    monkeypatch.setattr(replays, "REPLAYS_KEPT", 3)
    state = msgspec.msgpack.decode(snapshot, type=State)
    assert len(state.replays) == 5
    batch = history.finished(state)[0]
    apply(state, ReplayBegun(6, (ReplayedBatch(batch.batch_id, batch.number, batch.time_ms, batch.tasks),), 1, ""))
    assert [replay.replay for replay in state.replays] == [4, 5, 6]
