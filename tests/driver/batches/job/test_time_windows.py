"""Windows by time: one batch returns each, with exactly its batches, whatever intervals, limits, restarts and clean-up do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from driver.batches.job.batch import Batch
from driver.batches.job.time_windows import window_ends
from driver.batches.scheduler import Scheduler
from driver.decisions.replay import Horizon, RewindTo, completed, needed
from driver.decisions.window_reach import WindowReach
from driver.journal import history
from driver.journal.events import WindowChanged
from driver.tracker import Tracker
from driver.tracker.requests import AllocateNext, BeginReplay, Complete, KeepWindow
from forebay import messages as m
from forebay.model.errors import UsageError
from forebay.model.identifiers import numbered
from tests.driver.batches.test_scheduler import scheduler_of
from tests.support.state.tracked import TOPIC, Tracked, tracker_options

LENGTH, SLIDE = 60_000, 20_000


class Rows:
    """Rows that nothing reads."""

    def over(self, work: object) -> Rows:
        return self


class Windows:
    """A stream with windows of a minute, and the windows that its batches returned."""

    def __init__(self, length_ms: int = LENGTH) -> None:
        self.t = Tracked(max_queued_batches=8, retention_ms=1 << 40)
        self.epoch = self.t.register()
        self.token = self.t.claim(self.epoch).view.token
        self.length_ms = length_ms
        self.times: dict[int, int] = {}
        self.t.say(KeepWindow(0, length_ms))
        loop = SimpleNamespace(ask=self.t.ask)
        self.scheduler: Scheduler = scheduler_of(loop=loop, window_ms=length_ms)

    def allocate(self, time_ms: int) -> int:
        t = self.t
        t.now_ms = time_ms
        t.take_in(self.epoch, self.token, t.state.partitions[f"{TOPIC}/0"].position + 1)
        batch_id = t.batch()
        self.times[batch_id] = time_ms
        return batch_id

    def run(self, batch_id: int, replay: int = 0) -> dict[int, tuple[int, ...]]:
        """Return the end of each window that the batch returns → the batches in it."""
        work = self.scheduler._work(self.scheduler._read_same(batch_id, replay).read(self.t.state))
        batch = Batch(work, cast(Any, Rows()))
        found = batch.windows(LENGTH / 1000, "20s")
        assert all(window.id == batch_id for window in found)
        assert all(window.records == len(window.covered) for window in found), "one record in each batch"
        return {round(window.time.timestamp() * 1000): window.covered for window in found}

    def complete(self, batch_id: int) -> None:
        self.t.say(Complete(batch_id, self.t.now_ms, 1))

    def clean_up(self) -> None:
        self.t.archive(*(batch.batch.batch_id for batch in history.leaving(self.t.state)))

    def restart(self) -> None:
        """Begin with a new driver over the same state."""
        self.t.tracker = Tracker(self.t.state, numbered(1, 2), tracker_options(max_queued_batches=8))
        self.t.say(KeepWindow(0, self.length_ms))

    def expected(self, batch_id: int) -> dict[int, tuple[int, ...]]:
        """Return what the batch returns, by the definition alone, from the times of all batches of the stream."""
        before = self.times.get(batch_id - 1)
        if before is None:
            return {}
        ends = (at * SLIDE for at in range(before // SLIDE + 1, self.times[batch_id] // SLIDE + 1))
        windows = {
            end: tuple(b for b, time in self.times.items() if b < batch_id and end - LENGTH <= time < end)
            for end in ends
        }
        return {end: batches for end, batches in windows.items() if batches}


@pytest.mark.parametrize("seed", range(8))
def test_each_window_has_exactly_its_batches_through_clean_up_and_restarts(seed: int) -> None:
    """INV-3, INV-8: also those of irregular batches, of several batches at one time, and of reruns."""
    random = Random(seed)
    stream, time_ms = Windows(), 1_700_000_000_000
    waiting: list[int] = []
    returned: dict[int, tuple[int, ...]] = {}
    for _ in range(250):
        if len(waiting) < 6 and random.random() < 0.6:
            time_ms += random.choice((0, 1, 700, 2_000, 2_000, 20_000, 200_000 if random.random() < 0.1 else 5_000))
            waiting.append(stream.allocate(time_ms))
        elif waiting:
            batch_id = waiting.pop(0)
            found = stream.run(batch_id)
            assert found == stream.expected(batch_id)
            if random.random() < 0.3:
                stream.restart()
                assert stream.run(batch_id) == found, "the same on a rerun"
            assert not returned.keys() & found.keys(), "no window twice"
            returned |= found
            stream.complete(batch_id)
        if random.random() < 0.3:
            stream.clean_up()
    assert len(returned) > 20
    stream.clean_up()
    needed = sum(1 for time in stream.times.values() if time > time_ms - LENGTH)
    assert stream.t.state.window_batches <= 2 * needed + 8, "batches that no window needs leave the state"
    assert stream.t.state.archived_number > 30


@pytest.mark.parametrize("restart", [False, True])
def test_the_first_batch_after_a_pause_still_has_the_batches_of_its_windows(restart: bool) -> None:
    """INV-8: the batch after it needs fewer, but not yet this one."""
    stream = Windows()
    for number in range(30):
        stream.complete(stream.allocate(1_700_000_000_000 + number * 2_000))
        stream.clean_up()
    late = stream.allocate(1_700_000_500_000)
    stream.clean_up()
    if restart:
        stream.restart()
        stream.clean_up()
    assert stream.run(late) == stream.expected(late) != {}


def test_clean_up_writes_each_batch_to_the_history_once() -> None:
    """Not those that a window contains, or the history would grow with each round."""
    stream = Windows()
    written: Counter[int] = Counter()
    for number in range(100):
        stream.complete(stream.allocate(1_700_000_000_000 + number * 2_000))
        written.update(batch.batch.batch_id for batch in history.leaving(stream.t.state))
        stream.clean_up()
    assert set(written.values()) == {1}


def test_batches_stay_if_a_window_became_longer_while_the_history_was_written() -> None:
    """INV-8: the window contains them, though the history has them too."""
    stream, begin = Windows(), 1_700_000_000_000
    for number in range(20):
        stream.complete(stream.allocate(begin + number * 20_000))
    leaving = [batch.batch.batch_id for batch in history.leaving(stream.t.state)]
    waiting = [stream.allocate(begin + 380_000 + number * 100) for number in range(8)]
    stream.t.archive(*leaving)
    assert 0 < stream.t.state.archived_number < len(leaving)
    for batch_id in waiting:
        assert stream.run(batch_id) == stream.expected(batch_id)
        stream.complete(batch_id)


def test_the_number_of_kept_batches_is_journalled_seldom() -> None:
    stream = Windows()
    for number in range(400):
        stream.complete(stream.allocate(1_700_000_000_000 + number * 1_000))
    changes = [event.batches for event in stream.t.events if isinstance(event, WindowChanged)]
    assert 60 <= stream.t.state.window_batches <= 80
    assert len(changes) < 25


def test_a_replay_has_the_same_windows() -> None:
    stream = Windows()
    first: dict[int, dict[int, tuple[int, ...]]] = {}
    for number in range(40):
        batch_id = stream.allocate(1_700_000_000_000 + number * 5_000)
        first[batch_id] = stream.run(batch_id)
        stream.complete(batch_id)
    batches = list(first)[30:]
    stream.t.say(BeginReplay(RewindTo(batches[0]), (), 0, "ann"))
    for batch_id in batches:
        assert stream.run(batch_id, replay=1) == first[batch_id] == stream.expected(batch_id)
        stream.t.say(Complete(batch_id, 1, 1, replay=1))


def test_without_the_setting_the_kept_batches_are_as_before() -> None:
    stream = Windows(length_ms=0)
    for number in range(5):
        stream.complete(stream.allocate(1_700_000_000_000 + number))
    stream.clean_up()
    assert not stream.t.state.batches
    assert not [event for event in stream.t.events if isinstance(event, WindowChanged)]
    with pytest.raises(UsageError, match=r'driver\.window = "60000ms"'):
        stream.run(stream.allocate(1_700_000_001_000))


@pytest.mark.parametrize(
    ("length", "slide", "message"),
    [
        (0, 1, "length must be"),
        ("1 lightyear", 1, "length = "),
        (10, -1, "slide must be"),
        (60, 0.001, "windows at most"),
    ],
)
def test_durations_that_make_no_window_are_refused(length: Any, slide: Any, message: str) -> None:
    stream = Windows()
    stream.complete(stream.allocate(1_700_000_000_000))
    work = stream.scheduler._work(stream.scheduler._read_same(stream.allocate(1_700_000_100_000)).read(stream.t.state))
    with pytest.raises(UsageError, match=message):
        Batch(work, cast(Any, Rows())).windows(length, slide)


@pytest.mark.parametrize(
    ("before", "time", "ends"),
    [
        (0, 0, ()),
        (0, 19, ()),
        (0, 20, (20,)),
        (19, 20, (20,)),
        (20, 39, ()),
        (20, 61, (40, 60)),
        (5, 1_000, (20, 40, 60)),
    ],
)
def test_a_batch_runs_the_windows_that_end_after_the_batch_before_it(
    before: int, time: int, ends: Sequence[int]
) -> None:
    assert window_ends(before, time, 60, 20) == tuple(ends)


def test_a_clock_that_is_set_back_forgets_no_batch() -> None:
    reach = WindowReach(0, 100)
    assert [reach.add(time) for time in (1_000, 1_050, 950, 1_099, 1_100)] == [1, 2, 3, 4, 4]


def test_an_accepted_loss_holds_in_windows_by_time() -> None:
    """The operator accepts the loss of an earlier batch's range for the batch that has the window."""
    stream = Windows()
    batches: list[int] = []
    for number in range(4):
        batches.append(stream.allocate(1_700_000_000_000 + number * 5_000))
        stream.complete(batches[-1])
    late = stream.allocate(1_700_000_020_000)
    state = stream.t.state
    lost = state.blocks[state.batches[batches[1]].tasks[0][0]].meta.ranges[0].label
    stream.t.say(m.AcceptLossRequest(batch_id=late, ranges=(lost,), cause="ann"))
    work = stream.scheduler._work(stream.scheduler._read_same(late).read(state))
    windows = Batch(work, cast(Any, Rows())).windows(LENGTH / 1000, "20s")
    assert [window.covered for window in windows] == [tuple(batches)]
    assert [range_.label for window in windows for range_ in window.ranges].count(lost) == 0
    assert windows[0].records == 3


@pytest.mark.parametrize("replay", [0, 1])
@pytest.mark.parametrize("left", [False, True])
def test_windows_of_a_completed_batch_are_refused(replay: int, left: bool) -> None:
    """A thread of the job may call it late. The batches before it may have left, and no error may end the driver."""
    stream = Windows()
    for number in range(3):
        stream.complete(stream.allocate(1_700_000_000_000 + number * 5_000))
    last = stream.allocate(1_700_000_040_000)
    if replay:
        stream.complete(last)
        stream.t.say(BeginReplay(RewindTo(last), (), 0, "ann"))
    batch = Batch(
        stream.scheduler._work(stream.scheduler._read_same(last, replay).read(stream.t.state)), cast(Any, Rows())
    )
    assert batch.windows("20s", "20s")
    stream.t.say(Complete(last, stream.t.now_ms, 1, replay=replay))
    for number in range(3 if left else 0):
        stream.complete(stream.allocate(1_700_001_000_000 + number * 100_000))
        stream.clean_up()
    with pytest.raises(UsageError, match=rf"only while the batch's job runs: batch {last} is completed"):
        batch.windows("20s", "20s")


@pytest.mark.parametrize("in_history", [False, True])
def test_a_replay_of_dense_batches_has_its_windows_when_newer_batches_are_sparse(in_history: bool) -> None:
    """INV-3: the newest batches need fewer batches before them than those of the replay."""
    stream = Windows()
    first: dict[int, dict[int, tuple[int, ...]]] = {}
    for number in range(180):
        time_ms = 1_700_000_000_000 + (number * 1_000 if number < 120 else 120_000 + (number - 120) * 20_000)
        batch_id = stream.allocate(time_ms)
        first[batch_id] = stream.run(batch_id)
        stream.complete(batch_id)
    assert stream.t.state.window_batches <= 3
    batches = list(first)[100:130]
    archived: tuple[history.FinishedBatch, ...] = ()
    if in_history:
        segment = completed(stream.t.state, ())[: len(history.leaving(stream.t.state))]
        stream.clean_up()
        horizon = Horizon.of(stream.t.state, window_ms=LENGTH)
        parts = [segment[at : at + 10] for at in reversed(range(0, len(segment), 10))]
        archived = needed(parts, horizon, RewindTo(batches[0]))
        assert len(archived) < len(segment)
    stream.t.say(BeginReplay(RewindTo(batches[0]), archived, stream.t.state.archived_number, "ann"))
    for batch_id in batches:
        assert stream.run(batch_id, replay=1) == first[batch_id] == stream.expected(batch_id)
        stream.t.say(Complete(batch_id, 1, 1, replay=1))


def test_a_window_is_returned_once_when_the_clock_is_set_back() -> None:
    stream, begin = Windows(), 1_700_000_040_000
    ends: list[int] = []
    for seconds in (0, 20, 40, 30, 41, 60):
        batch_id = stream.allocate(begin + seconds * 1_000)
        ends += stream.run(batch_id)
        stream.complete(batch_id)
    assert ends == [begin + 20_000, begin + 40_000, begin + 60_000]


@pytest.mark.parametrize("next_alone", [False, True])
def test_batches_after_a_clock_that_was_far_ahead_leave_and_have_their_windows(next_alone: bool) -> None:
    """The WAL would keep all blocks until the clock has caught up."""
    stream, begin = Windows(), 1_700_000_040_000
    stream.complete(stream.allocate(begin + 30 * 86_400_000))
    ends: list[int] = []
    for number in range(300):
        time_ms = begin + number * 1_000
        if next_alone:
            stream.t.now_ms = time_ms
            stream.t.take_in(stream.epoch, stream.token, stream.t.state.partitions[f"{TOPIC}/0"].position + 1)
            batch_id = stream.t.ask(AllocateNext(None, 2)).batch_id
            assert batch_id is not None
        else:
            batch_id = stream.allocate(time_ms)
        ends += (found := stream.run(batch_id))
        assert all(len(batches) == min(end - begin, LENGTH) // 1_000 for end, batches in found.items())
        stream.complete(batch_id)
        stream.clean_up()
        if number == 3:
            stream.restart()
    assert ends == [begin + end for end in range(20_000, 300_000, 20_000)]
    assert len(stream.t.state.batches) <= 80
