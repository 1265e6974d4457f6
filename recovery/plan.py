"""The plan of a recovery, before and after it is carried out. Decision logic, without I/O.

Nothing is repaired in place. Recovery writes a block that is damaged at its journalled place again, into a segment of its own,
and the journal then names the new place. If no writer can append to a damaged segment any more, all its whole blocks are
written again in this way; then the segment is copied aside and deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

import msgspec

from driver.background.discovery import LostJournal, check_commits
from driver.journal.history import FinishedBatch
from driver.journal.state import State
from driver.journal.state_parts import Partition
from forebay.kafka.client.admin import Committed
from forebay.model.values import Block, TopicPartition
from forebay.model.wire import WIRE_NAMES
from recovery.examination import Examination, MissingSegments, Place, Segment, described, is_needed, is_unread
from wal.decisions.recovery import Decision, FrameCondition


class BlockRecovery(msgspec.Struct, frozen=True):
    """A block that is not whole where the journal names it, and the source from which it can be, or was, written again.

    ``exact``: the source has the same bytes; otherwise the same records, encoded again. ``done``: it was written again.
    """

    block_id: str
    path: str
    ranges: tuple[str, ...]
    batch_id: int
    needed: bool
    source: str
    exact: bool
    done: bool = False


class Loss(msgspec.Struct, frozen=True):
    """A block that no source has any more.

    ``reasons``: why each source does not have it. ``command``: accepts the loss; "" if nothing needs the block or it has
    no batch yet.
    """

    block_id: str
    path: str
    ranges: tuple[str, ...]
    batch_id: int
    needed: bool
    reasons: tuple[str, ...]
    command: str = ""


class DamagedSegment(msgspec.Struct, frozen=True):
    """A segment with damage, or one that can't be read (``unreadable``).

    ``kept``: why it stays in place; "" if it will be, or was, copied to ``aside`` and deleted.
    """

    path: str
    kept: str
    aside: str = ""
    done: bool = False
    unreadable: bool = False


class KafkaPartition(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    """One partition's offsets: the journal's position, the group's commit, the range in Kafka; -1 if unknown.

    ``finding``: what does not fit; "" if everything does.
    """

    topic: str
    partition: int
    incarnation: int
    position: int
    committed: int = -1
    low: int = -1
    high: int = -1
    finding: str = ""


class KafkaView(msgspec.Struct, frozen=True):
    """All partitions compared with Kafka. ``unreachable``: why Kafka could not be asked; "" if it could."""

    unreachable: str
    partitions: tuple[KafkaPartition, ...] = ()


class CopiesView(msgspec.Struct, frozen=True):
    """Counts of this host's local copies.

    ``found``, ``absent``: copies that the journal names. ``stray``: files that it does not name. ``agents``: agents that
    answered. ``silent``: why others did not. ``damaged``: files that this host's agent set aside. ``unreadable``: why the
    directory can't be listed, and all counts are 0; "" if it was listed.
    """

    directory: str
    found: int
    absent: int
    stray: int
    agents: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    unreadable: str = ""


class HistoryView(msgspec.Struct, frozen=True):
    """The history of completed batches. ``finding``: which batches it lacks; "" if none."""

    batches: int
    finding: str = ""


class RecoveryPlan(msgspec.Struct, frozen=True, kw_only=True, rename={**WIRE_NAMES, "missing_segments": "holes"}):
    """What ``forebay recover`` will do, or has done.

    ``counts``: places by decision. ``places``: all except whole frames. ``missing_segments``: those between existing ones.
    ``forgotten``: deleted segments whose blocks only a replay could need; they leave the journal.
    """

    stream: str
    timeline: int
    applied: bool
    segments: int
    counts: dict[str, int]
    places: tuple[Place, ...]
    missing_segments: tuple[MissingSegments, ...]
    recoveries: tuple[BlockRecovery, ...] = ()
    losses: tuple[Loss, ...] = ()
    damaged: tuple[DamagedSegment, ...] = ()
    forgotten: tuple[str, ...] = ()
    copies: CopiesView
    history: HistoryView
    kafka: KafkaView

    @property
    def open(self) -> bool:
        """Whether an operator must act, for instance by running ``--apply``."""
        return bool(
            [r for r in self.recoveries if not r.done]
            or self.losses
            or [d for d in self.damaged if not d.done]
            or [p for p in self.places if p.decision == Decision.NEWER_REFUSE.value]
            or (self.forgotten and not self.applied)
            or self.history.finding
            or self.copies.unreadable
            or [p for p in self.kafka.partitions if p.finding]
        )


def broken_blocks(examined: Examination) -> list[Block]:
    """Return the blocks that are not whole where the journal names them, in log order.

    Frames of a newer release count as whole.
    """
    state = examined.state
    assert state is not None
    broken = (FrameCondition.DAMAGED, FrameCondition.TORN, FrameCondition.ABSENT, FrameCondition.UNREADABLE)
    return [state.blocks[v.block_id] for v in examined.verdicts if v.named and v.block_id and v.condition in broken]


def damaged_segments(examined: Examination) -> list[DamagedSegment]:
    """Return every segment that is damaged or can't be read, and whether it can be deleted from the log."""
    found = []
    for segment in examined.segments:
        torn_accepted = any(v.condition is FrameCondition.TORN and v.named for v in segment.verdicts)
        damaged = torn_accepted or any(v.condition is FrameCondition.DAMAGED for v in segment.verdicts)
        if damaged or segment.unreadable:
            kept = _kept(segment)
            aside = "" if kept else aside_path(segment.path)
            found.append(DamagedSegment(segment.path, kept, aside, unreadable=bool(segment.unreadable)))
    return found


def _kept(segment: Segment) -> str:
    if segment.unreadable:  # it may hold whole blocks, which a repaired disk or store returns
        return f"{segment.unreadable}; repair its disk or store, then run `forebay recover` again"
    if any(v.condition is FrameCondition.NEWER for v in segment.verdicts):
        return "a newer release wrote part of it: run that release"
    if not segment.closed:
        return "its receiver may still write to it: restart that receiver, then run `forebay recover` again"
    orphans = any(
        v.condition is FrameCondition.WHOLE and not v.named and v.decision is not Decision.ORPHAN_DELETE
        for v in segment.verdicts
    )
    if orphans and not segment.fenced:
        return "its receiver may still report a block of it: restart that receiver, then run `forebay recover` again"
    return ""


def aside_path(path: str) -> str:
    """Return the path for the copy of a damaged segment: beside ``blocks``, outside the log."""
    stream, _, rest = path.partition("/")
    return f"{stream}/aside/{rest}"


def forgettable(state: State, gone: Iterable[str], lost: AbstractSet[str]) -> list[str]:
    """Return the segments in ``gone`` (deleted ones) whose blocks are all in ``lost`` and could be needed only by a future
    replay."""
    by_path: dict[str, list[str]] = {}
    for block in state.blocks.values():
        by_path.setdefault(block.handle.path, []).append(block.id)
    unneeded = (set(lost) & state.released.keys()) - state.cleaning_blocks.keys() - state.replay_blocks().keys()
    unneeded -= state.unread_blocks()
    return [
        path
        for path in sorted(gone)
        if path in by_path and path not in state.cleaning_segments and unneeded.issuperset(by_path[path])
    ]


def recovery_of(state: State, block: Block, source: str, exact: bool, done: bool) -> BlockRecovery:
    return BlockRecovery(
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
        command = f"forebay recover --accept-loss {batch_id} " + " ".join(f"'{label}'" for label in labels) + " --apply"
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
    """Return whether the history has every batch that the journal's state has dropped.

    Batches that a rebuild declared void, or whose history was lost before it, are not expected (the audit shows their offsets as
    attested).
    """
    found = {batch.number for batch in batches if not state.is_void(batch.batch_id, batch.number)}
    excepted = [range(1 if r.attested else r.known_number + 1, r.batch_count + 1) for r in state.rebuilds]
    accounted = found.union(*excepted)
    lacking = [number for number in range(1, state.archived_number + 1) if number not in accounted]
    if not lacking:
        return HistoryView(len(found))
    return HistoryView(
        len(found), f"the history lacks {len(lacking)} finished batches, from number {lacking[0]} to {lacking[-1]}"
    )


@dataclass(frozen=True, slots=True)
class KafkaFacts:
    """What Kafka answered. ``topic_ids``: the ids of existing topics; "" if the broker does not report ids."""

    committed: dict[TopicPartition, Committed]
    watermarks: dict[TopicPartition, tuple[int, int]]
    topic_ids: dict[str, str]


def kafka_view(state: State, group: str, facts: KafkaFacts) -> KafkaView:
    """Compare each partition's offsets in the journal with Kafka's."""
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
        return f"{tp}: Kafka has no such partition; its records from offset {position} on no longer exist"
    topic_id = facts.topic_ids.get(partition.topic, "")
    if topic_id and partition.incarnation.topic_id and topic_id != partition.incarnation.topic_id:
        return f"{tp}: the topic was deleted and created again; its records from offset {position} on no longer exist"
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
    recoveries: Sequence[BlockRecovery],
    losses: Sequence[Loss],
    damaged: Sequence[DamagedSegment],
    forgotten: Sequence[str],
    copies: CopiesView,
    history: HistoryView,
    kafka: KafkaView,
) -> RecoveryPlan:
    assert examined.state is not None
    return RecoveryPlan(
        stream=examined.stream,
        timeline=examined.state.timeline,
        applied=applied,
        segments=sum(not segment.holds_nothing for segment in examined.segments),
        counts=examined.counts,
        places=tuple(
            described(verdict, examined.state)
            for verdict in examined.verdicts
            if verdict.decision is not Decision.WHOLE
        ),
        missing_segments=examined.missing_segments,
        recoveries=tuple(recoveries),
        losses=tuple(losses),
        damaged=tuple(damaged),
        forgotten=tuple(forgotten),
        copies=copies,
        history=history,
        kafka=kafka,
    )


def sentences(plan: RecoveryPlan) -> list[str]:
    """Return a sentence for each thing that a person or ``--apply`` has to handle, with the next step."""
    said = [
        f"block {r.block_id} with {', '.join(r.ranges)} is not whole in {r.path}; it can be restored from {r.source}: "
        "stop the driver, then run `forebay recover --apply`"
        for r in plan.recoveries
        if not r.done
    ]
    said += map(loss_sentence, plan.losses)
    said += [
        f"segment {d.path} {'' if d.unreadable else 'is damaged and '}stays in place: {d.kept}"
        for d in plan.damaged
        if d.kept
    ]
    said += [
        f"segment {d.path} is damaged; `forebay recover --apply` writes its whole blocks again and sets it aside"
        for d in plan.damaged
        if not d.kept and not d.done
    ]
    said += [
        f"{p.path}, bytes {p.offset} to {p.until}: {p.reason}"
        for p in plan.places
        if p.decision == Decision.NEWER_REFUSE.value
    ]
    if plan.history.finding:
        said.append(plan.history.finding)
    if plan.copies.unreadable:
        said.append(
            f"{plan.copies.unreadable}; this host's copies were not counted: correct the folder's rights or its disk, then run "
            "`forebay recover` again"
        )
    said += [p.finding for p in plan.kafka.partitions if p.finding]
    return said


def loss_sentence(loss: Loss) -> str:
    text = (
        f"block {loss.block_id} with {', '.join(loss.ranges)} is lost ({'; '.join(loss.reasons) or 'no source has it'})"
    )
    if loss.command:
        return f"{text}; batch {loss.batch_id} needs it: restore a copy, or run `{loss.command}` to continue without it"
    if loss.batch_id and loss.needed:
        return f"{text}; batch {loss.batch_id} continues without it, because its loss was accepted"
    if loss.needed:
        return f"{text}; it is in no batch yet; its batch will fail as unreadable"
    return f"{text}; its batch is completed: only a replay would need it"
