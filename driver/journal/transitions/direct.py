"""Events of direct streams, whose batches have spans and no blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain

from driver.journal import events as ev
from driver.journal.state import BrokenInvariant, State
from driver.journal.state_parts import Batch, Incarnation, Partition, RecordedGap
from driver.journal.transitions.partition import complete_gaps
from forebay.kafka.consume.spans import OffsetRange
from forebay.model.values import Gap


def spans_begun(state: State, event: ev.SpansBegun) -> None:
    known = event.offsets.keys() & state.next_offsets.keys()
    if known:
        raise BrokenInvariant(f"partition {min(known)} of a direct stream begins twice (INV-2)")
    state.created = state.direct = True
    _keep_ids(state, event.topic_ids)
    for key, offset in event.offsets.items():
        topic, _, number = key.rpartition("/")
        before = state.partitions.get(key)
        incarnation = Incarnation(
            before.incarnation.number + 1 if before else 1,
            event.topic_ids.get(topic, ""),
            offset,
            event.time_ms,
            event.cause,
        )
        if before is None:
            state.partitions[key] = Partition(topic, int(number), [incarnation], offset, offset, leader_epoch=-1)
        else:
            before.incarnations.append(incarnation)
            before.position = before.completed = offset
            before.leader_epoch = -1
    state.next_offsets.update(event.offsets)
    state.topic_ids.update(event.topic_ids)


def _keep_ids(state: State, topic_ids: Mapping[str, str]) -> None:
    """Give the partitions of topics that get another id an incarnation with the id that they had, if they have none yet."""
    for key, position in state.next_offsets.items():
        topic = key.rpartition("/")[0]
        if topic in topic_ids and topic_ids[topic] != state.topic_ids.get(topic, ""):
            direct_partition(state, key, position)


def spans_ended(state: State, event: ev.SpansEnded) -> None:
    for key in event.partitions:
        partition = direct_partition(state, key, state.next_offsets.pop(key))
        partition.incarnation.end = partition.position
    left = {partition.rpartition("/")[0] for partition in state.next_offsets}
    state.topic_ids = {topic: topic_id for topic, topic_id in state.topic_ids.items() if topic in left}


def spans_skipped(state: State, event: ev.SpansSkipped) -> None:
    for span in event.spans:
        partition = _move_on(state, span)
        gap = Gap(span.from_offset, span.until_offset, event.cause)
        partition.gaps.append(RecordedGap(partition.incarnation.number, gap, event.time_ms))
        partition.leader_epoch = -1  # the stream has read no record before the gap's end
        complete_gaps(partition)


def _move_on(state: State, span: OffsetRange) -> Partition:
    """Move the partition's position to the end of ``span``, and return the partition."""
    key = str(span.tp)
    if state.next_offsets.get(key) != span.from_offset:
        raise BrokenInvariant(f"{span} does not begin where the one before it ended (INV-2)")
    partition = direct_partition(state, key, span.from_offset)
    partition.position = state.next_offsets[key] = span.until_offset
    return partition


def direct_partition(state: State, key: str, position: int) -> Partition:
    """Return a partition of a direct stream. Older releases kept no incarnations: such a partition gets one, from ``position``
    on. It is the first one, unless a batch that is kept has ranges of an earlier topic of that name.
    """
    if key not in state.partitions:
        topic, _, number = key.rpartition("/")
        topic_id = state.topic_ids.get(topic, "")
        kept: Iterable[Batch | ev.ReplayedBatch] = chain(
            state.replaying.values(), state.replay_window.values(), state.batches.values()
        )
        before = {span.topic_id for batch in kept for span in batch.spans if str(span.tp) == key} - {"", topic_id}
        incarnation = Incarnation(2 if before else 1, topic_id, position, 0, "begun under an older release")
        state.partitions[key] = Partition(topic, int(number), [incarnation], position, position, leader_epoch=-1)
    return state.partitions[key]


def spans_allocated(state: State, event: ev.SpansAllocated) -> None:
    if event.batch_id != state.next_batch_id():
        raise BrokenInvariant(f"batch {event.batch_id} is not the next one")
    incarnations = tuple(_moved_by(state, span) for span in event.spans)
    state.batch_count += 1
    state.index.records[event.batch_id] = sum(span.size for span in event.spans)
    state.index.reached[event.batch_id] = {}  # its spans say it
    state.batches[event.batch_id] = Batch(
        batch_id=event.batch_id,
        number=event.number,
        time_ms=event.time_ms,
        tasks=(),
        spans=event.spans,
        incarnations=incarnations,
    )


def _moved_by(state: State, span: OffsetRange) -> int:
    """Move the partition behind ``span``, and return the number of its incarnation."""
    partition = _move_on(state, span)
    partition.leader_epoch = span.leader_epoch
    return partition.incarnation.number


def cursor_named(state: State, event: ev.CursorNamed) -> None:
    if state.cursor:
        raise BrokenInvariant(f"the direct stream has the cursor {state.cursor} already, and not {event.name}")
    state.cursor = event.name
