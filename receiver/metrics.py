"""A receiver's metrics: definitions, what is counted from its inputs and actions, and what a scrape reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from forebay.metrics.definition import REQUEST_SECONDS, counter, gauge, histogram
from forebay.metrics.exposition import BUILD_INFO, Metrics
from forebay.metrics.samples import Samples
from forebay.process.clock import Clock
from receiver import actions as act
from receiver import inputs as inp

STATES = ("starting", "waiting", "active", "draining")
#: input → kind of the failure that it tells
FAILURES: Mapping[type[inp.Input], str] = {
    inp.StoreAway: "store",
    inp.OutOfSpace: "space",
    inp.StoreFailed: "store-failed",
    inp.DriverFailed: "driver",
    inp.BrokerFailed: "broker",
    inp.CommitFailed: "commit",
    inp.SourceFailed: "source",
    inp.Fenced: "fenced",
}

STATE = gauge(
    "forebay_receiver_state", "1 for the present state of the receiver, 0 for the others.", "state", values=STATES
)
PARTITIONS = gauge("forebay_receiver_partitions", "Partitions that the group assigned to the receiver.")
BUFFERED = gauge(
    "forebay_receiver_buffered_bytes",
    "Memory of the records that the receiver holds: open block, blocks being stored, blocks without the driver's answer.",
)
MEMORY = gauge("forebay_receiver_memory_bytes", "Maximum of buffered bytes (receiver.memory); then polling pauses.")
SEALED = gauge("forebay_receiver_sealed_blocks", "Sealed blocks that the driver has not accepted yet.")
STORING = gauge("forebay_receiver_storing_blocks", "Sealed blocks that are not durable yet.")
RATE = gauge(
    "forebay_receiver_rate_limit_records_per_second",
    "Maximum rate, by a setting or by backpressure. Absent if there is none.",
)
ACCEPTED = counter("forebay_receiver_records_total", "Records in blocks that the driver accepted.")
STORED_BLOCKS = counter("forebay_receiver_stored_blocks_total", "Blocks that became durable.")
STORED_BYTES = counter("forebay_receiver_stored_bytes_total", "Bytes of keys and values in blocks that became durable.")
EVENTS = counter(
    "forebay_receiver_events_total",
    "Events by name, as in the counters of `forebay status`: claims, refusals, pauses, dropped answers.",
    "event",
)
STORE_REQUESTS = counter(
    "forebay_receiver_store_requests_total",
    "Requests to a remote WAL, by kind, and their bytes. Absent for a local WAL.",
    "request",
)
FAILED = counter(
    "forebay_receiver_failures_total",
    "Failures by kind: of the store, of its space, of requests to driver and broker, of commits and of the source.",
    "kind",
    values=tuple(FAILURES.values()),
)
STORE_SECONDS = histogram(
    "forebay_receiver_store_seconds",
    "Time from the seal of a block until it is durable: encoding, waiting for the write before it, writing, syncing.",
    REQUEST_SECONDS,
)
SYNC_SECONDS = histogram(
    "forebay_receiver_sync_seconds",
    "Duration of each write and sync of gathered blocks, with retries. Without a WAL: of the copy on this host.",
    REQUEST_SECONDS,
)
REPORT_SECONDS = histogram(
    "forebay_receiver_report_seconds",
    "Time from a report of blocks to the driver until its answer or failure.",
    REQUEST_SECONDS,
)

COUNTED = (STORED_BLOCKS, STORED_BYTES, FAILED, STORE_SECONDS, SYNC_SECONDS, REPORT_SECONDS)
READ = (BUILD_INFO, STATE, PARTITIONS, BUFFERED, MEMORY, SEALED, STORING, RATE, ACCEPTED, EVENTS, STORE_REQUESTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiverView:
    """What a scrape reads. ``rate``: 0: no limit. ``events``, ``store_requests``: counters of the machine and of the store."""

    state: str
    partitions: int
    buffered_bytes: int
    sealed_blocks: int
    records: int
    rate: float
    events: Mapping[str, int]
    store_requests: Mapping[str, int]


class ReceiverMetrics:
    """Counts from the inputs and actions of one receiver, in the order in which its machine sees them. ``memory_bytes``: as
    ``receiver.memory``."""

    def __init__(self, *, stream: str, receiver_id: str, release: str, memory_bytes: int, clock: Clock) -> None:
        labels = {"stream": stream, "receiver": receiver_id}
        self.metrics = Metrics(COUNTED, labels=labels, release=release, clock=clock, read=self._read)
        #: called at each scrape, in its thread
        self.view: Callable[[], ReceiverView] | None = None
        self._memory_bytes = memory_bytes
        self._storing: dict[int, float] = {}  # sequence of a block that is not durable yet → when it was sealed
        self._reports: dict[int, float] = {}  # request → when it was sent

    def acted(self, action: act.Action, now: float) -> None:
        """Note an action before it is performed."""
        match action:
            case act.StoreBlock():
                self._storing[action.pending.sequence] = now
            case act.Report():
                self._reports[action.request] = now

    def observe(self, event: inp.Input, now: float) -> None:
        """Count an input."""
        match event:
            case inp.BlockStored():
                self._stored(event, now)
            case inp.ReportAnswered() | inp.DriverFailed() if event.request in self._reports:
                self.metrics.observe(REPORT_SECONDS, now - self._reports.pop(event.request))
        if (kind := FAILURES.get(type(event))) is not None:
            self.metrics.count(FAILED, kind)

    def synced(self, seconds: float) -> None:
        """Count a sync of the store."""
        self.metrics.observe(SYNC_SECONDS, seconds)

    def _stored(self, event: inp.BlockStored, now: float) -> None:
        sealed_at = self._storing.pop(event.sequence, None)
        if sealed_at is not None:
            self.metrics.observe(STORE_SECONDS, now - sealed_at)
        self.metrics.count(STORED_BLOCKS)
        self.metrics.count(STORED_BYTES, amount=sum(held.bytes for held in event.block.meta.ranges))

    def _read(self, samples: Samples) -> None:
        samples.set(MEMORY, self._memory_bytes)
        samples.set(STORING, len(self._storing))
        view = self.view() if self.view is not None else None
        if view is None:
            return
        samples.states(STATE, view.state)
        samples.set(PARTITIONS, view.partitions)
        samples.set(BUFFERED, view.buffered_bytes)
        samples.set(SEALED, view.sealed_blocks)
        samples.set(RATE, view.rate or None)
        samples.set(ACCEPTED, view.records)
        for name, count in view.events.items():
            samples.set(EVENTS, count, name)
        for name, count in view.store_requests.items():
            samples.set(STORE_REQUESTS, count, name.removeprefix("wal_"))
