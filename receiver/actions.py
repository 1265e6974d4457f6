"""Everything that a receiver does, as values. ``ReceiverMachine.handle`` returns them in the order to be done.

Actions on the source are done by the polling thread, in order; those on the driver, the store and the log in any order.
Each action with a ``request`` is answered by one input with the same number, or by none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from forebay import messages
from forebay.model.columns import Start
from forebay.model.values import TopicPartition
from receiver.block_draft import BlockDraft
from receiver.source import CommitPoint

# ---- on the source ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Registered: the store opens the epoch's first segment, the source joins the group. ``topics``: as the driver says;
    None: those of the settings."""

    epoch: int
    topics: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Follow:
    """The source subscribes to exactly these topics from now on."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StartPartitions:
    starts: tuple[Start, ...]


@dataclass(frozen=True, slots=True)
class Pause:
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Resume:
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class CommitSync:
    """→ ``CommitSynced``."""

    request: int
    positions: Mapping[TopicPartition, CommitPoint]


@dataclass(frozen=True, slots=True)
class CommitAsync:
    """→ ``CommitFailed`` for those that fail."""

    positions: Mapping[TopicPartition, CommitPoint]


@dataclass(frozen=True, slots=True)
class CheckTopicIds:
    """→ ``TopicIdsRead`` or ``BrokerFailed``."""

    request: int
    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Inspect:
    """Read watermarks and topic id → ``Inspected`` or ``BrokerFailed``."""

    request: int
    tp: TopicPartition


@dataclass(frozen=True, slots=True)
class RevocationDone:
    """The callback that revokes these may return."""

    partitions: tuple[TopicPartition, ...]


# ---- on the stores ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StoreBlock:
    """Encode, write to the local store and to the WAL (without one: to the second host, if one is wanted) → ``BlockStored``, or
    ``StoreFailed`` after ``store_timeout``."""

    draft: BlockDraft


@dataclass(frozen=True, slots=True)
class CopyTo:
    """Second copies go there from now on."""

    second: messages.ReplicaHost


@dataclass(frozen=True, slots=True)
class TopicsChecked:
    """The topics of these blocks had the ids of their claims after the last poll: said in their frames, if it is not too
    late, so that a block that is never reported can be told from one of a topic that was created again."""

    sequences: tuple[int, ...]


# ---- on the driver ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Register:
    request: int
    message: messages.RegisterRequest


@dataclass(frozen=True, slots=True)
class Lookup:
    request: int
    message: messages.LookupRequest


@dataclass(frozen=True, slots=True)
class Claim:
    request: int
    message: messages.ClaimRequest


@dataclass(frozen=True, slots=True)
class Release:
    request: int
    message: messages.ReleaseRequest


@dataclass(frozen=True, slots=True)
class Report:
    request: int
    message: messages.ReportRequest


@dataclass(frozen=True, slots=True)
class SendFault:
    request: int
    message: messages.Fault


@dataclass(frozen=True, slots=True)
class Heartbeat:
    request: int
    message: messages.HeartbeatRequest


# ---- on the process --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Note:
    """A noteworthy event, for the log. ``warning``: a person may have to look."""

    text: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Exit:
    """The process ends. 0: drained; 1: failed, ``reason`` says why; 2: wrong use; 4: superseded."""

    code: int
    reason: str


SourceAction: TypeAlias = Subscribe | Follow | StartPartitions | Pause | Resume | CommitSync | CommitAsync
BrokerAction: TypeAlias = CheckTopicIds | Inspect
DriverAction: TypeAlias = Register | Lookup | Claim | Release | Report | SendFault | Heartbeat
Action: TypeAlias = (
    SourceAction | BrokerAction | DriverAction | RevocationDone | StoreBlock | CopyTo | TopicsChecked | Note | Exit
)
