"""Probes: continuous checks whether Kafka and the stores answer the driver, so that the status never shows outdated values as
current."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from driver.background.end_history import EndHistory
from forebay.model.errors import UnknownTopicError
from forebay.model.values import TopicPartition
from forebay.process.clock import Clock
from wal.storage import Storage

Result = TypeVar("Result")

#: pause between two requests of a probe; a store of whole objects charges for each
INTERVAL_SECONDS, INTERVAL_OF_OBJECTS_SECONDS = 5.0, 30.0
#: time without an answer after which a request counts as failed
HANG_SECONDS = 5.0
#: pause between two reads of the first offsets, which change only when Kafka deletes records
LOWS_SECONDS = 60.0
#: maximum age of an end offset from which a lag is computed
END_AGE_SECONDS_MAX = 10.0


@dataclass(frozen=True, slots=True)
class Outage:
    """Kafka or a store does not answer. ``cause``: as the library reported it. ``seconds``: its duration so far."""

    name: str
    cause: str
    seconds: float


class Probe:
    """Repeats one request in a thread of its own, because a request may hang.

    ``ask`` sends the request and raises its error. ``why_silent``: returns the cause, as far as it is known, while a request
    hangs.
    """

    def __init__(
        self,
        name: str,
        ask: Callable[[], None],
        clock: Clock,
        *,
        interval_seconds: float,
        why_silent: Callable[[], str] = str,
    ) -> None:
        self.name = name
        self._ask = ask
        self._clock = clock
        self._interval_seconds = interval_seconds
        self._why_silent = why_silent
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"reach-{name}", daemon=True)
        self._answered_at = clock.monotonic()
        self._asked_at: float | None = None  # of a request without an answer yet
        self._error = ""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop without waiting for the thread: its request may hang."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.ask()
            self._stopping.wait(self._interval_seconds)

    def ask(self) -> None:
        """Send one request."""
        self._asked_at = self._clock.monotonic()
        try:
            self._ask()
        except Exception as error:  # shown: whatever it is, there was no answer
            self._error = str(error) or type(error).__name__
        else:
            self._answered_at, self._error = self._clock.monotonic(), ""
        self._asked_at = None

    def outage(self) -> Outage | None:
        now, asked_at, error = self._clock.monotonic(), self._asked_at, self._error
        hangs = asked_at is not None and now - asked_at > HANG_SECONDS
        if not error and not hangs:
            return None
        seconds = now - self._answered_at
        if not error:
            error = ": ".join(filter(None, (f"no answer for {seconds:.0f} s", self._why_silent())))
        return Outage(self.name, error, seconds)


class Ends:
    """Kafka's end offsets at the driver's last read, with the time since that read, and their history. Thread-safe.

    ``ask`` reads the end offsets, ``ask_lows`` the first offsets that Kafka still has.
    """

    def __init__(
        self,
        ask: Callable[[], Mapping[TopicPartition, int]],
        clock: Clock,
        ask_lows: Callable[[], Mapping[TopicPartition, int]] = dict,
    ) -> None:
        self._ask = ask
        self._ask_lows = ask_lows
        self._clock = clock
        self._found: tuple[Mapping[TopicPartition, int], float] = ({}, 0.0)
        self._lows: Mapping[TopicPartition, int] = {}
        self._lows_due = 0.0
        self.history = EndHistory()

    def read(self) -> None:
        """Read the ends, and the first offsets if the last read of these is ``LOWS_SECONDS`` old."""
        began = self._clock.monotonic()
        found = self._ask()
        self._found = (found, began)
        self.history.note(began, found)
        if began >= self._lows_due:
            self._lows = self._ask_lows()
            self._lows_due = began + LOWS_SECONDS if self._lows else 0.0

    def low_of(self, tp: TopicPartition) -> int:
        """Return the first offset that Kafka still has; -1 if it is not known."""
        return self._lows.get(tp, -1)

    def of(self, tp: TopicPartition) -> tuple[int, float] | None:
        """Return the end offset and its age in seconds; None if it is not known."""
        ends, read_at = self._found
        return (ends[tp], self._clock.monotonic() - read_at) if tp in ends else None


def still_there(exists: Callable[[], bool], message: str) -> Callable[[], None]:
    """Return a request for a probe. It fails with ``message`` if an object that existed at an earlier request no longer
    exists."""
    seen = False

    def ask() -> None:
        nonlocal seen
        there = exists()
        if seen and not there:
            raise LookupError(message)
        seen = seen or there

    return ask


def offsets_of_known(
    read: Callable[[list[TopicPartition]], Mapping[TopicPartition, int]], partitions: Iterable[TopicPartition]
) -> Mapping[TopicPartition, int]:
    """Return what ``read`` returns for ``partitions``, except those of topics that are being deleted. Raises
    UnreachableError."""
    asked = list(partitions)
    try:
        return read(asked) if asked else {}
    except UnknownTopicError:
        found: dict[TopicPartition, int] = {}
        for topic in {tp.topic for tp in asked}:
            with contextlib.suppress(UnknownTopicError):
                found.update(read([tp for tp in asked if tp.topic == topic]))
        return found


def store_probe(name: str, storage: Storage, path: str, clock: Clock) -> Probe:
    """Return a probe of the store. It checks that ``path`` exists, a file that is never absent while the stream uses this
    store."""
    interval = INTERVAL_SECONDS if storage.appendable else INTERVAL_OF_OBJECTS_SECONDS
    message = f"the store answers, but {path} no longer exists"
    return Probe(name, still_there(lambda: storage.exists(path), message), clock, interval_seconds=interval)


class Reach:
    """Runs all probes of a driver."""

    def __init__(self, probes: Sequence[Probe]) -> None:
        self._probes = probes

    def start(self) -> None:
        for probe in self._probes:
            probe.start()

    def stop(self) -> None:
        for probe in self._probes:
            probe.stop()

    def outages(self) -> tuple[Outage, ...]:
        return tuple(outage for probe in self._probes if (outage := probe.outage()) is not None)


def soon(answer: Future[Result], seconds: float, otherwise: Callable[[], Result]) -> Future[Result]:
    """Return a future with the outcome of ``answer``. If there is none after ``seconds``, the future gets the outcome of
    ``otherwise``."""
    first: Future[Result] = Future()
    lock = threading.Lock()

    def finish(give: Callable[[], Result]) -> None:
        with lock:
            if first.done():
                return
            try:
                first.set_result(give())
            except Exception as error:
                first.set_exception(error)

    timer = threading.Timer(seconds, lambda: finish(otherwise))
    timer.daemon = True
    timer.start()

    def answered(done: Future[Result]) -> None:
        timer.cancel()
        finish(done.result)

    answer.add_done_callback(answered)
    return first
