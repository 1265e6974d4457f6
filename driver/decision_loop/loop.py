"""The decision loop: one thread that decides, writes, syncs, checks its epoch, and only then sends answers and performs actions.

Requests that wait during a sync are the next group (group commit). A refusal is sent as late as an answer, and a read passes
through the same queue, so no client sees a state that is not durable.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, cast, overload

from driver.decisions.clean_up import CleanSegment
from driver.journal.events import Event
from driver.journal.log.writing import Journal
from driver.tracker import Action, Tracker
from driver.tracker.requests import Answered, AnswerType, BeginReplay, MessageRequest, Request
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
from wal.decisions.retention import Judgement

log = logging.getLogger(__name__)

#: requests that make the journal grow and can wait: their senders send them again
GROWING = (RegisterRequest, ClaimRequest, ReportRequest, Fault, BeginReplay, OpenCursorRequest)
WAITING_FOR_SPACE = (
    "the journal waits for space: the driver refuses requests until the store of driver.journal has space"
)
RESERVE_REACHED = "the journal's store is down to its reserve (driver.journal_reserve): nothing new is taken in"
#: pause between two checks of the free space
SPACE_SECONDS = 0.5

#: maximum number of requests that wait for a decision; a further one is refused, and its sender tries again (INV-6)
QUEUE_LIMIT = 10_000
#: how often one of the driver's own threads that waits for room in the queue checks whether the loop still runs
ROOM_SECONDS = 0.5
#: maximum time of a round without a request
IDLE_SECONDS = 1.0
#: maximum number of requests decided before one sync
GROUP_LIMIT = 1_000


def is_down_to_reserve(free_bytes: int | None, reserve_bytes: int) -> bool:
    """Return whether less space than the reserve is free. ``free_bytes``: None if the store reports no free space."""
    return free_bytes is not None and free_bytes < reserve_bytes


#: a request, with the type of its answer if it is an :class:`Answered`
Asked = Answered[Any] | MessageRequest | CleanSegment


class _Queued(NamedTuple):
    """A request that waits for a decision. ``arrived_at``: monotonic seconds."""

    request: Request
    future: Future[Any]
    arrived_at: float


class DriverLoop:
    """Decides requests one after the other, in a thread of its own.

    ``perform`` gets each action once its events are durable; it is called in the decision loop and must not block. ``failed``
    gets the error that ended the loop. ``durable`` gets events once they are durable. ``flush_seconds``: minimum time between
    the beginnings of two groups that are written; on a store of whole objects each group costs a request. ``reserve_bytes``:
    while the journal's store has less free space, the loop refuses requests that make the journal grow, and their senders retry
    them. It still decides requests that free space (completion, archive, clean-up). 0: the free space is not checked.

    ``came_round`` is called once per round of the loop, even if no request waits. ``snapshot_taken`` is called after each
    snapshot. ``answered`` is called after each group of requests, with the seconds from the arrival of its oldest request to its
    answers; ``synced`` after each sync of the journal, with its seconds. All are called in the decision loop and must not block.
    """

    def __init__(
        self,
        tracker: Tracker,
        journal: Journal,
        clock: Clock,
        *,
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
        self._queue: queue.Queue[_Queued | None] = queue.Queue(QUEUE_LIMIT)
        self._ended: BaseException | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="decide", daemon=True)
        self._reserve_bytes = reserve_bytes
        self._look_at_space_after = 0.0  # monotonic
        self.waiting_for_space = False
        self.came_round: Callable[[], None] = lambda: None
        self.snapshot_taken: Callable[[], None] = lambda: None
        self.answered: Callable[[float], None] = lambda seconds: None
        self.synced: Callable[[float], None] = lambda seconds: None
        self.reserve_reached = False

    @property
    def queued(self) -> int:
        """The number of requests that wait for a decision."""
        return self._queue.qsize()

    def start(self) -> None:
        self._thread.start()

    @overload
    def submit(self, request: Answered[AnswerType]) -> Future[AnswerType]: ...

    @overload
    def submit(self, request: MessageRequest) -> Future[Message]: ...

    def submit(self, request: Answered[Any] | MessageRequest) -> Future[Any]:
        """Queue ``request``. Once the decision is durable, the future ends with the answer or the refusal.

        A refusal is a FencedError, RefusedError or UsageError. The future ends with TurnedAwayError if the sender may try again
        later: the queue is full, or the journal's store is down to its reserve or full. It ends with another UnreachableError if
        the loop has ended.
        """
        if self.waiting_for_space:  # its sender gives up and asks again, and each try would stay in memory
            turned_away: Future[Any] = Future()
            turned_away.set_exception(TurnedAwayError(WAITING_FOR_SPACE))
            return turned_away
        return self._enqueue(request, wait=False)

    @overload
    def ask(self, request: Answered[AnswerType], timeout_seconds: float | None = None) -> AnswerType: ...

    @overload
    def ask(self, request: CleanSegment, timeout_seconds: float | None = None) -> Judgement: ...

    @overload
    def ask(self, request: MessageRequest, timeout_seconds: float | None = None) -> Any: ...

    def ask(self, request: Asked, timeout_seconds: float | None = None) -> Any:
        """Wait for room in the queue, queue ``request``, and return the answer. Raises the refusals of :meth:`submit`.

        For the driver's own threads. Must not be called in the decision loop.
        """
        return self._enqueue(request, wait=True).result(timeout_seconds)

    @overload
    def ask_all(self, requests: Sequence[Answered[AnswerType]]) -> list[AnswerType]: ...

    @overload
    def ask_all(self, requests: Sequence[CleanSegment]) -> list[Judgement]: ...

    @overload
    def ask_all(self, requests: Sequence[MessageRequest]) -> list[Any]: ...

    def ask_all(self, requests: Sequence[Asked]) -> list[Any]:
        """Queue ``requests`` and return their answers in order, as :meth:`ask`: together they cost few writes of the journal."""
        return [future.result() for future in [self._enqueue(request, wait=True) for request in requests]]

    def _enqueue(self, asked: Asked, wait: bool) -> Future[Any]:
        future: Future[Any] = Future()
        request = cast(Request, asked)  # each subclass of Answered is a member of Request
        while True:
            if self._ended is not None or self._stopping.is_set():
                future.set_exception(self._farewell())
                return future
            try:
                self._queue.put(_Queued(request, future, self._clock.monotonic()), block=wait, timeout=ROOM_SECONDS)
                break
            except queue.Full:
                if not wait:
                    future.set_exception(TurnedAwayError("the driver has too many requests waiting: try again"))
                    return future
        if self._ended is not None or (self._stopping.is_set() and not self._thread.is_alive()):
            self._refuse_queued(self._farewell())  # the loop ended after the check above: it answers no more requests
        return future

    def _farewell(self) -> UnreachableError:
        return UnreachableError(f"the driver is stopping: {self._ended or 'a stop was requested'}")

    def stop(self) -> None:
        """Decide the queued requests, then end. Returns when the thread has ended."""
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
        group: list[_Queued] = []
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
            for queued in group:
                if not queued.future.done():
                    queued.future.set_exception(UnreachableError(f"the driver is stopping: {error}"))
            raise
        return going_on

    def _commit(self, group: list[_Queued]) -> None:
        events: list[Event] = []
        actions: list[Action] = []
        outcomes: list[tuple[Request, Future[Any], Any, Exception | None]] = []
        now, now_ms = self._clock.monotonic(), self._clock.wall_ms()
        self._look_at_space(now)
        for request, future, _ in group:
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
                # a network loses answers to messages, not those to this process's own requests
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
        if group:
            self.answered(self._clock.monotonic() - group[0].arrived_at)
        for action in actions:
            self._perform(action)
        if events and self._journal.snapshot_due():  # with many blocks it takes a while: answers do not wait for it
            self._take_snapshot()

    def _look_at_space(self, now: float) -> None:
        """Check whether the store's free space has reached the reserve. Not on every call, because on some stores each check is
        a request."""
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
        began = self._clock.monotonic()
        try:
            while True:
                try:
                    if not appended:
                        appended = True
                        self._journal.append(events)
                    self._journal.sync()
                    break
                except OutOfSpaceError as error:
                    if not self.waiting_for_space:
                        log.error(
                            "cannot write the journal for lack of space; the driver refuses requests until there is space: %s",
                            error,
                        )
                    self.waiting_for_space = True
                    self.came_round()
                    if self._stopping.wait(delay):
                        raise
                    delay = min(delay * 2, 5.0)
            if self.waiting_for_space:
                log.warning("the journal has space again")
        finally:
            self.waiting_for_space = False  # also if the wait ends the loop: what it then refuses has that cause
        self.synced(self._clock.monotonic() - began)
        self._journal.check()

    def _take_snapshot(self) -> None:
        try:
            self._journal.snapshot()
        except OutOfSpaceError as error:
            log.error("no space for a snapshot of the journal; the driver continues without it: %s", error)
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
            if item is not None and item.future.set_running_or_notify_cancel():
                item.future.set_exception(error)
