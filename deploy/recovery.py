"""``forebay recover``: the journal laid beside the WAL. It says what it found, and changes only what it is told."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import click
import msgspec

from deploy.invocation import (
    FINE,
    FOUND,
    Invocation,
    because_option,
    changing_options,
    example,
    pass_invocation,
    person,
    shared_options,
)
from deploy.replay import MomentType, replay
from deploy.status import TIMEOUT_SECONDS, ask
from forebay.errors import RefusedError, UsageError
from forebay.messages import AcceptLossRequest, OperatorAnswer, TrackedBatch
from forebay.settings import Settings
from forebay.values import LINEAGE_SHIFT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Group

    from driver.state import State
    from wal.recovery import Verdict
    from wal.storage import Storage

#: decisions of wal.recovery that a person must know of
_NEEDS_A_PERSON = frozenset({"damaged-quarantine", "missing", "newer-refuse"})


class Place(msgspec.Struct, frozen=True):
    """One place of the WAL, or one block that the journal names. ``decision``: as in ``wal.recovery.Decision``.

    ``batch_id``: the batch that holds the block, 0 if none; ``needed``: a batch that is not completed, or a later one,
    still has to read it.
    """

    path: str
    offset: int
    until: int
    decision: str
    words: str
    block_id: str
    ranges: tuple[str, ...]
    batch_id: int = 0
    needed: bool = False


class Comparison(msgspec.Struct, frozen=True):
    """``counts``: decision → places; ``places``: all but the whole ones."""

    stream: str
    lineage: int
    segments: int
    counts: dict[str, int]
    places: tuple[Place, ...]

    @property
    def findings(self) -> list[Place]:
        return [place for place in self.places if place.decision in _NEEDS_A_PERSON]


def compare(journal_storage: Storage, wal_storage: Storage, stream: str) -> Comparison:
    """Reads the journal, then every block segment with all its checksums. Fences nobody, changes nothing.

    A driver and receivers may be at work: what they add meanwhile shows as an orphan that is kept, and what they clean
    up is asked for again in the journal before it is called missing. Raises UsageError if there is no journal.
    """
    state = _state(journal_storage, stream)
    paths = [path for path in wal_storage.list(f"{stream}/blocks") if path.endswith(".seg")]
    verdicts = _assess(state, wal_storage, paths)
    if any(verdict.decision.value == "missing" for verdict in verdicts):
        later = _state(journal_storage, stream)
        verdicts = [
            verdict
            for verdict in verdicts
            if verdict.decision.value != "missing" or _still_there(later, verdict.block_id or "")
        ]
    return Comparison(
        stream=stream,
        lineage=state.lineage,
        segments=len(paths),
        counts=dict(Counter(verdict.decision.value for verdict in verdicts)),
        places=tuple(_place(verdict, state) for verdict in verdicts if verdict.decision.value != "whole"),
    )


def _state(storage: Storage, stream: str) -> State:
    from driver import journal

    state = journal.read_beside_a_writer(storage, stream).state
    if state is None:
        raise UsageError(f"{storage.url} holds no journal of stream {stream!r}: check stream and driver.journal")
    return state


def _still_there(state: State, block_id: str) -> bool:
    block = state.blocks.get(block_id)
    return block is not None and block.handle.path not in state.cleaning_segments


def _assess(state: State, storage: Storage, paths: Sequence[str]) -> list[Verdict]:
    from forebay.values import Block
    from wal.layout import parse_block
    from wal.recovery import assess_segment
    from wal.retention import JournalView, Position
    from wal.scan import scan_segment

    accepted: dict[str, list[Block]] = {path: [] for path in paths}
    for block in state.blocks.values():
        # a segment under clean-up may be gone or not: nothing needs it, and the intent stands in the journal (INV-8)
        if block.handle.path not in state.cleaning_segments:
            accepted.setdefault(block.handle.path, []).append(block)
    view = JournalView(
        needed=state.blocks.keys() - state.released.keys(),
        released=state.released.keys(),
        positions={p.tp: Position(p.life.life, p.position) for p in state.partitions.values()},
    )
    newest: dict[tuple[str, int], int] = {}
    for path in paths:
        if (place := parse_block(path)) is not None:
            writer = (place.receiver, place.epoch)
            newest[writer] = max(newest.get(writer, 0), place.sequence)
    verdicts: list[Verdict] = []
    for path, blocks in sorted(accepted.items()):
        if path in state.cleaning_segments:
            continue
        place = parse_block(path)
        closed = False
        if place is not None:
            receiver = state.receivers.get(place.receiver)
            sealed = place.sequence < newest.get((place.receiver, place.epoch), 0) or not storage.appendable
            closed = sealed or (receiver is not None and receiver.epoch > place.epoch)
        try:
            verdicts += assess_segment(path, scan_segment(storage, path), blocks, view, closed=closed)
        except FileNotFoundError:
            verdicts += assess_segment(path, None, blocks, view, closed=closed)
    return verdicts


def _place(verdict: Verdict, state: State) -> Place:
    block_id = verdict.block_id or ""
    batch_id = state.batch_of.get(block_id, 0)
    batch = state.batches.get(batch_id)
    return Place(
        path=verdict.path,
        offset=verdict.offset,
        until=verdict.until,
        decision=verdict.decision.value,
        words=verdict.words,
        block_id=block_id,
        ranges=tuple(r.label for r in verdict.ranges),
        batch_id=batch_id,
        needed=block_id in state.waiting or (batch is not None and batch.completed_ms is None),
    )


def sentence(place: Place) -> str:
    """What was found, and the command that decides it."""
    ranges = ", ".join(place.ranges) or "ranges that can't be told"
    words = f"{place.path}, bytes {place.offset} to {place.until}: {ranges}: {place.decision}: {place.words}"
    if not place.needed:
        return words if place.block_id == "" else f"{words}; no batch still needs it"
    if not place.batch_id:
        return f"{words}; it waits for its batch, which reads another copy if there is one"
    labels = " ".join(f"'{label}'" for label in place.ranges)
    return (
        f"{words}; batch {place.batch_id} needs it and reads another copy if there is one; if there is none, "
        f"`forebay recover --accept-loss {place.batch_id} {labels} --yes` goes on without it"
    )


def tables(comparison: Comparison) -> list[Group]:
    from deploy.table import table

    return [
        table(
            f"Stream {comparison.stream}, lineage {comparison.lineage}: {comparison.segments} segments",
            ("decision", "places"),
            sorted(comparison.counts.items()),
        ),
        table(
            "Places that are not as the journal says",
            ("segment", "offset", "until", "decision", "block", "ranges", "why"),
            [
                (p.path, p.offset, p.until, p.decision, p.block_id or "-", "\n".join(p.ranges) or "-", p.words)
                for p in comparison.places
            ],
        ),
    ]


# ---- accepting a loss ------------------------------------------------------------------------------------------------

_RANGE = re.compile(r"(?P<tp>[A-Za-z0-9._-]+/[0-9]+)\[\s*(?P<from>[0-9]+)\s*,\s*(?P<until>[0-9]+)\s*\)")


def range_label(text: str) -> str:
    """``flights/0[10,20)`` as the journal writes it. Raises UsageError for anything else."""
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is no range: write 'TOPIC/PARTITION[FROM, UNTIL)' as `forebay recover` shows it")
    return f"{match['tp']}[{match['from']}, {match['until']})"


def find_batch(batches: Sequence[TrackedBatch], named: int) -> TrackedBatch:
    """The unfinished batch with that id, or that number in its sequence. Raises RefusedError if there is none."""
    for batch in batches:
        if batch.state != "completed" and named in (batch.batch_id, batch.number):
            return batch
    what = "id" if named >= 1 << LINEAGE_SHIFT else "number or id"
    raise RefusedError(f"no unfinished batch has the {what} {named}: `forebay status` shows them", "not-found")


def accept_loss(
    invocation: Invocation, settings: Settings, named: int, labels: tuple[str, ...], because: str, yes: bool
) -> int:
    batch = find_batch(ask(settings).batches, named)
    ranges = ", ".join(labels) or "no range (the driver names those it could leave out)"
    if not yes:
        words = (
            f"would let batch {batch.batch_id} (number {batch.number}, {batch.state}) go on without {ranges}; "
            "nothing was changed: say --yes to do it"
        )
        invocation.write({"done": False, "message": words})
        invocation.say(words)
        return FINE
    from forebay.http import Client

    client = Client(settings.driver.url, TIMEOUT_SECONDS)
    try:
        request = AcceptLossRequest(batch_id=batch.batch_id, ranges=labels, cause=person(because))
        answer = client.post("/v1/operator/accept-loss", request, OperatorAnswer)
    finally:
        client.close()
    invocation.write({"done": True, "message": answer.message})
    invocation.say(answer.message)
    return FINE


@click.command(
    short_help="Compare journal and WAL; accept a loss.",
    epilog=example("forebay recover", "forebay recover --accept-loss 12 'flights/0[1200, 1800)' --yes"),
)
@click.option(
    "--accept-loss", "batch", metavar="BATCH", type=click.IntRange(min=1), help="Let it go on without the RANGEs."
)
@click.argument("ranges", metavar="[RANGE]...", nargs=-1)
@click.option(
    "--to-batch", metavar="BATCH", type=click.IntRange(min=1), help="Run this completed batch and all later ones again."
)
@click.option(
    "--to-time", metavar="TIME", type=MomentType(), help="The same, from the first batch at or after TIME on."
)
@because_option
@changing_options
@shared_options
@pass_invocation
def recover(
    invocation: Invocation,
    batch: int | None,
    ranges: tuple[str, ...],
    to_batch: int | None,
    to_time: int | None,
    because: str,
    yes: bool,
) -> int:
    """Lay the journal beside the WAL and say what is whole, torn, damaged, orphaned or missing, with exact ranges.

    Changes nothing, fences nobody, and may be run beside a driver at work. Exits with 1 if an accepted block is damaged
    or missing, or a newer release wrote it. With --accept-loss and --yes, the loss of the RANGEs of a batch that can't
    be read is journalled, and the batch goes on without them.

    With --to-batch or --to-time the stream is rewound: what would run again is shown, with its ranges; with --yes the driver
    runs it again from the WAL, marked as a replay, before any other batch. Exits with 1 if the WAL no longer holds all of it.
    """
    settings = invocation.settings()
    if [batch, to_batch, to_time].count(None) < 2:
        raise click.UsageError("--accept-loss, --to-batch and --to-time exclude each other")
    if batch is not None:
        return accept_loss(invocation, settings, batch, tuple(map(range_label, ranges)), because, yes)
    if (to_batch is not None or to_time is not None) and not ranges:
        return replay(invocation, settings, to_batch or 0, to_time or 0, because, yes)
    if ranges or yes:
        raise click.UsageError("RANGE goes with --accept-loss BATCH, --yes with what changes something")
    from wal.storage import open_storage

    comparison = compare(
        open_storage(settings.driver.journal, settings.storage),
        open_storage(settings.wal.url, settings.storage),
        settings.stream,
    )
    invocation.write(comparison, lambda: tables(comparison))
    for place in comparison.findings:
        invocation.say(f"forebay: {sentence(place)}")
    return FOUND if comparison.findings else FINE
