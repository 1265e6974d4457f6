"""What the journal says: :class:`State`, which ``driver.journal.transitions.apply`` alone changes (INV-7)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import msgspec

from driver.journal import events as ev
from driver.journal.block_index import BlockIndex, Place
from driver.journal.timeline import REBUILDER
from forebay.kafka.consume.spans import Span
from forebay.model.errors import ForebayError
from forebay.model.values import (
    RESERVED_PREFIX,
    Block,
    Gap,
    LeaderEpoch,
    Number,
    Offset,
    OffsetOrNone,
    PartitionNumber,
    TopicPartition,
    count_of,
    numbered,
    timeline_of,
)
from forebay.model.wire import WIRE_NAMES

#: the writer of what ``forebay recover --apply`` writes into the WAL, under its journal epoch
REPAIR_WRITER = "forebay-repair"
#: as which the driver takes in what it finds in the WAL (``driver.background.adoption``)
ADOPTER = f"{RESERVED_PREFIX}adoption"


class BrokenInvariant(ForebayError):
    """The journal's events contradict an invariant. Not to be repaired by going on."""


class Incarnation(msgspec.Struct, rename={**WIRE_NAMES, "number": "life"}):
    """One life of a partition: offsets ``[start, end)``; ``end`` is None while it lasts."""

    number: Number
    topic_id: str
    start: Offset
    time_ms: int
    cause: str
    end: Offset | None = None


class RecordedGap(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    incarnation: int
    gap: Gap
    time_ms: int


class Writer(msgspec.Struct, frozen=True):
    """A receiver's epoch that was given ``token`` by its ``claim``-th request, and maybe older ones, and may still write."""

    receiver_id: str
    epoch: int
    token: int
    claim: Number


class EndedEpoch(msgspec.Struct, frozen=True):
    """An epoch that ended while it could still write. Its segments after number ``segments`` are all there, or never were."""

    receiver_id: str
    epoch: int
    segments: int


class OpenFault(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    """What Kafka says, as it was told. ``tried``: the newest token when adoption found nothing at the position, 0: not yet;
    ``adoptable_from``: where it could go on, -1: nowhere. ``kept``: the WAL went on with the life that is to end; from the new
    position nobody could see any more that it is, so nobody but the adopter may claim before that is decided."""

    kind: str
    position: Offset
    accept_until: Offset
    new_incarnation: bool
    topic_id: str
    leader_epoch: LeaderEpoch
    tried: int = 0
    adoptable_from: OffsetOrNone = -1
    kept: bool = False

    @property
    def begins_incarnation(self) -> bool:
        """Whether accepting begins a new life; else it records a gap."""
        return self.new_incarnation and self.adoptable_from < 0

    @property
    def accepted_until(self) -> int:
        """Where intake goes on once it is accepted."""
        return self.adoptable_from if self.adoptable_from >= 0 else self.accept_until

    def moved(self, position: int) -> OpenFault | None:
        """What is left of it after the WAL went on to ``position``: a life that is to end still is."""
        if not self.new_incarnation:
            return None
        return msgspec.structs.replace(self, position=position, tried=0, adoptable_from=-1, kept=True)


class Partition(msgspec.Struct, rename=WIRE_NAMES):
    """``token`` is the newest ever given; it is *current* only while ``owner`` is not empty. ``writers``: who was given it or
    an older one and neither released it nor was fenced, one entry for each epoch."""

    topic: str
    partition: PartitionNumber
    incarnations: list[Incarnation]
    position: Offset
    completed: Offset
    leader_epoch: LeaderEpoch
    token: int = 0
    owner: str = ""
    owner_epoch: int = 0
    gaps: list[RecordedGap] = []
    fault: OpenFault | None = None
    writers: list[Writer] = []

    @property
    def incarnation(self) -> Incarnation:
        return self.incarnations[-1]

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def topic_id(self, incarnation: int) -> str:
        """The topic's id in ``life``; "" where the broker could not tell."""
        return next((one.topic_id for one in self.incarnations if one.number == incarnation), "")

    @property
    def preceding_gap(self) -> Gap | None:
        """The gap that ends at the position, if the last thing recorded of this life is one; if gaps follow one another, all
        of them as one, so that the WAL alone tells how the position got here."""
        begin, cause = self.position, ""
        for recorded in reversed(self.gaps):
            if recorded.incarnation != self.incarnation.number or recorded.gap.until_offset != begin:
                break
            begin, cause = recorded.gap.from_offset, cause or recorded.gap.cause
        return Gap(begin, self.position, cause) if begin < self.position else None


class Receiver(msgspec.Struct):
    receiver_id: str
    epoch: int
    host: str
    instance_id: str
    accepted: Number = 0  # the highest sequence of a block taken in under this epoch
    segments: int = 0  # … of a segment of this epoch that held one, or that clean-up deleted
    past: tuple[str, ...] = ()  # instances that were superseded, newest first


class Batch(msgspec.Struct, rename=WIRE_NAMES):
    batch_id: int
    number: int
    time_ms: int
    tasks: tuple[tuple[str, ...], ...]
    completed_ms: int | None = None
    attempts: int = 0
    lost: tuple[str, ...] = ()
    loss_causes: dict[str, str] = {}  # range → who accepted its loss, and why
    outputs: tuple[str, ...] = ()  # of several, those that returned while others had yet to
    spans: tuple[Span, ...] = ()  # of a direct stream, which has no blocks: one for each task
    incarnations: tuple[int, ...] = ()  # of the partition of each span; () under an older release

    @property
    def block_ids(self) -> list[str]:
        return [block_id for task in self.tasks for block_id in task]

    @property
    def lived_spans(self) -> Iterator[tuple[Span, int]]:
        """Each of ``spans`` with its life."""
        return zip(self.spans, self.incarnations or itertools.repeat(1), strict=False)


class Replay(msgspec.Struct):
    """A replay, under way or done; ``last_id`` is of its newest batch. ``lost``: ranges whose loss was accepted during it, with
    who and why. ``completed_ms``: None while it is under way."""

    replay: int
    first_id: int
    last_id: int
    batches: int
    begun_ms: int
    cause: str
    completed: int = 0
    completed_ms: int | None = None
    attempts: int = 0
    lost: dict[str, str] = {}


class LearnedRate(msgspec.Struct, frozen=True):
    """Records/s that the job was seen to take, and when."""

    rate: float
    time_ms: int


class Cleanup(msgspec.Struct, frozen=True):
    number: int
    host: str
    blocks: tuple[str, ...]
    segments: tuple[str, ...]


class SnapshotCopy(msgspec.Struct, frozen=True):
    """A copy of the state, in the WAL's store: all events before number ``next``."""

    next: int
    path: str


class RepeatedBatch(msgspec.Struct, frozen=True):
    """A batch of an older lineage that may have run, and whose blocks wait again. ``batch_id`` 0: begun after the snapshot
    copy, under ids that nobody knows. ``ranges``: labels."""

    batch_id: int
    number: int
    ranges: tuple[str, ...]


class AttestedRange(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    """Offsets that a snapshot copy calls finished, of which no history survived."""

    topic: str
    partition: int
    incarnation: int
    from_offset: int
    until_offset: int


class Rebuild(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    """How ``lineage`` began: from the snapshot copy at ``copy``; ``cause``: who did it. Batches of older lineages with a
    number above ``known_number`` do not count: what they held waited again. Batches of its own have numbers above
    ``batch_count``."""

    timeline: int
    time_ms: int
    cause: str
    copy: str
    known_number: int
    repeated: tuple[RepeatedBatch, ...]
    attested: tuple[AttestedRange, ...]
    batch_count: int = 0


class Cursor(msgspec.Struct):
    """How far a query has finished: ``vector``, by ``topic/partition``; what lies after it is held. ``user``: who reads by it
    under ``epoch``, or did last, and proves it by a key with ``key_digest``. ``heard_ms``: when that one was last journalled to
    be there."""

    name: str
    epoch: int
    user: str
    vector: dict[str, Place]
    opened_ms: int
    heard_ms: int
    key_digest: str = ""


class EndedCursor(msgspec.Struct, frozen=True):
    """``vector``: where it stood. ``expired``: for want of a user, and nobody has seen to it yet."""

    name: str
    user: str
    vector: dict[str, Place]
    time_ms: int
    cause: str
    expired: bool


class State(msgspec.Struct, dict=True, rename=WIRE_NAMES):
    """Everything the journal says. A snapshot is this struct as msgpack.

    ``blocks``: every block whose bytes are not yet deleted, by id; ``waiting``: those in no batch, in order of acceptance
    (values are unused: a dict keeps order and finds fast); ``batch_of``: block id → batch id. Whoever adds, moves, releases or
    drops a block changes :attr:`index` too.
    """

    stream: str
    timeline: int
    created: bool = False
    events: int = 0  # how many were applied since the lineage began: the number of the next one
    epochs: int = 0  # given in this lineage: receivers' epochs
    tokens: int = 0
    batch_count: int = 0
    cleanup_count: int = 0
    partitions: dict[str, Partition] = {}
    receivers: dict[str, Receiver] = {}
    blocks: dict[str, Block] = {}
    waiting: dict[str, bool] = {}
    batches: dict[int, Batch] = {}
    batch_of: dict[str, int] = {}
    released: dict[str, int] = {}  # blocks of archived batches → when their batch was completed; bytes still there
    cleanups: dict[int, Cleanup] = {}
    cleaning_blocks: dict[str, bool] = {}  # local copies that an open intent names
    cleaning_segments: dict[str, bool] = {}
    cursors: dict[str, Cursor] = {}
    topics: dict[str, bool] = {}
    batches_completed: int = 0
    records_completed: int = 0
    completed_number: int = 0  # the contiguous completed prefix, as a batch number
    archived_number: int = 0  # batches up to this number are in the history alone
    replays: list[Replay] = []  # the newest, with numbers that follow one another; the last one may be under way
    replaying: dict[int, ev.ReplayedBatch] = {}  # what it has yet to run, in order
    replay_window: dict[int, ev.ReplayedBatch] = {}  # the batches before it that its windows reach back to, in order
    window_batches: int = 0  # so many batches before an unfinished one stay readable
    shaped: int = 0  # number after that of the newest event that added a partition or began a life
    copies: tuple[SnapshotCopy, ...] = ()  # the last two, the older first
    uncovered: dict[str, int] = {}  # released blocks of which not every copy says so → number of the event that did
    unbarred: list[EndedEpoch] = []  # oldest first; only a store of whole objects needs barriers
    rebuilds: list[Rebuild] = []
    learned: LearnedRate | None = None
    direct: bool = False  # whether it is a direct stream's; False also for one that an older release began
    next_offsets: dict[str, int] = {}  # of a direct stream: topic/partition → where its next batch begins
    topic_ids: dict[str, str] = {}  # of a direct stream
    cursor: str = ""  # of a direct stream that reads through an intake: its cursor there
    ended_cursors: list[EndedCursor] = []  # the newest, oldest first
    lost: dict[str, str] = {}  # ranges of blocks, by their labels, whose loss a person accepted → the cause
    failures: dict[int, ev.JobFailed] = {}  # unfinished batch → the last attempt at it, which failed

    @property
    def is_direct(self) -> bool:
        """Whether it is a direct stream's, whose batches have spans and no blocks."""
        return self.direct or bool(self.next_offsets) or any(batch.spans for batch in self.batches.values())

    def __post_init__(self) -> None:
        try:
            self.__dict__["index"] = BlockIndex.of(self)
        except LookupError as error:  # in the words that a decoder takes for damage
            raise ValueError(f"it names {error}, which it does not hold") from None

    @property
    def index(self) -> BlockIndex:
        """Derived from the fields; no part of a snapshot."""
        index: BlockIndex = self.__dict__["index"]
        return index

    def is_covered(self, path: str) -> bool:
        """Whether both copies say of every block in the segment that it is released (INV-8)."""
        share = self.index.segments.get(path)
        return share is None or (len(self.copies) == 2 and self.uncovered.keys().isdisjoint(share.blocks))

    def is_void(self, batch_id: int, number: int) -> bool:
        """As :func:`is_void`."""
        return is_void(self.rebuilds, batch_id, number)

    def partition(self, tp: TopicPartition) -> Partition | None:
        return self.partitions.get(str(tp))

    def next_epoch(self) -> int:
        return numbered(self.timeline, self.epochs + 1)

    def next_token(self) -> int:
        return numbered(self.timeline, self.tokens + 1)

    def next_batch_id(self) -> int:
        return numbered(self.timeline, self.batch_count + 1)

    def next_replay(self) -> int:
        return self.replays[-1].replay + 1 if self.replays else 1

    @property
    def replay(self) -> Replay | None:
        """The one under way."""
        return self.replays[-1] if self.replaying else None

    def is_past(self, number: int) -> bool:
        """Whether the batch is in the completed prefix and no unfinished batch's window reaches back to it any more."""
        return number <= self.completed_number - self.window_batches

    def unfinished(self) -> list[Batch]:
        """Allocated, not completed; in order."""
        return sorted((b for b in self.batches.values() if b.completed_ms is None), key=lambda batch: batch.batch_id)


def is_void(rebuilds: Iterable[Rebuild], batch_id: int, number: int) -> bool:
    """Whether a rebuild dissolved the batch, though a driver of an older lineage may still have called it finished."""
    following = next((r for r in rebuilds if r.timeline > timeline_of(batch_id)), None)
    return following is not None and number > following.known_number


def is_fenced(state: State, writer: str, epoch: int) -> bool:
    """Whether nothing that ``writer`` still writes into the WAL under ``epoch`` can count. Recovery and a rebuild lead the
    journal while they write, so beside whoever leads now they are at their end."""
    receiver = state.receivers.get(writer)
    return (
        timeline_of(epoch) < state.timeline
        or writer in (REPAIR_WRITER, REBUILDER)
        or (receiver is not None and receiver.epoch != epoch)
        or is_forgotten(state, writer, epoch)
    )


def is_forgotten(state: State, receiver_id: str, epoch: int) -> bool:
    """Whether ``epoch`` was given in this lineage before ``state``, to a receiver that the state no longer knows."""
    return (
        receiver_id not in state.receivers
        and timeline_of(epoch) == state.timeline
        and 0 < count_of(epoch) <= state.epochs
    )
