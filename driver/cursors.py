"""Cursors: queries that read the intake beside the batch job, each at its own pace. Decisions on values alone.

What a cursor has yet to read is held in the WAL (INV-8, ``driver.block_index``). Who reads by it is known by an epoch, as
receivers are: the newest one counts, whoever had an older one is fenced (INV-4). That a second user is refused while the first
is at work rests on what was heard lately, and only saves people from a mistake.
"""

from __future__ import annotations

import hashlib
import heapq
import hmac
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from driver import events as ev
from driver.block_index import LifeBlocks, Place
from driver.state import Cursor, State
from forebay import messages as m
from forebay.errors import FencedError, RefusedError, UsageError
from forebay.values import Block, TopicPartition, check_name

#: cursors of a stream at most, and places in one
CURSORS_MAX, PLACES_MAX = 1_000, 100_000
#: blocks, and ranges of them, in one answer at most (but one block)
BLOCKS_AT_ONCE, RANGES_AT_ONCE = 1_000, 20_000
#: signs of the words that say who reads, and of its key
USER_LENGTH_MAX, KEY_LENGTH_MAX = 200, 200
#: an idle user is journalled after this part of the time after which it would be forgotten
HEARD_SHARE = 8
NO_WAL = "a query reads the intake from its WAL, and this stream has none (wal.url)"


@dataclass(frozen=True, slots=True)
class CursorRules:
    """``in_use_seconds``: so long after it was heard a user counts as at work. ``timeout_seconds``: a cursor whose user was not
    heard for so long is forgotten."""

    in_use_seconds: float = 10.0
    timeout_seconds: float = 7 * 86_400.0


@dataclass(slots=True)
class CursorNews:
    """When users were heard last, on the monotonic clock: not journalled, lost with the driver. ``closed``: those that ended in
    order. ``since``: since when this driver hears."""

    since: float | None = None
    heard: dict[str, float] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)

    def hear(self, name: str, now: float) -> None:
        self.heard[name] = now
        self.closed.discard(name)

    def at(self, name: str, now: float) -> float:
        """When it was heard; a driver that has just begun takes it that all are there."""
        if self.since is None:
            self.since = now
        return self.heard.get(name, self.since)

    def in_use(self, name: str, now: float, rules: CursorRules) -> bool:
        return name not in self.closed and now - self.at(name, now) < rules.in_use_seconds

    def forget(self, name: str) -> None:
        self.heard.pop(name, None)
        self.closed.discard(name)


def opened(
    state: State, news: CursorNews, rules: CursorRules, request: m.OpenCursorRequest, now: float, now_ms: int
) -> ev.CursorOpened | None:
    """None: the same user, which has it already. Raises RefusedError, UsageError."""
    try:
        check_name("cursor", request.cursor)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not request.user or len(request.user) > USER_LENGTH_MAX or not request.user.isprintable():
        raise UsageError(f"a cursor's user is named in 1 to {USER_LENGTH_MAX} printable characters")
    if len(request.key) > KEY_LENGTH_MAX:
        raise UsageError(f"a cursor's key has {KEY_LENGTH_MAX} characters at most")
    places = _checked(state, request.places)
    cursor = state.cursors.get(request.cursor)
    if cursor is None:
        if len(state.cursors) >= CURSORS_MAX:
            raise RefusedError(
                f"the stream has {CURSORS_MAX} cursors already: `forebay cursors drop` those that nobody reads by",
                "conflict",
            )
    elif cursor.user == request.user and _is_key(cursor, request.key):
        return None
    elif news.in_use(request.cursor, now, rules):
        raise RefusedError(
            f"cursor {request.cursor} is in use by {cursor.user}, heard {now - news.at(request.cursor, now):.0f} s ago: two "
            "queries can't read by one cursor; stop that one, or begin this one with a checkpoint of its own",
            "in-use",
        )
    left = _left(cursor, request.left)
    known = cursor.vector.keys() if cursor is not None else set()
    # the user may have looked before a partition came: it is held from its beginning, as one that comes later
    unseen = state.partitions.keys() - places.keys() - known - {str(tp) for tp in request.left}
    places |= {key: (state.partitions[key].lives[0].life, state.partitions[key].lives[0].start) for key in unseen}
    return ev.CursorOpened(request.cursor, state.next_epoch(), request.user, places, now_ms, left, _digest(request.key))


def moved(state: State, rules: CursorRules, request: m.MoveCursorRequest, now_ms: int) -> ev.CursorMoved | None:
    """None: nothing that need be journalled. Raises FencedError, RefusedError, UsageError."""
    cursor = current(state, request)
    places = _checked(state, request.places)
    ahead = {key: place for key, place in places.items() if key in cursor.vector and place > cursor.vector[key]}
    ahead |= {key: place for key, place in places.items() if key not in cursor.vector}
    left = _left(cursor, request.left)
    overdue = now_ms - cursor.heard_ms > rules.timeout_seconds * 1000 / HEARD_SHARE
    return ev.CursorMoved(cursor.name, ahead, now_ms, left) if ahead or left or overdue else None


def current(state: State, request: m.MoveCursorRequest | m.CloseCursorRequest) -> Cursor:
    """Raises RefusedError for a cursor that is gone, FencedError for one that another user has opened since, or whose key the
    request does not have."""
    name = request.cursor
    cursor = state.cursors.get(name)
    if cursor is None:
        why = ended_words(state, name)
        raise RefusedError(f"cursor {name} is gone: {why or 'this driver knows of none by that name'}", "not-found")
    if cursor.epoch != request.epoch or not _is_key(cursor, request.key):
        raise FencedError(f"cursor {name} was opened by {cursor.user} since: this query reads by it no more")
    return cursor


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest() if key else ""


def _is_key(cursor: Cursor, key: str) -> bool:
    """Epochs can be guessed by whoever has a token of the same role. A user of an older release has no key."""
    return hmac.compare_digest(cursor.key_digest, _digest(key))


def ended_words(state: State, name: str) -> str:
    return next((ended.cause for ended in state.ended_cursors if ended.name == name), "")


def expired(state: State, news: CursorNews, rules: CursorRules, now: float, now_ms: int) -> tuple[ev.CursorEnded, ...]:
    """Of the cursors whose users this driver has not heard for too long. A driver's start begins the time anew: while none was
    there, none could be heard."""
    gone = []
    for cursor in state.cursors.values():
        if now - news.at(cursor.name, now) > rules.timeout_seconds:
            silent_ms = max(now_ms - cursor.heard_ms, 0)
            cause = (
                f"expired: {cursor.user} was not heard for {silent_ms / 3_600_000:.1f} h (driver.cursor_timeout); what it had "
                "yet to read is held no more"
            )
            gone.append(ev.CursorEnded(cursor.name, now_ms, cause, expired=True))
    return tuple(gone)


def dropped(state: State, name: str, said_by: str, now_ms: int) -> ev.CursorEnded:
    """Also of one that expired: a person has seen it. Raises RefusedError."""
    if name not in state.cursors and not any(ended.name == name and ended.expired for ended in state.ended_cursors):
        raise RefusedError(f"there is no cursor {name}: `forebay cursors` shows those that there are", "not-found")
    return ev.CursorEnded(name, now_ms, f"dropped by {said_by}")


def given_up(cursor: Cursor, now_ms: int) -> ev.CursorEnded:
    return ev.CursorEnded(cursor.name, now_ms, f"given up by {cursor.user}, whose query could not begin")


def _checked(state: State, places: Iterable[m.CursorPlace]) -> dict[str, Place]:
    found: dict[str, Place] = {}
    for place in places:
        partition = state.partition(place.tp)
        if partition is None:
            raise UsageError(f"the stream has no partition {place.tp}: a cursor reads what the stream takes in")
        if not 1 <= place.life <= partition.life.life or not 0 <= place.offset < 1 << 63:
            raise UsageError(f"{place.tp} has no offset {place.offset} in life {place.life}")
        found[str(place.tp)] = (place.life, place.offset)
    if len(found) > PLACES_MAX:
        raise UsageError(f"a cursor has {PLACES_MAX} partitions at most")
    return found


def _left(cursor: Cursor | None, left: Iterable[TopicPartition]) -> tuple[str, ...]:
    return () if cursor is None else tuple(key for tp in left if (key := str(tp)) in cursor.vector)


# ---- what a query is told --------------------------------------------------------------------------------------------


def intake(state: State) -> tuple[m.IntakePartition, ...]:
    return tuple(
        m.IntakePartition(
            topic=p.topic,
            partition=p.partition,
            position=p.position,
            lives=tuple(
                m.LifeView(life=life.life, start=life.start, topic_id=life.topic_id, end=life.end) for life in p.lives
            ),
        )
        for p in state.partitions.values()
    )


def earliest(state: State, request: m.EarliestRequest) -> m.EarliestAnswer:
    """By what the index says of neighbours: no partition's blocks are walked through."""
    going = _going(state)
    places = []
    for tp in request.partitions:
        partition = state.partition(tp)
        if partition is None:
            raise UsageError(f"the stream has no partition {tp}")
        life, offset = _earliest(state, str(tp), going)
        places.append(m.CursorPlace(topic=tp.topic, partition=tp.partition, life=life, offset=offset))
    return m.EarliestAnswer(places=tuple(places))


def _going(state: State) -> dict[tuple[str, int], int]:
    """Where what is about to be deleted ends, of each partition (``topic/partition``) and life."""
    found: dict[tuple[str, int], int] = {}
    for path in state.cleaning_segments:
        share = state.index.segments.get(path)
        for block_id in share.blocks if share is not None else ():
            for r in state.blocks[block_id].meta.ranges:
                key = (f"{r.topic}/{r.partition}", r.life)
                found[key] = max(found.get(key, 0), r.until_offset)
    return found


def _earliest(state: State, key: str, going: Mapping[tuple[str, int], int]) -> Place:
    partition = state.partitions[key]
    gaps = {(g.life, g.gap.until_offset): g.gap.from_offset for g in partition.gaps}
    place = (partition.life.life, partition.position)
    for life in reversed(partition.lives):
        end = partition.position if life.end is None else life.end
        reached = end
        held = state.index.by_offset(state.blocks).get(key, {}).get(life.life, LifeBlocks())
        gone = going.get((key, life.life), 0)
        while reached > max(life.start, gone):
            further = gaps.get((life.life, reached), max(held.reaches_back(reached), gone))
            if further == reached:
                break
            reached = further
        if life.end is None or reached < end:
            place = (life.life, reached)
        if reached > life.start:
            break
    return place


def blocks(state: State, request: m.BlocksRequest, given: Iterable[tuple[str, Collection[str]]]) -> m.BlocksAnswer:
    """Those that were taken in first come first, so that a block of many partitions is in one answer once. ``given``: hosts, and
    ids of the blocks that each was given a copy of."""
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
    for _, number, begins, _ in following:  # these were too much for this answer
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
    """By the latest times that blocks say of their ranges. Each answer looks at so many ranges."""
    left = RANGES_AT_ONCE
    found = []
    for wanted in request.wanted:
        span = wanted.span
        if state.partition(span.tp) is None:
            raise UsageError(f"the stream has no partition {span.tp}")
        held = state.index.by_offset(state.blocks).get(str(span.tp), {}).get(span.life, LifeBlocks())
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


def _may_hold(state: State, held: LifeBlocks, at: int, wanted: m.TimedSpan) -> bool:
    if held.newest_ms[at] < max(wanted.time_ms, 0) or not _is_there(state, held.block_ids[at]):
        return False
    span, begins = wanted.span, held.from_offsets[at]
    ranges = state.blocks[held.block_ids[at]].meta.ranges if state.lost else ()
    return not any(
        (r.tp, r.life, r.from_offset) == (span.tp, span.life, begins) and r.label in state.lost for r in ranges
    )


def _of_span(state: State, span: m.LifeSpan, number: int) -> Iterator[tuple[int, int, int, str]]:
    """When it was sealed, the span's number, where its range begins, its id."""
    held = state.index.by_offset(state.blocks).get(f"{span.topic}/{span.partition}", {}).get(span.life)
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
    """Whether its segment stays."""
    return state.blocks[block_id].handle.path not in state.cleaning_segments


def _gaps(state: State, spans: Iterable[m.LifeSpan]) -> Iterator[m.RecordedGap]:
    for span in spans:
        for recorded in state.partitions[f"{span.topic}/{span.partition}"].gaps:
            gap = recorded.gap
            if (
                recorded.life == span.life
                and gap.from_offset < span.until_offset
                and span.from_offset < gap.until_offset
            ):
                yield m.RecordedGap(
                    topic=span.topic,
                    partition=span.partition,
                    life=span.life,
                    from_offset=gap.from_offset,
                    until_offset=gap.until_offset,
                    cause=gap.cause,
                )


# ---- what people see -------------------------------------------------------------------------------------------------


def tracked(state: State, news: CursorNews, rules: CursorRules, now: float, now_ms: int) -> tuple[m.TrackedCursor, ...]:
    """``now_ms``: wall clock."""
    shown = []
    for cursor in sorted(state.cursors.values(), key=lambda cursor: cursor.name):
        silent = now - news.at(cursor.name, now)
        if cursor.name not in news.heard:
            silent = max(silent, (now_ms - cursor.heard_ms) / 1000)
        at_work = news.in_use(cursor.name, now, rules)
        shown.append(
            m.TrackedCursor(
                cursor=cursor.name,
                user=cursor.user,
                state="at work" if at_work else "silent",
                silent_seconds=round(silent, 1),
                behind=_behind(state, cursor.vector),
                detail="" if at_work else f"is forgotten after {rules.timeout_seconds / 3600:g} h of silence",
                places=_places(cursor.vector),
            )
        )
    gone = (
        m.TrackedCursor(
            cursor=ended.name,
            user=ended.user,
            state="expired" if ended.expired else "dropped",
            silent_seconds=round(max(0, now_ms - ended.time_ms) / 1000, 1),
            behind=_behind(state, ended.vector),
            detail=ended.cause,
            places=_places(ended.vector),
        )
        for ended in state.ended_cursors
    )
    return (*shown, *gone)


def _behind(state: State, vector: Mapping[str, Place]) -> int:
    total = 0
    for key, (life, offset) in vector.items():
        partition = state.partitions[key]
        total += max(0, partition.position - (offset if life == partition.life.life else partition.life.start))
    return total


def _places(vector: Mapping[str, Place]) -> tuple[m.CursorPlace, ...]:
    return tuple(
        m.CursorPlace(topic=topic, partition=int(partition), life=life, offset=offset)
        for (topic, _, partition), (life, offset) in ((key.rpartition("/"), at) for key, at in sorted(vector.items()))
    )
