"""The one thread that decides, writes, syncs, checks its epoch, and only then lets answers and actions leave.

What waits during a sync is the next group: that is the group commit. A refusal leaves as late as an answer does, and a read
passes through the same queue, so nobody sees what is not durable (design: *the journal*).
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from driver.journal.events import Event
from driver.journal.log import Journal
from driver.tracker import Action, Tracker
from driver.tracker.requests import BeginReplay, Request
from forebay.messages import ClaimRequest, Fault, Message, OpenCursorRequest, RegisterRequest, ReportRequest
from forebay.model.errors import (
    FencedError,
    ForebayError,
    OutOfSpaceError,
    RefusedError,
    TurnedAwayError,
    UnreachableError,
    UsageError,
)
from forebay.process import failpoints
from forebay.process.clock import Clock

log = logging.getLogger(__name__)

#: what makes the journal grow and can wait: whoever sent it sends it again
GROWING = (RegisterRequest, ClaimRequest, ReportRequest, Fault, BeginReplay, OpenCursorRequest)
RESERVE_REACHED = "the journal's store is down to its reserve (driver.journal_reserve): nothing new is taken in"
#: between two looks at the space that is left
SPACE_SECONDS = 0.5

#: requests that may wait for a decision; more are told to come again (INV-6)
QUEUE_LIMIT = 10_000
#: between two looks, by one of the driver's own threads that waits for room, whether the loop still runs
ROOM_SECONDS = 0.5
#: a round of the deciding thread with nothing to decide
IDLE_SECONDS = 1.0
#: requests decided before one sync
GROUP_LIMIT = 1_000


def is_down_to_reserve(free_bytes: int | None, reserve_bytes: int) -> bool:
    """``free_bytes``: None where the store has no such limit."""
    return free_bytes is not None and free_bytes < reserve_bytes


class DriverLoop:
    """``perform`` gets each action, from the deciding thread, once its events are durable; it must not block.
    ``failed`` gets what ended the loop; ``durable`` hears of events when they are. ``flush_seconds`` lie at least between the
    beginnings of two groups that are written: on a store of whole objects each costs a request. While the journal's store has
    less than ``reserve_bytes`` free (0: not asked), requests that make it grow are turned away, and come again; what frees
    space (completion, archive, clean-up) goes on."""

    def __init__(
        self,
        tracker: Tracker,
        journal: Journal,
        clock: Clock,
        perform: Callable[[Action], None],
        failed: Callable[[BaseException], None],
        durable: Callable[[Sequence[Event]], None] = lambda _: None,
        flush_seconds: float = 0.0,
        reserve_bytes: int = 0,
    ) -> None:
        self._tracker = tracker
        self._journal = journal
        self._clock = clock
        self._perform = perform
        self._failed = failed
        self._durable = durable
        self._flush_seconds = flush_seconds
        self._write_after = 0.0  # monotonic: no group is written before
        self._queue: queue.Queue[tuple[Request, Future[Any]] | None] = queue.Queue(QUEUE_LIMIT)
        self._ended: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="decide", daemon=True)
        self._reserve_bytes = reserve_bytes
        self._look_at_space_after = 0.0  # monotonic
        self.waiting_for_space = False
        self.came_round: Callable[[], None] = lambda: None  # the deciding thread does, at work or idle
        self.snapshot_taken: Callable[[], None] = lambda: None  # called from the deciding thread; must not block
        self.reserve_reached = False

    def start(self) -> None:
        self._thread.start()

    def submit(self, request: Request) -> Future[Any]:
        """Queues ``request``. The future ends, once durable, with the answer or with the refusal (FencedError,
        RefusedError, UsageError); with TurnedAwayError if it may be taken later (the loop is full, or the journal's store is
        down to its reserve); with another UnreachableError if the loop has ended."""
        return self._enqueue(request, wait=False)

    def ask(self, request: Request, timeout_seconds: float | None = None) -> Any:
        """:meth:`submit`, and waits: for room as well, since the driver's own threads have nobody else to ask. Not to be
        called from the deciding thread."""
        return self._enqueue(request, wait=True).result(timeout_seconds)

    def _enqueue(self, request: Request, wait: bool) -> Future[Any]:
        future: Future[Any] = Future()
        while True:
            if self._ended is not None or self._stopping.is_set():
                future.set_exception(self._farewell())
                return future
            try:
                self._queue.put((request, future), block=wait, timeout=ROOM_SECONDS)
                break
            except queue.Full:
                if not wait:
                    future.set_exception(TurnedAwayError("the driver has too many requests waiting: try again"))
                    return future
        if self._ended is not None or (self._stopping.is_set() and not self._thread.is_alive()):
            self._refuse_queued(self._farewell())  # it ended between the look above and the queue: nobody else answers
        return future

    def _farewell(self) -> UnreachableError:
        return UnreachableError(f"the driver is stopping: {self._ended or 'it was told to'}")

    def stop(self) -> None:
        """Decides what is queued, then ends. Returns when the thread has ended."""
        self._stopping.set()
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()
        self._refuse_queued(UnreachableError("the driver has stopped"))

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except BaseException as error:
            self._ended = error
            self._refuse_queued(self._farewell())
            self._failed(error)

    def _step(self) -> bool:
        self.came_round()
        group: list[tuple[Request, Future[Any]]] = []
        try:
            item = self._queue.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            return True
        going_on = True
        while True:
            if item is None:
                going_on = False
                break
            group.append(item)
            if len(group) == GROUP_LIMIT:
                break
            wait_seconds = self._write_after - self._clock.monotonic() if self._flush_seconds else 0.0
            try:
                item = self._queue.get(block=wait_seconds > 0, timeout=max(0.0, wait_seconds))
            except queue.Empty:
                break
        try:
            self._commit(group)
        except BaseException as error:
            for _, future in group:
                if not future.done():
                    future.set_exception(UnreachableError(f"the driver is stopping: {error}"))
            raise
        return going_on

    def _commit(self, group: list[tuple[Request, Future[Any]]]) -> None:
        events: list[Event] = []
        actions: list[Action] = []
        outcomes: list[tuple[Request, Future[Any], Any, Exception | None]] = []
        now, now_ms = self._clock.monotonic(), self._clock.wall_ms()
        self._look_at_space(now)
        for request, future in group:
            if self.reserve_reached and isinstance(request, GROWING):
                outcomes.append((request, future, None, TurnedAwayError(RESERVE_REACHED)))
                continue
            try:
                decision = self._tracker.decide(request, now, now_ms)
            except (FencedError, RefusedError, UsageError) as refusal:
                outcomes.append((request, future, None, refusal))
                continue
            events += decision.events
            actions += decision.actions
            outcomes.append((request, future, decision.answer, decision.refusal))
        if events:
            self._write_after = now + self._flush_seconds
            self._make_durable(events)
            self._durable(events)
            if failpoints.hit("driver.answer", (type(event).__name__ for event in events)):
                # what the network loses: the answers to messages, not what this process tells itself
                outcomes = [outcome for outcome in outcomes if not isinstance(outcome[0], Message)]
        elif any(error is not None for *_, error in outcomes):
            self._journal.check()  # INV-4: "fenced" from an outdated driver would end a process that is not outdated
        for _, future, answer, error in outcomes:
            if not future.set_running_or_notify_cancel():
                continue
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(answer)
        for action in actions:
            self._perform(action)
        if events and self._journal.snapshot_due():  # of many blocks it takes a while: nobody waits for it who need not
            self._take_snapshot()

    def _look_at_space(self, now: float) -> None:
        """Whether the store is down to its reserve; asked now and then, since some stores answer by a request."""
        if not self._reserve_bytes or now < self._look_at_space_after:
            return
        self._look_at_space_after = now + SPACE_SECONDS
        free = self._journal.free_bytes()
        reached = is_down_to_reserve(free, self._reserve_bytes)
        if reached and not self.reserve_reached:
            log.error("%s: %d bytes are free, %d are reserved", RESERVE_REACHED, free, self._reserve_bytes)
        elif self.reserve_reached and not reached:
            log.warning("the journal's store has room again: %s bytes are free", free)
        self.reserve_reached = reached

    def _make_durable(self, events: list[Event]) -> None:
        delay = 0.1
        appended = False
        while True:
            try:
                if not appended:
                    appended = True
                    self._journal.append(events)
                self._journal.sync()
                break
            except OutOfSpaceError as error:
                if not self.waiting_for_space:
                    log.error("the journal waits for space, nothing is answered until there is: %s", error)
                self.waiting_for_space = True
                self.came_round()
                if self._stopping.wait(delay):
                    raise
                delay = min(delay * 2, 5.0)
        if self.waiting_for_space:
            log.warning("the journal has space again")
            self.waiting_for_space = False
        self._journal.check()

    def _take_snapshot(self) -> None:
        try:
            self._journal.snapshot()
        except OutOfSpaceError as error:
            log.error("no space for a snapshot of the journal; going on without a new one: %s", error)
            return
        self._journal.check()
        self._journal.drop_superseded()
        self.snapshot_taken()

    def _refuse_queued(self, error: ForebayError) -> None:
        while True:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return
            if item is not None and item[1].set_running_or_notify_cancel():
                item[1].set_exception(error)
