"""The answer of ``GET /v1/status``: the journal's state, the last heartbeats, and what the driver's parts report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from driver.background.reach import Ends
from driver.batches.entries import RunningBatch, unfinished_entries
from driver.http.tracked import tracked_agents, tracked_partitions, tracked_receivers
from driver.journal.state import State
from driver.tracker import Tracker, cursors
from forebay import messages as m
from forebay.model.values import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsStatus:
    """The values in the status that are neither in the journal nor in the tracker.

    ``tiers``: tier → ranges read from it by jobs. ``requests``: requests to remote stores by kind. ``foreign``: partition → a
    sentence about a commit that another program has set. ``running``: batch id → the batch in work. ``recent``: the last
    completed batches.
    """

    state: str
    detail: str = ""
    tiers: Mapping[str, int] = field(default_factory=dict)
    requests: Mapping[str, int] = field(default_factory=dict)
    foreign: Mapping[TopicPartition, str] = field(default_factory=dict)
    running: Mapping[int, RunningBatch] = field(default_factory=dict)
    recent: tuple[m.BatchEntry, ...] = ()
    listeners: tuple[m.TrackedListener, ...] = ()


def status(
    tracker: Tracker,
    service: PartsStatus,
    *,
    release: str,
    now: float,
    now_ms: int,
    receiver_timeout: float,
    ends: Ends | None = None,
) -> m.StatusAnswer:
    """Return the whole status.

    ``now``: seconds on the monotonic clock; ``now_ms``: wall clock. ``receiver_timeout``: how long after its last heartbeat a
    receiver counts as lost, in seconds. ``ends``: Kafka's end offsets; None for a custom source, whose ends only receivers know.
    """
    state = tracker.state
    return m.StatusAnswer(
        stream=state.stream,
        release=release,
        timeline=state.timeline,
        driver_epoch=tracker.driver_epoch,
        state=service.state,
        detail=service.detail,
        topic_ids_known=bool(state.partitions) and all(p.incarnation.topic_id for p in state.partitions.values()),
        waiting_blocks=len(state.waiting),
        waiting_records=state.index.waiting_records,
        batches_completed=state.batches_completed,
        records_completed=state.records_completed,
        tiers=dict(service.tiers),
        requests=dict(service.requests),
        partitions=tracked_partitions(
            state.partitions.values(),
            tracker.receiver_heartbeats,
            now=now,
            describe_fault=tracker.describe_fault,
            foreign=service.foreign,
            ends=ends,
        ),
        receivers=tracked_receivers(
            state.receivers.values(), tracker.receiver_heartbeats, now=now, receiver_timeout=receiver_timeout
        ),
        agents=tracked_agents(tracker.agent_heartbeats.values(), now),
        batches=(*service.recent, *unfinished_entries(state, service.running)),
        replay=tracked_replay(state),
        backpressure=tracker.sharing is not None,
        rate=tracker.sharing.rate if tracker.sharing is not None else 0.0,
        managed=tuple(tracker.managed.status(now)),
        listeners=service.listeners,
        cursors=cursors.tracked(state, tracker.cursors, now, now_ms),
        paused_ms=state.pause.time_ms if state.pause is not None else 0,
        pause_cause=state.pause.cause if state.pause is not None else "",
        held_for_cursors=sum(s.bytes for s in state.index.segments.values() if s.unread and not s.held)
        if state.cursors
        else 0,
    )


def tracked_replay(state: State) -> m.TrackedReplay | None:
    """Return the replay under way; None if there is none."""
    replay = state.replay
    if replay is None:
        return None
    return m.TrackedReplay(
        replay=replay.replay,
        first_id=replay.first_id,
        last_id=replay.last_id,
        batches=replay.batches,
        completed=replay.completed,
        begun_ms=replay.begun_ms,
        cause=replay.cause,
    )
