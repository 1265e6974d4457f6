"""Status of the stream: partitions, receivers, agents, batches, cursors, problems and lag."""

from __future__ import annotations

import msgspec

from forebay.messages.batches import BatchEntry
from forebay.messages.cursors import CursorPlace
from forebay.messages.message import Message
from forebay.messages.receivers import ErrorNote


class TrackedPartition(Message, frozen=True, kw_only=True, gc=False):
    """One partition as the journal holds it, with its status from the receiver's last heartbeat."""

    topic: str
    partition: int
    incarnation: int
    topic_id: str
    position: int  # next offset to take in
    completed: int  # all batches with offsets before this one are completed
    high_watermark: int  # end of the log in Kafka; -1: no receiver has reported it yet
    receiver_id: str  # "": unclaimed
    token: int
    state: str  # as PartitionStatus.state, or "unclaimed"
    fault: str = ""  # decision that the operator must make, with the command for it
    foreign: str = ""  # offset that another client committed for the group, which has no effect
    rate: float = 0.0  # as PartitionStatus.rate
    end_age_seconds: float = -1.0  # age of high_watermark; -1: not known
    lag: int | None = None  # offsets that are not taken in; None: not known, because high_watermark is too old
    low_watermark: int = -1  # first offset that Kafka still has; -1: not known
    lag_seconds: float | None = None  # age of the oldest record that is not completed, or not taken in; None: not known


class TrackedReceiver(Message, frozen=True, kw_only=True):
    """One receiver, as in its last heartbeat."""

    receiver_id: str
    epoch: int
    host: str
    state: str  # registered | starting | active | waiting | draining | lost | fenced
    detail: str
    silent_seconds: float  # since its last heartbeat; -1: none yet
    buffered_bytes: int
    records: int
    counters: dict[str, int] = msgspec.field(default_factory=dict)
    errors: tuple[ErrorNote, ...] = ()
    rate: float = 0.0  # as HeartbeatRequest.rate
    release: str = ""  # release of its software; "": not known yet


class ManagedReceiver(Message, frozen=True, kw_only=True):
    """A receiver that an agent runs, placed by the driver."""

    receiver_id: str
    state: str  # scheduled | active | draining | stopped | failed
    host: str  # host where it runs or starts; "": not placed yet
    pid: int = 0
    restarts: int = 0  # since this driver began to lead
    exit_code: int | None = None  # exit code of its last end; negative: the signal
    detail: str = ""  # what it waits for, or why it ended
    moves_to: str = ""  # host where it starts after it has drained here
    fault: str = ""  # what the operator must do


class TrackedAgent(Message, frozen=True, kw_only=True):
    """One agent, as in its last heartbeat."""

    host: str
    url: str
    silent_seconds: float
    blocks: int
    used_bytes: int
    free_bytes: int
    labels: tuple[str, ...] = ()
    capacity: int = 0  # maximum number of managed receivers on its host
    state: str = "active"  # as AgentHeartbeatRequest.state
    load: float = 0.0
    requests: int = 0
    copies: int = 0  # number of cached copies among its blocks
    release: str = ""  # release of its software
    damaged: tuple[str, ...] = ()  # as AgentHeartbeatRequest.damaged
    damaged_blocks: int = 0
    undeleted: tuple[str, ...] = ()  # ids of the first blocks that it is ordered to delete and cannot delete
    undeleted_blocks: int = 0  # number of all such blocks
    undeleted_cause: str = ""  # why it cannot delete the first one; names the file


class TrackedReplay(Message, frozen=True, kw_only=True):
    """The replay under way: batches ``first_id`` to ``last_id`` run again, ``completed`` of ``batches`` are done."""

    replay: int
    first_id: int
    last_id: int
    batches: int
    completed: int
    begun_ms: int
    cause: str


class TrackedListener(Message, frozen=True, kw_only=True):
    """One listener. ``dropped``: events that did not fit its queue, or that it failed to take."""

    name: str
    delivered: int
    waiting: int
    dropped: int
    failures: int = 0
    last_error: str = ""


class TrackedCursor(Message, frozen=True, kw_only=True):
    """The cursor of one query.

    ``state``: ``at work``, ``silent``, ``expired`` or ``dropped``. ``behind``: offsets between the cursor and the positions of
    the newest incarnations. ``opened_ms``: time when the cursor was created; 0 if it ended.
    """

    cursor: str
    user: str
    state: str
    silent_seconds: float  # since the last heartbeat of its user, or since the cursor ended
    behind: int
    detail: str = ""
    places: tuple[CursorPlace, ...] = ()
    opened_ms: int = 0


class Problem(Message, frozen=True, kw_only=True):
    """A state that does not recover by itself, or has not recovered for too long.

    ``kind``: paused (only as pending) | kafka | source | wal | journal | partitions-without-receiver | receiver-gone |
    receiver-waiting | receiver-not-running | receiver-without-host | agent-gone | blocks-not-deleted | partition |
    batch-unreadable | job | cursor | driver.

    ``command``: what to do; "" if ``cause`` says it. ``seconds``: duration of the problem as far as it is known.
    """

    kind: str
    cause: str
    command: str = ""
    seconds: float = 0.0


class StatusAnswer(Message, frozen=True, kw_only=True):
    """GET /v1/status. Status of the whole stream."""

    stream: str
    release: str
    timeline: int
    driver_epoch: int
    state: str  # waiting (``detail`` says for what) | running | stopping | failed
    detail: str
    topic_ids_known: bool
    waiting_blocks: int
    waiting_records: int
    batches_completed: int
    records_completed: int
    tiers: dict[str, int] = msgspec.field(default_factory=dict)  # tier (local, agent, wal) → ranges read from it
    #: number of the driver's own requests to remote stores (journal_put, wal_get, …), and the seconds over which they are counted
    requests: dict[str, int] = msgspec.field(default_factory=dict)
    partitions: tuple[TrackedPartition, ...] = ()
    receivers: tuple[TrackedReceiver, ...] = ()
    agents: tuple[TrackedAgent, ...] = ()
    batches: tuple[BatchEntry, ...] = ()  # unfinished ones, the next ones of a replay, and the last few completed
    replay: TrackedReplay | None = None
    managed: tuple[ManagedReceiver, ...] = ()  # in the order of their numbers; () if receivers are static
    backpressure: bool = False
    rate: float = 0.0  # learned processing rate of the job, in records per second; 0: not learned (yet)
    listeners: tuple[TrackedListener, ...] = ()
    cursors: tuple[TrackedCursor, ...] = ()  # active and silent ones, and the last that ended
    held_for_cursors: int = 0  # bytes of WAL segments that are kept only for cursors
    problems: tuple[Problem, ...] = ()  # `forebay status` exits with 1 if there is one
    pending: tuple[Problem, ...] = ()  # become problems when their grace period ends; and a pause of the batches
    paused_ms: int = 0  # when an operator paused the batches; 0: they are not paused
    pause_cause: str = ""  # the operator and the reason


class PartitionProgress(Message, frozen=True, kw_only=True):
    """Progress of one partition in the journal, for its lag."""

    topic: str
    partition: int
    incarnation: int
    position: int
    completed: int
    record_bytes: float  # mean size of key and value of the records taken in last; 0: not known
    waiting_since_ms: int  # time of the newest record in the first block that is not completed; -1: no such block


class LagAnswer(Message, frozen=True, kw_only=True):
    """GET /v1/lag. The driver's part of the lag. The caller asks Kafka for the ends of the logs."""

    partitions: tuple[PartitionProgress, ...]
