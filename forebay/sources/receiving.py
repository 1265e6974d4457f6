"""What users subclass to receive from something else than Kafka: ``[receiver] source = "module:Class"`` (docs/SOURCES.md).

:class:`ReliableSource` is for what can be read again from an offset: a file, a table, another log. Nothing of it is lost or
repeated, whatever process is killed. :class:`UnreliableSource` is for what can't: a socket, a queue without replay. What was
taken from it and not accepted by the driver yet is gone when the receiver's process dies; nothing is repeated.

The constructor is given ``[receiver.source_options]`` as keyword arguments and does no I/O, since the driver makes one too.
Whatever a method raises ends the receiver's process with exit code 1, in words that its last heartbeat carries; who keeps the
process starts it anew, with growing delay. :class:`RetryLater` is waited for instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import pyarrow as pa

#: the end of a partition that can't tell it
UNKNOWN_END = -1


class RetryLater(Exception):
    """Raised in any method: what it needs is not there now. The words are shown; the call is made again, with growing
    delay, and nothing ends."""


class OffsetGone(Exception):
    """Raised in ``open`` or ``poll``: ``partition`` can't go on at its position any more, as a file that was cut off. What
    happens then, ``on_gap`` says; ``first_offset`` and ``end_offset`` are asked for what is there instead."""

    def __init__(self, partition: str, words: str) -> None:
        super().__init__(f"{partition}: {words}")
        self.partition = partition


@dataclass(frozen=True, slots=True)
class Record:
    """One record. ``offset``: a reliable source's own number of it, ascending within its partition, holes allowed; an
    unreliable one leaves it out. ``timestamp_ms``: since 1970 UTC, -1 if there is none. ``headers`` are taken in where
    ``kafka.headers`` is set."""

    value: bytes | None
    key: bytes | None = None
    offset: int = -1
    timestamp_ms: int = -1
    headers: Sequence[tuple[str, bytes | None]] = ()


#: what a poll gives: records, or the same as columns, of which ``value`` (and ``offset``, if the source is reliable) is needed:
#: ``value``, ``key``: binary or string; ``offset``: int64; ``timestamp``: int64 milliseconds; ``headers``: as in
#: forebay.model.records
Records: TypeAlias = Sequence[Record] | pa.RecordBatch


class ReliableSource(ABC):
    """Reads partitions that can be read again. Each has a name, which is the ``topic`` of its records.

    All methods are called by one thread of the receiver, the one that polls, but for ``partitions``, ``identity``,
    ``first_offset`` and ``end_offset``: these are called by another thread and in the driver's process too, and need no
    ``open`` before. None may wait for longer than a few seconds: a receiver whose poll hangs counts as lost.
    A call that raised has given and changed nothing: what it would have given comes with a later one.
    """

    ordinal: int = 0

    @abstractmethod
    def partitions(self) -> Sequence[str]:
        """The names of all there is to read, of 1 to 249 letters, digits, '.', '_' and '-'. They are dealt over
        ``receiver.count`` receivers; asked again every ``kafka.discovery_interval``. A name must not come to mean something
        else, unless ``identity`` tells."""

    @abstractmethod
    def open(self, partition: str, offset: int) -> None:
        """Begin to read ``partition`` at ``offset``: what is given of it next has that offset or a higher one. One that is open
        already goes back, or forward, to the offset."""

    @abstractmethod
    def poll(self, partitions: Sequence[str], max_records: int, timeout_seconds: float) -> Mapping[str, Records]:
        """Up to ``max_records`` records of all of ``partitions`` together, soon after there are any; {} after
        ``timeout_seconds``. Of other partitions nothing is wanted now: of an open one, later."""

    @abstractmethod
    def close(self) -> None:
        """The end, also after an error. May be called without ``open``."""

    def forget(self, partitions: Sequence[str]) -> None:  # noqa: B027 - may be left as it is
        """These are another receiver's from now on. Needed only by who keeps something for each open partition."""

    def acknowledge(self, positions: Mapping[str, int]) -> None:  # noqa: B027 - may be left as it is
        """All records below these offsets are durable, so the origin may drop them. It may come again, also with a lower
        offset than before (by a process that has a successor already), and before ``open``."""

    def first_offset(self, partition: str) -> int:
        """The lowest offset that can still be read: where a new partition begins, and a gap ends."""
        return 0

    def end_offset(self, partition: str) -> int:
        """The offset that the next record to come will have, or a lower bound of it: shown as lag, and the aim of
        ``--until-caught-up``. UNKNOWN_END if it can't be told."""
        return UNKNOWN_END

    def identity(self, partition: str) -> str:
        """What tells this partition from another one that takes its name, as a file's inode; "" if nothing does. When it
        changes, a new life begins (``on_gap``)."""
        return ""


class UnreliableSource(ABC):
    """Takes in what can't be read again. Each of the ``receiver.count`` receivers has one, and so a partition of its own: its
    ``ordinal``, from 0, which is known from ``start`` on. Offsets are Forebay's own: dense, from 0, never given twice."""

    #: the ``topic`` of the records; "": the stream's name
    name: ClassVar[str] = ""
    ordinal: int = 0

    @abstractmethod
    def start(self) -> None:
        """The receiver may take records in from now on. Called once in a process."""

    @abstractmethod
    def poll(self, max_records: int, timeout_seconds: float) -> Records:
        """Up to ``max_records`` records, soon after there are any; [] after ``timeout_seconds``. Not called while there is no
        room for records: what comes meanwhile waits where it comes from."""

    @abstractmethod
    def stop(self) -> None:
        """The end, also after an error. May be called without ``start``."""
