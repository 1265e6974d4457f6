"""The consumer of one receiver: it fetches ahead, as librdkafka does, and its member of the group may be a zombie."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pyarrow as pa

from forebay.model.arrow_columns import Column
from forebay.model.columns import Columns, EndOfPartition, PartitionFault, RebalanceListener, Start
from forebay.model.records import SOURCE_SCHEMA
from forebay.model.values import TopicPartition
from receiver.sources.source import CommitPoint
from tests.simulation.kafka import Kafka
from tests.simulation.receiver_threads import Wait
from tests.simulation.shells import pause

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

    A poll waits for the scheduler, which chooses what it returns: records, a callback of the group, or nothing in time.
    ``acts``: whether actions on the source wait for the end of the poll.
    """

    last_error = ""

    def __init__(self, kafka: Kafka, name: str, acts: Callable[[], object]) -> None:
        self._kafka = kafka
        self._name = name
        self._acts = acts
        self.reading: dict[TopicPartition, Reading] = {}
        self._leftover: deque[Item] = deque()
        self._listener: RebalanceListener | None = None
        self._polled = Wait(steps=self._steps)
        self._records_max = 0
        self._is_acting = False  # the scheduler has chosen the next action on the source
        self.commits: deque[Mapping[TopicPartition, CommitPoint]] = deque()
        self._commit_errors: dict[TopicPartition, str] = {}
        self.member: str | None = None
        self._joins = 0
        self._generation = 0
        self._owned: frozenset[TopicPartition] = frozenset()
        self.in_callback = False  # until the machine says that a revocation is done

    # ---- what the scheduler chooses ----------------------------------------------------------------------------------

    @property
    def is_subscribed(self) -> bool:
        return self._listener is not None

    def _steps(self) -> Iterator[str]:
        yield "tick"
        if self._acts():
            yield "source"
        if self._commit_errors or self._leftover or any(r.fetched and not r.paused for r in self.reading.values()):
            yield "poll"
        if self._group_due():
            yield "group"

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

    def take_commit(self) -> None:
        """An asynchronous commit arrives at the broker."""
        self._commit_errors.update(self._commit(self.commits.popleft()))

    def lose_commit(self) -> None:
        self._commit_errors.update(dict.fromkeys(self.commits.popleft(), "_TRANSPORT"))

    # ---- the polling thread: ``receiver.sources.source`` -------------------------------------------------------------

    def poll(self, max_records: int, timeout_seconds: float) -> list[Item]:
        """Return what an older assignment left, if anything; else one fetch of every partition that has one."""
        chosen = pause(cast(Any, self._polled))
        if chosen == "group":
            self._group_turn()
        elif chosen == "source":
            self._is_acting = True
        elif chosen == "poll":
            return self._take()
        return []

    def _take(self) -> list[Item]:
        if self._leftover:
            items = list(self._leftover)
            self._leftover.clear()
            return items
        return [r.fetched.popleft() for r in self.reading.values() if r.fetched and not r.paused]

    def next_is_chosen(self) -> None:
        """The scheduler has chosen the action that a thread performs next."""
        self._is_acting = True

    def _act(self) -> None:
        """Pause before an action, unless it is the one that was chosen."""
        if self._is_acting:
            self._is_acting = False
        else:
            pause("source")

    def subscribe(self, listener: RebalanceListener) -> None:
        self._act()
        self._listener = listener

    def follow(self, topics: Sequence[str]) -> None:
        raise AssertionError("the topics have names")

    def start(self, starts: Sequence[Start]) -> None:
        self._act()
        for start in starts:
            current = self.reading.get(start.tp)
            if current is not None and current.start.generation == start.generation:
                current.offset = start.offset
                current.ended_at = -1
                current.troubled = False
                continue
            self._drop([start.tp])
            self.reading[start.tp] = Reading(start, start.offset)

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        for tp in partitions:
            gone = self.reading.pop(tp, None)
            if gone is not None:
                self._leftover.extend(gone.fetched)

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        self._act()
        self._set_paused(partitions, True)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        self._act()
        self._set_paused(partitions, False)

    def _set_paused(self, partitions: Sequence[TopicPartition], paused: bool) -> None:
        for tp in partitions:
            if tp in self.reading:
                self.reading[tp].paused = paused

    def commit(self, positions: Mapping[TopicPartition, CommitPoint]) -> None:
        self._act()
        self.commits.append(positions)

    def poll_commit_errors(self) -> dict[TopicPartition, str]:
        errors, self._commit_errors = self._commit_errors, {}
        return errors

    def commit_sync(
        self, positions: Mapping[TopicPartition, CommitPoint], timeout_seconds: float
    ) -> dict[TopicPartition, str]:
        self._act()
        return self._commit(positions)

    def _commit(self, positions: Mapping[TopicPartition, CommitPoint]) -> dict[TopicPartition, str]:
        return self._kafka.group.commit(self.member, self._generation, positions)

    def high_watermark(self, tp: TopicPartition) -> int:
        return self.reading[tp].ended_at if tp in self.reading else -1

    def close(self) -> None:
        """Do nothing: a simulated process leaves the group when its machine ends it, and not when its greenlets are dropped."""

    def leave(self) -> None:
        """Leave the group."""
        if self.member is not None:
            self._kafka.group.leave(self.member)

    # ---- the broker channel ------------------------------------------------------------------------------------------

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        pause("ask-broker")
        return {topic: self._kafka.topic_id(topic) for topic in topics}

    def watermarks(self, tp: TopicPartition, timeout_seconds: float) -> tuple[int, int]:
        pause("ask-broker")
        log = self._kafka.log(tp)
        return log.low, log.high

    # ---- the group's callbacks, within a poll ------------------------------------------------------------------------

    def _group_due(self) -> bool:
        group = self._kafka.group
        if self.member is None or self.member not in group.members:
            return True
        if group.rebalancing:
            return self.member not in group.joined
        return self._generation != group.generation

    def _group_turn(self) -> None:
        """What the client does when it receives an answer of the coordinator."""
        assert self._listener is not None
        group = self._kafka.group
        if self.member is not None and self.member not in group.members:
            lost, self._owned, self.member = self._owned, frozenset(), None
            self._drop(lost)
            if lost:
                self._listener.lost(tuple(sorted(lost)))
            return
        if self.member is None:
            self._joins += 1
            self.member = f"{self._name}/{self._joins}"
            group.join(self.member, ())
        elif group.rebalancing:
            if group.cooperative or not self._owned:
                group.join(self.member, self._owned)
            else:
                self._revoke(self._owned)
        else:
            self._generation = group.generation
            target = group.assignment.get(self.member, frozenset())
            gone, new = self._owned - target, target - self._owned
            self._owned = self._owned | new
            if new:
                self._listener.assigned(tuple(sorted(new)))
            if gone:
                self._revoke(gone)

    def _revoke(self, gone: frozenset[TopicPartition]) -> None:
        """When the callback has returned, the member requests the rebalance that assigns its partitions to others."""
        assert self._listener is not None
        group = self._kafka.group
        self.in_callback = True
        self._listener.revoked(tuple(sorted(gone)))
        self.in_callback = False
        self._owned -= gone
        self._drop(gone)
        if self.member in group.members:
            group.join(self.member, self._owned)


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
