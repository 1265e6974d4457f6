"""Which blocks and offsets a query over an intake reads, and in how many tasks: decisions on values alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from forebay.kafka.consume.spans import Span
from forebay.messages import IncarnationSpan, IntakeAnswer, IntakePartition
from forebay.model.arrow_columns import Column
from forebay.model.errors import UsageError
from forebay.model.values import TopicPartition
from forebay.security.access import Access
from pyspark_forebay.intake import FoundBlocks, Place, Places
from pyspark_forebay.offsets import Offsets
from wal.reading import BlockReference, ReadPlan

#: a task reads about so much where there is much, and no less than this where that makes fewer tasks than partitions
TASK_BYTES, TASK_BYTES_MIN = 64_000_000, 1_000_000

Partitions = Mapping[TopicPartition, IntakePartition]


class BlockPart(msgspec.Struct, frozen=True, gc=False):
    """A block, and which offsets of it are read. ``cuts``: ``topic/partition`` → [from, until) of the ranges that are not read
    whole; ``unwanted``: labels of those that are not read at all."""

    reference: BlockReference
    cuts: dict[str, tuple[int, int]] = {}
    unwanted: frozenset[str] = frozenset()
    records: int = 0


class IntakeTask(msgspec.Struct, frozen=True):
    """What one task reads: blocks, by ``plan``; or what only Kafka has, by ``kafka``'s options. Can be pickled; may hold secrets,
    so nothing shows it."""

    plan: ReadPlan
    parts: tuple[BlockPart, ...] = ()
    span: Span | None = None
    kafka: Mapping[str, str] = {}

    def __repr__(self) -> str:
        return f"<IntakeTask: {len(self.parts)} blocks, {self.span}>"


@dataclass(frozen=True, slots=True)
class Reading:
    """``parts``: in the order of acceptance. ``spans``: what no block has and Kafka may. ``losses``: a sentence for what neither
    can have; ``gaps``: for what Kafka lost before it was taken in, and for what was lost later, as a person accepted."""

    parts: tuple[BlockPart, ...]
    spans: tuple[Span, ...]
    losses: tuple[str, ...]
    gaps: tuple[str, ...]


def places(offsets: Offsets) -> dict[TopicPartition, Place]:
    return {tp: (offsets.incarnations.get(tp, 1), offset) for tp, offset in offsets.at.items()}


def start_places(offsets: Offsets) -> dict[TopicPartition, Place]:
    return {tp: (offsets.start_incarnations.get(tp, 1), offset) for tp, offset in (offsets.start or {}).items()}


def offsets_of(at: Places, cursor: str, start: Places | None = None) -> Offsets:
    """As a checkpoint keeps them."""
    return Offsets(
        at={tp: offset for tp, (_, offset) in at.items()},
        start=None if start is None else {tp: offset for tp, (_, offset) in start.items()},
        cursor=cursor,
        incarnations={tp: incarnation for tp, (incarnation, _) in at.items() if incarnation != 1},
        start_incarnations={tp: incarnation for tp, (incarnation, _) in (start or {}).items() if incarnation != 1},
    )


def first_place(partition: IntakePartition) -> Place:
    """Before all that the intake ever took in of it."""
    return (partition.incarnations[0].number, partition.incarnations[0].start)


def next_end(begin: Place, partition: IntakePartition) -> Place:
    """Up to where a trigger may read: the position, or, where a life has ended, the beginning of the next one."""
    for incarnation in partition.incarnations:
        if incarnation.number > begin[0]:
            return (incarnation.number, incarnation.start)
    return (partition.incarnations[-1].number, partition.position)


def spans_between(begin: Places, end: Places, partitions: Partitions) -> list[IncarnationSpan]:
    """What lies between, life by life. Raises UsageError where ``end`` lies before ``begin``, or the intake does not know one."""
    found: list[IncarnationSpan] = []
    for tp, (end_incarnation, end_offset) in sorted(end.items()):
        partition = partitions.get(tp)
        incarnation, offset = begin[tp]
        known = {one.number: one for one in partition.incarnations} if partition is not None else {}
        if incarnation not in known or end_incarnation not in known:
            raise UsageError(
                f"the intake knows no {tp} in life {max(incarnation, end_incarnation)}: is it the stream of the checkpoint?"
            )
        while incarnation < end_incarnation:
            until = known[incarnation].end
            assert until is not None  # it has ended, since another one follows
            found.append(_span(tp, incarnation, offset, until))
            incarnation += 1
            offset = known[incarnation].start
        if end_offset < offset:
            raise UsageError(f"{tp}: offset {end_offset} lies before {offset}, where reading begins")
        found.append(_span(tp, incarnation, offset, end_offset))
    return [span for span in found if span.from_offset < span.until_offset]


def _span(tp: TopicPartition, incarnation: int, begin: int, until: int) -> IncarnationSpan:
    return IncarnationSpan(
        topic=tp.topic, partition=tp.partition, incarnation=incarnation, from_offset=begin, until_offset=until
    )


def first_at(offsets: Column, times: Column, span: IncarnationSpan, time_ms: int) -> int | None:
    """The first of these records, in order, that lies in ``span`` and is of ``time_ms`` or later."""
    found = np.flatnonzero((offsets >= span.from_offset) & (offsets < span.until_offset) & (times >= time_ms))
    return int(offsets[found[0]]) if len(found) else None


@dataclass(frozen=True, slots=True)
class Cover:
    """``parts``: the blocks that hold offsets of what is wanted, in the order of acceptance; ``holes``: what none of them holds,
    nor a gap, or holds in a range whose loss was accepted."""

    parts: tuple[BlockPart, ...]
    holes: tuple[IncarnationSpan, ...]


def cover(spans: Sequence[IncarnationSpan], found: FoundBlocks) -> Cover:
    """Each offset of ``spans``, of which no two are of one life of a partition, from one block."""
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
    holes = (
        msgspec.structs.replace(span, from_offset=begin, until_offset=until)
        for key, span in wanted.items()
        for begin, until in _holes(span, covered.get(key, ()))
    )
    return Cover(tuple(parts), tuple(holes))


def reading(spans: Sequence[IncarnationSpan], found: FoundBlocks, partitions: Partitions, has_kafka: bool) -> Reading:
    """Each offset of ``spans`` from one block, or from Kafka if its topic is still the one of that life."""
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
    of_kafka: list[Span] = []
    losses: list[str] = []
    holes = (
        msgspec.structs.replace(hole, from_offset=begin, until_offset=until)
        for hole in covered.holes
        for begin, until in _holes(hole, passed.get((hole.topic, hole.partition, hole.incarnation), ()))
    )
    for hole in holes:
        newest = partitions[hole.tp].incarnations[-1]
        if has_kafka and hole.incarnation == newest.number:
            of_kafka.append(Span(hole.topic, hole.partition, hole.from_offset, hole.until_offset, newest.topic_id))
        else:
            incarnation = "" if hole.incarnation == 1 else f" of life {hole.incarnation}"
            losses.append(
                f"{hole.tp}[{hole.from_offset}, {hole.until_offset}){incarnation}: the WAL has it no more, and Kafka can't"
            )
    return Reading(covered.parts, tuple(of_kafka), tuple(losses), tuple(gaps))


def read_plan(answer: IntakeAnswer, access: Access, headers: bool) -> ReadPlan:
    """How tasks read the intake's blocks, without the Kafka tier."""
    return ReadPlan(
        wal_url=answer.wal_url,
        storage=answer.storage,
        blocks_directory=answer.blocks_directory,
        agent_urls=answer.agent_urls,
        headers=headers,
        key_file=answer.key_file,
        access=access.carried(),
    )


def _holes(span: IncarnationSpan, covered: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    reached = span.from_offset
    for begin, until in sorted(covered):
        if begin >= span.until_offset:
            break
        if begin > reached:
            yield reached, min(begin, span.until_offset)
        reached = max(reached, until)
    if reached < span.until_offset:
        yield reached, span.until_offset


def packed(
    parts: Sequence[BlockPart], partitions: int, min_tasks: int | None, max_records: int | None
) -> list[tuple[BlockPart, ...]]:
    """``parts`` as tasks, neighbours together: many blocks in one, as long as that leaves enough tasks. ``partitions``: how many
    are read, each of which would be a task of Kafka's source. A block is never split."""
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
