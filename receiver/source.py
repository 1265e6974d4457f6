"""Kafka as the receiver sees it: columns of records per partition, and the events of the consumer group.

Implemented by ``forebay.kafka.consume.consumer`` over a real broker; tests bring their own. All methods are called from one
thread, the polling thread, except ``watermarks`` and ``topic_ids``, which one other thread calls: they wait for the
broker, and polling must not. Listener methods are called within :meth:`Source.poll`, on the polling thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from forebay.model.columns import Columns, EndOfPartition, PartitionFault, RebalanceListener, Start
from forebay.model.values import TopicPartition


@dataclass(frozen=True, slots=True)
class CommitPoint:
    """What is committed to Kafka for one partition: the next offset to take in, the leader epoch of the record before
    it (-1: unknown), and ``forebay:<lineage>:<life>``, by which our own commits are told from foreign ones (rule 5)."""

    offset: int
    leader_epoch: int
    metadata: str


class Source(Protocol):
    """A member of the consumer group. Errors that end the consumer are raised as ``ForebayError``; those that concern
    one partition come as :class:`PartitionFault`, never as silence and never as a reset position.
    """

    @property
    def last_error(self) -> str:
        """The newest transport error in words, "" if there is none; for status."""

    def subscribe(self, listener: RebalanceListener) -> None:
        """Joins the group. Called once, before the first poll."""

    def follow(self, topics: Sequence[str]) -> None:
        """Subscribes to exactly ``topics`` from now on, none of them included. Before :meth:`subscribe`: from then on.
        Partitions of other topics are taken away by the listener, within later polls."""

    def poll(self, max_records: int, timeout_seconds: float) -> list[Columns | EndOfPartition | PartitionFault]:
        """Up to ``max_records`` records, waiting no longer than ``timeout_seconds``; each :class:`Columns` holds one
        partition's consecutive records in offset order, tagged with the generation of the start they came under."""

    def start(self, starts: Sequence[Start]) -> None:
        """Unassigns each partition, then assigns it at the position with the leader epoch under the new generation, not
        paused. What was fetched under an older generation is never given out as the new one's (rule 3)."""

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """These deliver nothing until resumed or started. May be repeated; unknown partitions are ignored."""

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Ends a pause. May be repeated; unknown partitions are ignored."""

    def commit(self, positions: Mapping[TopicPartition, CommitPoint]) -> None:
        """Asynchronous; what failed is learned from :meth:`poll_commit_errors`."""

    def poll_commit_errors(self) -> dict[TopicPartition, str]:
        """Partitions whose asynchronous commits failed since the last call, with Kafka's words. {} mostly."""

    def commit_sync(
        self, positions: Mapping[TopicPartition, CommitPoint], timeout_seconds: float
    ) -> dict[TopicPartition, str]:
        """Partition → error, {} if all succeeded. Succeeds only as a member of the group's current generation."""

    def watermarks(self, tp: TopicPartition, timeout_seconds: float) -> tuple[int, int]:
        """The broker's (low, high) now. Raises UnreachableError."""

    def high_watermark(self, tp: TopicPartition) -> int:
        """The next offset to be written, as the last fetch told it; -1 if unknown. Never waits."""

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        """Topic → id, "" where the broker can't tell. Raises UnreachableError."""

    def close(self) -> None:
        """Leaves the group."""
