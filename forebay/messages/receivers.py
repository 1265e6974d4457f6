"""Registration and heartbeats of receivers."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from forebay.messages.commands import Command
from forebay.messages.message import PARTITIONS_MAX, Message
from forebay.model.bounds import Amount, Number, NumberOrNone, OffsetOrNone, PartitionNumber, Size, Text, Topic

#: maximum entries of each list of errors, counters or hosts in a heartbeat
HEARTBEAT_ITEMS_MAX = 200


class RegisterRequest(Message, frozen=True, kw_only=True):
    """POST /v1/receivers/register.

    The same ``instance_id`` gets the same epoch again. Another one gets a new epoch, which ends the older instance's claims.
    """

    stream: Text
    receiver_id: Text
    host: Text
    instance_id: Text
    release: Text


class RegisterAnswer(Message, frozen=True, kw_only=True):
    """Answer to :class:`RegisterRequest`."""

    epoch: Number
    driver_epoch: Number
    timeline: Number
    topics: tuple[str, ...] | None = None  # as HeartbeatAnswer.topics


#: state of a partition with an open fault: its name in the first release, which statuses keep
FAULT_STATE = "trouble"


class PartitionStatus(Message, frozen=True, kw_only=True, gc=False):
    """Status of one partition at its receiver.

    ``state``: ``claiming``, ``active``, ``paused`` or ``trouble`` (a fault is open). ``position`` is the next offset to poll.
    """

    topic: Topic
    partition: PartitionNumber
    token: Number
    state: Text
    position: OffsetOrNone
    high_watermark: OffsetOrNone
    detail: Text = ""
    rate: Amount = 0.0  # maximum records per second, by a setting or a command; 0: no limit


class Holding(Message, frozen=True, kw_only=True):
    """A token with which the receiver may still write: it takes in records with it, or holds some that are not in the WAL yet."""

    topic: Topic
    partition: PartitionNumber
    token: Number


class ErrorNote(Message, frozen=True, kw_only=True, rename={"message": "words"}):
    """A recent error that did not end the process."""

    message: Text
    count: Number
    seconds_ago: Amount  # since it last occurred


class HeartbeatRequest(Message, frozen=True, kw_only=True):
    """POST /v1/receivers/heartbeat.

    ``holding`` lists all tokens under which the receiver may still write. If ``claims_done`` covers a claim and ``holding`` lacks
    its token, no later heartbeat lists the token. So the driver may rely on a heartbeat that arrives late or twice.
    """

    receiver_id: Text
    epoch: Number
    state: Text  # starting | active | waiting | draining
    detail: Text
    acknowledged: Number  # version of the newest command that is done
    buffered_bytes: Size
    records: Number  # taken in since the start
    #: name → count, as in local_copies_given_up and stale_messages_dropped
    counters: Annotated[dict[Text, Number], Meta(max_length=HEARTBEAT_ITEMS_MAX)] = msgspec.field(default_factory=dict)
    partitions: Annotated[tuple[PartitionStatus, ...], Meta(max_length=PARTITIONS_MAX)] = ()
    #: claims up to this number are answered or abandoned; -1: an older release, which does not number them
    claims_done: NumberOrNone = -1
    holding: Annotated[tuple[Holding, ...], Meta(max_length=PARTITIONS_MAX)] = ()
    #: recent errors, the newest last
    errors: Annotated[tuple[ErrorNote, ...], Meta(max_length=HEARTBEAT_ITEMS_MAX)] = ()
    rate: Amount = 0.0  # maximum records per second, by a setting or a command; 0: no limit
    replica_host: Text = ""  # host to which it sends replicas; "": none yet
    metrics_url: Text = ""  # URL at which it serves /metrics; "": it does not
    #: hosts that recently refused a replica
    refusing_hosts: Annotated[tuple[Text, ...], Meta(max_length=HEARTBEAT_ITEMS_MAX)] = ()
    release: Text = ""  # release of its software
    open_seconds: Amount = 0.0  # age of its open block; 0: it has none
    storing_seconds: Amount = 0.0  # age of its oldest sealed block that is not durable; 0: all are
    storing_records: Number = 0  # offsets in its sealed blocks that are not durable
    #: time from the seal until it was durable, of the newest durable block; 0: none yet
    store_seconds: Amount = 0.0
    open_records: NumberOrNone = -1  # offsets in its open block; -1: a receiver of an older release


class ReplicaHost(Message, frozen=True, kw_only=True):
    """Host to which a receiver sends the replicas of its blocks, and the URL of the agent there."""

    host: str
    url: str


class HeartbeatAnswer(Message, frozen=True, kw_only=True):
    """Answer to :class:`HeartbeatRequest`.

    ``replica_host``: host for replicas from now on. None: no host can take them, or the stream has none.

    ``topics``: topics that match ``kafka.pattern`` now. The receiver subscribes to exactly these. None: the receiver subscribes
    to ``kafka.topics`` of its own settings, or keeps the topics of an earlier answer.
    """

    driver_epoch: Number
    commands: tuple[Command, ...] = ()
    replica_host: ReplicaHost | None = None
    topics: tuple[str, ...] | None = None
