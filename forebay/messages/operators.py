"""Requests of operators to the driver."""

from __future__ import annotations

from forebay.messages.message import Message
from forebay.model.bounds import Amount, Number, NumberOrNone, Offset, PartitionNumber, Text, TimeMs, Topic


class AcceptGapRequest(Message, frozen=True, kw_only=True):
    """POST /v1/operator/accept-gap. Accepts a gap and continues after it.

    The range must be the one that the status shows, so that no operator accepts a loss unseen.
    """

    topic: Topic
    partition: PartitionNumber
    from_offset: Offset
    until_offset: Offset
    cause: str = ""  # the operator and the reason


class AcceptLossRequest(Message, frozen=True, kw_only=True):
    """POST /v1/operator/accept-loss. Completes a batch without ``ranges``; if empty, without those that no tier can read."""

    batch_id: Number
    ranges: tuple[str, ...] = ()  # "topic/partition[from, until)"
    cause: str = ""  # the operator and the reason


class ResetRequest(Message, frozen=True, kw_only=True):
    """POST /v1/operator/reset. Begins a new incarnation at another offset, for one partition or a whole topic.

    ``to``: ``earliest``, ``latest``, ``time`` (``value`` in milliseconds) or ``offset`` (``value``, for one partition). Without
    ``apply`` the driver only answers what it would do.
    """

    topic: Topic
    partition: NumberOrNone = -1  # -1: all partitions of the topic in this stream
    to: Text
    value: TimeMs = 0
    apply: bool = False
    cause: str = ""  # the operator and the reason


class PlannedReset(Message, frozen=True, kw_only=True):
    """The new ``incarnation`` begins at ``start``. The one before it ends at ``position``."""

    topic: str
    partition: int
    incarnation: int
    position: int
    start: int


class ResetAnswer(Message, frozen=True, kw_only=True):
    """Answer to :class:`ResetRequest`. ``done``: the new incarnations are in the journal."""

    done: bool
    partitions: tuple[PlannedReset, ...]


class FenceRequest(Message, frozen=True, kw_only=True):
    """POST /v1/operator/fence. Fences a receiver whose host is lost for good, and for which ``partition`` waits."""

    topic: Topic
    partition: PartitionNumber
    receiver_id: Text
    cause: str = ""  # the operator and the reason


class DropCursorRequest(Message, frozen=True, kw_only=True):
    """POST /v1/operator/drop-cursor. Ends a cursor and an active user of it, and holds no records for it any more."""

    cursor: Text
    cause: str = ""  # the operator and the reason


class ReplayRequest(Message, frozen=True, kw_only=True):
    """POST /v1/operator/replay. Runs completed batches again, from ``batch`` (an id or a sequence number) on.

    If ``batch`` is 0, the replay begins with the first batch at or after ``time_ms``. The driver refuses if one of the batches is
    no longer held, or if a replay is under way.
    """

    batch: Number = 0
    time_ms: TimeMs = 0
    cause: str = ""  # the operator and the reason


class StopRequest(Message, frozen=True, kw_only=True):
    """POST /v1/operator/stop. Stops the driver.

    With ``drain``, receivers drain first and all records taken in are completed, within ``timeout_seconds`` (0:
    ``driver.stop_timeout``). The driver answers immediately, and has stopped when it no longer answers.
    """

    drain: bool = False
    timeout_seconds: Amount = 0.0
    cause: str = ""  # the operator and the reason


class ForgetRequest(Message, frozen=True, kw_only=True):
    """POST /v1/operator/forget. Removes a receiver or a host's agent that was stopped on purpose from the status.

    If it sends a heartbeat again, it is known again.
    """

    name: Text
    cause: str = ""  # the operator and the reason


class RetryRequest(Message, frozen=True, kw_only=True):
    """POST /v1/operator/retry. Begins the next attempt at each failed or unreadable batch now."""

    cause: str = ""  # the operator and the reason


class PauseRequest(Message, frozen=True, kw_only=True):
    """POST /v1/operator/pause. Pauses or resumes the batches; intake continues. The journal keeps the pause over a restart."""

    paused: bool
    cause: str = ""  # the operator and the reason


class SkipBatchRequest(Message, frozen=True, kw_only=True):
    """POST /v1/operator/skip. Ends a failed or unreadable batch without its job. The audit lists its records as a loss."""

    batch_id: Number
    cause: Text  # the operator and the reason


class RestartReceiverRequest(Message, frozen=True, kw_only=True):
    """POST /v1/operator/restart-receiver. Drains a receiver; its agent or its supervisor then starts it again."""

    receiver_id: Text
    cause: str = ""  # the operator and the reason


class OperatorAnswer(Message, frozen=True, kw_only=True):
    """Answer to an operator's request, as text."""

    message: str
