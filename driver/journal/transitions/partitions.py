"""Events of partitions: they are added, a new incarnation begins, Kafka does not continue, offsets are lost."""

from __future__ import annotations

import msgspec

from driver.journal import events as ev
from driver.journal.state import BrokenInvariant, State
from driver.journal.state_parts import Incarnation, OpenFault, Partition, RecordedGap
from driver.journal.transitions.partition import complete_gaps, end_claim, partition_of


def stream_created(state: State, event: ev.StreamCreated) -> None:
    if state.created:
        raise BrokenInvariant("the stream was created twice")
    state.created = True
    _add_partitions(state, event.starts, event.time_ms, event.cause)


def partitions_added(state: State, event: ev.PartitionsAdded) -> None:
    _add_partitions(state, event.starts, event.time_ms, event.cause)


def _add_partitions(state: State, starts: tuple[ev.IncarnationStart, ...], time_ms: int, cause: str) -> None:
    state.shaped = state.events + 1
    for start in starts:
        key = f"{start.topic}/{start.partition}"
        if key in state.partitions:
            raise BrokenInvariant(f"partition {key} was added twice")
        state.topics[start.topic] = True
        for (
            cursor
        ) in state.cursors.values():  # held for each cursor until its user says that it does not read the partition
            cursor.vector[key] = (1, start.start)
        if state.cursors:
            state.index.read_to(key, (1, start.start), state.blocks)
        state.partitions[key] = Partition(
            topic=start.topic,
            partition=start.partition,
            incarnations=[
                Incarnation(number=1, topic_id=start.topic_id, start=start.start, time_ms=time_ms, cause=cause)
            ],
            position=start.start,
            completed=start.start,
            leader_epoch=start.leader_epoch,
        )


def incarnation_begun(state: State, event: ev.IncarnationBegun) -> None:
    start = event.start
    state.shaped = state.events + 1
    partition = partition_of(state, start.topic, start.partition)
    partition.incarnation.end = partition.position
    partition.incarnation.last_epoch = partition.leader_epoch
    partition.incarnations.append(
        Incarnation(
            number=partition.incarnation.number + 1,
            topic_id=start.topic_id,
            start=start.start,
            time_ms=event.time_ms,
            cause=event.cause,
        )
    )
    partition.position = partition.completed = start.start
    partition.leader_epoch = start.leader_epoch
    partition.fault = None
    partition.writers = []
    end_claim(partition)


def fault_found(state: State, event: ev.FaultRecorded) -> None:
    partition_of(state, event.topic, event.partition).fault = OpenFault(
        kind=event.kind,
        position=event.position,
        accept_until=event.accept_until,
        new_incarnation=event.new_incarnation,
        topic_id=event.topic_id,
        leader_epoch=event.leader_epoch,
    )


def adoption_tried(state: State, event: ev.AdoptionTried) -> None:
    partition = partition_of(state, event.topic, event.partition)
    if partition.fault is None or event.token != partition.token:
        raise BrokenInvariant(f"adoption was tried in {partition.tp}, which has no open fault or a newer token (INV-2)")
    partition.fault = msgspec.structs.replace(partition.fault, tried=event.token, adoptable_from=event.adoptable_from)


def gap_recorded(state: State, event: ev.GapRecorded) -> None:
    partition = partition_of(state, event.topic, event.partition)
    if event.gap.from_offset != partition.position:
        raise BrokenInvariant(f"a gap of {partition.tp} begins at {event.gap.from_offset}, not at the position (INV-2)")
    partition.gaps.append(RecordedGap(incarnation=partition.incarnation.number, gap=event.gap, time_ms=event.time_ms))
    partition.position = event.gap.until_offset
    complete_gaps(partition)
    partition.fault = partition.fault.moved(partition.position) if partition.fault is not None else None
    partition.writers = []
    end_claim(partition)
