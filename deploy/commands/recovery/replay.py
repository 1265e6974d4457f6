"""``forebay recover --to-batch|--to-time``: show which batches a replay would run again, and request it from the driver."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

import msgspec

from deploy.console.driver_requests import operator
from deploy.console.invocation import FINDINGS, FINE, NOTHING_CHANGED, Invocation, person
from deploy.console.progress import spinner
from forebay.model.errors import UsageError
from forebay.settings.schema import Settings

if TYPE_CHECKING:
    from rich.console import Group

    from driver.decisions.replay import ReplayPlan
    from driver.journal.history import FinishedBatch
    from driver.journal.state import State
    from wal.storage import Storage

#: maximum time for the driver's answer; it reads the whole history first
REPLAY_TIMEOUT_SECONDS = 300.0


class ReplayedBatch(msgspec.Struct, frozen=True):
    """A completed batch that would run again. ``held``: whether the WAL still holds all its blocks."""

    batch_id: int
    number: int
    time_ms: int
    records: int
    ranges: tuple[str, ...]
    accepted_losses: tuple[str, ...]
    held: bool


class ReplayProposal(msgspec.Struct, frozen=True):
    """The batches that a replay would run again.

    ``possible_from``: id of the oldest batch at which a replay can begin (the rewind horizon); 0 if no batch can be replayed.
    """

    stream: str
    possible: bool
    possible_from: int
    records: int
    unfinished: int
    message: str
    batches: tuple[ReplayedBatch, ...]


def propose(storage: Storage, stream: str, batch: int, time_ms: int) -> ReplayProposal:
    """Return what a replay from ``batch`` or ``time_ms`` would run. Only reads journal and history, and fences no process.

    Raises RefusedError if there is no such batch, UsageError if there is no journal.
    """
    from driver.decisions.replay import Horizon, RewindTo, needed, plan
    from driver.journal import history
    from driver.journal.log import reading as journal

    # the journal first: batches move from it to the history
    state = journal.read_beside_a_writer(storage, stream).state
    if state is None:
        raise UsageError(f"{storage.url} holds no journal of stream {stream!r}: check stream and driver.journal")
    to = RewindTo(batch, time_ms)
    return proposal_of(
        state, plan(state, needed(history.read_back(storage, stream), Horizon.of(state), RewindTo()), to)
    )


def proposal_of(state: State, found: ReplayPlan) -> ReplayProposal:
    """Return a replay plan with the message for the operator."""
    from driver.decisions.replay import refuse

    lacking = {b.batch_id for b in found.lacking}
    records = sum(b.records for b in found.batches)
    first, last = found.batches[0], found.batches[-1]
    message = (
        f"would run {len(found.batches)} batches with {records} records again, from {first.batch_id} to {last.batch_id}, "
        f"before any other"
    )
    running = state.replay
    if running is not None:
        message += f"; replay {running.replay} is running, and a further replay must wait until it is complete"
    if lacking:
        message = f"can't be replayed: {refuse(found)}"
    return ReplayProposal(
        stream=state.stream,
        possible=found.possible and running is None,
        possible_from=found.possible_from.batch_id if found.possible_from is not None else 0,
        records=records,
        unfinished=len(state.unfinished()),
        message=message,
        batches=tuple(_again(b, b.batch_id not in lacking) for b in found.batches),
    )


def _again(batch: FinishedBatch, held: bool) -> ReplayedBatch:
    ranges = tuple(
        f"{r.topic}/{r.partition}[{r.from_offset}, {r.until_offset})"
        + (f" life {r.incarnation}" if r.incarnation > 1 else "")
        for r in batch.ranges
    )
    return ReplayedBatch(batch.batch_id, batch.number, batch.time_ms, batch.records, ranges, batch.lost, held)


def tables(proposal: ReplayProposal) -> list[Group]:
    from deploy.console.table import table

    return [
        table(
            f"Replay of stream {proposal.stream}: {len(proposal.batches)} batches, {proposal.records} records; "
            f"{proposal.unfinished} unfinished batches run afterwards",
            ("number", "id", "time", "records", "ranges", "accepted losses", "held"),
            [
                (
                    b.number,
                    b.batch_id,
                    datetime.fromtimestamp(b.time_ms / 1000, timezone.utc).isoformat(timespec="milliseconds"),
                    b.records,
                    "\n".join(b.ranges),
                    ", ".join(b.accepted_losses) or "none",
                    "yes" if b.held else "no",
                )
                for b in proposal.batches
            ],
        )
    ]


def replay(invocation: Invocation, settings: Settings, batch: int, time_ms: int, because: str, yes: bool) -> int:
    """Show what would run again; with ``yes``, let the driver run it."""
    if not yes:
        from wal.storage import open_storage

        storage = open_storage(settings.driver.journal, settings.storage)
        with spinner("reading the history"):
            proposal = propose(storage, settings.stream, batch, time_ms)
        return show(invocation, proposal)
    with (
        operator(settings, REPLAY_TIMEOUT_SECONDS) as client,
        spinner("waiting for the driver, which reads the history"),
    ):
        message = client.replay(batch=batch, time_ms=time_ms, cause=person(because))
    invocation.write({"done": True, "message": message})
    invocation.say(message)
    return FINE


def show(invocation: Invocation, proposal: ReplayProposal) -> int:
    """Print what would run again, and return the exit code: 1 if the replay is not possible."""
    invocation.write(proposal, lambda: tables(proposal))
    if not proposal.possible:
        invocation.say(f"forebay: {proposal.message}")
        return FINDINGS
    invocation.say(f"{proposal.message}; {NOTHING_CHANGED}")
    return FINE
