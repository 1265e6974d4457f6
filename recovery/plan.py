"""What recovery is about to do, or has done: decisions on values alone.

Nothing is mended in place. A block that is damaged where the journal names it is written anew into a segment of recovery's
own, and the journal says where it lies from then on; a damaged segment that nobody writes any more is emptied in that way,
then copied aside and taken out of the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import msgspec

from driver.background.discovery import LostJournal, check_commits
from driver.journal.block_index import unread, wanted_again
from driver.journal.history import FinishedBatch
from driver.journal.state import Partition, State
from forebay.kafka.client.admin import Committed
from forebay.model.values import Block, TopicPartition
from forebay.model.wire import WIRE_NAMES
from recovery.examination import Examination, Hole, Place, Segment, described, is_needed, is_unread
from wal.recovery import Decision, Found


class Recovery(msgspec.Struct, frozen=True):
    """A block that is not whole where the journal names it, and from where it can be (or was) written anew. ``exact``: the
    same bytes; else the same records, encoded anew. ``done``: it was."""

    block_id: str
    path: str
    ranges: tuple[str, ...]
    batch_id: int
    needed: bool
    source: str
    exact: bool
    done: bool = False


class Loss(msgspec.Struct, frozen=True):
    """A block that nothing keeps any more. ``reasons``: what each place said; ``command``: decides it, "" if nothing needs
    the block or its batch is not allocated yet."""

    block_id: str
    path: str
    ranges: tuple[str, ...]
    batch_id: int
    needed: bool
    reasons: tuple[str, ...]
    command: str = ""


class DamagedSegment(msgspec.Struct, frozen=True):
    """``kept``: why it stays where it is; "" if it is (or was) copied to ``aside`` and taken out of the log."""

    path: str
    kept: str
    aside: str = ""
    done: bool = False


class KafkaPartition(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    """Offsets: the journal's position, the group's commit, what Kafka holds; -1 where unknown. ``finding``: "" if all is well."""

    topic: str
    partition: int
    incarnation: int
    position: int
    committed: int = -1
    low: int = -1
    high: int = -1
    finding: str = ""


class KafkaView(msgspec.Struct, frozen=True):
    """``unreachable``: why Kafka could not be asked, "" if it was."""

    unreachable: str
    partitions: tuple[KafkaPartition, ...] = ()


class CopiesView(msgspec.Struct, frozen=True):
    """Local copies of this host: those that the journal names, found and not found, and files it does not name. ``agents``:
    those that answered; ``silent``: why others did not. ``damaged``: files that this host's agent set aside."""

    directory: str
    found: int
    absent: int
    stray: int
    agents: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()


class HistoryView(msgspec.Struct, frozen=True):
    batches: int
    finding: str = ""


class Plan(msgspec.Struct, frozen=True, kw_only=True, rename=WIRE_NAMES):
    """``counts``: decision → places; ``places``: all but the whole ones; ``orphans``: frames that the journal does not name:
    label → what becomes of them. ``forgotten``: segments that are gone, of which only a replay would need anything."""

    stream: str
    timeline: int
    applied: bool
    segments: int
    counts: dict[str, int]
    places: tuple[Place, ...]
    holes: tuple[Hole, ...]
    recoveries: tuple[Recovery, ...] = ()
    losses: tuple[Loss, ...] = ()
    damaged: tuple[DamagedSegment, ...] = ()
    forgotten: tuple[str, ...] = ()
    copies: CopiesView
    history: HistoryView
    kafka: KafkaView

    @property
    def open(self) -> bool:
        """Whether something waits for a person or for ``--apply``."""
        return bool(
            [r for r in self.recoveries if not r.done]
            or self.losses
            or [d for d in self.damaged if not d.done]
            or [p for p in self.places if p.decision == Decision.NEWER_REFUSE.value]
            or (self.forgotten and not self.applied)
            or self.history.finding
            or [p for p in self.kafka.partitions if p.finding]
        )


def broken_blocks(examined: Examination) -> list[Block]:
    """Blocks that are not whole where the journal names them, in the order of the log. What a newer release wrote is whole."""
    state = examined.state
    assert state is not None
    broken = (Found.DAMAGED, Found.TORN, Found.ABSENT)
    return [state.blocks[v.block_id] for v in examined.verdicts if v.named and v.block_id and v.found in broken]


def damaged_segments(examined: Examination) -> list[DamagedSegment]:
    """Every segment that holds damage, and whether it can be taken out of the log."""
    found = []
    for segment in examined.segments:
        torn_accepted = any(v.found is Found.TORN and v.named for v in segment.verdicts)
        if torn_accepted or any(v.found is Found.DAMAGED for v in segment.verdicts):
            kept = _kept(segment)
            found.append(DamagedSegment(segment.path, kept, "" if kept else aside_path(segment.path)))
    return found


def _kept(segment: Segment) -> str:
    if any(v.found is Found.NEWER for v in segment.verdicts):
        return "a newer release wrote part of it: run that one"
    if not segment.closed:
        return "its receiver may still write to it: once that has been started again, recover again"
    orphans = any(
        v.found is Found.WHOLE and not v.named and v.decision is not Decision.ORPHAN_DELETE for v in segment.verdicts
    )
    if orphans and not segment.fenced:
        return "its receiver may still report a block of it: once that has been started again, recover again"
    return ""


def aside_path(path: str) -> str:
    """Where the copy of a damaged segment goes: beside ``blocks``, where nothing looks for the log."""
    stream, _, rest = path.partition("/")
    return f"{stream}/aside/{rest}"


def forgettable(state: State, gone: Iterable[str], lost: AbstractSet[str]) -> list[str]:
    """Those of the segments ``gone`` of which nothing but a replay to come would need a block, and all are ``lost``."""
    by_path: dict[str, list[str]] = {}
    for block in state.blocks.values():
        by_path.setdefault(block.handle.path, []).append(block.id)
    spare = (set(lost) & state.released.keys()) - state.cleaning_blocks.keys() - wanted_again(state).keys()
    spare -= unread(state)
    return [
        path
        for path in sorted(gone)
        if path in by_path and path not in state.cleaning_segments and spare.issuperset(by_path[path])
    ]


def recovery_of(state: State, block: Block, source: str, exact: bool, done: bool) -> Recovery:
    return Recovery(
        block_id=block.id,
        path=block.handle.path,
        ranges=tuple(r.label for r in block.meta.ranges),
        batch_id=state.batch_of.get(block.id, 0),
        needed=is_needed(state, block.id),
        source=source,
        exact=exact,
        done=done,
    )


def loss_of(state: State, block: Block, reasons: Sequence[str]) -> Loss:
    batch_id = state.batch_of.get(block.id, 0)
    needed = is_needed(state, block.id)
    labels = tuple(r.label for r in block.meta.ranges)
    command = ""
    by_batch = needed and not (is_unread(state, block.id) and block.id in state.released)
    if by_batch and batch_id and not set(labels) <= set(state.batches[batch_id].lost):
        command = f"forebay recover --accept-loss {batch_id} " + " ".join(f"'{label}'" for label in labels) + " --yes"
    return Loss(
        block_id=block.id,
        path=block.handle.path,
        ranges=labels,
        batch_id=batch_id,
        needed=needed,
        reasons=tuple(reasons),
        command=command,
    )


def history_view(state: State, batches: Iterable[FinishedBatch]) -> HistoryView:
    """Whether the history holds every batch that the journal's state has dropped, but for what a rebuild has said: that batches
    do not count, or that their history was lost before it (the audit shows these offsets as attested)."""
    found = {batch.number for batch in batches if not state.is_void(batch.batch_id, batch.number)}
    told = [range(1 if r.attested else r.known_number + 1, r.batch_count + 1) for r in state.rebuilds]
    accounted = found.union(*told)
    lacking = [number for number in range(1, state.archived_number + 1) if number not in accounted]
    if not lacking:
        return HistoryView(len(found))
    return HistoryView(
        len(found), f"the history lacks {len(lacking)} finished batches, from number {lacking[0]} to {lacking[-1]}"
    )


@dataclass(frozen=True, slots=True)
class KafkaFacts:
    """What Kafka answered. ``topic_ids``: of the topics that exist, "" where the broker can't tell."""

    committed: dict[TopicPartition, Committed]
    watermarks: dict[TopicPartition, tuple[int, int]]
    topic_ids: dict[str, str]


def kafka_view(state: State, group: str, facts: KafkaFacts) -> KafkaView:
    """Each partition's offsets in journal and Kafka, and what does not fit."""
    return KafkaView("", tuple(_kafka_partition(p, state.timeline, group, facts) for p in _ordered(state)))


def _ordered(state: State) -> list[Partition]:
    return sorted(state.partitions.values(), key=lambda p: p.tp)


def _kafka_partition(partition: Partition, timeline: int, group: str, facts: KafkaFacts) -> KafkaPartition:
    commit = facts.committed.get(partition.tp)
    low, high = facts.watermarks.get(partition.tp, (-1, -1))
    return KafkaPartition(
        topic=partition.topic,
        partition=partition.partition,
        incarnation=partition.incarnation.number,
        position=partition.position,
        committed=commit.offset if commit is not None else -1,
        low=low,
        high=high,
        finding=_kafka_finding(partition, timeline, group, facts),
    )


def _kafka_finding(partition: Partition, timeline: int, group: str, facts: KafkaFacts) -> str:
    tp, position = partition.tp, partition.position
    if tp in facts.committed:
        try:
            check_commits({tp: facts.committed[tp]}, group, timeline, {tp: (partition.incarnation.number, position)})
        except LostJournal as error:
            return str(error)
    if tp not in facts.watermarks:
        return f"{tp}: Kafka has no such partition: what it held from offset {position} on is gone"
    topic_id = facts.topic_ids.get(partition.topic, "")
    if topic_id and partition.incarnation.topic_id and topic_id != partition.incarnation.topic_id:
        return f"{tp}: the topic was deleted and created again; what it held from offset {position} on is gone"
    low, high = facts.watermarks[tp]
    if position < low:
        return f"{tp}: Kafka no longer holds offsets {position} to {low}, which were not taken in; see `forebay status`"
    if position > high:
        return f"{tp}: Kafka's log ends at {high}, below the position {position}; see `forebay status`"
    return ""


def make_plan(
    examined: Examination,
    *,
    applied: bool,
    recoveries: Sequence[Recovery],
    losses: Sequence[Loss],
    damaged: Sequence[DamagedSegment],
    forgotten: Sequence[str],
    copies: CopiesView,
    history: HistoryView,
    kafka: KafkaView,
) -> Plan:
    assert examined.state is not None
    return Plan(
        stream=examined.stream,
        timeline=examined.state.timeline,
        applied=applied,
        segments=sum(segment.bytes > 0 for segment in examined.segments),
        counts=examined.counts,
        places=tuple(
            described(verdict, examined.state)
            for verdict in examined.verdicts
            if verdict.decision is not Decision.WHOLE
        ),
        holes=examined.holes,
        recoveries=tuple(recoveries),
        losses=tuple(losses),
        damaged=tuple(damaged),
        forgotten=tuple(forgotten),
        copies=copies,
        history=history,
        kafka=kafka,
    )


def sentences(plan: Plan) -> list[str]:
    """One for each thing that waits for a person or for ``--apply``, with the way out."""
    said = [
        f"block {r.block_id} with {', '.join(r.ranges)} is not whole in {r.path}; it can be had from {r.source}: stop the "
        "driver, then `forebay recover --apply`"
        for r in plan.recoveries
        if not r.done
    ]
    said += map(loss_sentence, plan.losses)
    said += [f"{d.path} holds damage and stays in place: {d.kept}" for d in plan.damaged if d.kept]
    said += [
        f"{d.path} holds damage; `forebay recover --apply` keeps what is whole of it and sets it aside"
        for d in plan.damaged
        if not d.kept and not d.done
    ]
    said += [
        f"{p.path}, bytes {p.offset} to {p.until}: {p.words}"
        for p in plan.places
        if p.decision == Decision.NEWER_REFUSE.value
    ]
    if plan.history.finding:
        said.append(plan.history.finding)
    said += [p.finding for p in plan.kafka.partitions if p.finding]
    return said


def loss_sentence(loss: Loss) -> str:
    words = (
        f"block {loss.block_id} with {', '.join(loss.ranges)} is lost ({'; '.join(loss.reasons) or 'nothing keeps it'})"
    )
    if loss.command:
        return f"{words}; batch {loss.batch_id} needs it: bring a copy back, or `{loss.command}` goes on without it"
    if loss.batch_id and loss.needed:
        return f"{words}; batch {loss.batch_id} goes on without it, as was accepted"
    if loss.needed:
        return f"{words}; it waits for its batch, which will stop at it"
    return f"{words}; its batch is completed: only a replay would need it"
