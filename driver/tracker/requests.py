"""What the tracker is asked: the messages of receivers, agents and operators (``forebay.messages``), and these, which only the
driver itself makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from driver.decisions.clean_up import CleanSegment
from driver.decisions.replay import HeldInKafka, RewindTo, no_spans
from driver.journal import events as ev
from driver.journal.history import FinishedBatch
from driver.journal.state import State
from forebay import messages as m
from forebay.kafka.consume.spans import Span
from forebay.model.values import TopicPartition
from wal.segments.layout import BlockPlace

#: signs of the words in which a person says who and why
CAUSE_LENGTH_MAX = 300


@dataclass(frozen=True, slots=True)
class FoundPartitions:
    """Discovery resolved where these partitions begin. Those already known are ignored."""

    starts: tuple[ev.IncarnationStart, ...]
    time_ms: int
    cause: str


@dataclass(frozen=True, slots=True)
class Allocate:
    """A batch interval has passed. ``tasks``: at least this many tasks, if there are as many blocks. ``empty``: if no block
    waits, a batch without any is made."""

    time_ms: int
    tasks: int
    empty: bool = False


@dataclass(frozen=True, slots=True)
class BeginSpans:
    """Partitions of a direct stream begin, as in ``events.SpansBegun``."""

    offsets: Mapping[str, int]
    topic_ids: Mapping[str, str]
    time_ms: int
    cause: str


@dataclass(frozen=True, slots=True)
class EndSpans:
    """Partitions of a direct stream are gone, or no longer what they were. ``again``: where those that go on in another life
    begin it; ``topic_ids``: theirs."""

    partitions: tuple[str, ...]
    time_ms: int
    cause: str
    again: Mapping[str, int] = field(default_factory=dict)
    topic_ids: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SkipSpans:
    """Kafka dropped these offsets of a direct stream before they were in a batch, as in ``events.SpansSkipped``."""

    spans: tuple[Span, ...]
    time_ms: int
    cause: str


@dataclass(frozen=True, slots=True)
class NameCursor:
    """How a direct stream's cursor in an intake is to be named. The answer: its name, an older one where it has one."""

    name: str
    time_ms: int


@dataclass(frozen=True, slots=True)
class AllocateSpans:
    """A direct stream's next batch. The answer: its id; None while ``max_queued_batches`` lie beyond the completed prefix."""

    spans: tuple[Span, ...]
    time_ms: int


@dataclass(frozen=True, slots=True)
class Complete:
    """The job returned. ``replay``: the number of the replay that ran the batch; 0 if none did."""

    batch_id: int
    time_ms: int
    attempts: int
    replay: int = 0


@dataclass(frozen=True, slots=True)
class CompleteOutput:
    """One output of several returned; others follow. ``replay``: as in Complete."""

    batch_id: int
    output: str
    time_ms: int
    replay: int = 0


@dataclass(frozen=True, slots=True)
class FailJob:
    """An attempt at an unfinished batch failed; nothing is journalled of one that is completed by now."""

    failure: ev.JobFailed


@dataclass(frozen=True, slots=True)
class KeepWindow:
    """From now on ``batches`` batches before an unfinished one stay readable."""

    batches: int


@dataclass(frozen=True, slots=True)
class LearnRate:
    """The job was seen to take ``rate`` records/s (``driver.backpressure``)."""

    rate: float
    time_ms: int


@dataclass(frozen=True, slots=True)
class BeginDrain:
    """The driver is to end, and all receivers are to drain before. → ids of those that are told to."""


@dataclass(frozen=True, slots=True)
class BeginReplay:
    """A person rewinds the cursor. ``archived``: the history, as it was when ``archived_number`` was its newest batch's.
    ``held_in_kafka``: of a direct stream; it must not ask anybody."""

    to: RewindTo
    archived: tuple[FinishedBatch, ...]
    archived_number: int
    cause: str
    held_in_kafka: HeldInKafka = no_spans


@dataclass(frozen=True, slots=True)
class CleanLocalCopies:
    """Local copies of finished batches may go: one open clean-up per host at a time."""


@dataclass(frozen=True, slots=True)
class CleanedUp:
    number: int


@dataclass(frozen=True, slots=True)
class Archived:
    batch_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Copied:
    """``path`` in the WAL's store durably holds the state before event ``next``. The answer: the copies that are kept."""

    next: int
    path: str


@dataclass(frozen=True, slots=True)
class Search:
    """A partition in trouble, for whose position the WAL is to be searched. ``limit``: what Kafka holds begins there; None:
    it will never hold these offsets again. ``waits_for``: writers that could still sync, in words; the search must begin
    after that of all of them is settled."""

    tp: TopicPartition
    incarnation: int
    topic_id: str
    position: int
    limit: int | None
    token: int
    waits_for: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Searches:
    """→ the ``Search`` of each partition whose trouble has not been tried yet."""


@dataclass(frozen=True, slots=True)
class Barred:
    """Barriers lie in the WAL. → whether each holds: nothing at or after it was deleted before it was made."""

    places: tuple[BlockPlace, ...]


@dataclass(frozen=True, slots=True)
class NothingToAdopt:
    """The WAL was searched and holds nothing at the position. ``adoptable_from``: the next offset that it holds, -1: none.
    → whether the trouble is decided upon now."""

    search: Search
    adoptable_from: int


@dataclass(frozen=True, slots=True)
class AdoptionBlocked:
    """For status. ``words``: why the WAL can't be searched; "": nothing hinders it any more."""

    tp: TopicPartition
    words: str


@dataclass(frozen=True, slots=True)
class HoldForReset:
    """Nobody is granted a claim of ``partitions`` until they are let go; whoever has one is told to claim again. May be
    repeated. → what they wait for before their life may end, in words; "": nothing."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Reset:
    """A person begins new lives of partitions that are held."""

    starts: tuple[ev.IncarnationStart, ...]
    words: str
    cause: str


@dataclass(frozen=True, slots=True)
class LetGo:
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class PlaceReceivers:
    """A placing interval has passed. → what changed of managed receivers since the last one, a sentence each."""


@dataclass(frozen=True, slots=True)
class ExpireCursors:
    """Cursors whose users were not heard for too long are forgotten. → a sentence for each."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Read the state: ``read(state)`` is called in the deciding thread and must not change it."""

    read: Callable[[State], Any]


Request = (
    m.RegisterRequest
    | m.LookupRequest
    | m.ClaimRequest
    | m.ReleaseRequest
    | m.ReportRequest
    | m.Fault
    | m.HeartbeatRequest
    | m.AgentHeartbeatRequest
    | m.AcceptGapRequest
    | m.AcceptLossRequest
    | m.FenceRequest
    | m.OpenCursorRequest
    | m.MoveCursorRequest
    | m.CloseCursorRequest
    | m.EarliestRequest
    | m.TimesRequest
    | m.BlocksRequest
    | m.DropCursorRequest
    | Searches
    | Barred
    | NothingToAdopt
    | AdoptionBlocked
    | FoundPartitions
    | Allocate
    | BeginSpans
    | EndSpans
    | SkipSpans
    | AllocateSpans
    | NameCursor
    | Complete
    | CompleteOutput
    | FailJob
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
    | LetGo
    | PlaceReceivers
    | ExpireCursors
    | Ask
)


def said_by(cause: str) -> str:
    """Who decided, and why, as the person's own tool said it: printable, and no longer than a line or two."""
    words = "".join(sign if sign.isprintable() else " " for sign in cause[:CAUSE_LENGTH_MAX]).strip()
    return words or "a person"
