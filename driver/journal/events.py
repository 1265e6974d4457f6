"""The journal's events: what was decided, in the order of decision. Versioned data, no code.

Each is a msgpack map with its tag under ``event``. A field is only ever added, with a default; a reader ignores what it does
not know; an event it does not know makes the journal one of a newer release, which it refuses (docs/FORMAT.md).
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from forebay.kafka.consume.spans import Span
from forebay.model.errors import ForebayError, UsageError
from forebay.model.values import (
    OFFSET_MAX,
    Block,
    Gap,
    Handle,
    LeaderEpoch,
    Number,
    Offset,
    OffsetOrNone,
    PartitionNumber,
    Sha256,
    TimeMs,
)
from forebay.model.wire import WIRE_NAMES


class _Event(msgspec.Struct, frozen=True, tag_field="event", rename=WIRE_NAMES):
    pass


class IncarnationStart(msgspec.Struct, frozen=True):
    """The beginning of a life: offsets from ``start`` on, of the topic with ``topic_id`` ("" where the broker can't tell)."""

    topic: str
    partition: PartitionNumber
    start: Offset
    topic_id: str = ""
    leader_epoch: LeaderEpoch = -1

    def __post_init__(self) -> None:
        if not 0 <= self.start <= OFFSET_MAX:
            raise UsageError(
                f"{self.topic}/{self.partition} can't begin at {self.start}: offsets go from 0 to {OFFSET_MAX}"
            )


class StreamCreated(_Event, frozen=True, tag="stream-created"):
    """The starting policy, resolved for every partition there is, in one event, before any claim."""

    starts: tuple[IncarnationStart, ...]
    time_ms: TimeMs
    cause: str  # the policy, as configured


class PartitionsAdded(_Event, frozen=True, tag="partitions-added"):
    starts: tuple[IncarnationStart, ...]
    time_ms: TimeMs
    cause: str


class IncarnationBegun(_Event, frozen=True, tag="life-begun"):
    """A new life of a known partition; ends its token (rule 8)."""

    start: IncarnationStart
    time_ms: TimeMs
    cause: str


class ReceiverRegistered(_Event, frozen=True, tag="receiver-registered"):
    """A new epoch of ``receiver_id``; ends the claims of its older one."""

    receiver_id: str
    host: str
    instance_id: str
    epoch: Number


class ReceiverFenced(_Event, frozen=True, tag="receiver-fenced"):
    """A person says that the receiver's host is gone for good, or ids run out and it was not heard for long: its epoch ends as if
    it had registered again."""

    receiver_id: str
    epoch: Number  # nobody's


class ReceiversForgotten(_Event, frozen=True, tag="receivers-forgotten"):
    """These ids make room for others: they hold no claim, and no block of them is left. Their epochs are fenced."""

    receiver_ids: tuple[str, ...]


class ClaimGiven(_Event, frozen=True, tag="claim-given"):
    topic: str
    partition: PartitionNumber
    receiver_id: str
    epoch: Number
    token: Number
    claim: Number = 0  # the number of the receiver's request; 0: an older release


class ClaimReleased(_Event, frozen=True, tag="claim-released"):
    topic: str
    partition: PartitionNumber
    token: Number


class WriterSettled(_Event, frozen=True, tag="writer-settled"):
    """A receiver said that it can't write any more under the outdated tokens of the partition that it was given."""

    topic: str
    partition: PartitionNumber
    receiver_id: str
    epoch: Number


class EpochBarred(_Event, frozen=True, tag="epoch-barred"):
    """A barrier durably lies in the WAL: nothing that the epoch sent before it ended can land any more."""

    receiver_id: str
    epoch: Number


class BlockAdded(_Event, frozen=True, tag="block-added"):
    block: Block


class BlockMoved(_Event, frozen=True, tag="block-moved"):
    """The bytes of an accepted block lie at ``handle`` from now on: recovery wrote them again. Its ranges and digests are the
    same; ``local``: whether the host's copy, if there is one, holds these very bytes. ``sha256``: of the payload there; unset:
    that of the block so far, or not known."""

    block_id: str
    handle: Handle
    local: bool
    sha256: Sha256 | msgspec.UnsetType = msgspec.UNSET


class FaultRecorded(_Event, frozen=True, tag="trouble-found"):
    """Kafka does not go on at the position; a person decides. ``accept`` is what accepting would do."""

    topic: str
    partition: PartitionNumber
    kind: str
    position: Offset
    accept_until: Offset  # the gap's end, or the start of the new life
    new_incarnation: bool
    topic_id: str
    leader_epoch: LeaderEpoch


class AdoptionTried(_Event, frozen=True, tag="adoption-tried"):
    """No writer under ``token`` or an older one can still sync, and the WAL holds nothing at the position. ``adoptable_from``:
    the next offset that it does hold: a gap ends there. -1: none."""

    topic: str
    partition: PartitionNumber
    token: Number
    adoptable_from: OffsetOrNone = -1


class GapRecorded(_Event, frozen=True, tag="gap-recorded"):
    """Offsets that Kafka lost. Moves the position to the gap's end and ends the token."""

    topic: str
    partition: PartitionNumber
    gap: Gap
    time_ms: TimeMs


class BatchAllocated(_Event, frozen=True, tag="batch-allocated"):
    """``tasks``: block ids, packed into tasks, in order."""

    batch_id: Number
    number: Number
    time_ms: TimeMs
    tasks: tuple[tuple[str, ...], ...]


class OutputCompleted(_Event, frozen=True, tag="output-completed"):
    """One of several outputs of a batch returned, and others follow: a retry or a rerun leaves it out."""

    batch_id: Number
    output: str
    time_ms: TimeMs
    replay: int = 0


class WindowChanged(_Event, frozen=True, tag="window-changed"):
    """So many batches before an unfinished one stay readable from now on."""

    batches: int


class BatchCompleted(_Event, frozen=True, tag="batch-completed"):
    batch_id: Number
    time_ms: TimeMs
    attempts: int


class JobFailed(_Event, frozen=True, tag="job-failed"):
    """An attempt to make an output of a batch failed. ``error``: its class and message, one line; ``place``: the file, line and
    function of the user's code where it was raised, "" if none is known. ``attempts``: all that failed, over every driver;
    ``repeats``: how many of the last ones failed with this error at this place. ``since_ms``: when the first one failed.
    ``attempts`` 0: none of them counts any more."""

    batch_id: int
    output: str
    error: str
    place: str
    attempts: int
    repeats: int
    since_ms: int
    time_ms: int
    replay: int = 0


class RateLearned(_Event, frozen=True, tag="rate-learned"):
    """The job was seen to take ``rate`` records/s: the next driver begins with it."""

    rate: float
    time_ms: TimeMs


class LossAccepted(_Event, frozen=True, tag="loss-accepted"):
    """A person accepts that these ranges of a batch are not read. ``ranges``: ``OffsetRange.label``. ``cause``: who, why."""

    batch_id: Number
    ranges: tuple[str, ...]
    time_ms: TimeMs
    cause: str = ""


class ReplayedBatch(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    """A completed batch that is to run again: as it was, ``lost`` ranges included."""

    batch_id: Number
    number: Number
    time_ms: TimeMs
    tasks: tuple[tuple[str, ...], ...]
    lost: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()  # those that returned in this replay, while others had yet to
    spans: tuple[Span, ...] = ()  # of a direct stream
    incarnations: tuple[int, ...] = ()  # of the partition of each span; () under an older release


class ReplayBegun(_Event, frozen=True, tag="replay-begun"):
    """The cursor was rewound: ``batches`` run again, in order, before any other. Their blocks are needed until then.
    ``window``: the batches before the first of them, in order, that their windows reach back to."""

    replay: int
    batches: tuple[ReplayedBatch, ...]
    time_ms: TimeMs
    cause: str
    window: tuple[ReplayedBatch, ...] = ()


class ReplayCompleted(_Event, frozen=True, tag="replay-completed"):
    """The job returned for one batch of a replay, the next in its order."""

    replay: int
    batch_id: Number
    time_ms: TimeMs
    attempts: int


class CleanupIntended(_Event, frozen=True, tag="cleanup-intended"):
    """Local copies of ``blocks`` at ``host``, or whole WAL segments, are about to be deleted (INV-8)."""

    number: Number
    host: str = ""
    blocks: tuple[str, ...] = ()
    segments: tuple[str, ...] = ()


class CleanupDone(_Event, frozen=True, tag="cleanup-done"):
    number: Number


class BatchesArchived(_Event, frozen=True, tag="batches-archived"):
    """The history durably holds these completed batches; the state drops them."""

    batch_ids: tuple[int, ...]


class SnapshotCopied(_Event, frozen=True, tag="snapshot-copied"):
    """``path`` in the WAL's store durably holds the state as it was before event number ``next``."""

    next: int
    path: str


class CursorOpened(_Event, frozen=True, tag="cursor-opened"):
    """``user`` reads by the cursor ``name`` from now on, under ``epoch``; whoever did before is fenced. An unknown name makes the
    cursor. ``vector``: where it begins to read, key ``topic/partition`` → (life, offset); ``left``: partitions that it does not
    read, though they were held for it; others stay as they were. ``key_digest``: SHA-256 of what the user proves by that it is
    the one that opened it; "" of an older release's."""

    name: str
    epoch: Number
    user: str
    vector: dict[str, tuple[Number, Offset]]
    time_ms: TimeMs
    left: tuple[str, ...] = ()
    key_digest: str = ""


class CursorMoved(_Event, frozen=True, tag="cursor-moved"):
    """A cursor's user has finished what lies before ``vector``; fields as in CursorOpened. Nothing moved: it was heard of."""

    name: str
    vector: dict[str, tuple[Number, Offset]]
    time_ms: TimeMs = 0
    left: tuple[str, ...] = ()


class CursorEnded(_Event, frozen=True, tag="cursor-ended"):
    """Nothing is held for the cursor any more: it ``expired``, or a person dropped it, or has seen that it expired. ``cause``: in
    words."""

    name: str
    time_ms: TimeMs
    cause: str
    expired: bool = False


class SpansBegun(_Event, frozen=True, tag="spans-begun"):
    """Partitions of a direct stream begin at ``offsets`` (key ``topic/partition``), each a life; a partition that ended begins
    its next one. ``topic_ids``: topic → its id, "" where the broker can't tell. ``cause``: why there, in words."""

    offsets: dict[str, Offset]
    topic_ids: dict[str, str]
    time_ms: TimeMs
    cause: str


class SpansEnded(_Event, frozen=True, tag="spans-ended"):
    """The lives of these partitions (``topic/partition``) of a direct stream end: they are gone from Kafka, or their offsets mean
    other records from now on. The stream goes on without them, until they begin again."""

    partitions: tuple[str, ...]
    time_ms: TimeMs
    cause: str


class SpansAllocated(_Event, frozen=True, tag="spans-allocated"):
    """A batch of a direct stream: for each task the span that it reads. Each begins where the partition's last one ended."""

    batch_id: Number
    number: Number
    time_ms: TimeMs
    spans: tuple[Span, ...]


class SpansSkipped(_Event, frozen=True, tag="spans-skipped"):
    """Offsets of a direct stream that Kafka dropped before they were in a batch: gaps. Each begins where the partition's last
    span ended, and the next one begins at its end."""

    spans: tuple[Span, ...]
    time_ms: TimeMs
    cause: str


class CursorNamed(_Event, frozen=True, tag="cursor-named"):
    """A direct stream that reads through an intake has this cursor there, from before it is first opened."""

    name: str
    time_ms: TimeMs


Event: TypeAlias = (
    StreamCreated
    | PartitionsAdded
    | IncarnationBegun
    | ReceiverRegistered
    | ReceiverFenced
    | ReceiversForgotten
    | ClaimGiven
    | ClaimReleased
    | WriterSettled
    | EpochBarred
    | BlockAdded
    | BlockMoved
    | FaultRecorded
    | AdoptionTried
    | GapRecorded
    | BatchAllocated
    | OutputCompleted
    | WindowChanged
    | BatchCompleted
    | JobFailed
    | RateLearned
    | LossAccepted
    | ReplayBegun
    | ReplayCompleted
    | CleanupIntended
    | CleanupDone
    | BatchesArchived
    | SnapshotCopied
    | CursorOpened
    | CursorMoved
    | CursorEnded
    | SpansBegun
    | SpansEnded
    | SpansAllocated
    | SpansSkipped
    | CursorNamed
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)


class UnwritableEvent(UsageError):
    """An event holds a value that the journal's format can't, or that no reader of the journal takes."""


def refuse_unwritable(event: Event) -> None:
    """Raises UnwritableEvent where the journal could not write ``event``, or not read it back: to be asked before it is applied.

    Python does not check a struct's values when it is made, and the encoder checks no bounds: a whole number given as 1.0, or a
    text beyond its length, would be written, and would keep the journal shut.
    """
    try:
        written = _encoder.encode(event)
    except (OverflowError, TypeError, ValueError) as error:
        raise UnwritableEvent(f"{type(event).__name__} can't be written to the journal: {error}") from None
    try:
        _decoder.decode(written)
    except (msgspec.MsgspecError, ForebayError, ValueError) as error:
        raise UnwritableEvent(f"{type(event).__name__} can't be read back from the journal: {error}") from None
