"""Commands of operators to the driver."""

from __future__ import annotations

from forebay.messages.message import Message
from forebay.model.values import Amount, Number, NumberOrNone, Offset, PartitionNumber, Text, TimeMs, Topic


class AcceptGapRequest(Message, frozen=True, kw_only=True):
    """POST /v1/operator/accept-gap. The range must be the one that status shows: nobody accepts a loss unseen."""

    topic: Topic
    partition: PartitionNumber
    from_offset: Offset
    until_offset: Offset
    cause: str = ""  # who accepts it, and why


class AcceptLossRequest(Message, frozen=True, kw_only=True):
    """POST /v1/operator/accept-loss. ``ranges``: of the batch; none: every range of it that no tier can read."""

    batch_id: Number
    ranges: tuple[str, ...] = ()  # "topic/partition[from, until)"
    cause: str = ""  # who accepts it, and why


class ResetRequest(Message, frozen=True, kw_only=True):
    """POST /v1/operator/reset. A new life of a partition, or of all of a topic, that begins elsewhere. ``to``: earliest, latest,
    time (``value``: milliseconds), offset (``value``, of one partition). Without ``apply`` nothing is changed."""

    topic: Topic
    partition: NumberOrNone = -1  # -1: all that the stream has of the topic
    to: Text
    value: TimeMs = 0
    apply: bool = False
    cause: str = ""  # who asks for it, and why


class PlannedReset(Message, frozen=True, kw_only=True):
    """``life``: the new one, which begins at ``start``; the one before ends at ``position``."""

    topic: str
    partition: int
    incarnation: int
    position: int
    start: int


class ResetAnswer(Message, frozen=True, kw_only=True):
    done: bool
    partitions: tuple[PlannedReset, ...]


class FenceRequest(Message, frozen=True, kw_only=True):
    """POST /v1/operator/fence. The host of a receiver that ``partition`` waits for is gone for good: its epoch is outdated."""

    topic: Topic
    partition: PartitionNumber
    receiver_id: Text


class DropCursorRequest(Message, frozen=True, kw_only=True):
    """POST /v1/operator/drop-cursor. Nothing is held for it any more; its user, if one is at work, ends."""

    cursor: Text
    cause: str = ""  # who drops it, and why


class ReplayRequest(Message, frozen=True, kw_only=True):
    """POST /v1/operator/replay. Runs completed batches again: from ``batch`` on (an id, or a number of its sequence), or, if
    that is 0, from the first one at or after ``time_ms``. Refused if one of them is no longer held, or a replay is under way."""

    batch: Number = 0
    time_ms: TimeMs = 0
    cause: str = ""  # who asks for it, and why


class StopRequest(Message, frozen=True, kw_only=True):
    """POST /v1/operator/stop. ``drain``: receivers drain first, and all that was taken in is completed, within
    ``timeout_seconds`` (0: as ``driver.stop_timeout`` says). Answered at once; the driver is gone when it no longer answers."""

    drain: bool = False
    timeout_seconds: Amount = 0.0


class ForgetRequest(Message, frozen=True, kw_only=True):
    """POST /v1/operator/forget. The receiver or the host's agent of this ``name`` is gone on purpose: status no longer waits for
    it. One that comes back is known again."""

    name: Text


class RetryRequest(Message, frozen=True, kw_only=True):
    """POST /v1/operator/retry. The next attempt at every failed or unreadable batch begins now."""


class OperatorAnswer(Message, frozen=True, kw_only=True):
    message: str
