"""Cursors of queries over the intake."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from forebay.messages.message import PARTITIONS_MAX, Message
from forebay.model.bounds import Number, Offset, PartitionNumber, Text, Topic
from forebay.model.values import TopicPartition


class CursorPlace(Message, frozen=True, kw_only=True):
    """Position of a cursor in one partition: ``offset`` is the next one to read, and all before it is finished."""

    topic: Topic
    partition: PartitionNumber
    incarnation: Number
    offset: Offset

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class OpenCursorRequest(Message, frozen=True, kw_only=True):
    """POST /v1/cursors/open. Locks ``cursor`` to ``user`` (one process), which reads from ``places`` on.

    A name that is not known creates the cursor. The driver refuses (``in-use``) while another user is active. The same user gets
    the same epoch again; another user gets a new one, which ends the epoch before.

    ``left`` names partitions that the user does not read, although records may be held for it. A partition in neither list is
    held from its beginning. ``key`` is a random text that only the user knows, and that it needs to move or close the cursor.
    """

    cursor: Text
    user: Text
    places: Annotated[tuple[CursorPlace, ...], Meta(max_length=PARTITIONS_MAX)]
    left: Annotated[tuple[TopicPartition, ...], Meta(max_length=PARTITIONS_MAX)] = ()
    key: Text = ""


class OpenCursorAnswer(Message, frozen=True, kw_only=True):
    """Answer to :class:`OpenCursorRequest`.

    ``ended``: why an earlier cursor of this name ended; "": it did not end, or the driver knows none.
    """

    epoch: Number
    ended: str = ""


class MoveCursorRequest(Message, frozen=True, kw_only=True):
    """POST /v1/cursors/move. Finishes all records before ``places`` for good.

    Without ``places`` it is a heartbeat of the user. The driver refuses if another user has opened the cursor (``fenced``), or if
    the cursor no longer exists (``not-found``).
    """

    cursor: Text
    epoch: Number
    places: Annotated[tuple[CursorPlace, ...], Meta(max_length=PARTITIONS_MAX)] = ()
    left: Annotated[tuple[TopicPartition, ...], Meta(max_length=PARTITIONS_MAX)] = ()
    key: Text = ""


class CloseCursorRequest(Message, frozen=True, kw_only=True):
    """POST /v1/cursors/close. Unlocks the cursor: the next user need not wait.

    The cursor still holds its records, except with ``forget``: its query could not begin at all and will not return.
    """

    cursor: Text
    epoch: Number
    forget: bool = False
    key: Text = ""


class EarliestRequest(Message, frozen=True, kw_only=True):
    """POST /v1/cursors/earliest. Asks for the first place of each partition from which the WAL holds all records."""

    partitions: Annotated[tuple[TopicPartition, ...], Meta(max_length=PARTITIONS_MAX)]


class EarliestAnswer(Message, frozen=True, kw_only=True):
    """Answer to :class:`EarliestRequest`.

    From each place to the position of its partition, the WAL holds all records, except gaps.
    """

    places: tuple[CursorPlace, ...]
