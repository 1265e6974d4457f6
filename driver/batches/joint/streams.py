"""What the streams of a joint job share in their process: their drivers' ports, and the batches that followers offer."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import TimeoutError as AnswerLate
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from driver.batches.job.batch import Batch
from driver.decisions.joint_batches import Fate
from driver.tracker.requests import Answered
from forebay.model.errors import UnreachableError, UnreadableBlockError

#: maximum time that a stream waits for an answer of another stream's decision loop
ASK_SECONDS = 5.0

AnswerType = TypeVar("AnswerType")


class AskInTime(Protocol):
    """Sends a request to a decision loop, as :meth:`driver.decision_loop.loop.DriverLoop.ask`."""

    def __call__(self, request: Answered[AnswerType], timeout_seconds: float | None = None, /) -> AnswerType: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """What the other streams of a joint job need of a stream whose driver runs batches.

    ``ask``: sends a request to its decision loop. ``tasks``: as in ``BatchOptions``. ``wake``: wakes the threads that look for a
    batch. ``end_interval``: makes a batch due at a time (ms). ``stopping``: returns whether no further batch begins.
    ``held_up``: as ``Scheduler.held_up``.
    """

    ask: AskInTime
    tasks: Callable[[], int]
    wake: Callable[[], None]
    end_interval: Callable[[int], None]
    stopping: Callable[[], bool]
    held_up: Callable[[], str]


@dataclass(slots=True)
class Offer:
    """A follower's batch that waits for the leader. ``used_by``: the leader's batch whose job has it; 0: none. ``fate``: how that
    batch ended; None: it has not. ``error``: why the job could not read it. ``output``: the output whose run got it last.
    ``done``: the number of results that the outputs noted that are done."""

    batch: Batch
    used_by: int = 0
    fate: Fate | None = None
    error: UnreadableBlockError | None = None
    output: str = ""
    done: int = 0

    def run_with(self, leading: Batch, run: int) -> Batch:
        """Return the batch for one run of the job of ``leading``, without the results that a failed run has noted: output helpers
        would refuse to write the batch again."""
        written = self.batch._work.written
        if self.output in leading._work.outputs:
            self.done = len(written)
        del written[self.done :]
        self.output = leading._work.output
        self.used_by = leading.id
        return self.batch._beside(leading, run)


class JointStreams:
    """The streams of one joint job. It outlives their drivers, which may end and start again. Thread-safe.

    ``leader``: the stream that runs the job. ``followers``: the others. ``over``: set when one has failed for good, so that the
    others end too. ``stops``: stream → stops its driver, as ``Driver.stop``.
    """

    def __init__(self, leader: str, followers: Iterable[str]) -> None:
        self.leader = leader
        self.followers = tuple(followers)
        self.over = threading.Event()
        self.stops: dict[str, Callable[[bool, float | None], None]] = {}
        self._changed = threading.Condition()
        self._changes = 0
        self._ports: dict[str, Port] = {}
        self._offers: dict[str, Offer] = {}
        self._busy: dict[str, bool] = {}  # stream that drains → whether something is left
        self._caught_up: set[str] = set()
        self._runs = itertools.count(1)

    # ---- the streams' drivers ----------------------------------------------------------------------------------------

    def attach(self, stream: str, port: Port) -> None:
        """Add the driver of ``stream``, whose batches can run now."""
        with self._changed:
            self._ports[stream] = port
        self.wake()

    def detach(self, stream: str) -> None:
        """Remove the driver of ``stream``, whose batches no longer run. May be repeated."""
        with self._changed:
            self._ports.pop(stream, None)
            self._busy.pop(stream, None)
            if stream == self.leader:
                for offer in self._offers.values():
                    offer.used_by = 0
        self.wake()

    def port(self, stream: str) -> Port | None:
        """Return the port of a stream; None while its batches do not run."""
        with self._changed:
            return self._ports.get(stream)

    def ask(self, stream: str, request: Answered[AnswerType]) -> AnswerType | None:
        """Return the answer of another stream's decision loop; None if there is none in time."""
        port = self.port(stream)
        if port is None:
            return None
        try:
            return port.ask(request, ASK_SECONDS)
        except (UnreachableError, AnswerLate):
            return None

    def stop(self, streams: Iterable[str], drain: bool, timeout_seconds: float | None) -> None:
        """Stop the drivers of ``streams``. Returns immediately."""
        for stream in streams:
            if (stop := self.stops.get(stream)) is not None:
                stop(drain, timeout_seconds)

    def fail(self, failed: str) -> None:
        """Stop all streams except ``failed``, which has failed for good: without it no batch can run."""
        self.over.set()
        self.stop([stream for stream in (self.leader, *self.followers) if stream != failed], False, None)

    # ---- signals -----------------------------------------------------------------------------------------------------

    @property
    def changes(self) -> int:
        """The number of calls of :meth:`wake` so far."""
        return self._changes

    def wake(self) -> None:
        """End every wait: something has changed. May be called in a decision loop."""
        with self._changed:
            self._changes += 1
            self._changed.notify_all()
            leader = self._ports.get(self.leader)
        if leader is not None:
            leader.wake()

    def await_change(self, seen: int, timeout_seconds: float) -> bool:
        """Wait until :attr:`changes` is no longer ``seen``. Return False if it still is after ``timeout_seconds``."""
        with self._changed:
            return self._changed.wait_for(lambda: self._changes != seen, timeout_seconds)

    # ---- batches of followers ----------------------------------------------------------------------------------------

    @contextmanager
    def offered(self, stream: str, offer: Offer) -> Iterator[None]:
        """While open, the leader finds ``offer``."""
        with self._changed:
            self._offers[stream] = offer
        self.wake()
        try:
            yield
        finally:
            with self._changed:
                del self._offers[stream]
            self.wake()

    def missing(self, partners: Mapping[str, int]) -> tuple[str, ...]:
        """Return the followers that do not offer their batch of a joint batch. ``partners``: follower → its batch."""
        with self._changed:
            return tuple(stream for stream, batch_id in partners.items() if self._offered(stream, batch_id) is None)

    def take(self, leading: Batch, partners: Mapping[str, int]) -> dict[str, Batch] | None:
        """Return each follower's batch for one run of the job of ``leading``; None if one is not offered."""
        with self._changed:
            offers = {stream: self._offered(stream, batch_id) for stream, batch_id in partners.items()}
            taken = {stream: offer for stream, offer in offers.items() if offer is not None}
            if len(taken) < len(offers):
                return None
            run = next(self._runs)  # names the run's dead letters, also if the leader's driver has started again
            return {stream: offer.run_with(leading, run) for stream, offer in taken.items()}

    def _offered(self, stream: str, batch_id: int) -> Offer | None:
        offer = self._offers.get(stream)
        usable = offer is not None and offer.batch.id == batch_id and offer.error is None
        return offer if usable else None

    def give_back(self, unreadable: Mapping[str, UnreadableBlockError] | None = None) -> None:
        """End the use of the offers, because the job's run failed. ``unreadable``: follower → why its batch could not be read."""
        with self._changed:
            for stream, offer in self._offers.items():
                offer.used_by = 0
                offer.error = (unreadable or {}).get(stream)
        self.wake()

    def end_batch(self, batch_id: int, fate: Fate) -> None:
        """Note that the leader's batch has ended. Called in its decision loop."""
        with self._changed:
            for offer in self._offers.values():
                if offer.used_by == batch_id:
                    offer.fate = fate
        self.wake()

    # ---- the end -----------------------------------------------------------------------------------------------------

    def drain(self, stream: str, busy: bool) -> bool:
        """Note whether a stream that drains has something left. Return whether another one that drains has."""
        with self._changed:
            self._busy[stream] = busy
            return any(left for other, left in self._busy.items() if other != stream)

    def catch_up(self, stream: str) -> bool:
        """Note that a stream has caught up. Return whether all have."""
        with self._changed:
            self._caught_up.add(stream)
            return self._caught_up.issuperset((self.leader, *self.followers))
