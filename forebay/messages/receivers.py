"""Registration and heartbeats of receivers."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from forebay.messages.commands import Command
from forebay.messages.message import PARTITIONS_MAX, Message
from forebay.model.values import Amount, Number, NumberOrNone, OffsetOrNone, PartitionNumber, Size, Text, Topic

#: errors, counters and hosts in one heartbeat
HEARTBEAT_ITEMS_MAX = 200


class RegisterRequest(Message, frozen=True, kw_only=True):
    """POST /v1/receivers/register. The same ``instance_id`` gets the same epoch again; another one ends the older's claims."""

    stream: Text
    receiver_id: Text
    host: Text
    instance_id: Text
    release: Text


class RegisterAnswer(Message, frozen=True, kw_only=True):
    epoch: Number
    driver_epoch: Number
    timeline: Number
    topics: tuple[str, ...] | None = None  # as HeartbeatAnswer.topics


class PartitionStatus(Message, frozen=True, kw_only=True):
    """How one partition stands at its receiver: ``position`` is the next offset it will poll."""

    topic: Topic
    partition: PartitionNumber
    token: Number
    state: Text  # claiming | active | paused | trouble
    position: OffsetOrNone
    high_watermark: OffsetOrNone
    detail: Text = ""
    rate: Amount = 0.0  # records/s that it is held to, by a setting or the driver's word; 0: none


class Holding(Message, frozen=True, kw_only=True):
    """A token under which the receiver may yet write: it takes records in under it, or has some that are not in the WAL."""

    topic: Topic
    partition: PartitionNumber
    token: Number


class ErrorNote(Message, frozen=True, kw_only=True):
    """Something that went wrong and did not end the process: how often, and how long ago the last time was."""

    words: Text
    count: Number
    seconds_ago: Amount


class HeartbeatRequest(Message, frozen=True, kw_only=True):
    """POST /v1/receivers/heartbeat.

    ``holding``: all that it may yet write under. Once a claim is among ``claims_done`` and its token not among ``holding``,
    it never will be again: so a heartbeat that is late or repeated says nothing wrong.
    """

    receiver_id: Text
    epoch: Number
    state: Text  # starting | active | waiting | draining
    detail: Text
    acknowledged: Number  # the highest command version done
    buffered_bytes: Size
    records: Number  # taken in since the start
    counters: Annotated[dict[Text, Number], Meta(max_length=HEARTBEAT_ITEMS_MAX)] = msgspec.field(
        default_factory=dict
    )  # name → count: e.g. local_copies_given_up, stale_messages_dropped
    partitions: Annotated[tuple[PartitionStatus, ...], Meta(max_length=PARTITIONS_MAX)] = ()
    claims_done: NumberOrNone = (
        -1
    )  # its claims up to this number are answered or given up; -1: an older release, which can't tell
    holding: Annotated[tuple[Holding, ...], Meta(max_length=PARTITIONS_MAX)] = ()
    errors: Annotated[
        tuple[ErrorNote, ...], Meta(max_length=HEARTBEAT_ITEMS_MAX)
    ] = ()  # the last few that did not end it, the latest last
    rate: Amount = 0.0  # records/s that it is held to, by a setting or the driver's word; 0: none
    replica_host: Text = ""  # where its second copies go; "": nowhere yet
    refusing_hosts: Annotated[
        tuple[Text, ...], Meta(max_length=HEARTBEAT_ITEMS_MAX)
    ] = ()  # that lately did not take a second copy of it
    release: Text = ""  # of its software


class ReplicaHost(Message, frozen=True, kw_only=True):
    """Where a receiver puts its second copies: a host, and the url of its agent."""

    host: str
    url: str


class HeartbeatAnswer(Message, frozen=True, kw_only=True):
    """``second_host``: where second copies go from now on; None: no host can take them, or none are wanted.

    ``topics``: the topics that ``kafka.pattern`` matches now; the receiver subscribes to exactly these. None: the
    receiver subscribes to ``kafka.topics`` of its own settings, or keeps what it was told before."""

    driver_epoch: Number
    commands: tuple[Command, ...] = ()
    replica_host: ReplicaHost | None = None
    topics: tuple[str, ...] | None = None
