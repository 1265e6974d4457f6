"""What a direct stream reads of its checkpoint's state, by requests to the decision loop."""

from __future__ import annotations

from dataclasses import dataclass

from direct.checkpoint.losses import incarnations, leader_epochs, positions, topic_ids
from direct.stream.cursor import ranges_to_keep
from driver.journal.state import State
from driver.journal.state_parts import LearnedRate
from driver.tracker.requests import Read
from forebay.kafka.consume.spans import OffsetRange
from forebay.model.values import TopicPartition


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """Where a direct stream is.

    ``positions``: the offset of each partition at which the next batch begins. ``topic_ids``: as they were when the partitions
    began. ``leader_epochs``: those under which the positions were chosen, as far as they are known. ``incarnations``: the
    numbers of those that the positions are in. ``learned``: the rate at which the job takes records; None: not known.
    ``begun``: whether partitions have begun.
    """

    positions: dict[TopicPartition, int]
    topic_ids: dict[TopicPartition, str]
    leader_epochs: dict[TopicPartition, int]
    incarnations: dict[TopicPartition, int]
    learned: LearnedRate | None
    begun: bool


@dataclass(frozen=True, slots=True)
class ReadProgress(Read[StreamProgress]):
    """The request for a :class:`StreamProgress`."""

    def read(self, state: State) -> StreamProgress:
        return StreamProgress(
            positions(state), topic_ids(state), leader_epochs(state), incarnations(state), state.learned, state.created
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamNumbers:
    """The numbers that a direct stream shows as metrics.

    ``positions``, ``completed``: for each partition, the offset at which the next batch begins, and the one before which all
    batches are completed. ``queued_records``: offsets in ``unfinished``, the ids of the batches that are not completed.
    """

    positions: dict[TopicPartition, int]
    completed: dict[TopicPartition, int]
    batches_completed: int
    records_completed: int
    queued_records: int
    unfinished: tuple[int, ...]
    learned: LearnedRate | None


@dataclass(frozen=True, slots=True)
class ReadNumbers(Read[StreamNumbers]):
    """The request for :class:`StreamNumbers`."""

    def read(self, state: State) -> StreamNumbers:
        at = positions(state)
        known = {tp: state.partitions.get(str(tp)) for tp in at}
        return StreamNumbers(
            positions=at,
            completed={tp: partition.completed for tp, partition in known.items() if partition is not None},
            batches_completed=state.batches_completed,
            records_completed=state.records_completed,
            queued_records=sum(state.index.records.values()),
            unfinished=tuple(batch.batch_id for batch in state.unfinished()),
            learned=state.learned,
        )


@dataclass(frozen=True, slots=True)
class ReadRangesToKeep(Read[tuple[OffsetRange, ...]]):
    """The request for the ranges that the stream has yet to read or may read again."""

    def read(self, state: State) -> tuple[OffsetRange, ...]:
        return ranges_to_keep(state)


@dataclass(frozen=True, slots=True)
class ReadUnfinishedSpans(Read[tuple[tuple[int, OffsetRange], ...]]):
    """The request for the number and each span of all batches that are not completed."""

    def read(self, state: State) -> tuple[tuple[int, OffsetRange], ...]:
        return tuple((batch.number, span) for batch in state.unfinished() for span in batch.spans)
