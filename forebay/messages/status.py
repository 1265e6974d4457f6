"""What the driver shows of the stream: its status, its problems and its lag."""

from __future__ import annotations

import msgspec

from forebay.messages.cursors import CursorPlace
from forebay.messages.message import Message
from forebay.messages.receivers import ErrorNote


class TrackedPartition(Message, frozen=True, kw_only=True):
    """One partition as the journal holds it, with what its receiver last said of it."""

    topic: str
    partition: int
    incarnation: int
    topic_id: str
    position: int  # taken in
    completed: int  # up to here all batches are completed
    high_watermark: int  # the log's end in Kafka; -1 if nobody told yet
    receiver_id: str  # "" if unclaimed
    token: int
    state: str  # as PartitionStatus.state; "unclaimed"
    fault: str = ""  # what must be decided, with the command that does it
    foreign: str = ""  # where somebody else has set the group's offset, which changes nothing
    rate: float = 0.0  # as PartitionStatus.rate
    end_age_seconds: float = -1.0  # since high_watermark was read; -1: not known
    lag: int | None = None  # offsets that are not taken in; None: not known, since the end is too old


class TrackedReceiver(Message, frozen=True, kw_only=True):
    receiver_id: str
    epoch: int
    host: str
    state: str  # registered | starting | active | waiting | draining | lost | fenced
    detail: str
    silent_seconds: float  # since its last heartbeat, -1 before the first
    buffered_bytes: int
    records: int
    counters: dict[str, int] = msgspec.field(default_factory=dict)
    errors: tuple[ErrorNote, ...] = ()
    rate: float = 0.0  # as HeartbeatRequest.rate
    release: str = ""  # of its software; "": not heard yet


class ManagedReceiver(Message, frozen=True, kw_only=True):
    """A receiver that the driver keeps by an agent."""

    receiver_id: str
    state: str  # scheduled | active | draining | stopped | failed
    host: str  # where it runs or is to be started; "" while it has no place
    pid: int = 0
    restarts: int = 0  # since this driver began to lead
    exit_code: int | None = None  # of its last end; negative: the signal
    detail: str = ""  # what it waits for, why it ended
    moves_to: str = ""  # the host where it starts when it has drained here
    fault: str = ""  # what a person must do


class TrackedAgent(Message, frozen=True, kw_only=True):
    host: str
    url: str
    silent_seconds: float
    blocks: int
    used_bytes: int
    free_bytes: int
    labels: tuple[str, ...] = ()
    capacity: int = 0  # managed receivers that it may run
    state: str = "active"  # as AgentHeartbeatRequest.state
    load: float = 0.0
    requests: int = 0
    copies: int = 0  # of its blocks: those that it was given
    release: str = ""  # of its software
    damaged: tuple[str, ...] = ()  # as AgentHeartbeatRequest.damaged
    damaged_blocks: int = 0


class TrackedBatch(Message, frozen=True, kw_only=True):
    batch_id: int
    number: int  # its place in the sequence of its lineage, from 1
    time_ms: int
    state: str  # queued | running | failing | failed | unreadable | completed
    blocks: int
    records: int
    attempts: int
    detail: str = ""
    replay: int = 0  # the number of the replay in which it runs again; 0: in none
    written: tuple[str, ...] = ()  # what its job's output helpers wrote and skipped, in words
    outputs: tuple[str, ...] = ()  # of several, those that are done


class TrackedReplay(Message, frozen=True, kw_only=True):
    """A replay that is under way: batches ``first_id`` to ``last_id`` run again, ``completed`` of ``batches`` are done."""

    replay: int
    first_id: int
    last_id: int
    batches: int
    completed: int
    begun_ms: int
    cause: str


class TrackedListener(Message, frozen=True, kw_only=True):
    """Who is told what happens. ``dropped``: events that did not fit its queue, or that it did not take."""

    name: str
    delivered: int
    waiting: int
    dropped: int
    failures: int = 0
    last_error: str = ""


class TrackedCursor(Message, frozen=True, kw_only=True):
    """A query's cursor. ``behind``: offsets between it and the positions, of the newest lives. ``opened_ms``: since when there is
    one by this name; 0 of one that ended."""

    cursor: str
    user: str
    state: str  # at work | silent | expired | dropped
    silent_seconds: float  # since its user was heard; of an ended one: since then
    behind: int
    detail: str = ""
    places: tuple[CursorPlace, ...] = ()
    opened_ms: int = 0


class Problem(Message, frozen=True, kw_only=True):
    """Something that does not mend itself, or has not for too long. ``kind``: kafka | source | wal | journal |
    partitions-without-receiver | receiver-gone | receiver-waiting | receiver-not-running | receiver-without-host | agent-gone |
    partition | batch-unreadable | job | cursor | driver. ``command``: what to do, "" where ``cause`` names it. ``seconds``: since
    when, as far as that is known."""

    kind: str
    cause: str
    command: str = ""
    seconds: float = 0.0


class StatusAnswer(Message, frozen=True, kw_only=True):
    """GET /v1/status."""

    stream: str
    release: str
    timeline: int
    driver_epoch: int
    state: str  # waiting (says for what) | running | stopping | failed
    detail: str
    topic_ids_known: bool
    waiting_blocks: int
    waiting_records: int
    batches_completed: int
    records_completed: int
    tiers: dict[str, int] = msgspec.field(default_factory=dict)  # ranges read by tier: local, agent, wal
    #: the driver's own requests to remote stores: journal_put, wal_get, …, and seconds counted
    requests: dict[str, int] = msgspec.field(default_factory=dict)
    partitions: tuple[TrackedPartition, ...] = ()
    receivers: tuple[TrackedReceiver, ...] = ()
    agents: tuple[TrackedAgent, ...] = ()
    batches: tuple[TrackedBatch, ...] = ()  # unfinished ones, those next in a replay, and the last few completed
    replay: TrackedReplay | None = None
    managed: tuple[ManagedReceiver, ...] = ()  # in the order of their numbers; none where receivers are static
    backpressure: bool = False
    rate: float = 0.0  # records/s that the job was seen to take; 0: not learned (yet)
    listeners: tuple[TrackedListener, ...] = ()
    cursors: tuple[TrackedCursor, ...] = ()  # those at work or silent, and the last that ended
    held_for_cursors: int = 0  # bytes of WAL segments that nothing but cursors keeps
    problems: tuple[Problem, ...] = ()  # `forebay status` exits with 1 if there is one
    pending: tuple[Problem, ...] = ()  # would be problems, were their grace over


class PartitionProgress(Message, frozen=True, kw_only=True):
    """How far a partition is, and what the journal tells of the rest."""

    topic: str
    partition: int
    incarnation: int
    position: int
    completed: int
    record_bytes: float  # the mean of the records taken in last, of keys and values; 0: none is known
    waiting_since_ms: int  # of the first block that is not completed its newest record; -1: none


class LagAnswer(Message, frozen=True, kw_only=True):
    """GET /v1/lag. The driver's share: where Kafka's logs end, Kafka is to be asked."""

    partitions: tuple[PartitionProgress, ...]
