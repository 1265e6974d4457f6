"""What a scrape reads from the driver's state: references and totals, copied in the decision loop without a look at each item."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from driver.http.lag import not_completed
from driver.journal.block_index import SegmentShare
from driver.journal.state import Batch, EndedCursor, Partition, Receiver, State
from driver.tracker import Tracker
from driver.tracker.heartbeats import LastAgentHeartbeat, LastHeartbeat
from driver.tracker.requests import Read
from forebay.messages import ManagedReceiver
from forebay.model.values import Block

#: blocks that are in no completed batch, oldest first: how many are searched for the oldest one of each partition
BLOCKS_MAX = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The driver's state at one moment. Partitions and receivers are the state's own objects, which change meanwhile: each number
    is right, but two of them may be of different moments. ``segments``: () unless there are cursors.
    """

    events: int
    partitions: tuple[Partition, ...]
    receivers: tuple[Receiver, ...]
    receiver_heartbeats: Mapping[str, LastHeartbeat]
    agent_heartbeats: Mapping[str, LastAgentHeartbeat]
    managed: tuple[ManagedReceiver, ...]
    unfinished: tuple[Batch, ...]
    oldest_blocks: tuple[Block, ...]
    waiting_blocks: int
    waiting_records: int
    queued_records: int
    completed_batches: int
    completed_records: int
    replay_batches: int
    learned_rate: float
    segments: tuple[SegmentShare, ...]
    wal_segments: int
    wal_bytes: int
    wal_blocks: int
    cursors: int
    ended_cursors: tuple[EndedCursor, ...]


@dataclass(frozen=True, slots=True)
class ReadSnapshot(Read[Snapshot]):
    """Reads a snapshot. ``now``: seconds on the monotonic clock."""

    tracker: Tracker
    now: float

    def read(self, state: State) -> Snapshot:
        tracker, index = self.tracker, state.index
        replay = state.replay
        return Snapshot(
            events=state.events,
            partitions=tuple(state.partitions.values()),
            receivers=tuple(state.receivers.values()),
            receiver_heartbeats=dict(tracker.receiver_heartbeats),
            agent_heartbeats=dict(tracker.agent_heartbeats),
            managed=tuple(tracker.managed.status(self.now)),
            unfinished=tuple(state.unfinished()),
            oldest_blocks=tuple(itertools.islice(not_completed(state), BLOCKS_MAX)),
            waiting_blocks=len(state.waiting),
            waiting_records=index.waiting_records,
            queued_records=sum(index.records.values()),
            completed_batches=state.batches_completed,
            completed_records=state.records_completed,
            replay_batches=replay.batches - replay.completed if replay is not None else 0,
            learned_rate=tracker.sharing.rate if tracker.sharing is not None else 0.0,
            segments=tuple(index.segments.values()) if state.cursors else (),
            wal_segments=len(index.segments),
            wal_bytes=index.bytes,
            wal_blocks=index.blocks,
            cursors=len(state.cursors),
            ended_cursors=tuple(state.ended_cursors),
        )
