"""Base classes for custom sources: ``[receiver] source = "module:Class"`` (docs/SOURCES.md).

:class:`ReliableSource` is for origins that can be read again from an offset: a file, a table, another log. No record is lost or
repeated, whatever process is killed. :class:`UnreliableSource` is for other origins: a socket, a queue without replay. If a
receiver's process ends, records that the driver has not accepted yet are lost; no record is repeated.

The constructor receives ``[receiver.source_options]`` as keyword arguments and does no I/O, since the driver creates an instance
too. An exception of a method ends the receiver's process with exit code 1; the last heartbeat has its text, and the supervisor
restarts the process with a growing delay. After :class:`RetryLater`, the receiver retries instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import pyarrow as pa

#: the end of a partition whose end is unknown
UNKNOWN_END = -1


class RetryLater(Exception):
    """Raised in any method: something that it needs is unavailable now. The receiver shows the text, and repeats the call with a
    growing delay."""


class OffsetGone(Exception):
    """Raised in ``open`` or ``poll``: ``partition`` can't continue at its position any more, for example a truncated file.

    ``on_gap`` decides what happens. ``first_offset`` and ``end_offset`` are called for the offsets that remain.
    """

    def __init__(self, partition: str, message: str) -> None:
        super().__init__(f"{partition}: {message}")
        self.partition = partition


@dataclass(frozen=True, slots=True)
class Record:
    """One record.

    ``key``, ``value``: its bytes, or None. ``offset``: from a reliable source, ascending within its partition, gaps allowed; an
    unreliable source does not set it. ``timestamp_ms``: since 1970 UTC; -1 for none. ``headers``: taken in if ``kafka.headers``
    is set.
    """

    value: bytes | None
    key: bytes | None = None
    offset: int = -1
    timestamp_ms: int = -1
    headers: Sequence[tuple[str, bytes | None]] = ()


#: the result of a poll: records, or the same as columns. ``value`` (and ``offset``, if the source is reliable) is required.
#: ``value``, ``key``: binary or string; ``offset``: int64; ``timestamp``: int64 milliseconds; ``headers``: as in
#: forebay.model.records
Records: TypeAlias = Sequence[Record] | pa.RecordBatch


class ReliableSource(ABC):
    """Reads partitions that can be read again. Each has a name, which is the ``topic`` of its records.

    The receiver's polling thread calls all methods. Another thread, and the driver's process, also call ``partitions``,
    ``identity``, ``first_offset`` and ``end_offset``, which need no ``open`` before. No method may wait longer than a few
    seconds: a receiver whose poll hangs counts as lost. A call that raises must not have returned or changed anything: a later
    call returns the records.
    """

    ordinal: int = 0

    @abstractmethod
    def partitions(self) -> Sequence[str]:
        """Return the names of all partitions, of 1 to 249 letters, digits, '.', '_' and '-'.

        They are distributed over ``receiver.count`` receivers. The call is repeated every ``kafka.discovery_interval``. A name
        must keep its meaning, unless ``identity`` changes.
        """

    @abstractmethod
    def open(self, partition: str, offset: int) -> None:
        """Begin to read ``partition`` at ``offset``: its next record has this offset or a higher one.

        A partition that is already open moves back or forward to the offset.
        """

    @abstractmethod
    def poll(self, partitions: Sequence[str], max_records: int, timeout_seconds: float) -> Mapping[str, Records]:
        """Return up to ``max_records`` records of all ``partitions`` together, as soon as there are any; {} after
        ``timeout_seconds``. Other open partitions are paused: return none of their records."""

    @abstractmethod
    def close(self) -> None:
        """End reading, also after an error. May be called without ``open``."""

    def forget(self, partitions: Sequence[str]) -> None:  # noqa: B027 - may be left as it is
        """Stop reading ``partitions``: another receiver reads them from now on. Override this method to free their resources."""

    def acknowledge(self, positions: Mapping[str, int]) -> None:  # noqa: B027 - may be left as it is
        """All records below these offsets are durable, so the origin may drop them.

        May be called repeatedly, with a lower offset than before (by a process that already has a successor), and before
        ``open``.
        """

    def first_offset(self, partition: str) -> int:
        """Return the lowest offset that can still be read: where a new partition begins, and a gap ends."""
        return 0

    def end_offset(self, partition: str) -> int:
        """Return the offset of the next future record, or a lower bound of it; UNKNOWN_END if it is unknown.

        The lag is shown relative to it, and ``--until-caught-up`` reads up to it.
        """
        return UNKNOWN_END

    def identity(self, partition: str) -> str:
        """Return an id that distinguishes this partition from another one of the same name, such as a file's inode; "" for none.

        When it changes, a new incarnation begins (``on_gap``).
        """
        return ""


class UnreliableSource(ABC):
    """Takes in records that can't be read again.

    Each of the ``receiver.count`` receivers has one instance, and one partition: its ``ordinal``, from 0, which is set before
    ``start``. Forebay assigns offsets: consecutive, from 0, never twice.
    """

    #: the ``topic`` of the records; "": the stream's name
    name: ClassVar[str] = ""
    ordinal: int = 0

    @abstractmethod
    def start(self) -> None:
        """Begin to take records in. Called once in a process."""

    @abstractmethod
    def poll(self, max_records: int, timeout_seconds: float) -> Records:
        """Return up to ``max_records`` records, as soon as there are any; [] after ``timeout_seconds``.

        Not called while the receiver has no room for records: new ones must wait at their origin.
        """

    @abstractmethod
    def stop(self) -> None:
        """End taking records in, also after an error. May be called without ``start``."""
