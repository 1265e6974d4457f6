"""Which blocks and offsets a query over an intake reads, and in how many tasks: decisions on values, without I/O."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from forebay.kafka.consume.spans import OffsetRange
from forebay.messages import IncarnationSpan, IntakeAnswer, IntakePartition
from forebay.model.arrow_columns import Column
from forebay.model.errors import UsageError
from forebay.model.values import TopicPartition
from forebay.security.access import Access
from pyspark_forebay.intake.client import FoundBlocks, Place, Places
from pyspark_forebay.offsets import Offsets
from wal.reading import BlockReference, ReadPlan

#: bytes that a task reads if there are many; least bytes of a task if that makes fewer tasks than partitions
TASK_BYTES, TASK_BYTES_MIN = 64_000_000, 1_000_000

Partitions = Mapping[TopicPartition, IntakePartition]


class BlockPart(msgspec.Struct, frozen=True, gc=False):
    """A block, and which of its offsets are read.

    ``cuts``: offsets [from, until) that are read of a range, by ``topic/partition``; only ranges that are not read as a
    whole. ``unwanted``: labels of the ranges that are not read at all. ``records``: the number of records that are
    read, at most.
    """

    reference: BlockReference
    cuts: dict[str, tuple[int, int]] = {}
    unwanted: frozenset[str] = frozenset()
    records: int = 0


class IntakeTask(msgspec.Struct, frozen=True):
    """What one task reads: blocks according to ``plan``, or ``span`` from Kafka with the options ``kafka``.

    It can be pickled. It may hold secrets, so ``repr`` omits them.
    """

    plan: ReadPlan
    parts: tuple[BlockPart, ...] = ()
    span: OffsetRange | None = None
    kafka: Mapping[str, str] = {}

    def __repr__(self) -> str:
        return f"<IntakeTask: {len(self.parts)} blocks, {self.span}>"


@dataclass(frozen=True, slots=True)
class IntakeBatchPlan:
    """What one batch reads from blocks and from Kafka.

    ``parts``: blocks in the order of acceptance. ``spans``: offsets that no block holds and Kafka may hold. ``losses``:
    a sentence for each range that neither can hold. ``gaps``: a sentence for each range that Kafka lost before the
    intake took it in, or whose later loss a person accepted.
    """

    parts: tuple[BlockPart, ...]
    spans: tuple[OffsetRange, ...]
    losses: tuple[str, ...]
    gaps: tuple[str, ...]


def places(offsets: Offsets) -> dict[TopicPartition, Place]:
    """Return the next place of each partition."""
    return {tp: (offsets.incarnations.get(tp, 1), offset) for tp, offset in offsets.at.items()}


def start_places(offsets: Offsets) -> dict[TopicPartition, Place]:
    """Return the places at which the query begins."""
    return {tp: (offsets.start_incarnations.get(tp, 1), offset) for tp, offset in (offsets.start or {}).items()}


def offsets_of(at: Places, cursor: str, start: Places | None = None) -> Offsets:
    """Return the places ``at`` as a checkpoint stores them."""
    return Offsets(
        at={tp: offset for tp, (_, offset) in at.items()},
        start=None if start is None else {tp: offset for tp, (_, offset) in start.items()},
        cursor=cursor,
        incarnations={tp: incarnation for tp, (incarnation, _) in at.items() if incarnation != 1},
        start_incarnations={tp: incarnation for tp, (incarnation, _) in (start or {}).items() if incarnation != 1},
    )


def first_place(partition: IntakePartition) -> Place:
    """Return the first place of ``partition``, before all records that the intake ever took in."""
    return (partition.incarnations[0].number, partition.incarnations[0].start)


def next_end(begin: Place, partition: IntakePartition) -> Place:
    """Return the offset up to which a trigger may read: the next incarnation's start if there is one, else the position."""
    for incarnation in partition.incarnations:
        if incarnation.number > begin[0]:
            return (incarnation.number, incarnation.start)
    return (partition.incarnations[-1].number, partition.position)


def spans_between(begin: Places, end: Places, partitions: Partitions) -> list[IncarnationSpan]:
    """Return the ranges from ``begin`` to ``end``, one for each incarnation.

    Raises UsageError if ``end`` is before ``begin``, or the intake does not know an incarnation.
    """
    found: list[IncarnationSpan] = []
    for tp, (end_incarnation, end_offset) in sorted(end.items()):
        partition = partitions.get(tp)
        incarnation, offset = begin[tp]
        known = {one.number: one for one in partition.incarnations} if partition is not None else {}
        if incarnation not in known or end_incarnation not in known:
            raise UsageError(
                f"the intake does not know incarnation {max(incarnation, end_incarnation)} of {tp}: check that the "
                "checkpoint is of this stream"
            )
        while incarnation < end_incarnation:
            until = known[incarnation].end
            assert until is not None  # it has ended, because another one follows
            found.append(_span(tp, incarnation, offset, until))
            incarnation += 1
            offset = known[incarnation].start
        if end_offset < offset:
            raise UsageError(f"{tp}: offset {end_offset} is before {offset}, where reading begins")
        found.append(_span(tp, incarnation, offset, end_offset))
    return [span for span in found if span.from_offset < span.until_offset]


def _span(tp: TopicPartition, incarnation: int, begin: int, until: int) -> IncarnationSpan:
    return IncarnationSpan(
        topic=tp.topic, partition=tp.partition, incarnation=incarnation, from_offset=begin, until_offset=until
    )


def first_at(offsets: Column, times: Column, span: IncarnationSpan, time_ms: int) -> int | None:
    """Return the offset of the first record in ``span`` with a time of ``time_ms`` or later; None if there is none.

    ``offsets``, ``times``: of the records, in their order.
    """
    found = np.flatnonzero((offsets >= span.from_offset) & (offsets < span.until_offset) & (times >= time_ms))
    return int(offsets[found[0]]) if len(found) else None


@dataclass(frozen=True, slots=True)
class Cover:
    """The blocks that hold wanted offsets.

    ``parts``: in the order of acceptance. ``uncovered``: offsets that are in no block and no gap, or in a range whose
    loss was accepted.
    """

    parts: tuple[BlockPart, ...]
    uncovered: tuple[IncarnationSpan, ...]


def cover(spans: Sequence[IncarnationSpan], found: FoundBlocks) -> Cover:
    """Return which block is read for each offset of ``spans``, at most one span for each incarnation of a partition."""
    wanted = {(span.topic, span.partition, span.incarnation): span for span in spans}
    covered: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
    parts = []
    for block in found.blocks:
        cuts: dict[str, tuple[int, int]] = {}
        unwanted = set()
        records = 0
        for r in block.meta.ranges:
            key = (r.topic, r.partition, r.incarnation)
            span = wanted.get(key)
            begin, until = (
                (max(r.from_offset, span.from_offset), min(r.until_offset, span.until_offset)) if span else (0, 0)
            )
            if begin >= until or r.label in found.lost:
                unwanted.add(r.label)
                continue
            covered.setdefault(key, []).append((begin, until))
            records += min(r.records, until - begin)
            if (begin, until) != (r.from_offset, r.until_offset):
                cuts[f"{r.topic}/{r.partition}"] = (begin, until)
        if len(unwanted) < len(block.meta.ranges):
            reference = BlockReference.of(block).also_at(found.copies.get(block.id, ()))
            parts.append(BlockPart(reference, cuts, frozenset(unwanted), records))
    for gap in found.gaps:
        covered.setdefault((gap.topic, gap.partition, gap.incarnation), []).append((gap.from_offset, gap.until_offset))
    uncovered = (
        msgspec.structs.replace(span, from_offset=begin, until_offset=until)
        for key, span in wanted.items()
        for begin, until in _uncovered(span, covered.get(key, ()))
    )
    return Cover(tuple(parts), tuple(uncovered))


def plan_intake_batch(
    spans: Sequence[IncarnationSpan], found: FoundBlocks, partitions: Partitions, has_kafka: bool
) -> IntakeBatchPlan:
    """Return for each offset of ``spans`` what reads it: one block, or Kafka if the topic still has that incarnation's id.

    ``has_kafka``: whether tasks can read Kafka.
    """
    covered = cover(spans, found)
    wanted = {(span.topic, span.partition, span.incarnation) for span in spans}
    gaps = [
        f"{gap.topic}/{gap.partition}[{gap.from_offset}, {gap.until_offset}) was lost in Kafka: {gap.cause}"
        for gap in found.gaps
    ]
    lost = [r for block in found.blocks for r in block.meta.ranges if r.label in found.lost]
    passed: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
    for r in lost:
        key = (r.topic, r.partition, r.incarnation)
        passed.setdefault(key, []).append((r.from_offset, r.until_offset))
        if key in wanted:
            gaps.append(f"{r.label} was lost after it was taken in: {found.lost[r.label]}")
    of_kafka: list[OffsetRange] = []
    losses: list[str] = []
    uncovered = (
        msgspec.structs.replace(missing, from_offset=begin, until_offset=until)
        for missing in covered.uncovered
        for begin, until in _uncovered(missing, passed.get((missing.topic, missing.partition, missing.incarnation), ()))
    )
    for missing in uncovered:
        known = partitions[missing.tp]
        newest = known.incarnations[-1]
        if has_kafka and missing.incarnation == newest.number:
            of_kafka.append(
                OffsetRange(
                    missing.topic, missing.partition, missing.from_offset, missing.until_offset, newest.topic_id,
                    leader_epoch=known.leader_epoch,
                )
            )  # fmt: skip
        else:
            where = "" if missing.incarnation == 1 else f" of incarnation {missing.incarnation}"
            losses.append(
                f"{missing.tp}[{missing.from_offset}, {missing.until_offset}){where}: the WAL no longer has it, and Kafka cannot "
                "have it"
            )
    return IntakeBatchPlan(covered.parts, tuple(of_kafka), tuple(losses), tuple(gaps))


def read_plan(answer: IntakeAnswer, access: Access, headers: bool) -> ReadPlan:
    """Return how tasks read the intake's blocks, without the Kafka tier."""
    return ReadPlan(
        wal_url=answer.wal_url,
        storage=answer.storage,
        blocks_directory=answer.blocks_directory,
        agent_urls=answer.agent_urls,
        headers=headers,
        key_file=answer.key_file,
        access=access.carried(),
    )


def _uncovered(span: IncarnationSpan, covered: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    reached = span.from_offset
    for begin, until in sorted(covered):
        if begin >= span.until_offset:
            break
        if begin > reached:
            yield reached, min(begin, span.until_offset)
        reached = max(reached, until)
    if reached < span.until_offset:
        yield reached, span.until_offset


def pack_tasks(
    parts: Sequence[BlockPart], partitions: int, min_tasks: int | None, max_records: int | None
) -> list[tuple[BlockPart, ...]]:
    """Return ``parts``, in their order, as tasks. A task has several blocks if there are enough tasks; no block is split.

    ``partitions``: how many partitions are read; each would be one task of Spark's Kafka source.
    """
    size = sum(part.reference.handle.length for part in parts)
    tasks = max(math.ceil(size / TASK_BYTES), min(partitions, math.ceil(size / TASK_BYTES_MIN)), min_tasks or 1)
    share = size / tasks
    made: list[tuple[BlockPart, ...]] = []
    task: list[BlockPart] = []
    done = records = 0
    for part in parts:
        over = max_records is not None and records + part.records > max_records
        if task and (over or done >= share * (len(made) + 1)):
            made.append(tuple(task))
            task, records = [], 0
        task.append(part)
        done += part.reference.handle.length
        records += part.records
    return [*made, tuple(task)] if task else made
