"""A query over the intake, beside a simulated driver, as ``pyspark_forebay.intake.stream`` and Spark run it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from driver.decisions.intake import intake
from forebay import messages as m
from forebay.model.errors import FencedError, RefusedError, TurnedAwayError, UsageError
from forebay.model.values import Block
from pyspark_forebay.intake.client import FoundBlocks, partitions_of, place_messages
from pyspark_forebay.intake.planning import BlockPart, next_end, plan_intake_batch, spans_between
from tests.simulation.block_reading import DAMAGED
from tests.simulation.shells import Task
from tests.support.state.reads import ReadBy

if TYPE_CHECKING:
    from tests.simulation.driver_process import DriverProcess
    from tests.simulation.world import Query


def query_task(driver: DriverProcess) -> Task:
    """Run a query over the intake, as ``pyspark_forebay.intake.stream`` and Spark do.

    Its checkpoint outlives it. It is started anew with each driver, and after a refusal.
    """
    query = driver.world.query
    while True:
        yield "begin"
        query.runs += 1
        shown = driver.world.faults.shown
        try:
            yield from _run(driver, query)
        except (FencedError, RefusedError, TurnedAwayError, UsageError):
            continue
        except DAMAGED:
            if driver.world.faults.shown == shown and not driver.blocks.is_superseded():
                raise


def _run(driver: DriverProcess, query: Query) -> Task:
    world, run = driver.world, query.runs
    shown = partitions_of(m.IntakeAnswer(stream="", wal_url="", partitions=(yield ReadBy(intake))))
    at = query.finished or dict.fromkeys(shown, (1, 0))
    request = m.OpenCursorRequest(cursor="q", user=f"u{query.runs}", places=place_messages(at))
    epoch = (yield request).epoch
    if query.finished is None:
        query.losses = world.journal_loss.count
        shown = partitions_of(m.IntakeAnswer(stream="", wal_url="", partitions=(yield ReadBy(intake))))
        start = {tp: (p.incarnations[-1].number, p.position) for tp, p in shown.items() if tp in at}
        yield m.MoveCursorRequest(cursor="q", epoch=epoch, places=place_messages(start))
        query.finished = start
    while True:
        yield "trigger"
        shown = partitions_of(m.IntakeAnswer(stream="", wal_url="", partitions=(yield ReadBy(intake))))
        begin = query.finished
        if query.planned is None:
            query.planned = {tp: next_end(place, shown[tp]) for tp, place in begin.items()}
        spans = spans_between(begin, query.planned, shown)
        blocks: dict[str, Block] = {}
        gaps: dict[m.RecordedGap, None] = {}
        left = tuple(spans)
        while left:
            answer = yield m.BlocksRequest(spans=left)
            blocks.update((block.id, block) for block in answer.blocks)
            gaps |= dict.fromkeys(answer.gaps)
            reached = zip(left, answer.reached, strict=True)
            left = tuple(msgspec.structs.replace(s, from_offset=at) for s, at in reached if at < s.until_offset)
        found = plan_intake_batch(
            spans, FoundBlocks(tuple(blocks.values()), tuple(gaps), {}, {}), shown, has_kafka=False
        )
        rows: list[str] = []
        for part in found.parts:
            yield "read"
            rows += _wanted(driver.blocks.read(blocks[part.reference.id]), part)
        world.invariants.query_read(query, found.losses, sorted(rows))
        yield "commit"
        if query.runs != run:
            return  # started beside another driver: the process of the query has ended
        query.finished, query.planned, query.read = query.planned, None, None
        yield m.MoveCursorRequest(cursor="q", epoch=epoch, places=place_messages(query.finished))


def _wanted(rows: Iterable[str], part: BlockPart) -> Iterator[str]:
    """Return those of a block's ``rows`` that are in this part of it."""
    ranges = {f"{r.topic}/{r.partition}": r for r in part.reference.ranges if r.label not in part.unwanted}
    for row in rows:
        key, _, offset = row.rsplit("/", 2)
        begin, until = part.cuts.get(key, (0, 1 << 62))
        if key in ranges and begin <= int(offset) < until:
            yield row
