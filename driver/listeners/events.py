"""The events of a stream that listeners receive, and :class:`Listener`, the base class of listeners in user code.

A web hook receives the same events as JSON, with ``kind`` as the tag.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec


class _Happened(msgspec.Struct, frozen=True, tag_field="kind", kw_only=True, rename={"new_incarnation": "new_life"}):
    time_ms: int  # when the driver noticed it, milliseconds since 1970 UTC


class ReceiverStarted(_Happened, frozen=True, tag="receiver-started"):
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


class BlockAdded(_Happened, frozen=True, tag="block-added"):
    """The driver accepted a block. ``ranges``: the labels of its offset ranges, such as ``flights/0[0, 10)``."""

    block_id: str
    receiver_id: str
    records: int
    ranges: tuple[str, ...]


class BatchSubmitted(_Happened, frozen=True, tag="batch-submitted"):
    """The journal has the batch, so it will run. ``replay``: the number of the replay that runs it; 0 outside a replay."""

    batch_id: int
    number: int
    blocks: int
    replay: int = 0


class BatchStarted(_Happened, frozen=True, tag="batch-started"):
    """The driver calls the job for ``output``."""

    batch_id: int
    number: int
    output: str
    attempt: int
    records: int
    replay: int = 0


class BatchCompleted(_Happened, frozen=True, tag="batch-completed"):
    """All outputs of the batch are done."""

    batch_id: int
    attempts: int
    replay: int = 0


class BatchSkipped(_Happened, frozen=True, tag="batch-skipped"):
    """An operator ended a failed or unreadable batch without its job. ``cause``: the operator and the reason."""

    batch_id: int
    attempts: int
    cause: str
    replay: int = 0


class PauseChanged(_Happened, frozen=True, tag="pause-changed"):
    """An operator paused or resumed the batches. ``cause``: the operator and the reason."""

    paused: bool
    cause: str


class BatchFailed(_Happened, frozen=True, tag="batch-failed"):
    """One attempt at a batch failed.

    ``final``: this was attempt ``driver.job_max_failures`` or a later one. The batch is failed and intact, and the driver ends or
    tries it again after a longer delay. ``unreadable``: the task could not read a block of the batch; the driver tries again
    without limit.
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

    ``new_incarnation``: Kafka did not lose offsets; from ``until_offset`` on its offsets mean other records. ``recorded``: the
    journal continues without the offsets; if not, the partition waits for the decision of an operator.
    """

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
    | BatchSkipped
    | PauseChanged
    | BatchFailed
    | RateChanged
    | GapFound
)


class Listener:
    """Base class of listeners. Override the methods of the events that you need.

    One thread of its own calls each listener, in the order of the events, after the event is durable. If a listener falls behind
    by more than ``driver.listener_queue`` events, new events are dropped and ``forebay status`` counts them. An error that a
    method raises is logged once for each kind of error and method, and has no other effect. If a driver is killed, the next one
    may deliver an event again, or no driver delivers it. Rely on the journal (``forebay audit``) for what must not be missed.
    """

    def receiver_started(self, event: ReceiverStarted) -> None: ...

    def receiver_stopped(self, event: ReceiverStopped) -> None: ...

    def receiver_failed(self, event: ReceiverFailed) -> None: ...

    def block_added(self, event: BlockAdded) -> None: ...

    def batch_submitted(self, event: BatchSubmitted) -> None: ...

    def batch_started(self, event: BatchStarted) -> None: ...

    def batch_completed(self, event: BatchCompleted) -> None: ...

    def batch_skipped(self, event: BatchSkipped) -> None: ...

    def pause_changed(self, event: PauseChanged) -> None: ...

    def batch_failed(self, event: BatchFailed) -> None: ...

    def rate_changed(self, event: RateChanged) -> None: ...

    def gap_found(self, event: GapFound) -> None: ...


#: kind of event → the method of the listener that receives it
METHODS: Mapping[type[Any], str] = {
    ReceiverStarted: "receiver_started",
    ReceiverStopped: "receiver_stopped",
    ReceiverFailed: "receiver_failed",
    BlockAdded: "block_added",
    BatchSubmitted: "batch_submitted",
    BatchStarted: "batch_started",
    BatchCompleted: "batch_completed",
    BatchSkipped: "batch_skipped",
    PauseChanged: "pause_changed",
    BatchFailed: "batch_failed",
    RateChanged: "rate_changed",
    GapFound: "gap_found",
}
