"""Answers to readers of the intake (queries and direct streams): its positions, and which blocks contain their offsets.

Decision logic, without I/O.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from driver.journal.block_index import IncarnationBlocks, Place
from driver.journal.state import State
from driver.journal.state_parts import Partition
from forebay import messages as m
from forebay.model.errors import UsageError
from forebay.model.values import Block

#: maximum numbers of blocks, and of their ranges, in one answer; a single block may have more ranges
BLOCKS_AT_ONCE, RANGES_AT_ONCE = 1_000, 20_000


def intake(state: State) -> tuple[m.IntakePartition, ...]:
    """Return the position and the incarnations of each partition."""
    return tuple(map(partition, state.partitions.values()))


def partition(known: Partition) -> m.IntakePartition:
    """Return the position and the incarnations of one partition."""
    incarnations = (
        m.IncarnationView(
            number=one.number,
            start=one.start,
            topic_id=one.topic_id,
            end=one.end,
            first_epoch=one.first_epoch,
            last_epoch=one.last_epoch,
        )
        for one in known.incarnations
    )
    return m.IntakePartition(
        topic=known.topic, partition=known.partition, position=known.position, incarnations=tuple(incarnations),
        leader_epoch=known.leader_epoch,
    )  # fmt: skip


def earliest(state: State, request: m.EarliestRequest) -> m.EarliestAnswer:
    """For each requested partition, return the earliest place (incarnation and offset) from which on the WAL has every record.
    Uses the block index, so it does not read all blocks of a partition. Raises UsageError for an unknown partition."""
    going = _going(state)
    places = []
    for tp in request.partitions:
        if state.partition(tp) is None:
            raise UsageError(f"the stream has no partition {tp}")
        incarnation, offset = _earliest(state, str(tp), going)
        places.append(m.CursorPlace(topic=tp.topic, partition=tp.partition, incarnation=incarnation, offset=offset))
    return m.EarliestAnswer(places=tuple(places))


def _going(state: State) -> dict[tuple[str, int], int]:
    """Return the ranges that deletions will remove: (``topic/partition``, incarnation) → the highest end offset of a range
    whose segment is being deleted."""
    found: dict[tuple[str, int], int] = {}
    for path in state.cleaning_segments:
        share = state.index.segments.get(path)
        for block_id in share.blocks if share is not None else ():
            for r in state.blocks[block_id].meta.ranges:
                key = (f"{r.topic}/{r.partition}", r.incarnation)
                found[key] = max(found.get(key, 0), r.until_offset)
    return found


def _earliest(state: State, key: str, going: Mapping[tuple[str, int], int]) -> Place:
    partition = state.partitions[key]
    gaps = {(g.incarnation, g.gap.until_offset): g.gap.from_offset for g in partition.gaps}
    place = (partition.incarnation.number, partition.position)
    for incarnation in reversed(partition.incarnations):
        end = partition.position if incarnation.end is None else incarnation.end
        reached = end
        held = state.index.by_offset(state.blocks).get(key, {}).get(incarnation.number, IncarnationBlocks())
        gone = going.get((key, incarnation.number), 0)
        while reached > max(incarnation.start, gone):
            further = gaps.get((incarnation.number, reached), max(held.reaches_back(reached), gone))
            if further == reached:
                break
            reached = further
        if incarnation.end is None or reached < end:
            place = (incarnation.number, reached)
        if reached > incarnation.start:
            break
    return place


def span(
    state: State,
    request: m.SpanRequest,
    given: Iterable[tuple[str, Collection[str]]],
    read_intake: Callable[[tuple[m.IntakePartition, ...]], m.IntakeAnswer],
) -> m.SpanAnswer:
    """Return everything that a reader needs to read offsets that Kafka has lost: incarnations, blocks and how to read them.

    ``given``: as in :func:`blocks`. ``read_intake``: returns how blocks are read, with these partitions.
    """
    known = state.partition(request.tp)
    own = () if known is None else (partition(known),)
    spans = tuple(part for one in own for part in incarnation_spans(request, one))
    return m.SpanAnswer(intake=read_intake(own), spans=spans, found=blocks(state, m.BlocksRequest(spans=spans), given))


def incarnation_spans(request: m.SpanRequest, known: m.IntakePartition) -> tuple[m.IncarnationSpan, ...]:
    """Return the parts of the requested offsets that were taken in, older incarnations first, in offset order.

    An incarnation of the same topic follows another one when the log was cut back. If it began under a later leader than the
    request's, the request means what the log had before. Whether that is what the incarnation before had from the cut on, is
    certain only if its last record had no older leader than the request's.
    """
    found: list[m.IncarnationSpan] = []
    until = request.until_offset
    cut = -1  # the start of a later incarnation that the request does not mean
    for place, incarnation in reversed(list(enumerate(known.incarnations))):
        if request.topic_id and incarnation.topic_id and incarnation.topic_id != request.topic_id:
            continue
        follows = place > 0 and known.incarnations[place - 1].topic_id == incarnation.topic_id
        if follows and 0 <= request.leader_epoch < incarnation.first_epoch:
            cut = incarnation.start if cut < 0 else min(cut, incarnation.start)
            continue
        if cut >= 0 and incarnation.last_epoch < request.leader_epoch:
            until = min(until, cut)
        cut = -1
        end = min(until, known.position if incarnation.end is None else incarnation.end)
        begin = max(request.from_offset, incarnation.start)
        if begin < end:
            found.append(
                m.IncarnationSpan(
                    topic=request.topic,
                    partition=request.partition,
                    incarnation=incarnation.number,
                    from_offset=begin,
                    until_offset=end,
                )
            )
        until = min(until, incarnation.start)  # the incarnation before it contains the lower offsets
    return tuple(found[::-1])


def blocks(state: State, request: m.BlocksRequest, given: Iterable[tuple[str, Collection[str]]]) -> m.BlocksAnswer:
    """Return the blocks that contain the requested spans, in the order in which they were sealed, up to the limits of one answer.

    Because of this order, a block with several partitions occurs only once in an answer. ``given``: host → ids of the cached
    copies there. Raises UsageError for an unknown partition.
    """
    for span in request.spans:
        if state.partition(span.tp) is None:
            raise UsageError(f"the stream has no partition {span.tp}")
    found: dict[str, Block] = {}
    reached = [span.until_offset for span in request.spans]
    left = [_of_span(state, span, number) for number, span in enumerate(request.spans)]
    following = [first for first in (next(one, None) for one in left) if first is not None]
    heapq.heapify(following)
    ranges = 0
    while following:
        _, number, _, block_id = following[0]
        if block_id not in found:
            block = state.blocks[block_id]
            ranges += len(block.meta.ranges)
            if found and (len(found) >= BLOCKS_AT_ONCE or ranges > RANGES_AT_ONCE):
                break
            found[block_id] = block
        after = next(left[number], None)
        heapq.heapreplace(following, after) if after is not None else heapq.heappop(following)
    for _, number, begins, _ in following:  # the next answer contains these
        reached[number] = begins
    copies: dict[str, tuple[str, ...]] = {}
    for host, block_ids in given:
        for block_id in found.keys() & block_ids:
            copies[block_id] = (*copies.get(block_id, ()), host)
    return m.BlocksAnswer(
        blocks=tuple(found.values()),
        reached=tuple(reached),
        gaps=tuple(_gaps(state, request.spans)),
        copies=copies,
        lost=_lost(state, found.values()),
    )


def _lost(state: State, blocks: Iterable[Block]) -> dict[str, str]:
    if not state.lost:
        return {}
    return {r.label: state.lost[r.label] for block in blocks for r in block.meta.ranges if r.label in state.lost}


def times(state: State, request: m.TimesRequest) -> m.TimesAnswer:
    """For each span, return the first block that may have a record at or after the given time, judged by the latest record time
    of each range. One answer examines at most ``RANGES_AT_ONCE`` ranges. Raises UsageError for an unknown partition."""
    left = RANGES_AT_ONCE
    found = []
    for wanted in request.wanted:
        span = wanted.span
        if state.partition(span.tp) is None:
            raise UsageError(f"the stream has no partition {span.tp}")
        held = state.index.by_offset(state.blocks).get(str(span.tp), {}).get(span.incarnation, IncarnationBlocks())
        first = at = bisect_right(held.until_offsets, span.from_offset)
        last = bisect_left(held.from_offsets, span.until_offset)
        while at < min(last, first + left) and not _may_hold(state, held, at, wanted):
            at += 1
        left = max(left - (at - first), 0)
        if at >= last:
            found.append(m.TimedBlock(reached=span.until_offset))
            continue
        reached = max(held.from_offsets[at], span.from_offset)
        block = state.blocks[held.block_ids[at]] if _may_hold(state, held, at, wanted) else None
        found.append(m.TimedBlock(reached=reached, block=block))
    return m.TimesAnswer(found=tuple(found))


def _may_hold(state: State, held: IncarnationBlocks, at: int, wanted: m.TimedSpan) -> bool:
    if held.newest_ms[at] < max(wanted.time_ms, 0) or not _is_there(state, held.block_ids[at]):
        return False
    span, begins = wanted.span, held.from_offsets[at]
    ranges = state.blocks[held.block_ids[at]].meta.ranges if state.lost else ()
    return not any(
        (r.tp, r.incarnation, r.from_offset) == (span.tp, span.incarnation, begins) and r.label in state.lost
        for r in ranges
    )


def _of_span(state: State, span: m.IncarnationSpan, number: int) -> Iterator[tuple[int, int, int, str]]:
    """Return one tuple for each block of the span: the time when the block was sealed, the span's number, the start of the
    block's range, the block's id."""
    held = state.index.by_offset(state.blocks).get(f"{span.topic}/{span.partition}", {}).get(span.incarnation)
    if held is None or span.until_offset <= span.from_offset:
        return
    at = bisect_right(held.until_offsets, span.from_offset)
    while at < len(held.block_ids) and held.from_offsets[at] < span.until_offset:
        block_id = held.block_ids[at]
        if _is_there(state, block_id):
            begins = max(held.from_offsets[at], span.from_offset)
            yield state.blocks[block_id].meta.created_ms, number, begins, block_id
        at += 1


def _is_there(state: State, block_id: str) -> bool:
    """Return whether no deletion of the block's segment is intended."""
    return state.blocks[block_id].handle.path not in state.cleaning_segments


def _gaps(state: State, spans: Iterable[m.IncarnationSpan]) -> Iterator[m.RecordedGap]:
    for span in spans:
        for recorded in state.partitions[f"{span.topic}/{span.partition}"].gaps:
            gap = recorded.gap
            if (
                recorded.incarnation == span.incarnation
                and gap.from_offset < span.until_offset
                and span.from_offset < gap.until_offset
            ):
                yield m.RecordedGap(
                    topic=span.topic,
                    partition=span.partition,
                    incarnation=span.incarnation,
                    from_offset=gap.from_offset,
                    until_offset=gap.until_offset,
                    cause=gap.cause,
                )
