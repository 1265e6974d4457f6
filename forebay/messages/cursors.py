"""Messages with which a query over the intake keeps its cursor."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from forebay.messages.message import PARTITIONS_MAX, Message
from forebay.model.values import Number, Offset, PartitionNumber, Text, Topic, TopicPartition


class CursorPlace(Message, frozen=True, kw_only=True):
    """Up to here a cursor has finished a partition: the offset is the next one to read."""

    topic: Topic
    partition: PartitionNumber
    incarnation: Number
    offset: Offset

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class OpenCursorRequest(Message, frozen=True, kw_only=True):
    """POST /v1/cursors/open. ``user``, one process, reads by ``cursor`` from ``places`` on; a name that is not known makes it.
    Refused (in-use) while another user is at work. The same user gets the same epoch again; another one ends the older's.
    ``left``: partitions that it does not read, though they may be held for it; one that it names in neither way is held from its
    beginning. ``key``: random, known to the user alone, who must have it to move or close the cursor."""

    cursor: Text
    user: Text
    places: Annotated[tuple[CursorPlace, ...], Meta(max_length=PARTITIONS_MAX)]
    left: Annotated[tuple[TopicPartition, ...], Meta(max_length=PARTITIONS_MAX)] = ()
    key: Text = ""


class OpenCursorAnswer(Message, frozen=True, kw_only=True):
    """``ended``: why the driver had forgotten the cursor before; "" if it had not, or knows of none."""

    epoch: Number
    ended: str = ""


class MoveCursorRequest(Message, frozen=True, kw_only=True):
    """POST /v1/cursors/move. What lies before ``places`` is finished for good; without any: the user is at work still. Refused
    (fenced) when another one has opened the cursor, and (not-found) when it is gone."""

    cursor: Text
    epoch: Number
    places: Annotated[tuple[CursorPlace, ...], Meta(max_length=PARTITIONS_MAX)] = ()
    left: Annotated[tuple[TopicPartition, ...], Meta(max_length=PARTITIONS_MAX)] = ()
    key: Text = ""


class CloseCursorRequest(Message, frozen=True, kw_only=True):
    """POST /v1/cursors/close. The user ends: the next one need not wait. What the cursor holds stays held, but if its query could
    not begin at all (``forget``): then nobody comes back to it."""

    cursor: Text
    epoch: Number
    forget: bool = False
    key: Text = ""


class EarliestRequest(Message, frozen=True, kw_only=True):
    """POST /v1/cursors/earliest. Of each partition: from where on the WAL holds all, but for gaps, up to the position."""

    partitions: Annotated[tuple[TopicPartition, ...], Meta(max_length=PARTITIONS_MAX)]


class EarliestAnswer(Message, frozen=True, kw_only=True):
    places: tuple[CursorPlace, ...]
