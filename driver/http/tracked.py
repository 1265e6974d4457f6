"""Partitions, receivers and agents as observers see them: the journal's state with the last heartbeats."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from driver.background.reach import END_AGE_SECONDS_MAX, Ends
from driver.journal.state_parts import Partition, Receiver
from driver.tracker import LastAgentHeartbeat, LastHeartbeat
from forebay import messages as m
from forebay.model.identifiers import is_reserved
from forebay.model.values import TopicPartition

#: maximum number of blocks that an agent could not delete, of those that a status names
UNDELETED_SHOWN_MAX = 100

ReceiverHeartbeats = Mapping[str, LastHeartbeat]


def tracked_partitions(
    partitions: Iterable[Partition],
    heartbeats: ReceiverHeartbeats,
    *,
    now: float,
    describe_fault: Callable[[Partition], str],
    foreign: Mapping[TopicPartition, str],
    ends: Ends | None,
    age: Callable[[Partition, int], float | None] = lambda partition, end: None,
) -> tuple[m.TrackedPartition, ...]:
    """Return ``partitions`` in order.

    ``now``: monotonic seconds. ``describe_fault``, ``foreign``: sentences about a partition. ``ends``: Kafka's end offsets; None
    for a custom source, whose ends only receivers know. ``age``: returns ``lag_seconds`` for a partition and its current end.
    """
    reported: dict[tuple[str, str, int], m.PartitionStatus] = {
        (receiver_id, p.topic, p.partition): p
        for receiver_id, latest in heartbeats.items()
        for p in latest.heartbeat.partitions
    }
    tracked = []
    for p in partitions:
        tp, incarnation = p.tp, p.incarnation
        latest = reported.get((p.owner, p.topic, p.partition))
        last = heartbeats.get(p.owner)
        seen = (latest.high_watermark, now - last.at) if latest is not None and last is not None else (-1, -1.0)
        end, end_age = seen if ends is None else _end(ends.of(tp), seen[0])
        is_current = end >= 0 and 0 <= end_age <= END_AGE_SECONDS_MAX
        tracked.append(
            m.TrackedPartition(
                topic=p.topic,
                partition=p.partition,
                incarnation=incarnation.number,
                topic_id=incarnation.topic_id,
                position=p.position,
                completed=p.completed,
                low_watermark=ends.low_of(tp) if ends is not None else -1,
                high_watermark=end,
                end_age_seconds=round(end_age, 1),
                lag=max(0, end - p.position) if is_current else None,
                lag_seconds=age(p, end) if is_current else None,
                receiver_id=p.owner,
                token=p.token,
                state=_state(p, latest),
                fault=describe_fault(p) if p.fault else "",
                foreign=foreign.get(tp, ""),
                rate=latest.rate if latest is not None else 0.0,
            )
        )
    return tuple(sorted(tracked, key=lambda p: (p.topic, p.partition)))


def _state(partition: Partition, latest: m.PartitionStatus | None) -> str:
    if partition.fault:
        return m.FAULT_STATE
    if latest is not None:
        return latest.state
    return "claimed" if partition.owner else "unclaimed"


def _end(read: tuple[int, float] | None, reported: int) -> tuple[int, float]:
    """Return the log's end offset and its age: the later one of the ends that the driver read and a receiver reported, and the
    age of the driver's read (-1: none)."""
    return (max(read[0], reported), read[1]) if read is not None else (reported, -1.0)


def receiver_state(heartbeats: ReceiverHeartbeats, receiver: Receiver, now: float, receiver_timeout: float) -> str:
    """Return the receiver's state, as ``messages.TrackedReceiver.state``. ``receiver_timeout``: seconds after its last heartbeat
    when it counts as lost."""
    if not receiver.instance_id:
        return "fenced"
    last = heartbeats.get(receiver.receiver_id)
    if last is None:
        return "registered"
    return "lost" if now - last.at > receiver_timeout else last.heartbeat.state


def tracked_receivers(
    receivers: Iterable[Receiver], heartbeats: ReceiverHeartbeats, *, now: float, receiver_timeout: float
) -> tuple[m.TrackedReceiver, ...]:
    """Return the receivers in the order of their ids, without the driver's own. Arguments as for :func:`receiver_state`."""
    return tuple(
        sorted(
            _receivers(receivers, heartbeats, now=now, receiver_timeout=receiver_timeout), key=lambda r: r.receiver_id
        )
    )


def _receivers(
    receivers: Iterable[Receiver], heartbeats: ReceiverHeartbeats, *, now: float, receiver_timeout: float
) -> Iterator[m.TrackedReceiver]:
    for r in receivers:
        if is_reserved(r.receiver_id):
            continue
        state = receiver_state(heartbeats, r, now, receiver_timeout)
        last = heartbeats.get(r.receiver_id)
        if last is None:
            yield m.TrackedReceiver(
                receiver_id=r.receiver_id, epoch=r.epoch, host=r.host, state=state, detail="", silent_seconds=-1.0,
                buffered_bytes=0, records=0,
            )  # fmt: skip
            continue
        beat = last.heartbeat
        yield m.TrackedReceiver(
            receiver_id=r.receiver_id,
            epoch=r.epoch,
            host=r.host,
            state=state,
            detail=beat.detail,
            silent_seconds=round(now - last.at, 1),
            buffered_bytes=beat.buffered_bytes,
            records=beat.records,
            counters=beat.counters,
            rate=beat.rate,
            release=beat.release,
            errors=beat.errors,
        )


def tracked_agents(agents: Iterable[LastAgentHeartbeat], now: float) -> tuple[m.TrackedAgent, ...]:
    """Return the agents in the order of their hosts. ``now``: monotonic seconds."""
    tracked = (
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
            undeleted=a.heartbeat.undeleted[:UNDELETED_SHOWN_MAX],
            undeleted_blocks=a.heartbeat.undeleted_blocks,
            undeleted_cause=a.heartbeat.undeleted_cause,
        )
        for a in agents
    )
    return tuple(sorted(tracked, key=lambda a: a.host))
