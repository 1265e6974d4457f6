"""What happens in a stream, told to whoever wants to know: objects of the job's own, and a web hook.

Each listener has a queue of bounded length and a thread of its own, so that a slow one holds up neither the driver nor the
others: what does not fit is dropped and counted. Of the journal's events it hears when they are durable.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from driver.journal import events as ev
from forebay.messages import TrackedListener
from forebay.model.errors import SettingsError
from forebay.model.wire import WIRE_NAMES
from forebay.settings.named import find

log = logging.getLogger(__name__)

#: events that a listener is handed together at most
TOGETHER_MAX = 100
#: so long does a driver that ends give each listener for what it has been told
LAST_SECONDS = 5.0


class _Happened(msgspec.Struct, frozen=True, tag_field="kind", kw_only=True, rename=WIRE_NAMES):
    time_ms: int  # when the driver noticed, since 1970 UTC


class ReceiverStarted(_Happened, frozen=True, tag="receiver-started"):
    receiver_id: str
    host: str
    epoch: int


class ReceiverStopped(_Happened, frozen=True, tag="receiver-stopped"):
    """It drained, or ended as it was told."""

    receiver_id: str
    host: str
    epoch: int


class ReceiverFailed(_Happened, frozen=True, tag="receiver-failed"):
    """It fell silent without having drained, or a person said that its host is gone."""

    receiver_id: str
    host: str
    epoch: int
    detail: str


class BlockAdded(_Happened, frozen=True, tag="block-added"):
    """``ranges``: their labels, as ``flights/0[0, 10)``."""

    block_id: str
    receiver_id: str
    records: int
    ranges: tuple[str, ...]


class BatchSubmitted(_Happened, frozen=True, tag="batch-submitted"):
    """The journal has the batch: it will run. In a replay, ``replay`` is its number."""

    batch_id: int
    number: int
    blocks: int
    replay: int = 0


class BatchStarted(_Happened, frozen=True, tag="batch-started"):
    """The job is called for ``output``."""

    batch_id: int
    number: int
    output: str
    attempt: int
    records: int
    replay: int = 0


class BatchCompleted(_Happened, frozen=True, tag="batch-completed"):
    batch_id: int
    attempts: int
    replay: int = 0


class BatchFailed(_Happened, frozen=True, tag="batch-failed"):
    """One attempt failed. ``final``: the last of ``driver.job_max_failures``, or a later one: the batch is failed and intact, and
    the driver ends or tries it again after a longer delay. ``unreadable``: its blocks could not be read, which is tried again
    without end."""

    batch_id: int
    number: int
    output: str
    attempt: int
    detail: str
    final: bool
    unreadable: bool = False
    replay: int = 0


class RateChanged(_Happened, frozen=True, tag="rate-changed"):
    """The driver learned that the job takes ``records_per_second``."""

    records_per_second: float


class GapFound(_Happened, frozen=True, tag="gap-found"):
    """Kafka lost ``[from_offset, until_offset)`` of a partition, or, with ``new_life``, means other records by its offsets from
    ``until_offset`` on. ``recorded``: the journal goes on without them; else the partition waits for a person."""

    topic: str
    partition: int
    from_offset: int
    until_offset: int
    recorded: bool
    detail: str
    new_incarnation: bool = False


Happened: TypeAlias = (
    ReceiverStarted
    | ReceiverStopped
    | ReceiverFailed
    | BlockAdded
    | BatchSubmitted
    | BatchStarted
    | BatchCompleted
    | BatchFailed
    | RateChanged
    | GapFound
)


class Listener:
    """Override what you want to know of. Called from one thread of its own, in order, after what is told became durable.

    It may be slow: then events beyond ``driver.listener_queue`` are dropped, and ``forebay status`` counts them. What it raises
    is logged, once for each kind of error and method, and nothing else happens. An event may be told again by the next driver
    or not at all when a driver dies: what must not be missed is in the journal (``forebay audit``).
    """

    def receiver_started(self, event: ReceiverStarted) -> None: ...

    def receiver_stopped(self, event: ReceiverStopped) -> None: ...

    def receiver_failed(self, event: ReceiverFailed) -> None: ...

    def block_added(self, event: BlockAdded) -> None: ...

    def batch_submitted(self, event: BatchSubmitted) -> None: ...

    def batch_started(self, event: BatchStarted) -> None: ...

    def batch_completed(self, event: BatchCompleted) -> None: ...

    def batch_failed(self, event: BatchFailed) -> None: ...

    def rate_changed(self, event: RateChanged) -> None: ...

    def gap_found(self, event: GapFound) -> None: ...


#: kind of event → the method that is told
METHODS: Mapping[type[Any], str] = {
    ReceiverStarted: "receiver_started",
    ReceiverStopped: "receiver_stopped",
    ReceiverFailed: "receiver_failed",
    BlockAdded: "block_added",
    BatchSubmitted: "batch_submitted",
    BatchStarted: "batch_started",
    BatchCompleted: "batch_completed",
    BatchFailed: "batch_failed",
    RateChanged: "rate_changed",
    GapFound: "gap_found",
}


def told_of(event: ev.Event, now_ms: int) -> list[Happened]:
    """What an event of the journal is to listeners."""
    if isinstance(event, ev.BlockAdded):
        meta = event.block.meta
        labels = tuple(range_.label for range_ in meta.ranges)
        return [
            BlockAdded(
                time_ms=now_ms, block_id=meta.id, receiver_id=meta.receiver_id, records=meta.records, ranges=labels
            )
        ]
    if isinstance(event, ev.ReceiverRegistered):
        return [ReceiverStarted(time_ms=now_ms, receiver_id=event.receiver_id, host=event.host, epoch=event.epoch)]
    if isinstance(event, ev.ReceiverFenced):
        gone = "a person said that its host is gone for good"
        return [ReceiverFailed(time_ms=now_ms, receiver_id=event.receiver_id, host="", epoch=event.epoch, detail=gone)]
    if isinstance(event, ev.BatchAllocated):
        return [_submitted(event, now_ms)]
    if isinstance(event, ev.ReplayBegun):
        return [_submitted(batch, now_ms, event.replay) for batch in event.batches]
    if isinstance(event, ev.BatchCompleted):
        return [BatchCompleted(time_ms=now_ms, batch_id=event.batch_id, attempts=event.attempts)]
    if isinstance(event, ev.ReplayCompleted):
        return [BatchCompleted(time_ms=now_ms, batch_id=event.batch_id, attempts=event.attempts, replay=event.replay)]
    if isinstance(event, ev.RateLearned):
        return [RateChanged(time_ms=now_ms, records_per_second=event.rate)]
    if isinstance(event, ev.GapRecorded):
        return [
            GapFound(
                time_ms=now_ms,
                topic=event.topic,
                partition=event.partition,
                from_offset=event.gap.from_offset,
                until_offset=event.gap.until_offset,
                recorded=True,
                detail=event.gap.cause,
            )
        ]
    if isinstance(event, ev.FaultRecorded):
        return [
            GapFound(
                time_ms=now_ms,
                topic=event.topic,
                partition=event.partition,
                from_offset=event.position,
                until_offset=event.accept_until,
                recorded=False,
                detail=event.kind,
                new_incarnation=event.new_incarnation,
            )
        ]
    return []


def _submitted(batch: ev.BatchAllocated | ev.ReplayedBatch, now_ms: int, replay: int = 0) -> BatchSubmitted:
    blocks = sum(map(len, batch.tasks))
    return BatchSubmitted(time_ms=now_ms, batch_id=batch.batch_id, number=batch.number, blocks=blocks, replay=replay)


class SeenReceiver(msgspec.Struct, frozen=True):
    """A receiver as its heartbeats show it. ``state``: as ``TrackedReceiver.state``."""

    receiver_id: str
    host: str
    epoch: int
    state: str
    detail: str = ""


def ended(before: Mapping[str, SeenReceiver], now: Mapping[str, SeenReceiver], now_ms: int) -> list[Happened]:
    """Which receivers fell silent between two looks. One that was draining when it was last heard has stopped."""
    found: list[Happened] = []
    for receiver_id, receiver in sorted(now.items()):
        last = before.get(receiver_id)
        if receiver.state != "lost" or last is None or last.epoch != receiver.epoch or last.state == "lost":
            continue
        if last.state == "draining":
            found.append(
                ReceiverStopped(time_ms=now_ms, receiver_id=receiver_id, host=receiver.host, epoch=receiver.epoch)
            )
        else:
            words = f"silent; last heard {last.state}" + (f": {last.detail}" if last.detail else "")
            found.append(
                ReceiverFailed(
                    time_ms=now_ms, receiver_id=receiver_id, host=receiver.host, epoch=receiver.epoch, detail=words
                )
            )
    return found


# ---- who is told -----------------------------------------------------------------------------------------------------


class Receiving(Protocol):
    """What a queue is emptied into, from one thread. Raises nothing."""

    name: str
    failures: int
    last_error: str

    def take(self, happened: Sequence[Happened], dropped: int) -> int:
        """→ how many were given up. ``dropped``: since the driver began, at the end of a queue that was full."""

    def close(self) -> None:
        """Gives up what is tried again. From any thread."""


class Told:
    """A listener in this process."""

    def __init__(self, listener: Any, name: str = "") -> None:
        self._listener = listener
        self.name = name or f"{type(listener).__module__}:{type(listener).__qualname__}"
        self.failures = 0
        self.last_error = ""
        self._logged: set[tuple[str, type[BaseException]]] = set()

    def take(self, happened: Sequence[Happened], dropped: int) -> int:
        for event in happened:
            method = METHODS[type(event)]
            try:
                getattr(self._listener, method, _nobody)(event)
            except Exception as error:
                self.failures += 1
                self.last_error = f"{method}: {type(error).__name__}: {error}"
                if (method, type(error)) not in self._logged:
                    self._logged.add((method, type(error)))
                    log.exception(
                        "listener %s: %s raised; it is told on, and this is not logged again", self.name, method
                    )
        return 0

    def close(self) -> None:
        """Nothing waits here but the listener's own code."""


def _nobody(_: Any) -> None:
    """A listener need not have all methods."""


class Channel:
    """One listener's queue and thread."""

    def __init__(self, receiving: Receiving, queue_length: int) -> None:
        self._receiving = receiving
        self._queue: queue.Queue[Happened | None] = queue.Queue(queue_length)
        self._dropped = 0
        self._delivered = 0
        self._given_up = 0
        self._ending = threading.Event()
        self._abandoned = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"listener {receiving.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def tell(self, happened: Happened) -> None:
        """Never blocks."""
        try:
            self._queue.put_nowait(happened)
        except queue.Full:
            if not self._dropped:
                log.warning(
                    "listener %s is too slow: events for it are dropped, status counts them", self._receiving.name
                )
            self._dropped += 1

    @property
    def status(self) -> TrackedListener:
        return TrackedListener(
            name=self._receiving.name,
            delivered=self._delivered,
            waiting=self._queue.qsize(),
            dropped=self._dropped + self._given_up,
            failures=self._receiving.failures,
            last_error=self._receiving.last_error,
        )

    def _run(self) -> None:
        while True:
            happened = [self._queue.get()]
            while len(happened) < TOGETHER_MAX and not self._queue.empty():
                happened.append(self._queue.get())
            told = [event for event in happened if event is not None]
            if told:
                lost = self._receiving.take(told, self._dropped + self._given_up)
                self._given_up += lost
                self._delivered += len(told) - lost
            if self._abandoned.is_set() or (self._ending.is_set() and self._queue.empty()):
                return

    @property
    def is_calling(self) -> bool:
        """Whether the calling thread is this channel's."""
        return threading.current_thread() is self._thread

    def stop(self, seconds: float) -> None:
        """Gives it ``seconds`` for what it was told."""
        self._ending.set()
        with contextlib.suppress(queue.Full):  # then it is awake
            self._queue.put_nowait(None)
        self._thread.join(seconds)
        self._abandoned.set()
        self._receiving.close()
        if self._thread.is_alive():
            log.warning("listener %s did not take %d events in time", self._receiving.name, self._queue.qsize())


class Listeners:
    """All listeners of a driver. ``tell`` and ``note`` may be called from any thread and never block."""

    def __init__(self, channels: Sequence[Channel], wall_ms: Callable[[], int]) -> None:
        self._channels = list(channels)
        self._wall_ms = wall_ms
        self._running = False
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        return bool(self._channels)

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
        """Hears, from the deciding thread, which events have become durable."""
        if self._channels:
            now_ms = self._wall_ms()
            for event in events:
                self.tell_all(told_of(event, now_ms))

    def tell_all(self, happened: Sequence[Happened]) -> None:
        for event in happened:
            for channel in self._channels:
                channel.tell(event)

    @property
    def status(self) -> tuple[TrackedListener, ...]:
        return tuple(channel.status for channel in self._channels)

    def in_listener(self) -> bool:
        """Whether the calling thread is a listener's, which :meth:`stop` waits for."""
        return any(channel.is_calling for channel in tuple(self._channels))

    def stop(self, seconds: float = LAST_SECONDS) -> None:
        with self._lock:
            if self._running:
                self._running = False
                for channel in self._channels:
                    channel.stop(seconds)


def find_listener(name: str) -> Any:
    """Makes one of what ``module:Class`` names. Raises SettingsError that says what is wrong with it."""
    found = find("driver.listeners", name, "class")
    try:
        return found()
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
        raise SettingsError(f"driver.listeners: {name!r} can't be made without arguments: {words}") from error
