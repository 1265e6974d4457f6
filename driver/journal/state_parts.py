"""The parts of the state that results from the journal's events: partitions, receivers, batches, replays, cursors and others."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from driver.journal.block_index import Place
from driver.journal.statistics import BatchStatistics
from driver.journal.versions import StateCommit
from forebay.kafka.consume.spans import OffsetRange, with_incarnations
from forebay.model.bounds import LeaderEpoch, Number, Offset, OffsetOrNone, PartitionNumber
from forebay.model.values import Gap, TopicPartition
from forebay.model.wire import WIRE_NAMES


class Incarnation(msgspec.Struct, rename={**WIRE_NAMES, "number": "life"}):
    """One incarnation of a partition: offsets ``[start, end)``; ``end`` is None for the newest one.

    ``first_epoch``: leader epoch at the end of the first range that was taken in; ``last_epoch``: of the last record that was
    taken in, once the incarnation has ended. -1: not known, as in journals of older releases.
    """

    number: Number
    topic_id: str
    start: Offset
    time_ms: int
    cause: str
    end: Offset | None = None
    first_epoch: LeaderEpoch = -1
    last_epoch: LeaderEpoch = -1


class RecordedGap(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    """A gap, and the time when it was journalled."""

    incarnation: int
    gap: Gap
    time_ms: int


class Writer(msgspec.Struct, frozen=True):
    """A receiver's epoch that may still write under ``token`` and under older tokens. ``claim``: the number of the claim that
    got this token."""

    receiver_id: str
    epoch: int
    token: int
    claim: Number


class EndedEpoch(msgspec.Struct, frozen=True):
    """An epoch of a receiver. No segment after number ``segments`` of it was ever deleted."""

    receiver_id: str
    epoch: int
    segments: int


class OpenFault(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    """A fault of a partition: Kafka does not continue at ``position``. The other fields are as the receiver reported them.

    ``tried``: the partition's newest token when a search of the WAL found no block at the position; 0 if the WAL has not been
    searched yet. ``adoptable_from``: the next offset that the WAL has; -1: none. ``kept``: adoption has moved the position
    within the incarnation that accepting the fault ends. A receiver that starts at the new position could not detect the fault,
    so only the adopter may claim the partition before the decision.
    """

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
        """Whether accepting the fault begins a new incarnation; if not, it records a gap."""
        return self.new_incarnation and self.adoptable_from < 0

    @property
    def accepted_until(self) -> int:
        """The offset at which intake continues after an operator or the policy has accepted the fault."""
        return self.adoptable_from if self.adoptable_from >= 0 else self.accept_until

    def moved(self, position: int) -> OpenFault | None:
        """Return the fault after adoption moved the position to ``position``; None if nothing is left to decide."""
        if not self.new_incarnation:
            return None
        return msgspec.structs.replace(self, position=position, tried=0, adoptable_from=-1, kept=True)


class Partition(msgspec.Struct, rename=WIRE_NAMES):
    """A partition of the stream.

    ``token`` is the newest token ever given; it is *current* only while ``owner`` is not empty. ``writers``: one entry for each
    receiver epoch that got this token or an older one, and neither released it nor was fenced.
    """

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
        """Return the topic's id in ``incarnation``; "" if the broker did not report it."""
        return next((one.topic_id for one in self.incarnations if one.number == incarnation), "")

    @property
    def preceding_gap(self) -> Gap | None:
        """The gap that ends at the position, or None. Gaps that touch are returned as one gap, so that the WAL alone explains the
        position."""
        begin, cause = self.position, ""
        for recorded in reversed(self.gaps):
            if recorded.incarnation != self.incarnation.number or recorded.gap.until_offset != begin:
                break
            begin, cause = recorded.gap.from_offset, cause or recorded.gap.cause
        return Gap(begin, self.position, cause) if begin < self.position else None


class Receiver(msgspec.Struct):
    """A receiver id and its newest epoch."""

    receiver_id: str
    epoch: int
    host: str
    instance_id: str
    accepted: Number = 0  # highest sequence of a block accepted under this epoch
    segments: int = 0  # highest sequence of a segment of this epoch that has an accepted block or was deleted
    past: tuple[str, ...] = ()  # superseded instances, newest first
    claimed: bool = False  # whether this epoch ever got a token; always False if an older release registered it
    deleted: int = 0  # highest sequence of a segment of this epoch that clean-up was to delete


class Batch(msgspec.Struct, rename=WIRE_NAMES):
    """A batch that is not in the history yet. ``completed_ms``: None until it is completed."""

    batch_id: int
    number: int
    time_ms: int
    tasks: tuple[tuple[str, ...], ...]
    completed_ms: int | None = None
    attempts: int = 0
    lost: tuple[str, ...] = ()
    loss_causes: dict[str, str] = {}  # range → who accepted its loss, and why
    skipped: str = ""  # who skipped the batch, and why; "": it was not skipped
    outputs: tuple[str, ...] = ()  # outputs that are done, while others are not
    spans: tuple[OffsetRange, ...] = ()  # of a direct stream, which has no blocks: one for each task
    incarnations: tuple[int, ...] = ()  # the incarnation of each span's partition; () under an older release
    statistics: BatchStatistics | None = None  # once it is completed; None under an older release
    states: tuple[StateCommit, ...] = ()  # keyed states that its outputs have changed

    @property
    def block_ids(self) -> list[str]:
        return [block_id for task in self.tasks for block_id in task]

    @property
    def spans_with_incarnations(self) -> Iterator[tuple[OffsetRange, int]]:
        """Return each span of the batch with its incarnation."""
        return with_incarnations(self.spans, self.incarnations)


class JointBatch(msgspec.Struct, frozen=True):
    """This stream's batch in a joint batch. ``leader``, ``partners``: as in ``BatchAllocated``. ``skipped``: who skipped it, and
    why; "": it was not skipped."""

    batch_id: int
    leader: str
    partners: dict[str, int] = {}
    skipped: str = ""


class Replay(msgspec.Struct):
    """A replay. ``lost``: range → who accepted its loss during the replay, and why. ``completed_ms``: None while it runs.
    ``reach``: as in ``ReplayBegun``."""

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
    reach: int = 0


class ReplayedRun(msgspec.Struct, frozen=True):
    """A batch that a replay has completed. ``blocks``, ``records``: how many it has."""

    replay: int
    batch_id: int
    number: int
    time_ms: int
    completed_ms: int
    attempts: int
    blocks: int
    records: int
    statistics: BatchStatistics | None = None
    skipped: str = ""  # who skipped the batch, and why; "": it was not skipped


class LearnedRate(msgspec.Struct, frozen=True):
    """The rate (records/s) that the driver learned, and the time when it did."""

    rate: float
    time_ms: int


class Cleanup(msgspec.Struct, frozen=True):
    """A deletion that is intended and not done yet: of the local copies of ``blocks`` at ``host``, or of WAL segments."""

    number: int
    host: str
    blocks: tuple[str, ...]
    segments: tuple[str, ...]


class SnapshotCopy(msgspec.Struct, frozen=True):
    """A copy of the state in the WAL's store, with all events before number ``next``."""

    next: int
    path: str


class RepeatedBatch(msgspec.Struct, frozen=True):
    """A batch of an older timeline that may have run, and whose blocks wait again.

    ``batch_id`` 0: all batches started after the snapshot copy, whose ids are unknown. ``ranges``: labels.
    """

    batch_id: int
    number: int
    ranges: tuple[str, ...]


class AttestedRange(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    """Offsets that a snapshot copy calls completed, and whose batches no history names."""

    topic: str
    partition: int
    incarnation: int
    from_offset: int
    until_offset: int


class Rebuild(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    """The rebuild that began ``timeline``, from the snapshot copy at ``copy``. ``cause``: who requested it, and why.

    Batches of older timelines with a number above ``known_number`` are void: the rebuild put their blocks back among the
    waiting blocks. Batches of the new timeline have numbers above ``batch_count``.
    """

    timeline: int
    time_ms: int
    cause: str
    copy: str
    known_number: int
    repeated: tuple[RepeatedBatch, ...]
    attested: tuple[AttestedRange, ...]
    batch_count: int = 0


class Cursor(msgspec.Struct, rename={"heartbeat_ms": "heard_ms"}):
    """How far a query has finished.

    ``vector``: ``topic/partition`` → place; the WAL keeps everything after it. ``user``: the query that reads by the cursor under
    ``epoch``, or did last; it proves its identity by a key with ``key_digest``. ``heartbeat_ms``: the last journalled heartbeat.
    """

    name: str
    epoch: int
    user: str
    vector: dict[str, Place]
    opened_ms: int
    heartbeat_ms: int
    key_digest: str = ""


class EndedCursor(msgspec.Struct, frozen=True):
    """A cursor that ended at ``vector``. ``expired``: its user sent no heartbeat, and no operator has acknowledged that yet."""

    name: str
    user: str
    vector: dict[str, Place]
    time_ms: int
    cause: str
    expired: bool
