"""``forebay journal batches``: every batch that journal and history hold, with its offsets, without asking the driver."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING

import click
import msgspec

from deploy.console.invocation import FINE, Invocation, example, pass_invocation, shared_options
from deploy.console.parameters import NumberType
from deploy.console.progress import spinner
from forebay.model.bounds import INT32_MAX, OFFSET_MAX
from forebay.model.errors import UsageError
from forebay.model.numbers import whole_number
from forebay.model.wire import WIRE_NAMES

if TYPE_CHECKING:
    from rich.console import Group

    from driver.journal.history import FinishedBatch, FinishedRange
    from driver.journal.state import State
    from driver.journal.state_parts import Batch
    from wal.storage import Storage

#: number of batches that are shown by default
LAST = 20
_PLACE = re.compile(r"(?P<topic>.+)/(?P<partition>\d+):(?P<offset>\d+)")


class JournalRange(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    """Offsets ``[from, until)`` of one incarnation of a partition, and the number of records in them."""

    topic: str
    partition: int
    incarnation: int
    from_offset: int
    until_offset: int
    records: int


class JournalBatch(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    """One batch. ``completed_ms``: None while it is not completed. ``skipped``: who skipped it, and why. ``lost``: ranges
    without which it ran."""

    number: int
    batch_id: int
    time_ms: int
    completed_ms: int | None
    attempts: int
    records: int
    ranges: tuple[JournalRange, ...]
    skipped: str = ""
    lost: tuple[str, ...] = ()


def read_batches(storage: Storage, stream: str) -> list[JournalBatch]:
    """Return all batches in their order. Only reads, and fences no process.

    Raises UsageError if there is no such journal; CorruptionError or NewerVersionError if it can't be read.
    """
    from driver.journal import history
    from driver.journal.log import reading as journal

    state = journal.read_beside_a_writer(storage, stream).state  # first: batches move from it into the history
    if state is None:
        raise UsageError(f"{storage.url} holds no journal of stream {stream!r}: check stream and [driver].journal")
    return listed(state, history.read(storage, stream))


def listed(state: State, archived: Iterable[FinishedBatch]) -> list[JournalBatch]:
    """Return the batches of ``state`` and of its history, each once, in order. Batches that a rebuild dissolved are left out."""
    from driver.journal import history

    found: dict[int, JournalBatch] = {}
    for batch in state.batches.values():
        blocks = [state.blocks[block_id] for block_id in batch.block_ids]
        ranges = history.merge(
            chain(
                (r for block in blocks for r in block.meta.ranges),
                history.ranges_of_spans(batch.spans_with_incarnations),
            )
        )
        found[batch.batch_id] = _batch(batch, sum(r.records for r in ranges), ranges)
    for done in archived:
        if not state.is_void(done.batch_id, done.number):
            found[done.batch_id] = _batch(done, done.records, done.ranges)
    return [found[batch_id] for batch_id in sorted(found)]


def _batch(batch: Batch | FinishedBatch, records: int, ranges: tuple[FinishedRange, ...]) -> JournalBatch:
    return JournalBatch(
        number=batch.number,
        batch_id=batch.batch_id,
        time_ms=batch.time_ms,
        completed_ms=batch.completed_ms,
        attempts=batch.attempts,
        records=records,
        ranges=_shown(ranges),
        skipped=batch.skipped,
        lost=tuple(batch.lost),
    )


def _shown(ranges: tuple[FinishedRange, ...]) -> tuple[JournalRange, ...]:
    return tuple(
        JournalRange(r.topic, r.partition, r.incarnation, r.from_offset, r.until_offset, r.records) for r in ranges
    )


def holding(batches: list[JournalBatch], place: str) -> list[JournalBatch]:
    """Return the batches with the offset that ``place`` (TOPIC/PARTITION:OFFSET) names, of each incarnation.

    Raises UsageError.
    """
    found = _PLACE.fullmatch(place)
    partition = whole_number(found["partition"], INT32_MAX) if found is not None else None
    offset = whole_number(found["offset"], OFFSET_MAX) if found is not None else None
    if found is None or partition is None or offset is None:
        raise UsageError(f"{place!r} is not TOPIC/PARTITION:OFFSET, as in flights/3:1200")
    return [
        batch
        for batch in batches
        if any(
            (r.topic, r.partition) == (found["topic"], partition) and r.from_offset <= offset < r.until_offset
            for r in batch.ranges
        )
    ]


def tables(batches: list[JournalBatch]) -> list[Group]:
    from deploy.console.batch_tables import moment
    from deploy.console.table import table

    return [
        table(
            "Batches of journal and history",
            ("number", "id", "time", "completed", "attempts", "records", "offsets"),
            [
                (
                    b.number,
                    b.batch_id,
                    moment(b.time_ms),
                    f"skipped by {b.skipped}"
                    if b.skipped
                    else "-"
                    if b.completed_ms is None
                    else moment(b.completed_ms),
                    b.attempts,
                    b.records,
                    "\n".join(
                        f"{r.topic}/{r.partition}[{r.from_offset}, {r.until_offset})"
                        + ("" if r.incarnation == 1 else f" life {r.incarnation}")
                        for r in b.ranges
                    )
                    or "-",
                )
                for b in batches
            ],
        )
    ]


@click.command(
    "batches",
    short_help="Show batches with their offsets, without the driver.",
    epilog=example("forebay journal batches --holding flights/3:1200", "forebay journal batches --all --json"),
)
@click.option(
    "--last",
    metavar="N",
    type=NumberType(1),
    default=LAST,
    help=f"Maximum number of batches [default: {LAST}].",
)
@click.option("--all", "everything", is_flag=True, help="All batches since the stream began.")
@click.option(
    "--holding",
    "holding_offset",
    metavar="TOPIC/PARTITION:OFFSET",
    default="",
    help="Only the batches that contain this offset.",
)
@shared_options
@pass_invocation
def batches_command(invocation: Invocation, last: int, everything: bool, holding_offset: str) -> int:
    """Show the newest batches of journal and history with their exact offsets, the oldest first.

    `forebay batches` shows what the driver remembers; this command reads every batch since the stream began, also while no
    driver is running. Changes nothing and fences no process.
    """
    from wal.storage import open_storage

    settings = invocation.settings()
    with spinner("reading the journal"):
        found = read_batches(open_storage(settings.driver.journal, settings.storage), settings.stream)
    if holding_offset:
        found = holding(found, holding_offset)
    shown = found if everything else found[-last:]
    invocation.write(shown, lambda: tables(shown))
    return FINE
