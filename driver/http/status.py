"""What the driver shows of its stream: journal, news and what its parts say, as one answer for people and their tools."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from driver.background.reach import END_AGE_SECONDS_MAX, Ends
from driver.journal import events as ev
from driver.journal.state import Batch, Receiver, State
from driver.tracker import Tracker, cursors
from forebay import messages as m
from forebay.model.values import is_reserved

#: batches of a replay that are listed; how many there are is counted
REPLAYED_SHOWN = 10


def status(
    tracker: Tracker,
    now: float,
    release: str,
    receiver_timeout: float,
    soft: Mapping[str, Any],
    now_ms: int = 0,
    ends: Ends | None = None,
) -> m.StatusAnswer:
    """The whole picture for people. ``soft``: state, detail, tiers, requests, running (batch id → (state, attempts, detail)),
    recent (completed TrackedBatch). ``ends``: Kafka's end offsets; None for a source that only receivers know."""
    state = tracker.state
    partitions = []
    said: dict[tuple[str, str, int], m.PartitionStatus] = {
        (receiver_id, p.topic, p.partition): p
        for receiver_id, latest in tracker.receiver_heartbeats.items()
        for p in latest.heartbeat.partitions
    }
    for p in state.partitions.values():
        latest = said.get((p.owner, p.topic, p.partition))
        heard = tracker.receiver_heartbeats.get(p.owner)
        told = (latest.high_watermark, now - heard.at) if latest is not None and heard is not None else (-1, -1.0)
        end, age = told if ends is None else _end(ends.of(p.tp), told[0])
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
                foreign=soft.get("foreign", {}).get(p.tp, ""),
                rate=latest.rate if latest is not None else 0.0,
            )
        )
    receivers = []
    for r in state.receivers.values():
        if is_reserved(r.receiver_id):
            continue
        heard = tracker.receiver_heartbeats.get(r.receiver_id)
        silent = now - heard.at if heard is not None else -1.0
        receivers.append(
            m.TrackedReceiver(
                receiver_id=r.receiver_id,
                epoch=r.epoch,
                host=r.host,
                state=receiver_state(tracker, r, now, receiver_timeout),
                detail=heard.heartbeat.detail if heard is not None else "",
                silent_seconds=round(silent, 1),
                buffered_bytes=heard.heartbeat.buffered_bytes if heard is not None else 0,
                records=heard.heartbeat.records if heard is not None else 0,
                counters=heard.heartbeat.counters if heard is not None else {},
                rate=heard.heartbeat.rate if heard is not None else 0.0,
                release=heard.heartbeat.release if heard is not None else "",
                errors=heard.heartbeat.errors if heard is not None else (),
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
    running: Mapping[int, tuple[str, int, str]] = soft["running"]
    again = itertools.islice(state.replaying.values(), REPLAYED_SHOWN)
    batches = [
        *soft["recent"],
        *(_tracked_batch(state, b, running, state.replays[-1].replay) for b in again),
        *(_tracked_batch(state, b, running) for b in state.unfinished()),
    ]
    return m.StatusAnswer(
        stream=state.stream,
        release=release,
        timeline=state.timeline,
        driver_epoch=tracker.driver_epoch,
        state=soft["state"],
        detail=soft["detail"],
        topic_ids_known=bool(state.partitions) and all(p.incarnation.topic_id for p in state.partitions.values()),
        waiting_blocks=len(state.waiting),
        waiting_records=state.index.waiting_records,
        batches_completed=state.batches_completed,
        records_completed=state.records_completed,
        tiers=dict(soft["tiers"]),
        requests=dict(soft.get("requests", {})),
        partitions=tuple(sorted(partitions, key=lambda p: (p.topic, p.partition))),
        receivers=tuple(sorted(receivers, key=lambda r: r.receiver_id)),
        agents=tuple(sorted(agents, key=lambda a: a.host)),
        batches=tuple(batches),
        replay=_tracked_replay(state),
        backpressure=tracker.sharing is not None,
        rate=tracker.sharing.rate if tracker.sharing is not None else 0.0,
        managed=tuple(tracker.managed.status(now)),
        listeners=soft.get("listeners", ()),
        cursors=cursors.tracked(state, tracker.cursors, now, now_ms),
        held_for_cursors=sum(s.bytes for s in state.index.segments.values() if s.unread and not s.held)
        if state.cursors
        else 0,
    )


def _end(read: tuple[int, float] | None, told: int) -> tuple[int, float]:
    """The log's end and its age, as the driver read it. A receiver may have seen a later one; how old that is nobody knows."""
    return (max(read[0], told), read[1]) if read is not None else (told, -1.0)


def receiver_state(tracker: Tracker, receiver: Receiver, now: float, receiver_timeout: float) -> str:
    """As ``messages.TrackedReceiver.state``."""
    if not receiver.instance_id:
        return "fenced"
    heard = tracker.receiver_heartbeats.get(receiver.receiver_id)
    if heard is None:
        return "registered"
    return "lost" if now - heard.at > receiver_timeout else heard.heartbeat.state


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


def _tracked_batch(
    state: State, batch: Batch | ev.ReplayedBatch, running: Mapping[int, tuple[str, int, str]], replay: int = 0
) -> m.TrackedBatch:
    how, attempts, detail = running.get(batch.batch_id, ("queued", 0, ""))
    records = state.index.records.get(batch.batch_id)
    if records is None:  # of a replay
        records = sum(state.blocks[block_id].meta.records for task in batch.tasks for block_id in task)
    return m.TrackedBatch(
        batch_id=batch.batch_id,
        number=batch.number,
        time_ms=batch.time_ms,
        state=how,
        blocks=sum(map(len, batch.tasks)),
        records=records,
        attempts=attempts,
        detail=detail,
        replay=replay,
        outputs=batch.outputs,
    )
