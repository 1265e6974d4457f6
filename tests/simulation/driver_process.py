"""One process of a driver: its threads run the product's code, step by step (``shells.py``).

The decision loop (``driver.decision_loop.loop``) pauses before it appends, syncs, checks its epoch, and releases its answers.
So a kill, a pause or another driver can come between any two of them. Clean-up, snapshot copies, adoption and housekeeping run
in the same way. The batch timer, the jobs and queries are generators that do what the product's threads do.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec

from driver.background.cleaner import CleanedWal, Cleaner
from driver.background.snapshot_copies import SnapshotCopies
from driver.batches.trigger import DueBatch, Trigger
from driver.decision_loop.loop import DriverLoop
from driver.decisions.batch_order import RunKey, following, window
from driver.decisions.clean_up import CleanSegment
from driver.decisions.intake import intake
from driver.journal.events import ReplayedBatch
from driver.journal.files import newest_claim
from driver.journal.leadership.lease import LeaseKeeper
from driver.journal.log.writing import Journal
from driver.journal.state import ADOPTER, State
from driver.journal.state_parts import Batch
from driver.service.activity import Activity
from driver.service.admission import Admission
from driver.service.commits import Commits
from driver.service.housekeeping import Housekeeping
from driver.service.options import DriverOptions, Given
from driver.tracker import CopyRules, Decision, Tracker
from driver.tracker.options import CursorRules
from driver.tracker.requests import (
    Allocate,
    AllocateNext,
    Complete,
    KeepWindow,
    Request,
)
from forebay import messages as m
from forebay.kafka.consume.block_ranges import Wanted
from forebay.model.errors import (
    CorruptionError,
    FencedError,
    NewerVersionError,
    RangeNotHeldError,
    RefusedError,
    StoreError,
    TurnedAwayError,
    UnreachableError,
    UnreadableBlockError,
    UsageError,
)
from forebay.model.values import Block
from pyspark_forebay.intake.client import FoundBlocks, partitions_of, place_messages
from pyspark_forebay.intake.planning import BlockPart, next_end, plan_intake_batch, spans_between
from tests.simulation.decoded import Row, rows_of
from tests.simulation.hosts import copies_of
from tests.simulation.network import Exchange
from tests.simulation.options import SETTINGS
from tests.simulation.scheduler import Step
from tests.simulation.shells import (
    AskedLoop,
    SteppedEvent,
    SteppedJournal,
    SteppedLock,
    SteppedPause,
    SteppedPool,
    SteppedQueue,
    SteppedStore,
    Task,
    pause,
    stepped,
)
from tests.simulation.upstream import KAFKA_STEPS, SimulatedUpstream
from tests.support.forgetful import Crash
from tests.support.reads import ReadBy
from tests.support.tracked import tracker_options
from wal.blocks import block_of_frame
from wal.decisions.retention import Limits
from wal.segments.scan import read_frame
from wal.segments.writer import SegmentLimits
from wal.storage import Storage

if TYPE_CHECKING:
    from tests.simulation.world import Query, World

#: operations of clean-up on the WAL → the step before them
CLEAN_UP_STEPS = {"list": "list", "size": "scan", "create": "copy", "put_new": "copy"}
#: what a reader gets from a store with a fault
DAMAGED = (CorruptionError, NewerVersionError, FileNotFoundError, StoreError, MemoryError)
#: how long after its last heartbeat a host counts as live
AGENT_SECONDS = 60.0


@dataclass(slots=True)
class Waiting:
    """A request and the receiver of its answer: an exchange of the network, a task by name, or None."""

    request: Request
    exchange: Exchange | None = None
    task: str = ""


@dataclass(frozen=True, slots=True)
class Work:
    """A running batch: its blocks by task, and the earlier batches that its window reaches."""

    batch_id: int
    replay: int
    tasks: tuple[tuple[Block, ...], ...]
    past: tuple[Work, ...] = ()


class CheckedTracker:
    """The tracker of a driver, whose decisions are checked."""

    def __init__(self, driver: DriverProcess) -> None:
        self._driver = driver

    def decide(self, request: Request, now: float, now_ms: int) -> Decision:
        driver = self._driver
        driver.tracker.receivers.id_limits = driver.world.id_limits
        return driver.world.invariants.decide(driver, request)


class DriverProcess:
    """``name``: ``d<number>``, in order of start. The process is dead once ``killed`` is set or ``ended`` has a reason."""

    asked_type = AskedLoop

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.name = f"d{number}"
        self.clock = world.clock_of(self.name)
        self.paused = False
        self.killed = False
        self.ended: BaseException | None = None
        self.journal: Journal
        self.tracker: Tracker
        self.leading = False
        self.queue: deque[Waiting] = deque()
        self.loop: DriverLoop
        self._undecided: list[Waiting] = []  # given to the decision loop, and not answered
        self._outcomes: list[tuple[Waiting, Any]] = []  # with answers and refusals that are not released
        self._in_work: set[RunKey] = set()
        self._trigger = Trigger(0.0 if world.options.trigger == "continuous" else 1.0)
        self._main = self._run()
        self._next = next(self._main)
        self._tasks: dict[str, Task] = {}
        self._task_next: dict[str, str] = {}  # task → its next step; a task that waits for an answer has none
        self._answers: dict[str, Any] = {}
        self._wal_is_away = False
        self._offered: dict[str, Step] = {}

    @property
    def alive(self) -> bool:
        return not self.killed and self.ended is None

    @property
    def running(self) -> bool:
        return self.alive and not self.paused

    @property
    def has_discovered(self) -> bool:
        """Whether it leads, knows the partitions, and admits claims."""
        return self.leading and self._admission.copied

    # ---- what can happen next ----------------------------------------------------------------------------------------

    def _step(
        self, name: str, action: Callable[..., Any], *arguments: Any, weight: int, numbers: range | None = None
    ) -> Step:
        """Return the step ``name`` of this process, which is made once: what it does depends on its name alone."""
        step = self._offered.get(name)
        if step is None:
            run = partial(action, *arguments) if arguments else action
            step = self._offered[name] = Step(f"{self.name} {name}", run, weight, numbers)
        step.weight = weight
        return step

    def steps(self) -> Iterator[Step]:
        if self._next != "decide" or self.queue:
            yield self._step(self._next, self.advance, weight=40)
        for task, name in self._task_next.items():
            if self._task_due(task, name):
                yield self._step(f"{task}:{name}", self.advance_task, task, weight=self._weight(task, name))

    def _weight(self, task: str, name: str) -> int:
        """Little can happen before a driver admits claims, so what it needs for that is likely."""
        if task == "housekeeping":
            return 3 if self._admission.copied else 200
        return 3 if name == "begin" else 20

    def fault_steps(self) -> Iterator[Step]:
        yield self._step("kill", self.kill, weight=2)
        if self.leading:
            yield self._step("renew", self.renew, weight=2)
        yield self._step("pause", self.pause, weight=3)
        if self._next in ("claim", "snapshot", "open", "append", "sync", "snapshot-again"):
            yield self._step(f"{self._next}-crash", self.crash_in, self.advance, weight=8, numbers=range(1, 8))
        if self._next == "sync":
            yield self._step("sync-fails", self.fail_in, "sync", weight=4)
            if not self.world.journal.appendable:
                for lands in ("now", "late"):
                    yield self._step(f"sync-lands-{lands}", self.fail_in, "sync", lands, weight=3)
        for task, name in self._task_next.items():
            if name == "read" and task.startswith("job"):
                yield self._step(f"{task}:read-without-wal", self.read_without_wal, task, weight=200)
            if name in KAFKA_STEPS:
                yield self._step(f"{task}:{name}-fails", self.fail_task, task, weight=4)
        if self._next == "append":
            yield self._step("append-fails", self.fail_in, "append", weight=4)

    def _task_due(self, task: str, name: str) -> bool:
        """Rounds that would find nothing are not begun, so that traces stay short."""
        if name != "begin" or not self.leading:
            return True
        state = self.tracker.state
        if task == "timer":
            return (bool(state.waiting) and self._due() is None) or self._may_be_empty()
        if task == "query":
            return state.created
        if task.startswith("job"):
            return following(state, self._in_work) is not None or (bool(state.waiting) and self._due() is not None)
        if task == "housekeeping":
            return self._rounds.is_over(self.world.now) and self._has_housework(state)
        if task == "adopt":
            return any(p.fault is not None or p.owner == ADOPTER for p in state.partitions.values())
        return bool(
            not self._cleaner._actions.empty() or state.blocks or self.world.wal.has_any(f"{self.world.stream}/blocks")
        )

    def _has_housework(self, state: State) -> bool:
        if not self._admission.copied:
            return True
        published = self._upstream.published
        return any(published.get(p.tp) != p.completed for p in state.partitions.values())

    def receive(self, request: Any, exchange: Exchange) -> None:
        """Receive a request from the network, as ``driver.service.answers.routing`` does."""
        try:
            self.queue.append(Waiting(self._admission.admit(request), exchange))
        except UnreachableError as refusal:
            self.world.reached["not admitted"] += 1
            self.world.network.answer(exchange, refusal)

    def submit(self, request: Request) -> None:
        """Queue a request whose answer no process awaits."""
        self.queue.append(Waiting(request))

    def advance(self) -> None:
        shown = self.world.faults.shown
        try:
            self._next = next(self._main)
        except StopIteration:
            raise AssertionError("the decision loop goes on for ever") from None
        except AssertionError:
            raise
        except Exception as error:
            self._end(error, self.world.faults.shown != shown)

    def advance_task(self, task: str) -> None:
        shown = self.world.faults.shown
        del self._task_next[task]
        answer = self._answers.pop(task, None)
        try:
            wanted = (
                self._tasks[task].throw(answer) if isinstance(answer, Exception) else self._tasks[task].send(answer)
            )
        except StopIteration:
            del self._tasks[task]
            return
        except AssertionError:
            raise
        except Exception as error:
            self._end(error, self.world.faults.shown != shown)
            return
        if isinstance(wanted, str):
            self._task_next[task] = wanted
        else:
            self.queue.append(Waiting(wanted, task=task))

    # ---- ends --------------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        self.killed = True
        self._drop_requests()

    def renew(self) -> None:
        """The thread that renews the lease.

        It writes even if the driver is fenced, since it may have read the lease just before. Without memory the thread ends.
        """
        with contextlib.suppress(StoreError, MemoryError):
            self._lease.renew()

    def pause(self) -> None:
        self.paused = True

    def wake(self) -> None:
        self.paused = False

    def _end(self, error: BaseException, was_faulty: bool) -> None:
        """``was_faulty``: whether a store has just given a faulty answer."""
        self.ended = error
        self._drop_requests()
        self.world.coverage.ended(self.name, error)
        self.world.invariants.driver_ended(self, error, was_faulty)

    def _drop_requests(self) -> None:
        for waiting in [*self.queue, *self._undecided]:
            if waiting.exchange is not None:
                self.world.network.driver_died(waiting.exchange)
        self.queue.clear()
        self._undecided = []

    def crash_in(self, step: Any, at: int) -> None:
        disk = self.world.journal
        disk.crash_at_step = disk.steps + at
        try:
            step()
        except Crash:
            self.kill()
        disk.crash_process()

    def fail_in(self, operation: str, lands: str = "never") -> None:
        self.world.journal.fail(operation, 1, lands=lands)
        self.advance()
        self.world.clear_failures(self.world.journal)

    def read_without_wal(self, task: str) -> None:
        """Make the block of a task damaged or missing in the WAL, for one read."""
        self._wal_is_away = True
        self.advance_task(task)
        self._wal_is_away = False

    def fail_task(self, task: str) -> None:
        """Kafka does not answer the request of a task."""
        self._answers[task] = UnreachableError("Kafka does not answer")
        self.advance_task(task)

    # ---- the decision loop -------------------------------------------------------------------------------------------

    def _run(self) -> Generator[str, None, None]:
        yield from self._open()
        self._lead()
        while True:
            yield "decide"
            taken = self._take_queued()
            for waiting in taken:
                self._undecided.append(waiting)
                self.loop.submit(waiting.request).add_done_callback(partial(self._decided, waiting))
            if taken:  # an empty round would wait in real time
                yield from cast(Generator[str, None, None], stepped(self.loop._step))

    def _take_queued(self) -> list[Waiting]:
        """Return what the decision loop decides next."""
        taken = list(self.queue)
        self.queue.clear()
        return taken

    def _open(self) -> Generator[str, None, None]:
        """``opening.lead``, step by step."""
        world = self.world
        opening = world.kinds.opening(
            world.journal,
            world.stream,
            self.name,
            self.clock.wall_ms(),
            lambda: world.now,
            world.new_uid,
            segment_bytes=1_000_000,
            wal=None if world.options.copies else world.wal,
        )
        yield "claim"
        next(opening)
        epoch = newest_claim(world.journal, world.stream)
        self._lease = LeaseKeeper(world.journal, world.stream, epoch, owner=self.name, url="", duration_seconds=10.0)
        with contextlib.suppress(StoreError):  # as its thread does: the next renewal follows
            self._lease.begin()
        yield "read"
        next(opening)
        yield "snapshot"
        next(opening)
        yield "open"
        try:
            next(opening)
        except StopIteration as end:
            self.journal, state = end.value
        else:
            raise AssertionError("opening has a step that the simulation does not know")
        self._lease.follow(lambda: self.journal.confirmed)
        self.tracker = world.kinds.tracker(
            state,
            self.journal.epoch,
            tracker_options(
                on_gap=world.options.on_gap,
                max_queued_batches=world.options.max_queued_batches + world.options.concurrent_jobs - 1,
                retention=Limits(world.options.retention_ms, world.options.retention_bytes),
                batch_interval_ms=0 if self._trigger.continuous else 1_000,
                concurrent_jobs=world.options.concurrent_jobs,
            ),
        )
        if world.options.copies:
            self.tracker.replicas.rules = CopyRules(world.options.copies, AGENT_SECONDS, 1)
        world.invariants.opened(self)

    def _lead(self) -> None:
        world = self.world
        if world.options.window_batches != self.tracker.state.window_batches:
            self.queue.append(Waiting(KeepWindow(world.options.window_batches)))
        self.loop = self._new_loop()
        self._history = world.kinds.history(
            world.journal,
            world.stream,
            self.journal.epoch,
            segment_bytes=1_000_000,
            now=lambda: world.now,
            new_uid=world.new_uid,
        )
        self._limits = Limits(world.options.retention_ms, world.options.retention_bytes)
        self._cleaner = self._new_cleaner()
        self._housekeeping = self._new_housekeeping()
        for action in self.tracker.pending_actions():
            self._cleaner.perform(action)
        self.leading = True
        self._adopter = world.kinds.adopter(
            None if world.options.copies else world.wal,
            stream=world.stream,
            host="host-driver",
            instance_id=self.name,
            compression="none",
            limits=SegmentLimits(world.options.segment_bytes, float("inf")),
            topic_ids=lambda topics: {topic: world.kafka.topic_id(topic) for topic in topics},
            wall_ms=lambda: self.clock.wall_ms(),
            new_uid=world.new_uid,
        )
        # the earlier user of the cursor died with its driver, so no answer is awaited
        self.tracker.cursors.rules = CursorRules(in_use_seconds=0.0)
        tasks = {
            **({"query": self._query()} if world.options.queries else {}),
            "housekeeping": self._keep_house(),
            "timer": self._timer(),
            "job": self._job(),
            "clean": self._clean(),
            "adopt": self._adopt(),
            **{f"job{number}": self._job() for number in range(2, world.options.concurrent_jobs + 1)},
        }
        for name, task in tasks.items():
            self._tasks[name] = task
            first = next(task)
            assert isinstance(first, str)
            self._task_next[name] = first

    def _new_loop(self) -> DriverLoop:
        loop = self.world.kinds.loop(
            cast(Any, CheckedTracker(self)),
            cast(Any, SteppedJournal(self.journal, self, self.world.options.snapshot_events)),
            self.clock,
            perform=lambda action: self._cleaner.perform(action),
            failed=lambda _: None,  # by its thread, which is never started
            reserve_bytes=self.world.options.journal_reserve_bytes,
        )
        loop._queue = cast(Any, SteppedQueue())
        loop._stopping = cast(Any, SteppedEvent())
        loop.answered = lambda _: self._release()
        return loop

    def _new_cleaner(self) -> Cleaner:
        """Return the clean-up, whose thread is a task."""
        world = self.world
        storage = cast(Storage, SteppedStore(world.wal, CLEAN_UP_STEPS, partial(world.invariants.deleting, self)))
        asked = cast(Any, self.asked_type({CleanSegment: "judge"}))
        self._copies = SnapshotCopies(
            asked.ask,
            storage,
            stream=world.stream,
            epoch=self.journal.epoch,
            clock=self.clock,
            interval_seconds=0.0,
            limits=self._limits,
            new_uid=world.new_uid,
        )
        self._copies._lock = cast(Any, SteppedLock())
        cleaner = Cleaner(
            asked,
            None if world.options.copies else CleanedWal(storage, self._limits, self._copies),
            history_writer=cast(Any, SteppedStore(self._history, {"append": "archive"}, lambda _: None)),
            stream=world.stream,
            clock=self.clock,
            pause_seconds=1.0,
            failed=self._fail,
        )
        cleaner._actions = cast(Any, SteppedQueue("begin"))
        cleaner._pool = cast(Any, SteppedPool())
        cleaner._stopping = cast(Any, SteppedEvent())
        return cleaner

    def _new_housekeeping(self) -> Housekeeping:
        """Return the housekeeping, whose thread is a task."""
        world = self.world
        asked = cast(Any, AskedLoop())
        self._upstream = upstream = SimulatedUpstream(self)
        self._admission = admission = Admission(lambda: False)
        self._rounds = SteppedPause(lambda: world.now)
        activity = Activity()
        activity.stopping = cast(Any, self._rounds)
        given = Given(
            settings=SETTINGS,
            upstream=upstream,
            engine=cast(Any, None),
            jobs=(),
            clock=self.clock,
            options=DriverOptions(release="simulated"),
            listeners=cast(Any, None),
        )
        parts = SimpleNamespace(
            loop=asked,
            tracker=self.tracker,
            copies=None if world.options.copies else self._copies,
            commits=Commits(settings=SETTINGS, upstream=upstream, ask=asked.ask, admission=admission),
        )
        return Housekeeping(
            given,
            cast(Any, parts),
            activity=activity,
            admission=admission,
            is_draining=lambda: False,
            caught_up=lambda: None,
            failed=self._fail,
        )

    def _fail(self, error: BaseException) -> None:
        """End the process, as ``driver.service.shutdown`` does with the error that ended a thread."""
        raise error

    def check_epoch(self, before_refusal: bool) -> None:
        """Check that no newer epoch exists. Raises FencedError."""
        self.journal.check()
        self.world.invariants.checked(self)

    def _decided(self, waiting: Waiting, future: Future[Any]) -> None:
        """The decision loop has answered; the answer leaves when the whole group is answered."""
        error = future.exception()
        self._outcomes.append((waiting, future.result() if error is None else error))

    def _release(self) -> None:
        pause("release")
        outcomes, self._outcomes, self._undecided = self._outcomes, [], []
        for waiting, answer in outcomes:
            if isinstance(answer, TurnedAwayError):
                self.world.reached["turned away"] += 1
            self.world.invariants.released(self, waiting.request, answer)
            if waiting.exchange is not None:
                self.world.network.answer(waiting.exchange, answer)
            elif waiting.task:
                self._answers[waiting.task] = answer
                self._task_next[waiting.task] = "answered"

    # ---- tasks -------------------------------------------------------------------------------------------------------

    def _keep_house(self) -> Task:
        yield "begin"
        yield from stepped(self._housekeeping._run)

    def _adopt(self) -> Task:
        thread = self.world.kinds.adoption(self._adopter, cast(Any, AskedLoop()), self._fail)
        while True:
            yield "begin"
            yield from stepped(thread._round)

    def _timer(self) -> Task:
        while True:
            yield "begin"
            if self._workers_allocate:
                self._trigger.end_interval(self.clock.wall_ms())
                continue
            yield Allocate(self.clock.wall_ms(), self.world.options.tasks, self._may_be_empty())

    def _may_be_empty(self) -> bool:
        """Not after the faults have ended: the run would never end."""
        return self.world.options.empty_batches and not self.world.calm

    def _job(self) -> Task:
        """One worker of ``driver.batches.scheduler``. It reads the batches of its window too."""
        while True:
            yield "begin"
            work = yield ReadBy(self._begin_batch)
            if work is None and (due := self._due()) is not None:
                made = yield AllocateNext(due.time_ms, self.world.options.tasks)
                self._trigger.settle(due, made.left)
                if made.batch_id is not None:
                    self.world.reached["allocated by a worker"] += 1
                    work = yield ReadBy(self._begin_batch)
            if work is None:
                continue
            past = []
            for before in work.past:
                for task in before.tasks:
                    for block in task:
                        yield "read-window"
                        yield from self._read_block(block)
                past.append(before.batch_id)
            rows: list[tuple[tuple[str, ...], ...]] = []
            for task in work.tasks:
                read: list[str] = []
                for block in task:
                    read += yield from self._read_block(block)
                rows.append((tuple(b.id for b in task), tuple(read)))
            self.world.invariants.job_done(self, work.batch_id, work.replay, tuple(rows), tuple(past))
            yield "complete"
            try:
                yield Complete(work.batch_id, self.clock.wall_ms(), 1, work.replay)
            except RefusedError:
                raise AssertionError("each batch is in work once") from None
            self._in_work.discard((work.replay, work.batch_id))

    @property
    def _workers_allocate(self) -> bool:
        """With a batch for each interval, the timer makes them all."""
        return self.world.options.trigger != "interval" and not self.world.options.empty_batches

    def _due(self) -> DueBatch | None:
        return self._trigger.due() if self._workers_allocate else None

    def _begin_batch(self, state: State) -> Work | None:
        """Start a batch as the scheduler does: in the decision loop."""
        found = following(state, self._in_work)
        if found is None:
            return None
        batch, replay = found
        self._in_work.add((replay, batch.batch_id))

        def held(one: Batch | ReplayedBatch) -> tuple[tuple[Block, ...], ...]:
            return tuple(tuple(state.blocks[b] for b in task) for task in one.tasks)

        past = tuple(Work(one.batch_id, replay, held(one)) for one in window(state, batch, replay > 0))
        return Work(batch.batch_id, replay, held(batch), past)

    def _read_block(self, block: Block) -> Generator[str, Any, list[str]]:
        """Read from the WAL, or from Kafka if the WAL does not answer, or not rightly. If neither answers, retry."""
        while True:
            yield "read"
            if not self._wal_is_away:
                shown = self.world.wal.shown
                try:
                    return self._read(block)
                except DAMAGED:
                    if self.world.wal.shown != shown:
                        self.world.reached["damage noticed"] += 1
                    elif not self._is_superseded():  # else a newer driver or a recovery may have deleted the segment
                        raise
            with contextlib.suppress(RangeNotHeldError):
                return (yield from self._read_from_kafka(block))

    def _is_superseded(self) -> bool:
        return newest_claim(self.world.journal, self.world.stream) > self.journal.epoch

    def _read(self, block: Block) -> list[str]:
        """Return the rows of one block, by handle, from the WAL or from its hosts: ``topic/partition/incarnation/value``."""
        if block.in_wal:
            stored = block_of_frame(read_frame(self.world.wal, block.handle), block.handle.path)
        else:
            copies = dict(copies_of(self.world, block))
            if not copies:
                raise UnreadableBlockError(f"no host has block {block.id}")
            stored = next(iter(copies.values()))
        if stored.meta != block.meta:
            raise AssertionError(f"another block is stored in place of {block.id}")
        return self._labels(block, self.world.decoded.rows(stored.payload, stored.meta))

    def _read_from_kafka(self, block: Block) -> Generator[str, Any, list[str]]:
        """Return the same rows from Kafka, without a consumer group."""
        incarnations = self.tracker.state.partitions
        wanted = [Wanted(r, incarnations[str(r.tp)].topic_id(r.incarnation)) for r in block.meta.ranges]
        tier = self.world.kinds.kafka_tier(self.world.kafka, wanted)
        tier.ask()
        yield "fetch"
        found = {rows.tp: rows.batches for rows in tier.fetch()}
        self.world.read_from_kafka += 1
        return self._labels(block, list(rows_of((r, found.get(r.tp, [])) for r in block.meta.ranges)))

    def _labels(self, block: Block, rows: list[Row]) -> list[str]:
        self.world.invariants.block_read(self, block, rows)
        return [f"{r.topic}/{r.partition}/{r.incarnation}/{offset}" for r, offset, _ in rows]

    def _query(self) -> Task:
        """A query over the intake, as ``pyspark_forebay.intake.stream`` and Spark run it.

        Its checkpoint outlives it. It is started anew with each driver, and after a refusal.
        """
        query = self.world.query
        while True:
            yield "begin"
            query.runs += 1
            shown = self.world.faults.shown
            try:
                yield from self._run_query(query)
            except (FencedError, RefusedError, TurnedAwayError, UsageError):
                continue
            except DAMAGED:
                if self.world.faults.shown == shown and not self._is_superseded():
                    raise

    def _run_query(self, query: Query) -> Task:
        world, run = self.world, query.runs
        shown = partitions_of(m.IntakeAnswer(stream="", wal_url="", partitions=(yield ReadBy(intake))))
        at = query.finished or dict.fromkeys(shown, (1, 0))
        request = m.OpenCursorRequest(cursor="q", user=f"u{query.runs}", places=place_messages(at))
        epoch = (yield request).epoch
        if query.finished is None:
            query.losses = world.journal_loss.count
            shown = partitions_of(m.IntakeAnswer(stream="", wal_url="", partitions=(yield ReadBy(intake))))
            start = {tp: (p.incarnations[-1].number, p.position) for tp, p in shown.items() if tp in at}
            yield m.MoveCursorRequest(cursor="q", epoch=epoch, places=place_messages(start))
            query.finished = start
        while True:
            yield "trigger"
            shown = partitions_of(m.IntakeAnswer(stream="", wal_url="", partitions=(yield ReadBy(intake))))
            begin = query.finished
            if query.planned is None:
                query.planned = {tp: next_end(place, shown[tp]) for tp, place in begin.items()}
            spans = spans_between(begin, query.planned, shown)
            blocks: dict[str, Block] = {}
            gaps: dict[m.RecordedGap, None] = {}
            left = tuple(spans)
            while left:
                answer = yield m.BlocksRequest(spans=left)
                blocks.update((block.id, block) for block in answer.blocks)
                gaps |= dict.fromkeys(answer.gaps)
                reached = zip(left, answer.reached, strict=True)
                left = tuple(msgspec.structs.replace(s, from_offset=at) for s, at in reached if at < s.until_offset)
            found = plan_intake_batch(
                spans, FoundBlocks(tuple(blocks.values()), tuple(gaps), {}, {}), shown, has_kafka=False
            )
            rows: list[str] = []
            for part in found.parts:
                yield "read"
                rows += _wanted(self._read(blocks[part.reference.id]), part)
            world.invariants.query_read(query, found.losses, sorted(rows))
            yield "commit"
            if query.runs != run:
                return  # started beside another driver: the process of the query has ended
            query.finished, query.planned, query.read = query.planned, None, None
            yield m.MoveCursorRequest(cursor="q", epoch=epoch, places=place_messages(query.finished))

    def _clean(self) -> Task:
        yield from stepped(self._cleaner._run)


def _wanted(rows: Iterable[str], part: BlockPart) -> Iterator[str]:
    """Return those of a block's ``rows`` that are in this part of it."""
    ranges = {f"{r.topic}/{r.partition}": r for r in part.reference.ranges if r.label not in part.unwanted}
    for row in rows:
        key, _, offset = row.rsplit("/", 2)
        begin, until = part.cuts.get(key, (0, 1 << 62))
        if key in ranges and begin <= int(offset) < until:
            yield row
