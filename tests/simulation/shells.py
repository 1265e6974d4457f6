"""Threads of the product under the scheduler: the code runs unchanged in a greenlet, and pauses where the scheduler chooses.

A pause has the name of the step that comes next, or is a request to the decision loop. What a thread waits for (an event, a
queue, a lock) is replaced by a part of this module, and so are the stores' operations before which a kill matters. The
failpoints of ``PAUSES`` are pauses too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import Empty
from typing import Any, Protocol

from greenlet import GreenletExit, getcurrent, greenlet

from driver.journal.events import Event
from driver.journal.log import reading
from driver.journal.log.writing import Journal
from driver.tracker.requests import Request
from forebay.process import failpoints
from recovery import examination
from tests.support.stores.forgetful import Crash

#: what a thread yields: the name of its next step, a request to the decision loop, whose answer it receives, or a request to a
#: store that has not ended
Task = Generator["str | Request | Stalled", Any, None]
#: failpoint → the name of the step after it
PAUSES = {
    "cleanup.after-intent": "delete",
    "cleanup.after-delete": "deleted",
    "copy.after-write": "copied",
    "copy.after-event": "prune",
    "adoption.before-bar": "bar",
    "adoption.before-search": "search",
    "adoption.before-claim": "claim",
    "adoption.before-write": "write",
    "adoption.before-report": "report",
    "adoption.before-release": "release",
}


class Shell(greenlet):  # type: ignore[misc]  # it ships no types
    """One thread of the product. ``pauses``: failpoint → the name of the step after it."""

    pauses: dict[str, str] = PAUSES

    def __init__(self, work: Callable[..., object]) -> None:
        super().__init__(work)
        _begun.add(self)

    def end(self) -> None:
        """Unwind the thread, wherever it is."""
        self.parent = getcurrent()
        for _ in range(_THROWS_MAX):
            with suppress(GreenletExit, Crash, Exception):
                self.throw(GreenletExit)
            if self.dead:
                return
        raise AssertionError("a thread of the product goes on whatever happens")


_begun: set[Shell] = set()
#: a thread may pause again while it ends
_THROWS_MAX = 100


@contextmanager
def ended_threads() -> Iterator[None]:
    """End the threads that begin in this block when it ends.

    No collection finds what a suspended greenlet holds, so each run would leave all its objects behind.
    """
    earlier = _begun.copy()
    try:
        yield
    finally:
        for shell in _begun - earlier:
            shell.end()
        _begun.intersection_update(earlier)


@dataclass(slots=True, eq=False)
class Stalled:
    """What a thread waits for whose request to a store has not ended. ``is_over``: it ends as soon as the thread goes on."""

    is_over: bool = False


def pause(wanted: str | Request | Stalled) -> Any:
    """Let the scheduler go on; return the answer to a request when the scheduler comes back."""
    return getcurrent().parent.switch(wanted)


def can_pause() -> bool:
    """Return whether a thread of the product runs, and not the simulation itself."""
    return isinstance(getcurrent(), Shell)


def stepped(work: Callable[[], object], pauses: dict[str, str] | None = None) -> Task:
    """Run ``work`` as a thread of its own. Its errors are raised here."""
    shell = Shell(work)
    if pauses is not None:
        shell.pauses = pauses
    wanted = shell.switch()
    while not shell.dead:
        try:
            answer = yield wanted
        except Exception as error:  # a refusal, which the thread gets where it asked
            wanted = shell.throw(error)
        else:
            wanted = shell.switch(answer)


_hit = failpoints.hit


def _pausing_hit(name: str, kinds: Iterable[str] = ()) -> bool:
    shell = getcurrent()
    if isinstance(shell, Shell) and (step := shell.pauses.get(name)) is not None:
        pause(step)
        return False
    return _hit(name, kinds)


failpoints.hit = _pausing_hit


class SteppedEvent:
    """A stop that is never requested: a simulated process is killed instead.

    ``idle``: a thread that waits for the event pauses as this step, and then goes on as if the time were over; "": no pause.
    """

    def __init__(self, idle: str = "") -> None:
        self._idle = idle

    def is_set(self) -> bool:
        return False

    def set(self) -> None:
        raise AssertionError("a simulated thread is never stopped")

    def clear(self) -> None:
        pass

    def wait(self, timeout: float | None = None) -> bool:
        if self._idle:
            pause(self._idle)
        return False


class SteppedPause(SteppedEvent):
    """A stop that is never requested, on which a thread waits between two rounds: they pause as "begin".

    ``now``: monotonic seconds of the process.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__("begin")
        self._now = now
        self._until = 0.0

    def is_over(self, now: float) -> bool:
        """Return whether the time of the wait has passed."""
        return now >= self._until

    def wait(self, timeout: float | None = None) -> bool:
        self._until = self._now() + (timeout or 0.0)
        return super().wait(timeout)


class SteppedThread:
    """A thread that a task runs in its place."""

    ident = None

    def start(self) -> None:
        pass


class SteppedQueue:
    """A queue whose reader pauses as ``idle`` when it is empty, and then finds no item in time, or one that came meanwhile.

    ``idle=""``: the reader does not pause.
    """

    def __init__(self, idle: str = "") -> None:
        self._idle = idle
        self._items: deque[Any] = deque()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        self._items.append(item)

    def empty(self) -> bool:
        return not self._items

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self._items and self._idle:
            pause(self._idle)
        if not self._items:
            raise Empty
        return self._items.popleft()


class SteppedLock:
    """A lock between threads of one process."""

    def __init__(self) -> None:
        self._held = False

    def __enter__(self) -> None:
        while self._held:
            pause("wait")
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False


class SteppedStore:
    """A store, with a pause before each operation in ``pauses``, by name. ``deleting``: called before each deletion."""

    def __init__(self, storage: Any, pauses: dict[str, str], deleting: Callable[[str], None]) -> None:
        self._storage = storage
        self._pauses = pauses
        self._deleting = deleting

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._storage, name)
        step = self._pauses.get(name)
        if step is None:
            return operation

        def call(*arguments: Any) -> Any:
            pause(step)
            return operation(*arguments)

        return call

    def delete(self, path: str) -> None:
        self._deleting(path)
        self._storage.delete(path)


class AskedLoop:
    """The decision loop as the driver's own threads see it. ``pauses``: a step before a request of this type."""

    def __init__(self, pauses: dict[type[Any], str] | None = None) -> None:
        self._pauses = pauses or {}

    def ask(self, request: Any) -> Any:
        if (step := self._pauses.get(type(request))) is not None:
            pause(step)
        return pause(request)

    def ask_all(self, requests: Sequence[Any]) -> list[Any]:
        return [self.ask(request) for request in requests]


class SteppedPool:
    """A pool of threads whose calls run one after the other, in the thread that reads their results."""

    def __init__(self, *_: object) -> None:
        pass

    def __enter__(self) -> SteppedPool:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, work: Callable[[Any], Any], items: Iterable[Any]) -> Iterable[Any]:
        return map(work, items)

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Call ``work`` immediately. Raises its errors: a crash must end the process."""
        called: Future[Any] = Future()
        called.set_result(work(*arguments))
        return called

    def shutdown(self) -> None:
        pass


class JournalOwner(Protocol):
    """What the journal of a simulated driver tells it."""

    def check_epoch(self, before_refusal: bool) -> None: ...


class SteppedJournal:
    """The journal of the decision loop, with a pause before each operation. ``snapshot_events``: a snapshot is due after them."""

    def __init__(self, journal: Journal, owner: JournalOwner, snapshot_events: int) -> None:
        self._journal = journal
        self._owner = owner
        self._snapshot_events = snapshot_events
        self._since_snapshot = 0
        self._is_written = False  # since the last check

    def append(self, events: Sequence[Event]) -> None:
        pause("append")
        self._journal.append(events)
        self._since_snapshot += len(events)

    def sync(self) -> None:
        pause("sync")
        self._journal.sync()
        self._is_written = True

    def check(self) -> None:
        pause("check")
        before_refusal, self._is_written = not self._is_written, False
        self._owner.check_epoch(before_refusal)

    def snapshot_due(self) -> bool:
        return self._since_snapshot >= self._snapshot_events

    def snapshot(self) -> None:
        pause("snapshot-again")
        self._journal.snapshot()
        self._since_snapshot = 0
        self._is_written = True

    def drop_superseded(self) -> None:
        pause("drop")
        self._journal.drop_superseded()

    def free_bytes(self) -> int | None:
        return self._journal.free_bytes()


reading.ThreadPoolExecutor = SteppedPool  # type: ignore[attr-defined,assignment]  # of whole objects read ahead
examination.ThreadPoolExecutor = SteppedPool  # type: ignore[attr-defined,assignment]  # of segments
