"""One process of a driver: its threads run the product's code, step by step (``shells.py``).

The decision loop (``driver.decision_loop.loop``) pauses before it appends, syncs, checks its epoch, and releases its answers.
So a kill, a pause or another driver can come between any two of them. Clean-up, snapshot copies, adoption and housekeeping run
in the same way (``driver_parts.py``). The batch timer and the jobs (``job_workers.py``) and queries (``query_run.py``) are
generators that do what the product's threads do.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from driver.decision_loop.loop import DriverLoop
from driver.journal.leadership.lease import LeaseKeeper
from driver.journal.log.writing import Journal
from driver.journal.retention_clock import newest_completion_ms
from driver.tracker import CopyRules, Tracker
from driver.tracker.options import CursorRules
from driver.tracker.requests import KeepWindow, Request
from forebay.model.errors import StoreError, TurnedAwayError, UnreachableError
from forebay.process.clock import Clock
from tests.simulation import driver_parts
from tests.simulation.block_reading import BlockReading
from tests.simulation.driver_steps import DriverSteps
from tests.simulation.job_workers import JobWorkers
from tests.simulation.network import Exchange
from tests.simulation.query_run import query_task
from tests.simulation.scheduler import Step
from tests.simulation.shells import AskedLoop, Stalled, SteppedPool, Task, pause, stepped
from tests.support.state.tracked import tracker_options
from tests.support.stores.forgetful import Crash
from wal.decisions.retention import RetentionLimits

if TYPE_CHECKING:
    from tests.simulation.world import World

#: how long after its last heartbeat a host counts as live
AGENT_SECONDS = 60.0
LEASE_SECONDS = 10.0


@dataclass(slots=True)
class Waiting:
    """A request and the receiver of its answer: an exchange of the network, a task by name, or None."""

    request: Request
    exchange: Exchange | None = None
    task: str = ""


class DriverProcess:
    """``name``: ``d<number>``, in order of start. The process is dead once ``killed`` is set or ``ended`` has a reason.

    One class, because a kill or a damaged file ends all of it immediately.
    """

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
        self.ageing: Clock  # of completions and clean-up, as in ``driver.service.composition``
        self.leading = False
        self.queue: deque[Waiting] = deque()
        self.loop: DriverLoop
        self._undecided: list[Waiting] = []  # given to the decision loop, and not answered
        self._outcomes: list[tuple[Waiting, Any]] = []  # with answers and refusals that are not released
        self.workers = JobWorkers(self)
        self.blocks = BlockReading(self)
        self._main = self._run()
        self.next_step: str | Stalled = next(self._main)
        self._tasks: dict[str, Task] = {}
        #: task → its next step, or its request to a store that has not ended; a task that waits for an answer has none
        self.task_next: dict[str, str | Stalled] = {}
        self._answers: dict[str, Any] = {}
        self._shown: dict[str, int] = {}  # task → faulty answers of stores before its step; "": of the decision loop
        self._renews = not {"rot", "stall"}.isdisjoint(world.options.faults)
        self._renewed_at = 0.0
        self._steps = DriverSteps(self)

    @property
    def alive(self) -> bool:
        return not self.killed and self.ended is None

    @property
    def running(self) -> bool:
        return self.alive and not self.paused

    @property
    def has_discovered(self) -> bool:
        """Whether it leads, knows the partitions, and admits claims."""
        return self.leading and self.housekeeping.admission.copied

    # ---- steps -------------------------------------------------------------------------------------------------------

    def steps(self) -> Iterator[Step]:
        return self._steps.steps()

    def fault_steps(self) -> Iterator[Step]:
        return self._steps.fault_steps()

    def receive(self, request: Any, exchange: Exchange) -> None:
        """Receive a request from the network, as ``driver.service.answers.routing`` does."""
        try:
            self.queue.append(Waiting(self.housekeeping.admission.admit(request), exchange))
        except UnreachableError as refusal:
            self.world.reached["not admitted"] += 1
            self.world.network.answer(exchange, refusal)

    def submit(self, request: Request) -> None:
        """Queue a request whose answer no process awaits."""
        self.queue.append(Waiting(request))

    def advance(self) -> None:
        shown = self._shown_before("", self.next_step)
        try:
            self.next_step = next(self._main)
        except StopIteration:
            raise AssertionError("the decision loop goes on for ever") from None
        except AssertionError:
            raise
        except Exception as error:
            self._end(error, self.world.faults.shown != shown)

    def _shown_before(self, task: str, step: str | Stalled) -> int:
        """Return how many faulty answers stores had given before ``step``. A late end of a request belongs to its own step."""
        if type(step) is str:
            self._shown[task] = self.world.faults.shown
        return self._shown[task]

    def advance_task(self, task: str) -> None:
        shown = self._shown_before(task, self.task_next.pop(task))
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
        if isinstance(wanted, str | Stalled):
            self.task_next[task] = wanted
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
        self._renewed_at = self.clock.monotonic()
        with contextlib.suppress(StoreError, MemoryError):
            self._lease.renew()

    @property
    def is_renewal_due(self) -> bool:
        """Return whether the lease's thread writes now. In runs without rot and stalls, a renewal is drawn as a fault is."""
        if not self._renews or self.world.calm or not self.leading or self.world.journal.is_stalled:
            return False
        return self.clock.monotonic() - self._renewed_at >= LEASE_SECONDS / 3

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
        self.blocks.wal_is_away = True
        self.advance_task(task)
        self.blocks.wal_is_away = False

    def fail_task(self, task: str) -> None:
        """Kafka does not answer the request of a task."""
        self._answers[task] = UnreachableError("Kafka does not answer")
        self.advance_task(task)

    # ---- the decision loop -------------------------------------------------------------------------------------------

    def _run(self) -> Generator[str | Stalled, None, None]:
        yield from cast(Generator[str | Stalled, None, None], stepped(self._open))
        self._lead()
        while True:
            yield "decide"
            taken = self._take_queued()
            for waiting in taken:
                self._undecided.append(waiting)
                self.loop.submit(cast(Any, waiting.request)).add_done_callback(partial(self._decided, waiting))
            if taken:  # an empty round would wait in real time
                yield from cast(Generator[str | Stalled, None, None], stepped(self.loop._step))

    def _take_queued(self) -> list[Waiting]:
        """Return what the decision loop decides next."""
        taken = list(self.queue)
        self.queue.clear()
        return taken

    def _open(self) -> None:
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
        pause("claim")
        next(opening)
        self._lease = LeaseKeeper(
            world.journal, world.stream, self._newest_epoch(), owner=self.name, url="", duration_seconds=LEASE_SECONDS
        )
        with contextlib.suppress(StoreError):  # as its thread does: the next renewal follows
            self._lease.begin()
        pause("read")
        next(opening)
        pause("snapshot")
        next(opening)
        pause("open")
        newest = self._newest_epoch()
        try:
            next(opening)
        except StopIteration as end:
            self.journal, state = end.value
        else:
            raise AssertionError("opening has a step that the simulation does not know")
        self.journal._deleter = cast(Any, SteppedPool())
        self.journal.drop_superseded()
        self._lease.follow(lambda: self.journal.confirmed)
        self.tracker = world.kinds.tracker(
            state,
            self.journal.epoch,
            tracker_options(
                on_gap=world.options.on_gap,
                max_queued_batches=world.options.max_queued_batches + world.options.concurrent_jobs - 1,
                retention=RetentionLimits(
                    retention_ms=world.options.retention_ms, retention_bytes=world.options.retention_bytes
                ),
                batch_interval_ms=0 if self.workers.trigger.continuous else 1_000,
                concurrent_jobs=world.options.concurrent_jobs,
            ),
        )
        if world.options.copies:
            self.tracker.replicas.rules = CopyRules(
                copies=world.options.copies, timeout_seconds=AGENT_SECONDS, room_bytes=1
            )
        self.ageing = world.kinds.retention_clock(
            self.clock, world.options.retention_ms / 1000, newest_completion_ms(state)
        )
        if self._newest_epoch() == newest:  # not superseded while a request after its last check was stalled
            world.invariants.opened(self)

    def _newest_epoch(self) -> int:
        return max(int(path.rpartition("/")[2], 16) for path in self.world.journal.paths(f"{self.world.stream}/epochs"))

    def _lead(self) -> None:
        world = self.world
        if world.options.window_batches != self.tracker.state.window_batches:
            self.queue.append(Waiting(KeepWindow(world.options.window_batches)))
        self.loop = driver_parts.decision_loop(self)
        self.loop.answered = lambda _: self._release()
        history = world.kinds.history(
            world.journal,
            world.stream,
            self.journal.epoch,
            segment_bytes=1_000_000,
            now=lambda: world.now,
            new_uid=world.new_uid,
        )
        self.copies, self.cleaner = driver_parts.clean_up(self, history)
        self.housekeeping = driver_parts.HousekeepingThread(self)
        for action in self.tracker.pending_actions():
            self.cleaner.perform(action)
        self.leading = True
        self._adopter = driver_parts.adopter(self)
        # the earlier user of the cursor died with its driver, so no answer is awaited
        self.tracker.cursors.rules = CursorRules(in_use_seconds=0.0)
        tasks = {
            **({"query": query_task(self)} if world.options.queries else {}),
            "housekeeping": self.housekeeping.run(),
            "timer": self.workers.timer(),
            "job": self.workers.job(),
            "clean": self._clean(),
            "adopt": self._adopt(),
            **{f"job{number}": self.workers.job() for number in range(2, world.options.concurrent_jobs + 1)},
        }
        for name, task in tasks.items():
            self._tasks[name] = task
            first = next(task)
            assert isinstance(first, str)
            self.task_next[name] = first

    def fail(self, error: BaseException) -> None:
        """End the process, as ``driver.service.shutdown`` does with the error that ended a thread."""
        raise error

    def check_epoch(self, before_refusal: bool) -> None:
        """Check that no newer epoch exists. Raises FencedError."""
        claims = self._claims()
        self.journal.check()
        if self._claims() == claims:  # none was made after the store had answered a request that was stalled
            self.world.invariants.checked(self)

    def _claims(self) -> list[str]:
        return self.world.journal.paths(f"{self.world.stream}/epochs")

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
                self.task_next[waiting.task] = "answered"

    # ---- tasks -------------------------------------------------------------------------------------------------------

    def _adopt(self) -> Task:
        thread = self.world.kinds.adoption(self._adopter, cast(Any, AskedLoop()), self.fail)
        while True:
            yield "begin"
            yield from stepped(thread._round)

    def _clean(self) -> Task:
        yield from stepped(self.cleaner._run)
