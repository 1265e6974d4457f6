"""Everything that can happen to a receiver, as values. ``ReceiverMachine.handle`` takes one at a time.

An answer carries the number of the request it answers; one that is late, repeated or unknown is dropped by that number.
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
    """The process was asked to end in good order (SIGTERM)."""


# ---- from the consumer group -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Assigned:
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Revoked:
    """The partitions stay ours until the action ``RevocationDone`` names them."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Polled:
    items: Sequence[Columns | EndOfPartition | PartitionFault]


@dataclass(frozen=True, slots=True)
class SourceSeen:
    """What the source knows without asking: the next offsets to be written, as the last fetches told them, and its
    newest transport error, "" if there is none. For status only."""

    high_watermarks: Mapping[TopicPartition, int]
    error: str


# ---- from the broker -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommitSynced:
    request: int
    errors: Mapping[TopicPartition, str]


@dataclass(frozen=True, slots=True)
class CommitFailed:
    """Asynchronous commits that did not succeed."""

    errors: Mapping[TopicPartition, str]


@dataclass(frozen=True, slots=True)
class TopicIdsRead:
    """Topic → id, "" where the broker can't tell; a topic that does not exist is left out."""

    request: int
    topic_ids: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Inspected:
    request: int
    low: int
    high: int
    topic_id: str


@dataclass(frozen=True, slots=True)
class BrokerFailed:
    """``CheckTopicIds`` or ``Inspect`` got no answer."""

    request: int
    reason: str


# ---- from the stores -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BlockStored:
    """The draft with this sequence is durable in the WAL, and in the local store if ``block.local``; without a WAL on as many
    hosts as are wanted."""

    sequence: int
    block: Block


@dataclass(frozen=True, slots=True)
class StoreFailed:
    reason: str


@dataclass(frozen=True, slots=True)
class StoreAway:
    """The store failed and is tried again, for ``store_timeout``. The next ``BlockStored`` ends this."""

    reason: str
    store: str = "the WAL"


@dataclass(frozen=True, slots=True)
class OutOfSpace:
    """The store has no room, or no second host is there; storing goes on waiting for it. The next ``BlockStored`` ends this."""

    reason: str
    lacking: str = "space in the WAL"


# ---- from the driver -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Registered:
    request: int
    epoch: int
    driver_epoch: int
    timeline: int
    topics: tuple[str, ...] | None = None  # to subscribe to; None: those of the settings


@dataclass(frozen=True, slots=True)
class LookupAnswered:
    request: int
    views: Sequence[PartitionView]


@dataclass(frozen=True, slots=True)
class Claimed:
    request: int
    grants: Sequence[ClaimGrant]


@dataclass(frozen=True, slots=True)
class Released:
    request: int


@dataclass(frozen=True, slots=True)
class ReportAnswered:
    request: int
    results: Sequence[BlockResult]


@dataclass(frozen=True, slots=True)
class FaultAnswered:
    request: int
    proceed: bool
    message: str


@dataclass(frozen=True, slots=True)
class HeartbeatAnswered:
    request: int
    driver_epoch: int
    commands: Sequence[Command]
    replica_host: ReplicaHost | None = None  # where second copies go; None: as before
    topics: tuple[str, ...] | None = None  # to subscribe to; None: as before


@dataclass(frozen=True, slots=True)
class DriverFailed:
    """A request to the driver got no answer, or one that means: try again."""

    request: int
    reason: str


@dataclass(frozen=True, slots=True)
class Fenced:
    """The driver knows a newer epoch of this receiver id (INV-4)."""

    reason: str


@dataclass(frozen=True, slots=True)
class Misused:
    """The driver will never register this receiver as it is configured."""

    reason: str


# ---- from the process itself -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Broken:
    """A part of this process failed in a way that nobody foresaw: it ends rather than go on without that part."""

    reason: str


@dataclass(frozen=True, slots=True)
class SourceFailed:
    """A source of the user's own raised: nothing more comes from it, and it is not asked or told anything any more."""

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
    | Broken
    | SourceFailed
)
