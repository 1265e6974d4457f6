"""The decision loop makes events durable before it answers or acts: over real journals in stores that hold, fail or fill up.

One module, because each test checks the same order of one loop: decide, write, sync, answer.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from typing_extensions import Buffer

from driver.decision_loop import loop as loop_module
from driver.decision_loop.loop import DriverLoop
from driver.journal import events as ev
from driver.journal.files import claim_path, epoch_folder
from driver.journal.log import opening, writing
from driver.journal.log import reading as journal
from driver.journal.state import State
from driver.tracker import Tracker
from driver.tracker.requests import Allocate, Archived, Complete, FoundPartitions
from forebay import messages as m
from forebay.model.errors import FencedError, OutOfSpaceError, StoreError, TurnedAwayError, UnreachableError, UsageError
from forebay.process.clock import SystemClock
from tests.support.state.reads import ReadBy
from tests.support.state.tracked import STREAM, TOPIC, Tracked, offsets, tracker_options
from wal.storage import AppendFile, MemoryStorage

numbers = itertools.count(1)


class Faulty(MemoryStorage):
    """Runs ``before_sync`` before each sync of a file."""

    before_sync: Callable[[], None] = staticmethod(lambda: None)
    free: int | None = None

    def free_bytes(self) -> int | None:
        return self.free

    def create(self, path: str) -> AppendFile:
        file, outer = super().create(path), self

        class Gate:
            def append(self, data: Buffer) -> None:
                file.append(data)

            def sync(self) -> None:
                outer.before_sync()
                file.sync()

            def close(self) -> None:
                file.close()

        return Gate()


class Led:
    def __init__(self, reserve_bytes: int = 0) -> None:
        self.storage = Faulty(f"memory://loop-{next(numbers)}")
        self.journal, self.state = opening.lead(self.storage, STREAM, "test", 1, lambda: 1.0, lambda: next(numbers))
        self.failure: list[BaseException] = []
        self.ended = threading.Event()
        tracker = Tracker(self.state, self.journal.epoch, tracker_options())
        self.loop = DriverLoop(
            tracker,
            self.journal,
            SystemClock(),
            perform=lambda _: None,
            failed=self._failed,
            reserve_bytes=reserve_bytes,
        )
        self.loop.start()

    def _failed(self, error: BaseException) -> None:
        self.failure.append(error)
        self.ended.set()

    def durable(self) -> State:
        state = journal.read(self.storage, STREAM).state
        assert state is not None
        return state


@pytest.fixture
def led() -> Iterator[Led]:
    led = Led()
    yield led
    led.storage.before_sync = lambda: None
    led.loop.stop()


CREATE = FoundPartitions((ev.IncarnationStart(TOPIC, 0, 0),), 1, "earliest")


def register(receiver: str) -> m.RegisterRequest:
    return m.RegisterRequest(stream=STREAM, receiver_id=receiver, host="h1", instance_id="i", release="1")


def test_an_answer_a_refusal_and_a_read_wait_for_the_sync_of_what_was_decided_before_them(led: Led) -> None:
    """INV-1: no answer shows a state that is not durable."""
    reached, release = threading.Event(), threading.Event()

    def hold() -> None:
        reached.set()
        assert release.wait(30)

    led.loop.ask(CREATE)
    led.storage.before_sync = hold
    answer: Future[Any] = led.loop.submit(register("r1"))
    assert reached.wait(30)
    read = led.loop.submit(ReadBy(lambda s: len(s.receivers)))
    refusal = led.loop.submit(m.LookupRequest(receiver_id="r1", epoch=1, partitions=()))
    assert not answer.done()
    assert not read.done()
    assert not refusal.done()
    release.set()
    assert answer.result(30).epoch
    assert read.result(30) == 1
    with pytest.raises(FencedError):
        refusal.result(30)


def test_answers_leave_before_a_snapshot_that_is_due_is_written(led: Led, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many blocks it takes a while, and what is answered is durable without it."""
    led.loop.ask(CREATE)
    answered = threading.Event()
    seen: list[bool] = []
    monkeypatch.setattr(writing, "SNAPSHOT_EVENTS", 1)
    taken = threading.Event()
    led.loop.snapshot_taken = taken.set
    snapshot = led.journal.snapshot

    def look() -> None:
        seen.append(answered.wait(30))
        snapshot()

    monkeypatch.setattr(led.journal, "snapshot", look)
    led.loop.submit(register("r1")).add_done_callback(lambda _: answered.set())
    assert taken.wait(60)
    assert seen == [True]
    assert led.durable().receivers.keys() == {"r1"}


def test_what_waits_during_a_sync_shares_the_next_one(led: Led) -> None:
    syncs = itertools.count()
    count = [0]
    reached, release = threading.Event(), threading.Event()

    def hold() -> None:
        count[0] = next(syncs)
        reached.set()
        assert release.wait(30)

    led.loop.ask(CREATE)
    led.storage.before_sync = hold
    first = led.loop.submit(register("r0"))
    assert reached.wait(30)
    others: list[Future[Any]] = [led.loop.submit(register(f"r{i}")) for i in range(1, 101)]
    release.set()
    assert first.result(30)
    assert len({f.result(30).epoch for f in others}) == 100
    assert count[0] == 1


def test_failed_sync_ends_the_driver_without_an_answer(led: Led) -> None:
    led.loop.ask(CREATE)

    def fail() -> None:
        raise StoreError("the disk said no")

    led.storage.before_sync = fail
    answer = led.loop.submit(register("r1"))
    with pytest.raises(UnreachableError):
        answer.result(30)
    assert led.ended.wait(30)
    assert isinstance(led.failure[0], StoreError)
    with pytest.raises(UnreachableError):
        led.loop.submit(register("r2")).result(30)


def test_lack_of_space_waits_and_answers_when_there_is_space(led: Led) -> None:
    led.loop.ask(CREATE)
    left = [3]

    def full() -> None:
        if left[0]:
            left[0] -= 1
            raise OutOfSpaceError("full")

    led.storage.before_sync = full
    epoch = led.loop.ask(register("r1"), 30).epoch
    assert left[0] == 0
    assert not led.ended.is_set()
    assert led.durable().receivers["r1"].epoch == epoch


def test_superseded_driver_ends_fenced_without_an_answer(led: Led) -> None:
    """INV-4."""
    led.loop.ask(CREATE)
    opening.lead(led.storage, STREAM, "newer", 1, lambda: 1.0, lambda: next(numbers))
    with pytest.raises(UnreachableError):
        led.loop.submit(register("r1")).result(30)
    assert led.ended.wait(30)
    assert isinstance(led.failure[0], FencedError)


def test_superseded_driver_fences_no_receiver_that_it_does_not_know(led: Led) -> None:
    """INV-4: the receiver has registered with the newer driver, and would end."""
    led.loop.ask(CREATE)
    opening.lead(led.storage, STREAM, "newer", 1, lambda: 1.0, lambda: next(numbers))
    with pytest.raises(UnreachableError):
        led.loop.submit(m.LookupRequest(receiver_id="r1", epoch=7, partitions=())).result(30)
    assert led.ended.wait(30)


def test_a_driver_that_was_superseded_while_it_wrote_a_snapshot_deletes_nothing(
    led: Led, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-4: the newer epoch may be reading the segments that the snapshot supersedes."""
    monkeypatch.setattr(writing, "SNAPSHOT_EVENTS", 1)
    led.loop.ask(CREATE)
    led.loop.ask(ReadBy(lambda _: None))  # after the snapshot that the answer did not wait for
    before = set(led.storage.list(epoch_folder(STREAM, led.journal.epoch)))
    snapshot, taken = led.journal.snapshot, threading.Event()
    led.loop.snapshot_taken = taken.set

    def superseded() -> None:
        snapshot()
        led.storage.put_new(claim_path(STREAM, led.journal.epoch + 1), b"{}")

    monkeypatch.setattr(led.journal, "snapshot", superseded)
    led.loop.submit(register("r1"))
    assert led.ended.wait(30)
    assert isinstance(led.failure[0], FencedError)
    assert before <= set(led.storage.list(epoch_folder(STREAM, led.journal.epoch)))
    assert not taken.is_set()


def test_stopping_decides_what_is_queued_and_refuses_what_comes_later(led: Led) -> None:
    led.loop.ask(CREATE)
    answer: Future[Any] = led.loop.submit(register("r1"))
    led.loop.stop()
    assert answer.result(1).epoch
    with pytest.raises(UnreachableError):
        led.loop.submit(register("r2")).result(1)


def test_a_cancelled_request_does_not_hide_that_the_loop_failed(led: Led) -> None:
    """INV-4, INV-5: a fenced driver ends, whether or not its clients still wait."""
    reached, release = threading.Event(), threading.Event()

    def fail() -> None:
        reached.set()
        assert release.wait(30)
        raise StoreError("gone")

    led.storage.before_sync = fail
    first = led.loop.submit(CREATE)
    assert reached.wait(30)
    cancelled, waiting = led.loop.submit(register("r1")), led.loop.submit(register("r2"))
    assert cancelled.cancel()
    release.set()
    assert led.ended.wait(30)
    for future in (first, waiting):
        with pytest.raises(UnreachableError):
            future.result(30)


def test_drivers_own_threads_wait_for_room_in_the_queue_and_clients_are_refused(
    led: Led, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-6: a full queue is no reason for the batch timer or the clean-up to end."""
    reached, release = threading.Event(), threading.Event()

    def hold() -> None:
        reached.set()
        assert release.wait(30)

    led.storage.before_sync = hold
    led.loop._queue.maxsize = 1
    led.loop.submit(CREATE)
    assert reached.wait(30)
    led.loop.submit(ReadBy(lambda state: None))
    with pytest.raises(UnreachableError, match="too many"):
        led.loop.submit(ReadBy(lambda state: None)).result(0)
    answers: list[bool] = []
    own = threading.Thread(target=lambda: answers.append(led.loop.ask(ReadBy(lambda state: state.created))))
    own.start()
    release.set()
    own.join(30)
    assert answers == [True]


def test_who_asks_just_as_the_loop_ends_is_answered(led: Led) -> None:
    queued = led.loop._queue.put

    def ended_meanwhile(*args: object, **options: object) -> None:
        led.loop._queue.put = queued  # type: ignore[method-assign]
        led.loop.stop()
        queued(*args, **options)  # type: ignore[arg-type]

    led.loop._queue.put = ended_meanwhile  # type: ignore[method-assign]
    with pytest.raises(UnreachableError, match="stopping"):
        led.loop.submit(CREATE).result(30)


def test_where_each_write_costs_a_request_groups_are_written_so_far_apart(led: Led) -> None:
    """The first is written immediately; requests within the interval are one group."""
    writes: list[None] = []
    led.storage.before_sync = lambda: writes.append(None)
    tracker = Tracker(led.state, led.journal.epoch, tracker_options())
    loop = DriverLoop(
        tracker, led.journal, SystemClock(), perform=lambda _: None, failed=led._failed, flush_seconds=60.0
    )
    loop.start()
    loop.ask(CREATE)
    later: list[Future[Any]] = [loop.submit(register(name)) for name in ("r1", "r2", "r3")]
    loop.stop()
    assert len({answer.result(0).epoch for answer in later}) == 3
    assert len(writes) == 2


def test_down_to_its_reserve_the_driver_takes_nothing_in_and_does_all_that_frees_space(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A receiver keeps its blocks and reports again later; completion, archiving and clean-up are decided."""
    monkeypatch.setattr(loop_module, "SPACE_SECONDS", 0.0)
    led = Led(reserve_bytes=1_000)
    led.storage.free = 1_000
    led.loop.ask(CREATE)
    epoch = led.loop.ask(register("r1")).epoch
    ask = m.ClaimRequest(receiver_id="r1", epoch=epoch, claims=(m.ClaimAsk(topic=TOPIC, partition=0, known_token=0),))
    token = led.loop.ask(ask).claims[0].view.token
    t = Tracked(partitions=1)
    blocks = [t.block(epoch, [offsets(at, at + 5, token)]) for at in (0, 5)]
    reports = [m.ReportRequest(receiver_id="r1", epoch=epoch, blocks=(block,)) for block in blocks]
    assert led.loop.ask(reports[0]).results[0].accepted

    led.storage.free = 999
    for growing in (reports[1], register("r2"), ask):
        with pytest.raises(TurnedAwayError, match="down to its reserve"):
            led.loop.ask(growing)
    assert led.loop.reserve_reached
    batch = led.loop.ask(Allocate(1, 1))
    assert batch is not None
    led.loop.ask(Complete(batch, 1, 1))
    led.loop.ask(Archived((batch,)))
    assert led.durable().released

    led.storage.free = 1_000
    assert led.loop.ask(reports[1]).results[0].accepted
    assert not led.loop.reserve_reached
    led.loop.stop()


def report_of(led: Led, *ends: int) -> m.ReportRequest:
    """Blocks up to each of ``ends`` of the only partition, from a receiver that registers and claims first."""
    led.loop.ask(CREATE)
    epoch = led.loop.ask(register("r1")).epoch
    ask = m.ClaimRequest(receiver_id="r1", epoch=epoch, claims=(m.ClaimAsk(topic=TOPIC, partition=0, known_token=0),))
    token = led.loop.ask(ask).claims[0].view.token
    t = Tracked(partitions=1)
    blocks = [t.block(epoch, [offsets(at, end, token)]) for at, end in itertools.pairwise((0, *ends))]
    return m.ReportRequest(receiver_id="r1", epoch=epoch, blocks=tuple(blocks))


@pytest.mark.parametrize("lands", [False, True])
def test_blocks_whose_allocation_failed_with_the_journal_are_allocated_once_by_the_next_driver(
    led: Led, lands: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-3: whether or not the bytes of the failed write are there after all."""
    led.loop.ask(report_of(led, 5, 9))
    blocks = set(led.durable().waiting)

    def fail(*_: object) -> None:
        raise StoreError("the disk said no")

    if lands:
        led.storage.before_sync = fail
    else:
        monkeypatch.setattr(led.journal, "append", fail)
    with pytest.raises(UnreachableError):
        led.loop.ask(Allocate(1, 1))
    assert led.ended.wait(30)
    led.storage.before_sync = lambda: None
    opened, state = opening.lead(led.storage, STREAM, "next", 2, lambda: 2.0, lambda: next(numbers))
    assert bool(state.unfinished()) == lands
    following = Tracker(state, opened.epoch, tracker_options())
    for _ in range(2):
        following.decide(Allocate(2, 1), 2.0, 2)
    (batch,) = state.unfinished()
    assert set(batch.block_ids) == blocks
    assert not state.waiting


def test_an_allocation_that_a_full_journal_holds_up_is_made_once(led: Led) -> None:
    """INV-3: the timer waits, no answer is sent, and nothing is allocated beside it."""
    led.loop.ask(report_of(led, 5, 9))
    tried = threading.Event()
    space = threading.Event()

    def full() -> None:
        if not space.is_set():
            tried.set()
            raise OutOfSpaceError("full")

    led.storage.before_sync = full
    first = led.loop.submit(Allocate(1, 1))
    assert tried.wait(30)
    with ThreadPoolExecutor(1) as timer:
        second = timer.submit(led.loop.ask, Allocate(2, 1))
        while not led.loop.queued:
            time.sleep(0.001)
        assert not first.done()
        space.set()
        batch = first.result(30)
        assert second.result(30) is None
    assert [unfinished.batch_id for unfinished in led.durable().unfinished()] == [batch]
    assert not led.durable().waiting


def test_decision_loop_reports_rounds_while_it_is_idle_and_not_while_it_hangs() -> None:
    idle, hung, release = threading.Event(), threading.Event(), threading.Event()
    rounds: list[int] = []
    led = Led()

    def came_round() -> None:
        rounds.append(1)
        if len(rounds) >= 3:
            idle.set()

    led.loop.came_round = came_round
    assert idle.wait(30), "nothing is asked of it, and it does not come round"

    def hang() -> None:
        before = len(rounds)
        hung.set()
        assert release.wait(30)
        within.append(len(rounds) - before)

    within: list[int] = []
    led.storage.before_sync = hang
    answer = led.loop.submit(CREATE)
    assert hung.wait(30)
    release.set()
    answer.result(30)
    led.loop.stop()
    assert within and not any(within)


def test_decision_loop_reports_rounds_while_it_waits_for_space() -> None:
    """It waits, which is no fault: killing it would free nothing."""
    led = Led()
    full = True
    waited = threading.Event()

    def fail() -> None:
        if full:
            raise OutOfSpaceError("full")

    def came_round() -> None:
        if led.loop.waiting_for_space:
            waited.set()

    led.loop.came_round = came_round
    led.storage.before_sync = fail
    answer = led.loop.submit(CREATE)
    assert waited.wait(30)
    full = False
    answer.result(30)
    led.loop.stop()


def test_requests_are_turned_away_while_the_journal_waits_for_space() -> None:
    """Their senders give up and ask again. Without the refusal each try would stay in memory, and its connection open."""
    led = Led()
    full, waited = True, threading.Event()

    def fail() -> None:
        if full:
            raise OutOfSpaceError("full")

    led.loop.came_round = lambda: waited.set() if led.loop.waiting_for_space else None
    led.storage.before_sync = fail
    answer = led.loop.submit(CREATE)
    assert waited.wait(30)
    for _ in range(10):
        with pytest.raises(TurnedAwayError, match="waits for space"):
            led.loop.submit(register("r1")).result(0)
    assert led.loop.queued == 0
    full = False
    answer.result(30)
    assert led.loop.ask(register("r1"), 30).epoch
    led.loop.stop()


def test_requests_that_wait_for_space_fail_with_the_error_that_ends_the_loop() -> None:
    """A sender that is answered to wait for space would ask a driver that has ended."""
    led = Led()
    tried = threading.Event()

    def fail() -> None:
        if tried.is_set():
            raise StoreError("the disk was removed")
        tried.set()
        raise OutOfSpaceError("full")

    led.storage.before_sync = fail
    first = led.loop.submit(CREATE)
    assert led.ended.wait(30)
    for answer in (first, led.loop.submit(register("r1"))):
        with pytest.raises(UnreachableError, match="the disk was removed") as refused:
            answer.result(30)
        assert not isinstance(refused.value, TurnedAwayError)


def test_requests_asked_together_share_a_write(led: Led) -> None:
    led.loop.ask(CREATE)
    writes: list[None] = []
    released = threading.Event()

    def hold() -> None:
        writes.append(None)
        assert released.wait(30)

    def release() -> None:
        while led.loop.queued < 100:
            time.sleep(0.001)
        released.set()

    led.storage.before_sync = hold
    first: Future[Any] = led.loop.submit(register("first"))
    while not writes:
        time.sleep(0.001)
    releasing = threading.Thread(target=release)
    releasing.start()
    answers = led.loop.ask_all([register(f"r{number}") for number in range(100)])
    releasing.join()
    assert first.result(0).epoch not in {answer.epoch for answer in answers}
    assert len({answer.epoch for answer in answers}) == 100
    assert len(writes) == 2


def test_event_that_cannot_be_written_refuses_its_own_request_and_nothing_else(led: Led) -> None:
    """What was decided before it in the same request is durable, and the loop goes on."""
    led.loop.ask(FoundPartitions((ev.IncarnationStart(TOPIC, 0, 0), ev.IncarnationStart(TOPIC, 1, 0)), 1, "earliest"))
    epoch = led.loop.ask(register("r1")).epoch
    odd = register("r2")
    claims = tuple(m.ClaimAsk(topic=TOPIC, partition=number, known_token=0) for number in (0, 1))
    asked: list[Future[Any]] = [
        led.loop.submit(msgspec.structs.replace(odd, instance_id="\ud800")),
        led.loop.submit(register("r3")),
        led.loop.submit(m.ClaimRequest(receiver_id="r1", epoch=epoch, claims=claims, number=2**64)),
        led.loop.submit(m.ClaimRequest(receiver_id="r1", epoch=epoch, claims=claims, number=2)),
    ]
    with pytest.raises(UsageError, match="ReceiverRegistered can't be written to the journal"):
        asked[0].result(30)
    with pytest.raises(UsageError, match="ClaimGiven can't be written to the journal"):
        asked[2].result(30)
    assert asked[1].result(30).epoch > epoch
    assert [grant.granted for grant in asked[3].result(30).claims] == [True, True]
    assert not led.failure
    assert led.loop.ask(ReadBy(lambda s: msgspec.msgpack.encode(s))) == msgspec.msgpack.encode(led.durable())


def test_events_before_one_that_cannot_be_written_are_durable(led: Led, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state has them already: the refusal leaves when the journal has them too."""
    led.loop.ask(FoundPartitions((ev.IncarnationStart(TOPIC, 0, 0), ev.IncarnationStart(TOPIC, 1, 0)), 1, "earliest"))
    epoch = led.loop.ask(register("r1")).epoch
    refuse = ev.refuse_unwritable

    def refuse_replica(event: ev.Event) -> None:
        refuse(event)
        if isinstance(event, ev.ClaimGiven) and event.partition == 1:
            raise ev.UnwritableEvent("for want of a number")

    monkeypatch.setattr(ev, "refuse_unwritable", refuse_replica)
    claims = tuple(m.ClaimAsk(topic=TOPIC, partition=number, known_token=0) for number in (0, 1))
    with pytest.raises(UsageError, match="for want of a number"):
        led.loop.ask(m.ClaimRequest(receiver_id="r1", epoch=epoch, claims=claims, number=1))
    owners = [partition.owner for partition in led.durable().partitions.values()]
    assert owners == ["r1", ""] == led.loop.ask(ReadBy(lambda s: [p.owner for p in s.partitions.values()]))
    assert not led.failure
