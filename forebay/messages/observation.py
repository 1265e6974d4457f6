"""Answers for observers: the page, the commands, the Python client and the metrics. All come from one snapshot of the driver.

Times are milliseconds since 1970 UTC (``_ms``), durations are seconds (``_seconds``) or milliseconds (``_ms`` in statistics of a
batch, as in Spark). ``None`` means unknown or not reached yet, never zero.

A list has at most ``limit`` entries. ``total`` counts the entries that match the filter. ``next`` is the value of ``after`` for
the following entries, and "" at the end of the list.
"""

from __future__ import annotations

from typing import Any

import msgspec

from forebay.messages.batches import BatchEntry, BatchRange
from forebay.messages.message import Message
from forebay.messages.status import (
    ManagedReceiver,
    Problem,
    TrackedAgent,
    TrackedCursor,
    TrackedListener,
    TrackedPartition,
    TrackedReceiver,
    TrackedReplay,
)

# ---- the stream at a glance ----------------------------------------------------------------------------------------------


class Step(Message, frozen=True, kw_only=True):
    """One step on the way of a record.

    ``records_per_second``: records that left the step, as a mean of about 10 s. ``waiting_records``: records that wait in
    or before the step. ``oldest_seconds``: age of the oldest of them. ``delay_seconds``: typical time that a record spends in
    the step.
    """

    name: str  # kafka | blocks | wal | tracker | batches | committed
    records_per_second: float | None = None
    waiting_records: int | None = None
    oldest_seconds: float | None = None
    delay_seconds: float | None = None
    detail: str = ""


class Totals(Message, frozen=True, kw_only=True):
    """Counters of the stream since it was created, except ``bytes``: the bytes that the WAL holds now."""

    records_taken: int = 0
    records_completed: int = 0
    batches_completed: int = 0
    bytes: int = 0


class OverviewAnswer(Message, frozen=True, kw_only=True):
    """GET /v1/overview. The state of the stream at a glance; its size does not grow with partitions, receivers or batches.

    ``leader``: "" if this driver leads. Otherwise ``state`` is ``standby``, ``leader`` is the URL of the driver that leads, or
    "?" if it is unknown, and the counts are empty. ``partitions``, ``receivers``, ``hosts`` and ``batches``: state → how many
    are in it; a receiver that missed two heartbeats counts as ``silent``. ``problems`` and ``pending`` are cut off at 10 entries
    each, and long texts at 300 characters; the counts say how many there are.
    """

    time_ms: int
    stream: str
    release: str
    state: str  # as StatusAnswer.state, or standby
    detail: str = ""
    driver_epoch: int = 0
    leader: str = ""
    spark_ui: str = ""  # URL of the Spark UI; "": it is off
    job: str = ""
    batch_interval_ms: int = 0
    heartbeat_seconds: float = 1.0  # the longer one of the intervals of receivers and agents
    paused: bool = False  # whether the driver begins no batch until an operator resumes it
    pause_cause: str = ""
    problems: tuple[Problem, ...] = ()
    problem_count: int = 0
    pending: tuple[Problem, ...] = ()
    pending_count: int = 0
    steps: tuple[Step, ...] = ()
    partitions: dict[str, int] = msgspec.field(default_factory=dict)
    receivers: dict[str, int] = msgspec.field(default_factory=dict)
    hosts: dict[str, int] = msgspec.field(default_factory=dict)
    batches: dict[str, int] = msgspec.field(default_factory=dict)
    totals: Totals = Totals()
    waiting_blocks: int = 0
    waiting_records: int = 0
    last_batch: BatchEntry | None = None
    replay: TrackedReplay | None = None
    rate: float = 0.0  # as StatusAnswer.rate
    lag_records: int | None = None  # of all partitions; None: that of one partition is unknown
    lag_seconds: float | None = None  # of the partition that is furthest behind; None: unknown


class SeriesAnswer(Message, frozen=True, kw_only=True):
    """GET /v1/series. ``values``: name → one value for each of ``times_ms``, None where it is unknown.

    Names: records_in_per_second, records_completed_per_second, lag_records, lag_seconds, waiting_records, waiting_blocks,
    scheduling_delay_ms, processing_ms, total_delay_ms, end_to_end_ms, receivers_active.
    """

    step_ms: int
    times_ms: tuple[int, ...] = ()
    values: dict[str, tuple[float | None, ...]] = msgspec.field(default_factory=dict)


class CallerAnswer(Message, frozen=True, kw_only=True):
    """GET /v1/caller. The roles of the token that was sent. ``guarded``: whether the service requires tokens."""

    roles: tuple[str, ...]
    guarded: bool


# ---- lists ---------------------------------------------------------------------------------------------------------------


class PartitionsAnswer(Message, frozen=True, kw_only=True):
    """GET /v1/partitions."""

    total: int
    next: str = ""
    partitions: tuple[TrackedPartition, ...] = ()


class ReceiversAnswer(Message, frozen=True, kw_only=True):
    """GET /v1/receivers. ``managed``: as StatusAnswer.managed, of the receivers in this answer and of those that do not run."""

    total: int
    next: str = ""
    receivers: tuple[TrackedReceiver, ...] = ()
    managed: tuple[ManagedReceiver, ...] = ()


class HostsAnswer(Message, frozen=True, kw_only=True):
    """GET /v1/hosts."""

    total: int
    next: str = ""
    hosts: tuple[TrackedAgent, ...] = ()


class CursorsAnswer(Message, frozen=True, kw_only=True):
    """GET /v1/cursors. Cursors of queries and direct streams over the intake. ``held_bytes``: as
    StatusAnswer.held_for_cursors."""

    total: int
    next: str = ""
    cursors: tuple[TrackedCursor, ...] = ()
    held_bytes: int = 0


class ListenersAnswer(Message, frozen=True, kw_only=True):
    """GET /v1/listeners."""

    listeners: tuple[TrackedListener, ...] = ()


# ---- blocks and records --------------------------------------------------------------------------------------------------


class BlockEntry(Message, frozen=True, kw_only=True):
    """One block. ``ranges``: at most 20 in a list, at most 1,000 in the answer for one block; ``range_count`` counts all.
    ``bytes``: keys and values. ``tiers``: where it is stored, such as ``local host-1``, ``replica host-2``, ``wal``."""

    block_id: str
    receiver_id: str
    host: str
    state: str  # waiting | queued | completed
    batch_id: int = 0  # 0: none, or one that is only in the history
    records: int = 0
    bytes: int = 0
    created_ms: int = 0
    range_count: int = 0
    ranges: tuple[BatchRange, ...] = ()
    handle: str = ""  # WAL segment, offset and length of the frame; "" without a WAL
    tiers: tuple[str, ...] = ()


class BlockListAnswer(Message, frozen=True, kw_only=True):
    """GET /v1/blocks. The blocks that the journal names, the newest first. ``total`` is None for a filter that reads blocks
    one by one: the driver stops reading when the page is full."""

    total: int | None
    next: str = ""
    blocks: tuple[BlockEntry, ...] = ()


class HeaderEntry(Message, frozen=True, kw_only=True):
    """A header of a record. ``value`` is base64 in JSON; None is Kafka's null."""

    name: str
    value: bytes | None


class RecordEntry(Message, frozen=True, kw_only=True):
    """One record. ``key`` and ``value`` are base64 in JSON; None is Kafka's null. ``key_bytes`` and ``value_bytes``: the whole
    lengths. ``truncated``: whether key, value or headers are cut off."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    key_bytes: int
    value_bytes: int
    truncated: bool = False
    headers: tuple[HeaderEntry, ...] = ()


class RecordsAnswer(Message, frozen=True, kw_only=True):
    """GET /v1/blocks/{block_id}/records. ``total``: records of the block. ``tier``: where they were read."""

    total: int
    records: tuple[RecordEntry, ...] = ()
    tier: str = ""


# ---- storage, settings, direct streams -----------------------------------------------------------------------------------


class WalSegment(Message, frozen=True, kw_only=True):
    """One segment of the WAL. ``held``: blocks of batches that are not completed, or of a replay. ``unread``: ranges that a
    cursor has not read. ``released_ms``: completion of the last of its batches that are in the history; 0: none."""

    path: str
    bytes: int
    blocks: int
    held: int
    unread: int
    released_ms: int = 0


class WalAnswer(Message, frozen=True, kw_only=True):
    """GET /v1/wal. The WAL as the journal names it.

    ``free_segments``, ``free_bytes``: those that nothing needs, and that stay for ``retention_seconds`` within
    ``retention_bytes``. ``unsynced_bytes``: at receivers, not in the WAL yet. ``oldest``: the segments that are deleted next,
    100 at most.
    """

    url: str  # "": a stream without a WAL
    segments: int = 0
    blocks: int = 0
    bytes: int = 0
    free_segments: int = 0
    free_bytes: int = 0
    held_for_cursors: int = 0
    unsynced_bytes: int = 0
    oldest_ms: int | None = None  # creation of the oldest block that the journal names
    retention_seconds: float = 0.0
    retention_bytes: int = 0
    oldest: tuple[WalSegment, ...] = ()


class StateEntry(Message, frozen=True, kw_only=True):
    """A keyed state, as the newest completed batch that changed it left it.

    ``columns``: name and Arrow type of each. ``keys_max``: number of rows in the files, an upper bound of the
    number of keys. ``keys_exact``: whether both are equal, as after a merge of all shards. ``bytes``, ``files``: of the newest
    version. ``batch_id``: the last batch that changed the state.
    ``updated_ms``: time of the last update of a row. ``versions``: those that are kept;
    ``oldest_batch_id``: the batch of the oldest one. ``replaced``: versions that a running replay replaces. ``detail``: why
    fields are unknown.
    """

    name: str
    key: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    shards: int = 0
    files: int = 0
    keys_max: int = 0
    keys_exact: bool = False
    bytes: int = 0
    batch_id: int = 0
    updated_ms: int | None = None
    versions: int = 0
    oldest_batch_id: int = 0
    replaced: int = 0
    detail: str = ""


class StatesAnswer(Message, frozen=True, kw_only=True):
    """GET /v1/states. Keyed states by name."""

    total: int
    next: str = ""
    states: tuple[StateEntry, ...] = ()


class JournalAnswer(Message, frozen=True, kw_only=True):
    """GET /v1/journal.

    ``events``: applied since the timeline began. ``snapshot_events``: those in the newest snapshot; ``snapshot_ms``: its time.
    ``holder``: the driver that the lease names, with its URL, host and pid. ``lease_seconds``: after this time without a
    renewal another driver may lead. ``segments`` and ``bytes``: of this driver's epoch; ``bytes`` is None if each size would
    be a request.
    """

    url: str
    timeline: int
    driver_epoch: int
    segments: int | None = None
    bytes: int | None = None
    events: int = 0
    snapshot_events: int = 0
    snapshot_ms: int | None = None
    holder: str = ""
    lease_seconds: float | None = None
    free_bytes: int | None = None  # of the journal's store
    rebuilds: int = 0


class SettingEntry(Message, frozen=True, kw_only=True):
    """One setting in force. ``value``: as in forebay.toml, or "(hidden)" for what can be a secret. ``origin``: default, the
    file's name, or the environment variable's name."""

    key: str
    value: Any
    origin: str = "default"
    description: str = ""


class SettingsAnswer(Message, frozen=True, kw_only=True):
    """GET /v1/settings. The driver's settings in force, in the order of docs/SETTINGS.md, without secrets."""

    settings: tuple[SettingEntry, ...] = ()


class DirectStream(Message, frozen=True, kw_only=True):
    """A direct stream that reads through this driver's intake, as its cursor shows it."""

    name: str
    cursor: TrackedCursor


class DirectAnswer(Message, frozen=True, kw_only=True):
    """GET /v1/direct. Direct streams that this driver knows. One that reads only Kafka is unknown to every driver."""

    streams: tuple[DirectStream, ...] = ()


class TargetGroup(Message, frozen=True, kw_only=True):
    """GET /v1/metrics/targets answers with a list of these, in the form of Prometheus' HTTP service discovery.

    ``targets``: host and port of one process. Labels that begin with ``__`` are for Prometheus' own use: it drops them after
    relabelling.
    """

    targets: tuple[str, ...]
    labels: dict[str, str]
