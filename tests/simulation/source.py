"""The consumer of one receiver: it fetches ahead, as librdkafka does, and its member of the group may be a zombie."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from forebay.model.arrow_columns import Column
from forebay.model.columns import Columns, EndOfPartition, PartitionFault, Start
from forebay.model.records import SOURCE_SCHEMA
from forebay.model.values import TopicPartition
from tests.simulation.kafka import Kafka

Item = Columns | EndOfPartition | PartitionFault


@dataclass(slots=True)
class Reading:
    """``offset``: the next to fetch. ``fetched``: records that wait to be polled, tagged when they were fetched."""

    start: Start
    offset: int
    paused: bool = False
    ended_at: int = -1
    troubled: bool = False
    fetched: deque[Item] = field(default_factory=deque)


class SimulatedSource:
    """Exactly what ``forebay.kafka.consume.consumer`` guarantees to the receiver: a poll may still return records of an
    older generation, with their old tag. A start under the current generation is a bare seek: it moves the fetch
    position, and records fetched before come out first.
    """

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self.reading: dict[TopicPartition, Reading] = {}
        self._leftover: deque[Item] = deque()

    def start(self, starts: Iterable[Start]) -> None:
        for start in starts:
            current = self.reading.get(start.tp)
            if current is not None and current.start.generation == start.generation:
                current.offset = start.offset
                current.ended_at = -1
                current.troubled = False
                continue
            self.drop([start.tp])
            self.reading[start.tp] = Reading(start, start.offset)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            gone = self.reading.pop(tp, None)
            if gone is not None:
                self._leftover.extend(gone.fetched)

    def pause(self, partitions: Iterable[TopicPartition], paused: bool) -> None:
        for tp in partitions:
            if tp in self.reading:
                self.reading[tp].paused = paused

    def can_fetch(self, tp: TopicPartition) -> bool:
        reading = self.reading[tp]
        if reading.paused or reading.troubled or len(reading.fetched) >= 3:
            return False
        log = self._kafka.log(tp)
        return reading.offset < log.low or reading.offset != log.high or reading.ended_at != log.high

    def fetch(self, tp: TopicPartition, records: int) -> None:
        """What the client's own thread does: one answer of the broker, kept until it is polled."""
        reading = self.reading[tp]
        log = self._kafka.log(tp)
        generation = reading.start.generation
        if not log.low <= reading.offset <= log.high:
            detail = f"offset {reading.offset} is not in [{log.low}, {log.high}]"
            reading.fetched.append(PartitionFault(tp, generation, "out-of-range", detail))
            reading.troubled = True
            return
        offsets = log.readable(reading.offset, records)
        if offsets:
            reading.fetched.append(columns(tp, generation, offsets, [log.entries[at].value for at in offsets]))
            reading.offset = offsets[-1] + 1
            return
        reading.offset = reading.ended_at = log.high
        reading.fetched.append(EndOfPartition(tp, generation, log.high))

    def can_poll(self) -> bool:
        return bool(self._leftover) or any(r.fetched and not r.paused for r in self.reading.values())

    def poll(self) -> list[Item]:
        """Return what an older assignment left, if anything; else one fetch of every partition that has one."""
        if self._leftover:
            items = list(self._leftover)
            self._leftover.clear()
            return items
        return [r.fetched.popleft() for r in self.reading.values() if r.fetched and not r.paused]


def columns(tp: TopicPartition, generation: int, offsets: Sequence[int], values: Sequence[bytes]) -> Columns:
    count = len(offsets)
    arrays: list[Column] = [
        pa.nulls(count, pa.binary()),
        pa.array(values, pa.binary()),
        pa.array(offsets, pa.int64()),
        pa.array([0] * count, pa.int64()),
        pa.array([0] * count, pa.int32()),
    ]
    return Columns(
        tp=tp,
        generation=generation,
        first_offset=offsets[0],
        last_offset=offsets[-1],
        rows=count,
        bytes=sum(map(len, values)),
        max_timestamp_ms=0,
        leader_epoch=-1,
        batch=pa.RecordBatch.from_arrays(arrays, schema=SOURCE_SCHEMA(False)),
    )
