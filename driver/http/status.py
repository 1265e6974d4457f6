"""The answer of ``GET /v1/status``: the journal's state, the last heartbeats, and what the driver's parts report."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from driver.background.reach import END_AGE_SECONDS_MAX, Ends
from driver.batches.entries import QUEUED, RunningBatch, unfinished_entry
from driver.journal.state import Receiver, State
from driver.tracker import Tracker, cursors
from forebay import messages as m
from forebay.model.values import TopicPartition, is_reserved

#: maximum number of batches of a replay that are listed; all are counted
REPLAYED_SHOWN = 10


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
    partitions = []
    reported: dict[tuple[str, str, int], m.PartitionStatus] = {
        (receiver_id, p.topic, p.partition): p
        for receiver_id, latest in tracker.receiver_heartbeats.items()
        for p in latest.heartbeat.partitions
    }
    for p in state.partitions.values():
        latest = reported.get((p.owner, p.topic, p.partition))
        last = tracker.receiver_heartbeats.get(p.owner)
        seen = (latest.high_watermark, now - last.at) if latest is not None and last is not None else (-1, -1.0)
        end, age = seen if ends is None else _end(ends.of(p.tp), seen[0])
        partitions.append(
            m.TrackedPartition(
                topic=p.topic,
                partition=p.partition,
                incarnation=p.incarnation.number,
                topic_id=p.incarnation.topic_id,
                position=p.position,
                completed=p.completed,
                high_watermark=end,
                end_age_seconds=round(age, 1),
                lag=max(0, end - p.position) if end >= 0 and 0 <= age <= END_AGE_SECONDS_MAX else None,
                receiver_id=p.owner,
                token=p.token,
                state="trouble"
                if p.fault
                else latest.state
                if latest is not None
                else "claimed"
                if p.owner
                else "unclaimed",
                fault=tracker.describe_fault(p) if p.fault else "",
                foreign=service.foreign.get(p.tp, ""),
                rate=latest.rate if latest is not None else 0.0,
            )
        )
    receivers = []
    for r in state.receivers.values():
        if is_reserved(r.receiver_id):
            continue
        last = tracker.receiver_heartbeats.get(r.receiver_id)
        silent = now - last.at if last is not None else -1.0
        receivers.append(
            m.TrackedReceiver(
                receiver_id=r.receiver_id,
                epoch=r.epoch,
                host=r.host,
                state=receiver_state(tracker, r, now, receiver_timeout),
                detail=last.heartbeat.detail if last is not None else "",
                silent_seconds=round(silent, 1),
                buffered_bytes=last.heartbeat.buffered_bytes if last is not None else 0,
                records=last.heartbeat.records if last is not None else 0,
                counters=last.heartbeat.counters if last is not None else {},
                rate=last.heartbeat.rate if last is not None else 0.0,
                release=last.heartbeat.release if last is not None else "",
                errors=last.heartbeat.errors if last is not None else (),
            )
        )
    agents = [
        m.TrackedAgent(
            host=a.heartbeat.host,
            url=a.heartbeat.url,
            silent_seconds=round(now - a.at, 1),
            blocks=a.heartbeat.blocks,
            used_bytes=a.heartbeat.used_bytes,
            free_bytes=a.heartbeat.free_bytes,
            labels=a.heartbeat.labels,
            capacity=a.heartbeat.capacity,
            state=a.heartbeat.state,
            load=a.heartbeat.load,
            requests=a.heartbeat.requests,
            copies=len(a.copies),
            release=a.heartbeat.release,
            damaged=a.heartbeat.damaged,
            damaged_blocks=a.heartbeat.damaged_blocks,
        )
        for a in tracker.agent_heartbeats.values()
    ]
    running = service.running
    replayed = itertools.islice(state.replaying.values(), REPLAYED_SHOWN)
    batches = [
        *service.recent,
        *(unfinished_entry(state, b, running.get(b.batch_id, QUEUED), state.replays[-1].replay) for b in replayed),
        *(unfinished_entry(state, b, running.get(b.batch_id, QUEUED)) for b in state.unfinished()),
    ]
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
        partitions=tuple(sorted(partitions, key=lambda p: (p.topic, p.partition))),
        receivers=tuple(sorted(receivers, key=lambda r: r.receiver_id)),
        agents=tuple(sorted(agents, key=lambda a: a.host)),
        batches=tuple(batches),
        replay=_tracked_replay(state),
        backpressure=tracker.sharing is not None,
        rate=tracker.sharing.rate if tracker.sharing is not None else 0.0,
        managed=tuple(tracker.managed.status(now)),
        listeners=service.listeners,
        cursors=cursors.tracked(state, tracker.cursors, now, now_ms),
        held_for_cursors=sum(s.bytes for s in state.index.segments.values() if s.unread and not s.held)
        if state.cursors
        else 0,
    )


def _end(read: tuple[int, float] | None, reported: int) -> tuple[int, float]:
    """Return the log's end offset and its age: the later one of the ends that the driver read and a receiver reported, and the
    age of the driver's read (-1: none)."""
    return (max(read[0], reported), read[1]) if read is not None else (reported, -1.0)


def receiver_state(tracker: Tracker, receiver: Receiver, now: float, receiver_timeout: float) -> str:
    """Return the receiver's state, as ``messages.TrackedReceiver.state``."""
    if not receiver.instance_id:
        return "fenced"
    last = tracker.receiver_heartbeats.get(receiver.receiver_id)
    if last is None:
        return "registered"
    return "lost" if now - last.at > receiver_timeout else last.heartbeat.state


def _tracked_replay(state: State) -> m.TrackedReplay | None:
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
