"""Faults: positions at which Kafka does not continue as the journal expects, and their end by a gap or a new incarnation."""

from __future__ import annotations

from collections.abc import Collection

from driver.journal import events as ev
from driver.journal.state import ADOPTER
from driver.journal.state_parts import OpenFault, Partition
from driver.tracker.decision import Recorder
from driver.tracker.partitions.claims import Claims
from driver.tracker.partitions.writers import Writers
from forebay import messages as m
from forebay.model.bounds import OFFSET_MAX
from forebay.model.errors import UsageError
from forebay.model.values import Gap, TopicPartition


class Faults:
    """Journals faults that receivers report, describes them, and ends them.

    ``on_gap``: the stream's policy; with "record", the driver records a gap or a new incarnation without an operator.
    """

    def __init__(self, *, recorder: Recorder, claims: Claims, writers: Writers, on_gap: str) -> None:
        self.blocked: dict[TopicPartition, str] = {}  # why the WAL can't be searched, of faults that wait for it
        self._recorder = recorder
        self._claims = claims
        self._writers = writers
        self._on_gap = on_gap

    def report(self, request: m.Fault) -> m.FaultAnswer:
        """Journal the fault that a receiver found at its position. Raises UsageError."""
        tp = TopicPartition(request.topic, request.partition)
        partition = self._recorder.state.partition(tp)
        if partition is None:
            raise UsageError(f"the stream has no partition {tp} yet")
        outdated = partition.token != request.token or partition.position != request.position or not partition.owner
        if outdated and partition.fault is not None and partition.fault.kept:
            return m.FaultAnswer(proceed=False, message=self.describe(partition))
        if outdated:
            return m.FaultAnswer(
                proceed=True, message="the partition's position has changed since; claim the partition again"
            )
        found = _found(request, partition)
        known = partition.fault
        if known is None or (known.kind, known.accept_until) != (found.kind, found.accept_until):
            self._recorder.apply(found)
        return m.FaultAnswer(proceed=False, message=self.describe(partition))

    def is_recorded(self, fault: OpenFault) -> bool:
        """Return whether the driver resolves ``fault`` by its policy, without an operator."""
        return self._on_gap == "record" and fault.kind != "corrupt"

    def accept(self, partition: Partition, fault: OpenFault, now_ms: int, cause: str) -> None:
        """Journal the gap or the new incarnation, and order the partition's owner to claim it again."""
        owner = self._claims.owner_to_tell(partition)
        self._recorder.apply(_accepted(partition, fault, now_ms, cause))
        if partition.fault is None:
            self._claims.resume(partition.tp, owner)
        else:  # a gap before what the WAL holds of an incarnation that is to end
            self._claims.resume_later(partition.tp, owner)

    def block(self, tp: TopicPartition, reason: str) -> None:
        """Store for the status the reason why the WAL can't be searched for ``tp``; "" if it can be searched again."""
        if reason:
            self.blocked[tp] = reason
        else:
            self.blocked.pop(tp, None)

    def forget_reasons(self, waiting: Collection[TopicPartition]) -> None:
        """Drop the reasons of :meth:`block` for all but the partitions that wait for a search."""
        self.blocked = {tp: self.blocked[tp] for tp in waiting if tp in self.blocked}

    def describe(self, partition: Partition) -> str:
        """Return what was lost and the way out, in one sentence. The partition must have a fault."""
        fault = partition.fault
        assert fault is not None
        tp, until = partition.tp, fault.accepted_until
        text = {
            "truncated": f"Kafka's log was cut back below offset {fault.position}",
            "out-of-range": f"Kafka's log ended below offset {fault.position}",
            "recreated": f"the topic was deleted and created again; its records from offset {fault.position} on are lost",
            "corrupt": f"the record batch at offset {fault.position} fails its checksum",
        }.get(fault.kind if fault.kind == "corrupt" or fault.begins_incarnation else "")
        text = text or f"Kafka no longer holds offsets {fault.position} to {until}"
        if fault.kept:
            text += (
                " (the WAL holds records up to there; no receiver reads before a new incarnation begins at "
                f"{fault.accept_until})"
            )
        if self.is_recorded(fault):
            way_out = "the driver records this"
        else:
            way_out = f"run `forebay offsets accept-gap {tp} {fault.position} {until}` to continue"
        if fault.tried == partition.token:
            return f"{tp}: {text}; {way_out}"
        return f"{tp}: {text}; {way_out} when the WAL has been searched for them{self.why_not_searched(partition)}"

    def why_not_searched(self, partition: Partition) -> str:
        """Return the reason why the search of the WAL waits, as text to append to a sentence; "" if it does not wait."""
        unsettled = [writer for writer in self._writers.unsettled(partition) if writer.receiver_id != ADOPTER]
        if unsettled:
            names = ", ".join(f"{writer.receiver_id} (epoch {writer.epoch:x})" for writer in unsettled)
            return (
                f". The search waits until receiver {names} can write no more blocks: stop or restart it; or, if its host was "
                f"removed, add `--fence {unsettled[0].receiver_id}`"
            )
        blocked = self.blocked.get(partition.tp, "")
        return f". The search can't begin yet: {blocked}" if blocked else ""


def _accepted(partition: Partition, fault: OpenFault, now_ms: int, cause: str) -> ev.Event:
    if fault.begins_incarnation:
        start = ev.IncarnationStart(
            topic=partition.topic,
            partition=partition.partition,
            start=fault.accept_until,
            topic_id=fault.topic_id,
            leader_epoch=fault.leader_epoch,
        )
        return ev.IncarnationBegun(start=start, time_ms=now_ms, cause=cause)
    gap = Gap(from_offset=partition.position, until_offset=fault.accepted_until, cause=cause)
    return ev.GapRecorded(topic=partition.topic, partition=partition.partition, gap=gap, time_ms=now_ms)


def _found(request: m.Fault, partition: Partition) -> ev.FaultRecorded:
    """Return the fault, with what accepting it would do. Raises UsageError.

    If the records aged out, accepting records the gap up to the low watermark. Otherwise the offsets name other records from some
    point on, and accepting begins a new incarnation: at the start of a recreated topic, or where a truncated log now ends.
    """
    if not (0 <= request.low <= OFFSET_MAX and 0 <= request.high <= OFFSET_MAX):
        raise UsageError(f"watermarks {request.low} to {request.high} are not valid offsets")
    recreated = request.kind == "recreated"
    truncated = request.kind == "truncated" or (request.kind == "out-of-range" and request.position > request.high)
    if recreated:
        accept_until = request.low
    elif truncated:
        accept_until = min(request.position, request.high)
    elif request.kind == "corrupt":
        accept_until = min(request.position + 1, OFFSET_MAX)
    else:
        accept_until = request.low
    if not (recreated or truncated) and accept_until <= request.position:
        raise UsageError(
            f"{request.topic}/{request.partition}: nothing is missing at {request.position} "
            f"(watermarks {request.low} to {request.high})"
        )
    return ev.FaultRecorded(
        topic=request.topic,
        partition=request.partition,
        kind=request.kind,
        position=request.position,
        accept_until=accept_until,
        new_incarnation=recreated or truncated,
        topic_id=request.topic_id or partition.incarnation.topic_id,
        leader_epoch=request.leader_epoch if (recreated or truncated) else partition.leader_epoch,
    )
