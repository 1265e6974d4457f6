"""Delivery of events to listeners: objects in this process, and a web hook.

Each listener has a queue of bounded length and size, and a thread of its own, so a slow listener blocks neither the driver nor
other listeners. Events that do not fit into the queue are dropped and counted. Events of the journal are delivered after they are
durable.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from driver.journal import events as ev
from driver.listeners.derivation import RecordsOf, happened_in, unknown_records
from driver.listeners.events import METHODS, BatchSubmitted, Happened
from driver.listeners.offsets import OffsetsOf, SubmittedOffsets, unknown_offsets, with_offsets
from driver.listeners.sizes import RANGE_BYTES, event_bytes
from forebay.messages import TrackedListener
from forebay.model.errors import SettingsError
from forebay.settings.named import find
from forebay.settings.schema import DriverSettings

log = logging.getLogger(__name__)

#: maximum number of events that a listener receives together
TOGETHER_MAX = 100
#: how long a driver that ends waits for each listener to take the queued events
LAST_SECONDS = 5.0
#: default of ``driver.listener_queue_bytes``
QUEUE_BYTES = int(DriverSettings(journal="").listener_queue_bytes)


_NO_OFFSETS: Mapping[int, SubmittedOffsets] = MappingProxyType({})


class EventSink(Protocol):
    """Delivers the events of one queue. One thread calls it. Its methods raise no errors."""

    name: str
    failures: int
    last_error: str

    def take(self, happened: Sequence[Happened], dropped: int) -> int:
        """Deliver events; return how many of them were dropped. ``dropped``: events dropped before, since the driver's start."""

    def close(self) -> None:
        """End retries. May be called from any thread."""


class ListenerSink:
    """Calls the methods of a listener object in this process."""

    def __init__(self, listener: Any, name: str = "") -> None:
        self._listener = listener
        self.name = name or f"{type(listener).__module__}:{type(listener).__qualname__}"
        self.failures = 0
        self.last_error = ""
        self._logged: set[tuple[str, type[BaseException]]] = set()

    def take(self, happened: Sequence[Happened], dropped: int) -> int:
        for event in happened:
            method = METHODS[type(event)]  # by name: a user's listener defines only the methods that it needs
            try:
                getattr(self._listener, method, _no_method)(event)
            except Exception as error:
                self.failures += 1
                self.last_error = f"{method}: {type(error).__name__}: {error}"
                if (method, type(error)) not in self._logged:
                    self._logged.add((method, type(error)))
                    log.exception("listener %s: %s raised an error; repeats are not logged", self.name, method)
        return 0

    def close(self) -> None:
        """Do nothing: there are no retries."""


def _no_method(_: Any) -> None:
    """Does nothing. It replaces a method that the listener does not have."""


class Channel:
    """One listener's queue and thread. ``queue_length``: maximum number of events that wait. ``queue_bytes``: maximum size of
    those that wait or are being delivered, about (``driver.listeners.sizes``)."""

    def __init__(self, sink: EventSink, queue_length: int, queue_bytes: int = QUEUE_BYTES) -> None:
        self._sink = sink
        self._queue_bytes = queue_bytes
        self._queue: queue.Queue[tuple[Happened, int, Mapping[int, SubmittedOffsets]] | None] = queue.Queue(
            queue_length
        )
        self._bytes = 0  # of events that wait or are being delivered
        self._bytes_lock = threading.Lock()
        self._dropped = 0
        self._delivered = 0
        self._lost = 0
        self._ending = threading.Event()
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"listener {sink.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def tell(self, happened: Happened, size: int, offsets: Mapping[int, SubmittedOffsets] = _NO_OFFSETS) -> None:
        """Queue an event of ``size`` bytes, or drop it if the queue is full. Never blocks. ``offsets``: by batch id, those that
        the channel's thread adds to the event."""
        with self._bytes_lock:
            fits = self._bytes + size <= self._queue_bytes
            if fits:
                try:
                    self._queue.put_nowait((happened, size, offsets))
                    self._bytes += size
                except queue.Full:
                    fits = False
        if not fits:
            if not self._dropped:
                log.warning("listener %s: queue is full, dropping events (see `forebay status`)", self._sink.name)
            self._dropped += 1

    @property
    def status(self) -> TrackedListener:
        return TrackedListener(
            name=self._sink.name,
            delivered=self._delivered,
            waiting=self._queue.qsize(),
            dropped=self._dropped + self._lost,
            failures=self._sink.failures,
            last_error=self._sink.last_error,
        )

    def _run(self) -> None:
        while True:
            taken = [self._queue.get()]
            while len(taken) < TOGETHER_MAX and not self._queue.empty():
                taken.append(self._queue.get())
            sized = [one for one in taken if one is not None]
            if sized:
                happened = [with_offsets(event, offsets) for event, _, offsets in sized]
                lost = self._sink.take(happened, self._dropped + self._lost)
                self._lost += lost
                self._delivered += len(sized) - lost
                with self._bytes_lock:
                    self._bytes -= sum(size for _, size, _ in sized)
            if self._abandoned.is_set() or (self._ending.is_set() and self._queue.empty()):
                return

    @property
    def is_calling(self) -> bool:
        """Return whether the calling thread is this channel's thread."""
        return threading.current_thread() is self._thread

    def stop(self, seconds: float) -> None:
        """End the thread. The listener gets at most ``seconds`` for the queued events."""
        self._ending.set()
        with contextlib.suppress(queue.Full):  # a full queue: the thread does not wait for an event
            self._queue.put_nowait(None)
        self._thread.join(seconds)
        self._abandoned.set()
        self._sink.close()
        if self._thread.is_alive():
            log.warning(
                "listener %s: %d queued events were dropped, because the driver stopped before the listener took them",
                self._sink.name,
                self._queue.qsize(),
            )


class Tap(Protocol):
    """Gets all events beside the listeners, and derives by itself what follows from those of the journal. Never blocks."""

    @property
    def is_listening(self) -> bool:
        """Whether it wants events now."""

    def note(self, events: Sequence[ev.Event], now_ms: int) -> None:
        """Take durable events of the journal. Called in the decision loop."""

    def tell(self, happened: Sequence[Happened]) -> None:
        """Take events that are not the journal's."""


class Listeners:
    """All listeners of a driver. ``tell_all`` and ``note`` may be called from any thread and never block."""

    def __init__(self, channels: Sequence[Channel], wall_ms: Callable[[], int]) -> None:
        self._channels = list(channels)
        self._taps: tuple[Tap, ...] = ()
        #: returns how many records an unfinished batch has; None: unknown. Called in the decision loop
        self.records_of: RecordsOf = unknown_records
        #: returns the offsets of submitted batches. Called in the decision loop
        self.offsets_of: OffsetsOf = unknown_offsets
        self._wall_ms = wall_ms
        self._running = False
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._channels) or any(tap.is_listening for tap in self._taps)

    def attach(self, tap: Tap) -> None:
        """Pass events to ``tap`` from now on."""
        self._taps = (*self._taps, tap)

    def add(self, channel: Channel) -> None:
        with self._lock:
            self._channels.append(channel)
            if self._running:
                channel.start()

    def start(self) -> None:
        with self._lock:
            self._running = True
            for channel in self._channels:
                channel.start()

    def note(self, events: Sequence[ev.Event]) -> None:
        """Queue the events for listeners that follow from durable events of the journal. Called in the decision loop."""
        if not self:
            return
        now_ms = self._wall_ms()
        for tap in self._taps:
            tap.note(events, now_ms)
        if self._channels:
            for event in events:
                self._queue(happened_in(event, now_ms, self.records_of), self.offsets_of(event))

    def tell_all(self, happened: Sequence[Happened]) -> None:
        for tap in self._taps:
            tap.tell(happened)
        self._queue(happened)

    def _queue(self, happened: Sequence[Happened], offsets: Mapping[int, SubmittedOffsets] = _NO_OFFSETS) -> None:
        if not self._channels:
            return
        for event in happened:
            size = event_bytes(event)
            if isinstance(event, BatchSubmitted) and event.batch_id in offsets:
                size += RANGE_BYTES * offsets[event.batch_id].expected
            for channel in self._channels:
                channel.tell(event, size, offsets)

    @property
    def status(self) -> tuple[TrackedListener, ...]:
        return tuple(channel.status for channel in self._channels)

    def in_listener(self) -> bool:
        """Whether the calling thread is a listener's; :meth:`stop` would wait for it."""
        return any(channel.is_calling for channel in tuple(self._channels))

    def stop(self, seconds: float = LAST_SECONDS) -> None:
        """End all threads. Each listener gets at most ``seconds`` for its queued events."""
        with self._lock:
            if self._running:
                self._running = False
                for channel in self._channels:
                    channel.stop(seconds)


def find_listener(name: str) -> Any:
    """Return a new object of the class that ``name`` (``module:Class``) names. Raises SettingsError with the reason."""
    found = find("driver.listeners", name, "class")
    try:
        return found()
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        raise SettingsError(f"driver.listeners: cannot create {name!r} without arguments: {cause}") from error
