"""The journal's events: one class for each kind of decision. One module, because together they are the journal's format.

Each event is a msgpack map with its tag under ``event``. A new release only adds fields, with a default. A reader ignores
fields that it does not know. If it does not know an event, the journal is of a newer release, and the reader refuses it
(docs/FORMAT.md).
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from driver.journal.statistics import BatchStatistics
from driver.journal.versions import StateCommit
from forebay.kafka.consume.spans import OffsetRange
from forebay.model.bounds import OFFSET_MAX, LeaderEpoch, Number, Offset, OffsetOrNone, PartitionNumber, Sha256, TimeMs
from forebay.model.errors import ForebayError, UsageError
from forebay.model.values import Block, Gap, Handle
from forebay.model.wire import WIRE_NAMES


class _Event(msgspec.Struct, frozen=True, tag_field="event", rename=WIRE_NAMES):
    pass


class IncarnationStart(msgspec.Struct, frozen=True):
    """The start of an incarnation of a partition: its first offset, and the topic's id ("" if the broker does not report it)."""

    topic: str
    partition: PartitionNumber
    start: Offset
    topic_id: str = ""
    leader_epoch: LeaderEpoch = -1

    def __post_init__(self) -> None:
        if not 0 <= self.start <= OFFSET_MAX:
            raise UsageError(
                f"partition {self.topic}/{self.partition} can't start at offset {self.start}: offsets are 0 to {OFFSET_MAX}"
            )


class StreamCreated(_Event, frozen=True, tag="stream-created"):
    """The stream begins: the start of every partition, resolved from the starting policy, before any claim."""

    starts: tuple[IncarnationStart, ...]
    time_ms: TimeMs
    cause: str  # the policy, as configured


class PartitionsAdded(_Event, frozen=True, tag="partitions-added"):
    """New partitions begin."""

    starts: tuple[IncarnationStart, ...]
    time_ms: TimeMs
    cause: str


class IncarnationBegun(_Event, frozen=True, tag="life-begun"):
    """A new incarnation of a known partition begins. It ends the partition's token (rule 8)."""

    start: IncarnationStart
    time_ms: TimeMs
    cause: str


class ReceiverRegistered(_Event, frozen=True, tag="receiver-registered"):
    """A new epoch of ``receiver_id`` begins. It ends the claims of the older epoch."""

    receiver_id: str
    host: str
    instance_id: str
    epoch: Number


class ReceiverFenced(_Event, frozen=True, tag="receiver-fenced"):
    """The receiver's epoch ends as if it had registered again: an operator reports that its host no longer exists, or the
    journal needs room for new ids and this receiver has sent no heartbeat for a long time."""

    receiver_id: str
    epoch: Number  # no process has it


class ReceiversForgotten(_Event, frozen=True, tag="receivers-forgotten"):
    """The journal drops these receiver ids to make room for new ones: they have no claim and no blocks. Their epochs are
    fenced."""

    receiver_ids: tuple[str, ...]


class ClaimGiven(_Event, frozen=True, tag="claim-given"):
    """The driver gave a receiver the claim of a partition, under a new token."""

    topic: str
    partition: PartitionNumber
    receiver_id: str
    epoch: Number
    token: Number
    claim: Number = 0  # the number of the receiver's request; 0: of an older release


class ClaimReleased(_Event, frozen=True, tag="claim-released"):
    """The owner of the partition released its claim."""

    topic: str
    partition: PartitionNumber
    token: Number


class WriterSettled(_Event, frozen=True, tag="writer-settled"):
    """A receiver reported that it can no longer write under the outdated tokens that it was given for the partition."""

    topic: str
    partition: PartitionNumber
    receiver_id: str
    epoch: Number


class EpochBarred(_Event, frozen=True, tag="epoch-barred"):
    """A barrier is durable in the WAL: no further block of the ended epoch can be stored."""

    receiver_id: str
    epoch: Number


class BlockAdded(_Event, frozen=True, tag="block-added"):
    """The driver accepted a block."""

    block: Block


class BlockMoved(_Event, frozen=True, tag="block-moved"):
    """Recovery wrote the bytes of an accepted block again, at ``handle``. The block's ranges and digests stay the same.

    ``local``: whether the host's copy, if there is one, has the same bytes. ``sha256``: the SHA-256 of the payload at the new
    place; unset: unchanged, or unknown.
    """

    block_id: str
    handle: Handle
    local: bool
    sha256: Sha256 | msgspec.UnsetType = msgspec.UNSET


class FaultRecorded(_Event, frozen=True, tag="trouble-found"):
    """Kafka does not continue at the position, and an operator must decide. The fields describe the effect of accepting the
    fault."""

    topic: str
    partition: PartitionNumber
    kind: str
    position: Offset
    accept_until: Offset  # the gap's end, or the start of the new incarnation
    new_incarnation: bool
    topic_id: str
    leader_epoch: LeaderEpoch


class AdoptionTried(_Event, frozen=True, tag="adoption-tried"):
    """The WAL has no block at the position, and no writer under ``token`` or an older token can still add one.

    ``adoptable_from``: the next offset that the WAL has, where a gap ends; -1: none.
    """

    topic: str
    partition: PartitionNumber
    token: Number
    adoptable_from: OffsetOrNone = -1


class GapRecorded(_Event, frozen=True, tag="gap-recorded"):
    """Kafka lost offsets. The position moves to the gap's end, and the token ends."""

    topic: str
    partition: PartitionNumber
    gap: Gap
    time_ms: TimeMs


class BatchAllocated(_Event, frozen=True, tag="batch-allocated"):
    """The driver made a batch. ``tasks``: for each task its block ids, in order. ``leader``: in a joint batch, the stream whose
    job gets it; "" in others. ``partners``: in that stream, each other stream with its batch."""

    batch_id: Number
    number: Number
    time_ms: TimeMs
    tasks: tuple[tuple[str, ...], ...]
    leader: str = ""
    partners: dict[str, Number] = {}


class OutputCompleted(_Event, frozen=True, tag="output-completed"):
    """One of several outputs of a batch is done, and others follow. Retries and reruns omit it. ``states``: the keyed states
    that it has changed."""

    batch_id: Number
    output: str
    time_ms: TimeMs
    replay: int = 0
    states: tuple[StateCommit, ...] = ()


class WindowChanged(_Event, frozen=True, tag="window-changed"):
    """From now on, ``batches`` batches before an uncompleted one stay readable."""

    batches: int


class BatchCompleted(_Event, frozen=True, tag="batch-completed"):
    """The job returned for the batch. ``attempts``: those of the driver that completed it. ``statistics``: None from an older
    release. ``states``: the keyed states that the last output has changed."""

    batch_id: Number
    time_ms: TimeMs
    attempts: int
    statistics: BatchStatistics | None = None
    states: tuple[StateCommit, ...] = ()


class BatchSkipped(_Event, frozen=True, tag="batch-skipped"):
    """An operator ended a batch that the job can't complete. No output gets its records any more; the audit lists them as a loss.

    ``cause``: who skipped it, and why. ``replay``: the replay that ran the batch; 0: its first run.
    """

    batch_id: Number
    time_ms: TimeMs
    attempts: int
    cause: str
    replay: int = 0


class PauseChanged(_Event, frozen=True, tag="pause-changed"):
    """An operator paused or resumed the batches. While they are paused, no batch begins, and intake continues."""

    paused: bool
    time_ms: TimeMs
    cause: str


class JobFailed(_Event, frozen=True, tag="job-failed"):
    """An attempt at an output of a batch failed.

    ``error``: class and message, one line. ``place``: file, line and function of the user's code that raised the error; "" if
    unknown. ``attempts``: number of failed attempts under all drivers; 0: earlier failures no longer count. ``repeats``: how
    many of the last attempts failed with this error at this place. ``since_ms``: when the first attempt failed.
    """

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
    """The driver learned that the job processes ``rate`` records/s. The next driver starts with this rate."""

    rate: float
    time_ms: TimeMs


class LossAccepted(_Event, frozen=True, tag="loss-accepted"):
    """An operator accepts that the batch omits these ranges. ``ranges``: ``BlockRange.label``. ``cause``: who accepted it,
    and why."""

    batch_id: Number
    ranges: tuple[str, ...]
    time_ms: TimeMs
    cause: str = ""


class ReplayedBatch(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    """A completed batch that a replay runs again, with the ranges that were accepted as lost (``lost``)."""

    batch_id: Number
    number: Number
    time_ms: TimeMs
    tasks: tuple[tuple[str, ...], ...]
    lost: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()  # outputs done in this replay, while others are not
    spans: tuple[OffsetRange, ...] = ()  # of a direct stream
    incarnations: tuple[int, ...] = ()  # the incarnation of each span's partition; () under an older release
    skipped: bool = False  # in a window: an operator skipped it


class ReplayBegun(_Event, frozen=True, tag="replay-begun"):
    """An operator rewound the stream: ``batches`` run again, in order, before any other batch. Their blocks stay until then.

    ``window``: the batches before the first of them that their windows contain, in order. ``reach``: how many batches before one
    of them its windows by time contain at most.
    """

    replay: int
    batches: tuple[ReplayedBatch, ...]
    time_ms: TimeMs
    cause: str
    window: tuple[ReplayedBatch, ...] = ()
    reach: int = 0


class ReplayCompleted(_Event, frozen=True, tag="replay-completed"):
    """The job returned for the next batch of a replay. Fields as in BatchCompleted."""

    replay: int
    batch_id: Number
    time_ms: TimeMs
    attempts: int
    statistics: BatchStatistics | None = None
    states: tuple[StateCommit, ...] = ()


class CleanupIntended(_Event, frozen=True, tag="cleanup-intended"):
    """The driver intends to delete the local copies of ``blocks`` at ``host``, or whole WAL segments (INV-8). It deletes them
    only when this event is durable."""

    number: Number
    host: str = ""
    blocks: tuple[str, ...] = ()
    segments: tuple[str, ...] = ()


class CleanupDone(_Event, frozen=True, tag="cleanup-done"):
    """Everything that the clean-up with this number intended is deleted."""

    number: Number


class BatchesArchived(_Event, frozen=True, tag="batches-archived"):
    """These completed batches are durable in the history, and leave the state."""

    batch_ids: tuple[int, ...]


class SnapshotCopied(_Event, frozen=True, tag="snapshot-copied"):
    """A snapshot copy is durable at ``path`` in the WAL's store: the state before event number ``next``."""

    next: int
    path: str


class CursorOpened(_Event, frozen=True, tag="cursor-opened"):
    """``user`` reads by the cursor ``name`` from now on, under ``epoch``. The user before it is fenced. A new name creates
    the cursor.

    ``vector``: where it begins to read: ``topic/partition`` → (incarnation, offset). ``left``: partitions that were held for the
    cursor and that it does not read. Other partitions stay as they were. ``key_digest``: SHA-256 of the key by which the user
    proves that it opened the cursor; "" from an older release.
    """

    name: str
    epoch: Number
    user: str
    vector: dict[str, tuple[Number, Offset]]
    time_ms: TimeMs
    left: tuple[str, ...] = ()
    key_digest: str = ""


class CursorMoved(_Event, frozen=True, tag="cursor-moved"):
    """A cursor's user has finished everything before ``vector``; fields as in CursorOpened. An empty ``vector`` records a
    heartbeat."""

    name: str
    vector: dict[str, tuple[Number, Offset]]
    time_ms: TimeMs = 0
    left: tuple[str, ...] = ()


class CursorEnded(_Event, frozen=True, tag="cursor-ended"):
    """Nothing is held for the cursor any more: it ``expired``, an operator dropped it, or an operator acknowledged that it
    expired. ``cause``: a sentence for people."""

    name: str
    time_ms: TimeMs
    cause: str
    expired: bool = False


class SpansBegun(_Event, frozen=True, tag="spans-begun"):
    """Partitions of a direct stream begin an incarnation at ``offsets`` (key ``topic/partition``).

    ``topic_ids``: topic → its id, "" if the broker does not report it. ``cause``: why they start there, a sentence for people.
    """

    offsets: dict[str, Offset]
    topic_ids: dict[str, str]
    time_ms: TimeMs
    cause: str


class SpansEnded(_Event, frozen=True, tag="spans-ended"):
    """The incarnations of these partitions (``topic/partition``) of a direct stream end: Kafka no longer has the partition,
    or its offsets mean other records from now on. The stream continues without them until they begin again."""

    partitions: tuple[str, ...]
    time_ms: TimeMs
    cause: str


class SpansAllocated(_Event, frozen=True, tag="spans-allocated"):
    """A batch of a direct stream: for each task the span that it reads. A span begins where the partition's last one ended."""

    batch_id: Number
    number: Number
    time_ms: TimeMs
    spans: tuple[OffsetRange, ...]


class SpansSkipped(_Event, frozen=True, tag="spans-skipped"):
    """Offsets of a direct stream that Kafka dropped before they were in a batch, as gaps. A gap begins where the partition's last
    span ended, and the next span begins at the gap's end."""

    spans: tuple[OffsetRange, ...]
    time_ms: TimeMs
    cause: str


class CursorNamed(_Event, frozen=True, tag="cursor-named"):
    """The name of the cursor by which a direct stream reads through an intake. It is journalled before the cursor is opened."""

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
    | BatchSkipped
    | PauseChanged
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
    """An event contains a value that the journal's format can't represent, or that no reader of the journal accepts."""


def refuse_unwritable(event: Event) -> None:
    """Raise UnwritableEvent if the journal could not write ``event`` or not read it back. Call it before the event is applied.

    A struct's values are not checked when it is made, and the encoder checks no bounds. An integer given as 1.0, or a text longer
    than its limit, would be written, and then no reader could open the journal.
    """
    try:
        written = _encoder.encode(event)
    except (OverflowError, TypeError, ValueError) as error:
        raise UnwritableEvent(f"{type(event).__name__} can't be written to the journal: {error}") from None
    try:
        _decoder.decode(written)
    except (msgspec.MsgspecError, ForebayError, ValueError) as error:
        raise UnwritableEvent(f"{type(event).__name__} can't be read back from the journal: {error}") from None
