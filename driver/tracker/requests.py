"""Requests to the tracker: the messages of receivers, agents, queries and operators, and requests of the driver's own threads.

The messages are in ``forebay.messages``. A request of the driver's own threads is an :class:`Answered`, which names the type of
its answer. One that only reads the state is a :class:`Read`; it is defined beside the code that sends it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from driver.decisions.clean_up import CleanSegment
from driver.decisions.replay import HeldInKafka, RewindTo, no_spans
from driver.journal import events as ev
from driver.journal.history import FinishedBatch
from driver.journal.state import State
from driver.journal.state_parts import EndedEpoch, SnapshotCopy
from driver.journal.statistics import BatchStatistics
from driver.journal.versions import StateCommit
from forebay import messages as m
from forebay.kafka.consume.spans import OffsetRange
from forebay.model.values import TopicPartition
from wal.segments.layout import BlockPlace

AnswerType = TypeVar("AnswerType")

#: maximum number of characters that are kept of who decided, and why
CAUSE_LENGTH_MAX = 300


class Answered(Generic[AnswerType]):
    """A request of one of the driver's own threads. Its type parameter is the type of the answer."""

    __slots__ = ()


class Read(Answered[AnswerType], ABC):
    """Reads the state. A subclass is named for what it reads; it needs no case in the tracker."""

    __slots__ = ()

    @abstractmethod
    def read(self, state: State) -> AnswerType:
        """Return the answer. Called in the decision loop; must not change ``state`` and must not block."""


class Ask(Protocol):
    """Sends a request to the decision loop and waits for the answer, as :meth:`driver.decision_loop.loop.DriverLoop.ask`."""

    def __call__(self, request: Answered[AnswerType], /) -> AnswerType: ...


@dataclass(frozen=True, slots=True)
class FoundPartitions(Answered[bool]):
    """Add partitions that begin at the offsets that discovery found, except known ones. Answer: whether any was new."""

    starts: tuple[ev.IncarnationStart, ...]
    time_ms: int
    cause: str


@dataclass(frozen=True, slots=True)
class Allocate(Answered["int | None"]):
    """Make a batch of the blocks that wait. Answer: its id; None: no batch was made.

    ``tasks``: minimum number of tasks, if there are as many blocks. ``empty``: whether a batch without blocks is made if no block
    waits.
    """

    time_ms: int
    tasks: int
    empty: bool = False


@dataclass(frozen=True, slots=True)
class NextAllocated:
    """Answer to :class:`AllocateNext`. ``batch_id``: None: no batch was made. ``left``: whether blocks wait for a later batch."""

    batch_id: int | None
    left: bool


@dataclass(frozen=True, slots=True)
class AllocateNext(Answered[NextAllocated]):
    """Make one batch of the blocks that wait, for a worker that begins it now. None is made while batches are paused, during a
    replay, and while ``max_queued_batches`` are beyond the completed prefix.

    ``time_ms``: the batch's time; None: the time of this decision. ``tasks``: as in :class:`Allocate`.
    """

    time_ms: int | None
    tasks: int


@dataclass(frozen=True, slots=True)
class AllocateJoint(Answered[NextAllocated]):
    """Make this stream's batch of a joint batch, also without blocks. None is made while batches are paused, during a replay, and
    while an earlier joint batch is unfinished.

    ``leader``: the stream whose job gets it. ``partners``: if this stream leads, each other stream with its batch. ``named``: if
    it follows, its batch in the leader's newest joint batch (0: none). Then an unfinished batch that the leader has not named is
    the answer.
    """

    time_ms: int | None
    tasks: int
    leader: str
    partners: Mapping[str, int] = field(default_factory=dict)
    named: int = 0


@dataclass(frozen=True, slots=True)
class BeginSpans(Answered[None]):
    """Begin partitions of a direct stream, as in ``events.SpansBegun``."""

    offsets: Mapping[str, int]
    topic_ids: Mapping[str, str]
    time_ms: int
    cause: str


@dataclass(frozen=True, slots=True)
class EndSpans(Answered[None]):
    """End partitions of a direct stream that no longer exist, or whose topic was created again.

    ``again``: partition → the offset at which it continues in a new incarnation. ``topic_ids``: the topic ids of these
    partitions.
    """

    partitions: tuple[str, ...]
    time_ms: int
    cause: str
    again: Mapping[str, int] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SkipSpans(Answered[None]):
    """Continue without offsets that Kafka deleted before a direct stream read them, as in ``events.SpansSkipped``."""

    spans: tuple[OffsetRange, ...]
    time_ms: int
    cause: str


@dataclass(frozen=True, slots=True)
class NameCursor(Answered[str]):
    """Name a direct stream's cursor in an intake. Answer: its name, which is the older one if it has one."""

    name: str
    time_ms: int


@dataclass(frozen=True, slots=True)
class AllocateSpans(Answered["int | None"]):
    """Make a direct stream's next batch. Answer: its id; None: ``max_queued_batches`` are beyond the completed prefix."""

    spans: tuple[OffsetRange, ...]
    time_ms: int


@dataclass(frozen=True, slots=True)
class Complete(Answered[None]):
    """Complete a batch whose job returned. ``replay``: the number of the replay that ran the batch; 0: no replay. ``states``: the
    keyed states that its last output has changed."""

    batch_id: int
    time_ms: int
    attempts: int
    replay: int = 0
    statistics: BatchStatistics | None = None
    states: tuple[StateCommit, ...] = ()


@dataclass(frozen=True, slots=True)
class CompleteOutput(Answered[None]):
    """Complete one of several outputs of a batch, but not the last. ``replay``, ``states``: as in :class:`Complete`."""

    batch_id: int
    output: str
    time_ms: int
    replay: int = 0
    states: tuple[StateCommit, ...] = ()


@dataclass(frozen=True, slots=True)
class FailJob(Answered[None]):
    """Journal a failed attempt at a batch, unless the batch is completed by now."""

    failure: ev.JobFailed


@dataclass(frozen=True, slots=True)
class SkipBatch(Answered[None]):
    """End a batch that the job can't complete, as an operator requests. ``replay``: as in :class:`Complete`."""

    batch_id: int
    time_ms: int
    attempts: int
    cause: str
    replay: int = 0


@dataclass(frozen=True, slots=True)
class KeepWindow(Answered[None]):
    """From now on, keep the ``batches`` batches before each unfinished batch readable, and as many as windows of ``length_ms``
    need."""

    batches: int
    length_ms: int = 0


@dataclass(frozen=True, slots=True)
class LearnRate(Answered[None]):
    """Learn that the job processes ``rate`` records per second (``driver.backpressure``)."""

    rate: float
    time_ms: int


@dataclass(frozen=True, slots=True)
class BeginDrain(Answered[tuple[str, ...]]):
    """Order all receivers to drain, before the driver ends. Answer: their ids."""


@dataclass(frozen=True, slots=True)
class BeginReplay(Answered[m.OperatorAnswer]):
    """Run completed batches again, as an operator requests.

    ``archived``: the batches of the history when ``archived_number`` was the number of the newest one. ``held_in_kafka``: for a
    direct stream, returns whether Kafka still holds a span; it must not block.
    """

    to: RewindTo
    archived: tuple[FinishedBatch, ...]
    archived_number: int
    cause: str
    held_in_kafka: HeldInKafka = no_spans


@dataclass(frozen=True, slots=True)
class CleanLocalCopies(Answered[None]):
    """Delete local copies of finished batches, with at most one open clean-up per host."""


@dataclass(frozen=True, slots=True)
class CleanedUp(Answered[None]):
    """End the clean-up ``number``: its segment was deleted."""

    number: int


@dataclass(frozen=True, slots=True)
class Archived(Answered[None]):
    """Drop batches from the state, because the history durably has them. Batches that a window contains stay."""

    batch_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Copied(Answered[tuple[SnapshotCopy, ...]]):
    """Record a durable snapshot copy at ``path`` of the state before event ``next``. Answer: the copies that are kept."""

    next: int
    path: str


@dataclass(frozen=True, slots=True)
class Search:
    """A search of the WAL for the position of a partition with a fault.

    ``limit``: the first offset that Kafka holds; None: Kafka will never hold these offsets again. ``waits_for``: ids of receivers
    that may still write blocks of the partition; the search must begin after all of them are settled.
    """

    tp: TopicPartition
    incarnation: int
    topic_id: str
    position: int
    limit: int | None
    token: int
    waits_for: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Searches(Answered[tuple[Search, ...]]):
    """List the searches of all partitions with a fault for which the WAL has not been searched yet."""


@dataclass(frozen=True, slots=True)
class Barred(Answered[bool]):
    """Record barriers in the WAL. Answer: whether each holds: nothing at or after it was deleted before it was written."""

    places: tuple[BlockPlace, ...]


@dataclass(frozen=True, slots=True)
class NothingToAdopt(Answered[bool]):
    """Record that the WAL was searched and holds nothing at the position. Answer: whether the fault can be decided now.

    ``adoptable_from``: the next offset that the WAL holds; -1: none. ``epochs``: those whose segments were looked up, as the
    state knew them before the search.
    """

    search: Search
    adoptable_from: int
    epochs: Sequence[EndedEpoch] = ()


@dataclass(frozen=True, slots=True)
class AdoptionBlocked(Answered[None]):
    """Show ``reason`` in the status: why the WAL cannot be searched; "" if it can be searched again."""

    tp: TopicPartition
    reason: str


@dataclass(frozen=True, slots=True)
class HoldForReset(Answered[str]):
    """Give no claim of ``partitions`` until :class:`EndHold`, and order their owners to claim again. May be repeated.

    Answer: a sentence that says what the partitions wait for before their incarnation may end; "" if they wait for nothing.
    """

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Reset(Answered[None]):
    """Begin new incarnations of held partitions, as an operator requests. ``requested``: the request, as the log names it."""

    starts: tuple[ev.IncarnationStart, ...]
    requested: str
    cause: str


@dataclass(frozen=True, slots=True)
class EndHold(Answered[None]):
    """Give claims of ``partitions`` again."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class PlaceReceivers(Answered[tuple[str, ...]]):
    """Place managed receivers. Answer: a sentence for each change since the last time."""


@dataclass(frozen=True, slots=True)
class ExpireCursors(Answered[tuple[str, ...]]):
    """End cursors whose last heartbeat is older than ``driver.cursor_timeout``. Answer: a sentence for each."""


ReceiverRequest = (
    m.RegisterRequest
    | m.LookupRequest
    | m.ClaimRequest
    | m.ReleaseRequest
    | m.ReportRequest
    | m.Fault
    | m.HeartbeatRequest
)
#: requests that arrive as messages
MessageRequest = (
    ReceiverRequest
    | m.AgentHeartbeatRequest
    | m.AcceptGapRequest
    | m.AcceptLossRequest
    | m.FenceRequest
    | m.PauseRequest
    | m.RestartReceiverRequest
    | m.OpenCursorRequest
    | m.MoveCursorRequest
    | m.CloseCursorRequest
    | m.EarliestRequest
    | m.TimesRequest
    | m.BlocksRequest
    | m.DropCursorRequest
)
Request = (
    MessageRequest
    | Searches
    | Barred
    | NothingToAdopt
    | AdoptionBlocked
    | FoundPartitions
    | Allocate
    | AllocateNext
    | AllocateJoint
    | BeginSpans
    | EndSpans
    | SkipSpans
    | AllocateSpans
    | NameCursor
    | Complete
    | CompleteOutput
    | FailJob
    | SkipBatch
    | KeepWindow
    | LearnRate
    | BeginDrain
    | BeginReplay
    | CleanLocalCopies
    | CleanSegment
    | CleanedUp
    | Archived
    | Copied
    | HoldForReset
    | Reset
    | EndHold
    | PlaceReceivers
    | ExpireCursors
    | Read[Any]
)


def said_by(cause: str) -> str:
    """Return ``cause`` (who decided, and why) for the journal: only its printable characters, at most ``CAUSE_LENGTH_MAX`` of
    them."""
    printable = "".join(sign if sign.isprintable() else " " for sign in cause[:CAUSE_LENGTH_MAX]).strip()
    return printable or "a person"
