"""A snapshot of the stream for observers. The decision loop only copies references; everything else is made outside of it.

All observers share one snapshot: the page, the commands, the metrics. It is taken again at most every ``FRESH_SECONDS``.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import TimeoutError as LateError
from dataclasses import dataclass, field
from functools import cached_property

from msgspec.structs import replace

from driver.background.reach import Ends
from driver.batches.entries import RunningBatch, unfinished_entries
from driver.http.health import HealthVerdict
from driver.http.lag import not_completed
from driver.http.status import tracked_replay
from driver.http.tracked import tracked_agents, tracked_partitions, tracked_receivers
from driver.journal.events import PauseChanged
from driver.journal.state_parts import Cursor, EndedCursor, Partition, Receiver
from driver.tracker import LastAgentHeartbeat, LastHeartbeat, Tracker
from driver.tracker.cursors import Cursors, tracked
from forebay import messages as m
from forebay.model.errors import UnreachableError
from forebay.model.values import Block, TopicPartition
from forebay.process.clock import Clock

#: minimum time between two snapshots
FRESH_SECONDS = 0.5
#: maximum time that an observer waits for the decision loop
PATIENCE_SECONDS = 2.0
#: maximum number of blocks that a snapshot names, the oldest that are not completed
OLDEST_BLOCKS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Counts at the time of a snapshot. ``unfinished_records``: records in batches that are not completed."""

    waiting_blocks: int
    waiting_records: int
    unfinished_records: int
    batches_completed: int
    records_completed: int
    wal_bytes: int
    wal_blocks: int
    wal_segments: int

    @property
    def records_taken(self) -> int:
        return self.records_completed + self.unfinished_records + self.waiting_records


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotContext:
    """What a snapshot needs beside the tracker. All may be read in any thread.

    ``running``: batch id → the batch in work. ``foreign``: as ``driver.http.status.PartsStatus.foreign``.
    """

    state: str
    detail: str
    verdict: HealthVerdict
    receiver_timeout: float
    running: Mapping[int, RunningBatch] = field(default_factory=dict)
    foreign: Mapping[TopicPartition, str] = field(default_factory=dict)
    ends: Ends | None = None


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The stream at one moment. ``now``: monotonic seconds; ``now_ms``: wall clock. Its values never change.

    ``partitions``, ``cursors`` and ``ended_cursors`` have the names of the journal's state, so that code for the state can read
    them. ``oldest_blocks``: the oldest blocks that are not completed. ``first_waiting``: the oldest block in no batch.
    """

    now: float
    now_ms: int
    driver_epoch: int
    around: SnapshotContext
    totals: Totals
    partitions: Mapping[str, Partition]
    faults: Mapping[TopicPartition, str]
    raw_receivers: tuple[Receiver, ...]
    receiver_heartbeats: Mapping[str, LastHeartbeat]
    agent_heartbeats: Mapping[str, LastAgentHeartbeat]
    managed: tuple[m.ManagedReceiver, ...]
    unfinished: tuple[m.BatchEntry, ...]
    oldest_blocks: tuple[Block, ...]
    first_waiting: Block | None
    cursors: Mapping[str, Cursor]
    ended_cursors: tuple[EndedCursor, ...]
    known_cursors: Cursors
    replay: m.TrackedReplay | None
    pause: PauseChanged | None
    rate: float

    @cached_property
    def tracked_partitions(self) -> tuple[m.TrackedPartition, ...]:
        """The partitions in order, as observers see them."""
        return tracked_partitions(
            self.partitions.values(),
            self.receiver_heartbeats,
            now=self.now,
            describe_fault=lambda partition: self.faults.get(partition.tp, ""),
            foreign=self.around.foreign,
            ends=self.around.ends,
            age=self._age,
        )

    @cached_property
    def receivers(self) -> tuple[m.TrackedReceiver, ...]:
        """The receivers in the order of their ids."""
        return tracked_receivers(
            self.raw_receivers, self.receiver_heartbeats, now=self.now, receiver_timeout=self.around.receiver_timeout
        )

    @cached_property
    def agents(self) -> tuple[m.TrackedAgent, ...]:
        """The agents in the order of their hosts."""
        return tracked_agents(self.agent_heartbeats.values(), self.now)

    @cached_property
    def tracked_cursors(self) -> tuple[m.TrackedCursor, ...]:
        """The cursors in the order of their names, then those that ended."""
        return tracked(self, self.known_cursors, self.now, self.now_ms)

    @cached_property
    def _waiting_since_ms(self) -> Mapping[TopicPartition, int]:
        """Partition → time of the newest record in its first block that is not completed, as far as ``oldest_blocks`` name
        one."""
        found: dict[TopicPartition, int] = {}
        for block in self.oldest_blocks:
            for held in block.meta.ranges:
                if held.max_timestamp_ms >= 0:
                    found.setdefault(held.tp, held.max_timestamp_ms)
        return found

    def _age(self, partition: Partition, end: int) -> float | None:
        """Return ``messages.TrackedPartition.lag_seconds``."""
        if partition.completed >= end:
            return 0.0
        since_ms = self._waiting_since_ms.get(partition.tp)
        if since_ms is not None and partition.completed < partition.position:
            return round(max(0, self.now_ms - since_ms) / 1000, 1)
        ends = self.around.ends
        seconds = ends.history.seconds_since(partition.tp, partition.completed, self.now) if ends is not None else None
        return None if seconds is None else round(seconds, 1)


def take(tracker: Tracker, around: SnapshotContext, now: float, now_ms: int) -> Snapshot:
    """Return a snapshot. Called in the decision loop: it copies references, and formats only what is short."""
    state, index = tracker.state, tracker.state.index
    partitions = {key: replace(partition) for key, partition in state.partitions.items()}
    first = next(iter(state.waiting), None)
    return Snapshot(
        now=now,
        now_ms=now_ms,
        driver_epoch=tracker.driver_epoch,
        around=around,
        totals=Totals(
            waiting_blocks=len(state.waiting),
            waiting_records=index.waiting_records,
            unfinished_records=sum(index.records.values()),
            batches_completed=state.batches_completed,
            records_completed=state.records_completed,
            wal_bytes=index.bytes,
            wal_blocks=index.blocks,
            wal_segments=len(index.segments),
        ),
        partitions=partitions,
        faults={p.tp: tracker.describe_fault(p) for p in state.partitions.values() if p.fault is not None},
        raw_receivers=tuple(replace(receiver) for receiver in state.receivers.values()),
        receiver_heartbeats=dict(tracker.receiver_heartbeats),
        agent_heartbeats=dict(tracker.agent_heartbeats),
        managed=tuple(tracker.managed.status(now)),
        unfinished=unfinished_entries(state, around.running),
        oldest_blocks=tuple(itertools.islice(not_completed(state), OLDEST_BLOCKS)),
        first_waiting=state.blocks[first] if first is not None else None,
        cursors={name: _copied(cursor) for name, cursor in state.cursors.items()},
        ended_cursors=tuple(state.ended_cursors),
        known_cursors=tracker.cursors,
        replay=tracked_replay(state),
        pause=state.pause,
        rate=tracker.sharing.rate if tracker.sharing is not None else 0.0,
    )


def _copied(cursor: Cursor) -> Cursor:
    return replace(cursor, vector=dict(cursor.vector))


class SharedSnapshot:
    """Takes snapshots, one for all observers. Thread-safe.

    ``ask`` returns a new snapshot from the decision loop within the given seconds. It raises a TimeoutError or UnreachableError
    if the loop does not answer.
    """

    def __init__(self, ask: Callable[[float], Snapshot], clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._lock = threading.Lock()
        self._last: Snapshot | None = None
        self._asked_at = -FRESH_SECONDS
        self._late = False

    def get(self) -> Snapshot:
        """Return the present snapshot, which is at most ``FRESH_SECONDS`` old.

        While the decision loop does not answer, return the last snapshot. Raises UnreachableError if there is none.
        """
        with self._lock:
            now = self._clock.monotonic()
            if now - self._asked_at >= FRESH_SECONDS:
                try:
                    self._last, self._late = self._ask(PATIENCE_SECONDS), False
                except (LateError, UnreachableError) as error:
                    self._late = True
                    if self._last is None:
                        raise UnreachableError(
                            f"the decision loop has not answered within {PATIENCE_SECONDS:g} s: {error}"
                        ) from None
                self._asked_at = self._clock.monotonic()
            assert self._last is not None
            return self._last

    @property
    def is_late(self) -> bool:
        """Whether the decision loop did not answer the last time, so that the snapshot is an old one."""
        return self._late
