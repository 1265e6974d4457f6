"""The protocol of a source: columns of records per partition, and the events of the consumer group.

``forebay.kafka.consume.consumer`` implements it over a broker, ``custom_source`` over a user's class. The polling thread calls
all methods except ``watermarks`` and ``topic_ids``. Those wait for the broker, which polling must not, so another single
thread calls them. The source calls the listener within :meth:`Source.poll`, on the polling thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from forebay.model.columns import Columns, EndOfPartition, PartitionFault, RebalanceListener, Start
from forebay.model.values import TopicPartition


@dataclass(frozen=True, slots=True)
class CommitPoint:
    """What is committed to Kafka for one partition.

    ``offset``: the next one to take in. ``leader_epoch``: of the record before it, -1 if unknown. ``metadata``:
    ``forebay:<timeline>:<incarnation>``, which distinguishes commits of this intake from foreign ones (rule 5).
    """

    offset: int
    leader_epoch: int
    metadata: str


class Source(Protocol):
    """A member of the consumer group.

    Errors that end the consumer are raised as ``ForebayError``. An error of one partition is returned as
    :class:`PartitionFault`. It is never silent and never resets the position.
    """

    @property
    def last_error(self) -> str:
        """The newest transport error, "" if there is none; for status."""

    def subscribe(self, listener: RebalanceListener) -> None:
        """Join the group. Called once, before the first poll."""

    def follow(self, topics: Sequence[str]) -> None:
        """Subscribe to exactly ``topics`` from now on; an empty sequence means none. May be called before :meth:`subscribe`.

        The partitions of other topics are revoked through the listener, within later polls.
        """

    def poll(self, max_records: int, timeout_seconds: float) -> list[Columns | EndOfPartition | PartitionFault]:
        """Return up to ``max_records`` records, after at most ``timeout_seconds``.

        Each :class:`Columns` holds consecutive records of one partition in offset order, with the generation of the start
        under which they were read.
        """

    def start(self, starts: Sequence[Start]) -> None:
        """Read each partition from its position and leader epoch under its new generation, not paused.

        Each partition is unassigned first, so that nothing fetched under an older generation is returned under the new one
        (rule 3).
        """

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Deliver nothing of these partitions until they are resumed or started. Repeatable; ignores unknown partitions."""

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """End a pause. Repeatable; ignores unknown partitions."""

    def commit(self, positions: Mapping[TopicPartition, CommitPoint]) -> None:
        """Commit these positions to the consumer group, without waiting. :meth:`poll_commit_errors` returns the failures."""

    def poll_commit_errors(self) -> dict[TopicPartition, str]:
        """Return Kafka's error for each partition whose asynchronous commit failed since the last call."""

    def commit_sync(
        self, positions: Mapping[TopicPartition, CommitPoint], timeout_seconds: float
    ) -> dict[TopicPartition, str]:
        """Commit and return the error of each partition that failed, {} if all succeeded.

        Succeeds only for a member of the group's current generation.
        """

    def watermarks(self, tp: TopicPartition, timeout_seconds: float) -> tuple[int, int]:
        """Ask the broker for the log's first offset and the offset after its last record. Raises UnreachableError."""

    def high_watermark(self, tp: TopicPartition) -> int:
        """Return the offset after the last record, as of the last fetch; -1 if unknown. Never waits."""

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """Return the id of each topic that exists, "" if the broker has no topic ids. Raises UnreachableError."""

    def close(self) -> None:
        """Leave the group."""
