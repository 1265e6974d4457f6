"""The events of a stream that listeners receive, and :class:`Listener`, the base class of listeners in user code.

A web hook receives the same events as JSON, with ``kind`` as the tag.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from forebay.messages import BatchRange


class _Happened(msgspec.Struct, frozen=True, tag_field="kind", kw_only=True, rename={"new_incarnation": "new_life"}):
    """What the events of a stream have in common.

    - ``time_ms``: when the driver noticed the event, in milliseconds since 1970 UTC.
    - ``receiver_id``, ``host``, ``epoch``: the receiver, its host, and the receiver's epoch, which is higher after each start.
    - ``topic``, ``partition``: a partition of Kafka or of a custom source.
    - ``block_id``, ``records``, ``blocks``: the id of a block, the number of records, and the number of blocks.
    - ``batch_id``, ``number``: the id of a batch, and its place in the order of all batches, from 1.
    - ``output``, ``attempt``, ``attempts``: the name of an output, the attempt of this driver at the batch from 1, and the number
      of attempts.
    - ``replay``: the number of the replay that runs the batch; 0 outside a replay.
    - ``detail``: the cause, as a sentence.
    """

    time_ms: int


class StreamStarted(_Happened, frozen=True, tag="stream-started"):
    """The driver leads the stream and begins to run batches. ``stream``: its name. ``epoch``: the journal's, which is higher
    after each start. ``batch_interval_ms``: 0: a batch begins as soon as records wait."""

    stream: str
    epoch: int
    batch_interval_ms: int


class StreamStopped(_Happened, frozen=True, tag="stream-stopped"):
    """The driver runs no more batches of the stream. ``detail``: the error that ended it; "" after a stop.
    The other fields are as in :class:`StreamStarted`."""

    stream: str
    epoch: int
    detail: str = ""

    @classmethod
    def after(cls, failure: BaseException | None, *, time_ms: int, stream: str, epoch: int) -> StreamStopped:
        """Return the event of a stream that ``failure`` ended; None: it was stopped."""
        detail = "" if failure is None else f"{type(failure).__name__}: {failure}"
        return cls(time_ms=time_ms, stream=stream, epoch=epoch, detail=detail)


class ReceiverStarted(_Happened, frozen=True, tag="receiver-started"):
    """A receiver registered with the driver."""

    receiver_id: str
    host: str
    epoch: int


class ReceiverStopped(_Happened, frozen=True, tag="receiver-stopped"):
    """A receiver drained and ended."""

    receiver_id: str
    host: str
    epoch: int


class ReceiverFailed(_Happened, frozen=True, tag="receiver-failed"):
    """A receiver stopped sending heartbeats before it began to drain, or an operator reported that its host no longer
    exists."""

    receiver_id: str
    host: str
    epoch: int
    detail: str


class ReceiverError(_Happened, frozen=True, tag="receiver-error"):
    """A receiver reported that it takes in no records, and why: ``detail``. It tries again by itself."""

    receiver_id: str
    host: str
    epoch: int
    detail: str


class ReceiverResumed(_Happened, frozen=True, tag="receiver-resumed"):
    """A receiver takes records in again after a :class:`ReceiverError`."""

    receiver_id: str
    host: str
    epoch: int


class BlockAdded(_Happened, frozen=True, tag="block-added"):
    """The driver accepted a block. ``ranges``: the labels of its offset ranges, such as ``flights/0[0, 10)``."""

    block_id: str
    receiver_id: str
    records: int
    ranges: tuple[str, ...]


class BatchSubmitted(_Happened, frozen=True, tag="batch-submitted"):
    """The journal has the batch, so it will run. ``blocks``: 0 in a direct stream. ``replay``: the number of the replay that runs
    it; 0 outside a replay. ``batch_time_ms``: the batch's time. ``records``: in a direct stream offsets; None if unknown, as in a
    replay. ``ranges``: the offsets of the batch by partition. In the page's stream of events it is
    empty for a batch of more than 1,000 blocks."""

    batch_id: int
    number: int
    blocks: int
    replay: int = 0
    batch_time_ms: int = 0
    records: int | None = None
    ranges: tuple[BatchRange, ...] = ()


class BatchStarted(_Happened, frozen=True, tag="batch-started"):
    """The driver calls the job for ``output``: an event for each attempt at each output of the batch.

    ``first``: whether it is the first one of this driver for the batch. ``records``: those that the job gets, without accepted
    losses. The other fields are as in :class:`BatchCompleted`.
    """

    batch_id: int
    number: int
    output: str
    attempt: int
    records: int
    replay: int = 0
    batch_time_ms: int = 0
    bytes: int | None = None
    rerun: bool = False
    scheduling_delay_ms: int | None = None
    ranges: tuple[BatchRange, ...] = ()
    first: bool = False


class OutputCompleted(_Happened, frozen=True, tag="output-completed"):
    """The job for ``output`` succeeded, and the journal has this. ``processing_ms``: duration of the attempt. An attempt that
    fails is a :class:`BatchFailed`."""

    batch_id: int
    number: int
    output: str
    attempt: int
    processing_ms: int
    replay: int = 0


class BatchCompleted(_Happened, frozen=True, tag="batch-completed"):
    """All outputs of the batch are done, and the journal has its completion.

    ``attempts``: those of the driver that completed it. ``batch_time_ms``: the batch's time. ``bytes``: size of keys and
    values; None in a direct stream. ``rerun``: whether an earlier attempt or driver may have run the batch.

    ``scheduling_delay_ms``: from the batch's time, or in a replay from its begin, to the first start of the job.
    ``processing_ms``: duration of the attempt that succeeded, summed over the outputs. ``total_delay_ms``: from the batch's
    time, or the begin of the replay, to ``time_ms``; failed attempts and the pauses after them are part of it.
    ``end_to_end_ms``: from a record's timestamp in Kafka to ``time_ms``; of each range the newest record counts, and of these
    the oldest one. None if it is unknown.

    ``tiers``: tier → ranges that tasks read from it. ``written``: what output helpers wrote and skipped, as text. ``ranges``:
    the offsets of the batch by partition.
    """

    batch_id: int
    attempts: int
    replay: int = 0
    number: int = 0
    batch_time_ms: int = 0
    records: int = 0
    bytes: int | None = None
    rerun: bool = False
    scheduling_delay_ms: int | None = None
    processing_ms: int | None = None
    total_delay_ms: int | None = None
    end_to_end_ms: int | None = None
    tiers: Mapping[str, int] = {}
    written: tuple[str, ...] = ()
    ranges: tuple[BatchRange, ...] = ()


class BatchSkipped(_Happened, frozen=True, tag="batch-skipped"):
    """An operator ended a failed or unreadable batch without its job. ``cause``: the operator and the reason."""

    batch_id: int
    attempts: int
    cause: str
    replay: int = 0


class PauseChanged(_Happened, frozen=True, tag="pause-changed"):
    """An operator paused the batches (``paused``) or resumed them. ``cause``: the operator and the reason."""

    paused: bool
    cause: str


class BatchFailed(_Happened, frozen=True, tag="batch-failed"):
    """One attempt at a batch failed.

    ``final``: this was attempt ``driver.job_max_failures`` or a later one. The batch is failed and intact, and the driver ends
    or tries it again after a longer delay. ``unreadable``: the task could not read a block of the batch; the driver tries
    again without limit.
    """

    batch_id: int
    number: int
    output: str
    attempt: int
    detail: str
    final: bool
    unreadable: bool = False
    replay: int = 0


class RateChanged(_Happened, frozen=True, tag="rate-changed"):
    """The driver learned that the job processes ``records_per_second``."""

    records_per_second: float


class GapFound(_Happened, frozen=True, tag="gap-found"):
    """Kafka lost the offsets ``[from_offset, until_offset)`` of a partition.

    ``from_offset``, ``until_offset``: the first lost offset, and the next one that exists. ``new_incarnation``: Kafka did not
    lose offsets; from ``until_offset`` on its offsets mean other records. ``recorded``: the journal continues without the
    offsets; if not, the partition waits for the decision of an operator.
    """

    topic: str
    partition: int
    from_offset: int
    until_offset: int
    recorded: bool
    detail: str
    new_incarnation: bool = False


class PartitionLag(msgspec.Struct, frozen=True):
    """How far one partition is, as offsets.

    ``topic``, ``partition``: the partition. ``position``: the next offset that is not taken in, or in a direct stream in no
    batch. ``completed``: the offset before which all batches are completed. ``end``: Kafka's end offset; None if it is unknown.
    """

    topic: str
    partition: int
    position: int
    completed: int
    end: int | None


class LagMeasured(_Happened, frozen=True, tag="lag-measured"):
    """How far the stream is behind Kafka, about every 10 s.

    ``not_taken_in``: records of Kafka that are not taken in, or in a direct stream in no batch. ``not_processed``: records of
    Kafka that are in no completed batch. ``lag_seconds``: age of the oldest record that is not processed; None in a direct
    stream. Each is None if it is unknown for a partition. ``partitions``: the partitions with the most records that are not
    processed, at most 100, each a :class:`PartitionLag`.
    """

    not_taken_in: int | None
    not_processed: int | None
    lag_seconds: float | None
    partitions: tuple[PartitionLag, ...]


Happened: TypeAlias = (
    StreamStarted
    | StreamStopped
    | ReceiverStarted
    | ReceiverStopped
    | ReceiverFailed
    | ReceiverError
    | ReceiverResumed
    | BlockAdded
    | BatchSubmitted
    | BatchStarted
    | OutputCompleted
    | BatchCompleted
    | BatchSkipped
    | PauseChanged
    | BatchFailed
    | RateChanged
    | GapFound
    | LagMeasured
)


class Listener:
    """Base class of listeners. Override the methods of the events that you need.

    One thread of its own calls each listener, in the order of the events, after the event is durable. If a listener falls
    behind by more than ``driver.listener_queue`` events or ``driver.listener_queue_bytes``, new events are dropped and
    ``forebay status`` counts them. An error that a method raises is logged once for each kind of error and method, and has no
    other effect. If a driver is killed, the next one may deliver an event again, or no driver delivers it. Rely on the journal
    (``forebay audit``) for what must not be missed.
    """

    def stream_started(self, event: StreamStarted) -> None: ...

    def stream_stopped(self, event: StreamStopped) -> None: ...

    def receiver_started(self, event: ReceiverStarted) -> None: ...

    def receiver_stopped(self, event: ReceiverStopped) -> None: ...

    def receiver_failed(self, event: ReceiverFailed) -> None: ...

    def receiver_error(self, event: ReceiverError) -> None: ...

    def receiver_resumed(self, event: ReceiverResumed) -> None: ...

    def block_added(self, event: BlockAdded) -> None: ...

    def batch_submitted(self, event: BatchSubmitted) -> None: ...

    def batch_started(self, event: BatchStarted) -> None: ...

    def output_completed(self, event: OutputCompleted) -> None: ...

    def batch_completed(self, event: BatchCompleted) -> None: ...

    def batch_skipped(self, event: BatchSkipped) -> None: ...

    def pause_changed(self, event: PauseChanged) -> None: ...

    def batch_failed(self, event: BatchFailed) -> None: ...

    def rate_changed(self, event: RateChanged) -> None: ...

    def gap_found(self, event: GapFound) -> None: ...

    def lag_measured(self, event: LagMeasured) -> None: ...


#: kind of event → the method of the listener that receives it
METHODS: Mapping[type[Any], str] = {
    StreamStarted: "stream_started",
    StreamStopped: "stream_stopped",
    ReceiverStarted: "receiver_started",
    ReceiverStopped: "receiver_stopped",
    ReceiverFailed: "receiver_failed",
    ReceiverError: "receiver_error",
    ReceiverResumed: "receiver_resumed",
    BlockAdded: "block_added",
    BatchSubmitted: "batch_submitted",
    BatchStarted: "batch_started",
    OutputCompleted: "output_completed",
    BatchCompleted: "batch_completed",
    BatchSkipped: "batch_skipped",
    PauseChanged: "pause_changed",
    BatchFailed: "batch_failed",
    RateChanged: "rate_changed",
    GapFound: "gap_found",
    LagMeasured: "lag_measured",
}
