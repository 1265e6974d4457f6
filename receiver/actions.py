"""Everything that a receiver does, as values. ``ReceiverMachine.handle`` returns them in the order to perform.

The polling thread performs the actions on the source, in order. Actions on the driver, the store and the log may be performed
in any order. An action with a ``request`` is answered by at most one input with the same number, named after "→" below.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from forebay import messages
from forebay.model.columns import Start
from forebay.model.values import TopicPartition
from receiver.blocks.pending_block import PendingBlock
from receiver.sources.source import CommitPoint

# ---- on the source ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Join the group and subscribe, after the registration. The store opens the epoch that the driver assigned.

    ``topics``: those that the driver names; None for those of the settings.
    """

    epoch: int
    topics: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Follow:
    """Subscribe to exactly these topics from now on."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StartPartitions:
    """Read each partition from its position, under its new generation."""

    starts: tuple[Start, ...]


@dataclass(frozen=True, slots=True)
class Pause:
    """Deliver no records of these partitions until a ``Resume`` or a start."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Resume:
    """End the pause of these partitions."""

    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class CommitSync:
    """Commit and wait for the result → ``CommitSynced``."""

    request: int
    positions: Mapping[TopicPartition, CommitPoint]


@dataclass(frozen=True, slots=True)
class CommitAsync:
    """Commit without waiting → ``CommitFailed`` if some of the commits fail."""

    positions: Mapping[TopicPartition, CommitPoint]


@dataclass(frozen=True, slots=True)
class CheckTopicIds:
    """Read the ids of the topics → ``TopicIdsRead`` or ``BrokerFailed``."""

    request: int
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Inspect:
    """Read watermarks and topic id → ``Inspected`` or ``BrokerFailed``."""

    request: int
    tp: TopicPartition


@dataclass(frozen=True, slots=True)
class RevocationDone:
    """The callback that revokes these partitions may return."""

    partitions: tuple[TopicPartition, ...]


# ---- on the stores ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoreBlock:
    """Encode the block and make it durable → ``BlockStored``, or ``StoreFailed`` after ``store_timeout``.

    With a WAL: in the WAL, with a local copy. Without one: on this host's disk and, if wanted, on a replica host.
    """

    pending: PendingBlock


@dataclass(frozen=True, slots=True)
class ReplicateTo:
    """Send replicas to this host from now on."""

    host: messages.ReplicaHost


@dataclass(frozen=True, slots=True)
class TopicsChecked:
    """After the last poll of these blocks, their topics still had the ids of the claims.

    The frame of a block says so if it is not written yet. Then a block that is never reported can be distinguished from a
    block of a topic that was deleted and created again.
    """

    sequences: tuple[int, ...]


# ---- on the driver: without an answer ``DriverFailed``, after a newer registration ``Fenced`` ------------------------


@dataclass(frozen=True, slots=True)
class Register:
    """→ ``Registered``, ``Misused``, or as below."""

    request: int
    message: messages.RegisterRequest


@dataclass(frozen=True, slots=True)
class Lookup:
    """Ask for tokens and positions of partitions → ``LookupAnswered``."""

    request: int
    message: messages.LookupRequest


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim partitions under new tokens → ``Claimed``."""

    request: int
    message: messages.ClaimRequest


@dataclass(frozen=True, slots=True)
class Release:
    """Say that nothing is written under these tokens any more → ``Released``."""

    request: int
    message: messages.ReleaseRequest


@dataclass(frozen=True, slots=True)
class Report:
    """Report durable blocks → ``ReportAnswered``."""

    request: int
    message: messages.ReportRequest


@dataclass(frozen=True, slots=True)
class SendFault:
    """Report a fault of a partition → ``FaultAnswered``."""

    request: int
    message: messages.Fault


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """→ ``HeartbeatAnswered``."""

    request: int
    message: messages.HeartbeatRequest


# ---- on the process --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Note:
    """An event for the log. ``warning``: an operator may have to act. ``fields``: as in ``forebay.process.logs.fields``."""

    text: str
    warning: bool = False
    fields: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Exit:
    """End the process. ``code``: 0 drained, 1 failed, 2 refused by the driver as wrong use, 4 superseded."""

    code: int
    reason: str


SourceAction: TypeAlias = Subscribe | Follow | StartPartitions | Pause | Resume | CommitSync | CommitAsync
BrokerAction: TypeAlias = CheckTopicIds | Inspect
DriverAction: TypeAlias = Register | Lookup | Claim | Release | Report | SendFault | Heartbeat
Action: TypeAlias = (
    SourceAction | BrokerAction | DriverAction | RevocationDone | StoreBlock | ReplicateTo | TopicsChecked | Note | Exit
)
