"""Everything that can happen to a receiver, as values. ``ReceiverMachine.handle`` takes one at a time.

An answer carries the number of its request. The machine drops an answer whose request is no longer open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from forebay.messages import BlockResult, ClaimGrant, Command, PartitionView, ReplicaHost
from forebay.model.columns import Columns, EndOfPartition, PartitionFault
from forebay.model.values import Block, TopicPartition


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class DrainRequested:
    """The process was asked to drain and exit (SIGTERM)."""


# ---- from the consumer group -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Assigned:
    """The group assigned these partitions to this receiver."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Revoked:
    """The group revokes these partitions. They stay this receiver's until the action ``RevocationDone`` names them."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """Another receiver may own these partitions already: the session expired."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Polled:
    """What one poll returned, in order."""

    items: Sequence[Columns | EndOfPartition | PartitionFault]


@dataclass(frozen=True, slots=True)
class SourceSeen:
    """What the source knows without a request, for status only. ``high_watermarks``: as of the last fetches. ``error``: the
    newest transport error, "" for none."""

    high_watermarks: Mapping[TopicPartition, int]
    error: str


# ---- from the broker -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommitSynced:
    """The result of a synchronous commit: an error for each partition that failed."""

    request: int
    errors: Mapping[TopicPartition, str]


@dataclass(frozen=True, slots=True)
class CommitFailed:
    """Errors of asynchronous commits."""

    errors: Mapping[TopicPartition, str]


@dataclass(frozen=True, slots=True)
class TopicIdsRead:
    """Topic → id, "" if the broker has no topic ids. A topic that does not exist is left out."""

    request: int
    topic_ids: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Inspected:
    """The bounds of a partition's log and the id of its topic, now. ``high``: the offset after the last record."""

    request: int
    low: int
    high: int
    topic_id: str


@dataclass(frozen=True, slots=True)
class BrokerFailed:
    """``CheckTopicIds`` or ``Inspect`` got no answer from the broker."""

    request: int
    reason: str


# ---- from the stores -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BlockStored:
    """The block with this sequence is durable: in the WAL, or without one on ``receiver.copies`` hosts. ``block.local``: whether
    this host has a copy."""

    sequence: int
    block: Block


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """The store failed for ``store_timeout`` or for good."""

    reason: str


@dataclass(frozen=True, slots=True)
class StoreAway:
    """The store failed and is retried for ``store_timeout``. The next ``BlockStored`` ends this state."""

    reason: str
    store: str = "the WAL"


@dataclass(frozen=True, slots=True)
class OutOfSpace:
    """The store waits for space or for a replica host. The next ``BlockStored`` ends this state."""

    reason: str
    lacking: str = "space in the WAL"


# ---- from the driver -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Registered:
    """The driver registered this process under ``epoch``."""

    request: int
    epoch: int
    driver_epoch: int
    timeline: int
    topics: tuple[str, ...] | None = None  # to subscribe to; None: those of the settings


@dataclass(frozen=True, slots=True)
class LookupAnswered:
    """The driver's view of each partition that was asked for."""

    request: int
    views: Sequence[PartitionView]


@dataclass(frozen=True, slots=True)
class Claimed:
    """Whether the driver granted each claim."""

    request: int
    grants: Sequence[ClaimGrant]


@dataclass(frozen=True, slots=True)
class Released:
    """The driver took note of the released tokens."""

    request: int


@dataclass(frozen=True, slots=True)
class ReportAnswered:
    """Whether the driver accepted each reported block. ``next_batch_ms``, ``every_ms``: as in ``messages.ReportAnswer``."""

    request: int
    results: Sequence[BlockResult]
    next_batch_ms: int = -1
    every_ms: int = 0


@dataclass(frozen=True, slots=True)
class FaultAnswered:
    """The driver's decision on a fault. ``proceed``: claim the partition anew; else wait, ``message`` says for what."""

    request: int
    proceed: bool
    message: str


@dataclass(frozen=True, slots=True)
class HeartbeatAnswered:
    """The answer to a heartbeat, with the driver's commands."""

    request: int
    driver_epoch: int
    commands: Sequence[Command]
    replica_host: ReplicaHost | None = None  # where replicas go; None: as before
    topics: tuple[str, ...] | None = None  # to subscribe to; None: as before


@dataclass(frozen=True, slots=True)
class DriverFailed:
    """A request to the driver got no answer, or an error after which it is retried."""

    request: int
    reason: str


@dataclass(frozen=True, slots=True)
class Fenced:
    """The driver knows a newer epoch of this receiver id (INV-4)."""

    reason: str


@dataclass(frozen=True, slots=True)
class Misused:
    """The driver refuses to register this receiver as it is configured."""

    reason: str


# ---- from the process itself -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ThreadFailure:
    """A thread of this process failed unexpectedly. The process ends, since it cannot work without that thread."""

    reason: str


@dataclass(frozen=True, slots=True)
class SourceFailed:
    """The user's source raised an error. Nothing more comes from it, and it is not called any more."""

    reason: str


BrokerAnswer: TypeAlias = CommitSynced | TopicIdsRead | Inspected
DriverAnswer: TypeAlias = (
    Registered | LookupAnswered | Claimed | Released | ReportAnswered | FaultAnswered | HeartbeatAnswered
)
#: inputs that answer a request
Answer: TypeAlias = BrokerAnswer | DriverAnswer
Input: TypeAlias = (
    Answer
    | Tick
    | DrainRequested
    | Assigned
    | Revoked
    | Lost
    | Polled
    | SourceSeen
    | CommitFailed
    | BrokerFailed
    | BlockStored
    | StoreFailed
    | StoreAway
    | OutOfSpace
    | DriverFailed
    | Fenced
    | Misused
    | ThreadFailure
    | SourceFailed
)
