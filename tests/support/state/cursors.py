"""A tracker with cursors of queries, and the requests that open and move them."""

from __future__ import annotations

from typing import Any

import msgspec

from driver.decisions.clean_up import CleanSegment
from driver.journal.state import State
from driver.tracker.options import CursorRules
from forebay import messages as m
from tests.support.state.shown import shown
from tests.support.state.tracked import STREAM, TOPIC, Tracked
from wal.decisions.retention import FrameFacts, RetentionLimits, SegmentFacts

RULES = CursorRules(in_use_seconds=10, timeout_seconds=3_600)


def path(epoch: int, number: int) -> str:
    return f"{STREAM}/blocks/r1/{epoch:016x}/{number:08d}.seg"


def worked(segments: int = 4, partitions: int = 1) -> tuple[Tracked, int, int]:
    """``segments`` archived batches of ten offsets of partition 0 each, a segment for each; nothing else holds them."""
    t = Tracked(partitions=partitions)
    t.tracker.cursors.rules = RULES
    epoch = t.register()
    token = t.claim(epoch).view.token
    for number in range(1, segments + 1):
        t.now_ms += 1_000
        t.take_in(epoch, token, number * 10, path=path(epoch, number))
        finish(t)
    t.copy()
    return t, epoch, token


def finish(t: Tracked) -> None:
    """What waits is a batch, is completed, and goes to the history."""
    batch = t.batch()
    t.complete(batch)
    t.archive(batch)


def place(offset: int, incarnation: int = 1, partition: int = 0) -> m.CursorPlace:
    return m.CursorPlace(topic=TOPIC, partition=partition, incarnation=incarnation, offset=offset)


def open_(t: Tracked, *places: m.CursorPlace, cursor: str = "q", user: str = "u1", **more: Any) -> m.OpenCursorAnswer:
    request = m.OpenCursorRequest(cursor=cursor, user=user, places=places, **more)
    return t.say(request)  # type: ignore[no-any-return]


def move(t: Tracked, epoch: int, *places: m.CursorPlace, cursor: str = "q", **more: Any) -> None:
    t.say(m.MoveCursorRequest(cursor=cursor, epoch=epoch, places=places, **more))


def due(t: Tracked) -> list[int]:
    """Numbers of the segments that retention would take now."""
    return [int(s.path[-12:-4]) for s, _ in t.state.index.due(RetentionLimits(retention_ms=0), t.now_ms)]


def clean(t: Tracked, epoch: int, number: int) -> CleanSegment:
    share = t.state.index.segments[path(epoch, number)]
    frames = tuple(FrameFacts(name, t.state.blocks[name].meta.ranges) for name in share.blocks)
    return CleanSegment(SegmentFacts(path(epoch, number), True, False, frames), "r1", epoch, t.now_ms)


def check_index(t: Tracked) -> None:
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(t.state), type=State)
    assert t.state.index == t.state.build_index() == decoded.index
    assert t.state.index.by_offset(t.state.blocks) == decoded.index.by_offset(decoded.blocks)


def shown_cursors(t: Tracked) -> tuple[m.TrackedCursor, ...]:
    return shown(t.tracker, t.now_ms / 1000, now_ms=t.now_ms).cursors


def span(begin: int, end: int, partition: int = 0, incarnation: int = 1) -> m.IncarnationSpan:
    return m.IncarnationSpan(
        topic=TOPIC, partition=partition, incarnation=incarnation, from_offset=begin, until_offset=end
    )


def blocks_answer(t: Tracked, *spans: m.IncarnationSpan) -> m.BlocksAnswer:
    return t.say(m.BlocksRequest(spans=spans))  # type: ignore[no-any-return]


def held(answer: m.BlocksAnswer) -> list[tuple[int, int]]:
    return [(r.from_offset, r.until_offset) for block in answer.blocks for r in block.meta.ranges]
