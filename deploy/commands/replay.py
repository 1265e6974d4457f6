"""``forebay recover --to-batch|--to-time``: what a replay would run again, and asking the driver for it."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click
import msgspec

from deploy.commands.status import TIMEOUT_SECONDS
from deploy.console.invocation import FINE, FOUND, Invocation, person
from forebay.messages import OperatorAnswer, ReplayRequest
from forebay.model.errors import UsageError
from forebay.settings.schema import Settings

if TYPE_CHECKING:
    from rich.console import Group

    from driver.decisions.replay import ReplayPlan
    from driver.journal.history import FinishedBatch
    from driver.journal.state import State
    from wal.storage import Storage

#: the driver reads the whole history before it answers
REPLAY_TIMEOUT_SECONDS = 300.0


class MomentType(click.ParamType[int]):
    """A moment with its time zone, as milliseconds since 1970 UTC."""

    name = "time"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        text = str(value).strip()
        try:
            moment = datetime.fromisoformat(f"{text[:-1]}+00:00" if text[-1:] in ("Z", "z") else text)
        except ValueError:
            self.fail(f"{value!r}: write it as 2026-11-21T14:30:00Z", parameter, context)
        if moment.tzinfo is None:
            self.fail(f"{value!r}: add its time zone, as in 2026-11-21T14:30:00Z", parameter, context)
        return max(1, round(moment.timestamp() * 1000))


class BatchAgain(msgspec.Struct, frozen=True):
    """A completed batch that would run again. ``held``: whether the WAL still holds all its blocks."""

    batch_id: int
    number: int
    time_ms: int
    records: int
    ranges: tuple[str, ...]
    accepted_losses: tuple[str, ...]
    held: bool


class ReplayProposal(msgspec.Struct, frozen=True):
    """``possible_from``: id of the oldest batch from which on a replay is possible (the rewind horizon); 0: there is none."""

    stream: str
    possible: bool
    possible_from: int
    records: int
    unfinished: int
    message: str
    batches: tuple[BatchAgain, ...]


def propose(storage: Storage, stream: str, batch: int, time_ms: int) -> ReplayProposal:
    """Reads journal and history, fences nobody. Raises RefusedError if there is no such batch."""
    from driver.decisions.replay import Horizon, RewindTo, needed, plan
    from driver.journal import history
    from driver.journal import log as journal

    # the journal first: batches move from it to the history
    state = journal.read_beside_a_writer(storage, stream).state
    if state is None:
        raise UsageError(f"{storage.url} holds no journal of stream {stream!r}: check stream and driver.journal")
    to = RewindTo(batch, time_ms)
    return proposal_of(
        state, plan(state, needed(history.read_back(storage, stream), Horizon.of(state), RewindTo()), to)
    )


def proposal_of(state: State, found: ReplayPlan) -> ReplayProposal:
    """``found`` in words."""
    from driver.decisions.replay import refuse

    lacking = {b.batch_id for b in found.lacking}
    records = sum(b.records for b in found.batches)
    first, last = found.batches[0], found.batches[-1]
    words = (
        f"would run {len(found.batches)} batches with {records} records again, from {first.batch_id} to {last.batch_id}, "
        f"before any other"
    )
    running = state.replay
    if running is not None:
        words += f"; replay {running.replay} is under way, and another one has to wait for its end"
    if lacking:
        words = f"can't be replayed: {refuse(found)}"
    return ReplayProposal(
        stream=state.stream,
        possible=found.possible and running is None,
        possible_from=found.possible_from.batch_id if found.possible_from is not None else 0,
        records=records,
        unfinished=len(state.unfinished()),
        message=words,
        batches=tuple(_again(b, b.batch_id not in lacking) for b in found.batches),
    )


def _again(batch: FinishedBatch, held: bool) -> BatchAgain:
    ranges = tuple(
        f"{r.topic}/{r.partition}[{r.from_offset}, {r.until_offset})"
        + (f" life {r.incarnation}" if r.incarnation > 1 else "")
        for r in batch.ranges
    )
    return BatchAgain(batch.batch_id, batch.number, batch.time_ms, batch.records, ranges, batch.lost, held)


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
    """Shows what would run again; with ``yes``, has the driver run it."""
    if not yes:
        from wal.storage import open_storage

        storage = open_storage(settings.driver.journal, settings.storage)
        return show(invocation, propose(storage, settings.stream, batch, time_ms))
    from forebay.http.driver_client import DriverClient

    client = DriverClient.of(settings, max(TIMEOUT_SECONDS, REPLAY_TIMEOUT_SECONDS))
    try:
        request = ReplayRequest(batch=batch, time_ms=time_ms, cause=person(because))
        answer = client.post("/v1/operator/replay", request, OperatorAnswer)
    finally:
        client.close()
    invocation.write({"done": True, "message": answer.message})
    invocation.say(answer.message)
    return FINE


def show(invocation: Invocation, proposal: ReplayProposal) -> int:
    """What would be done; the exit code."""
    invocation.write(proposal, lambda: tables(proposal))
    if not proposal.possible:
        invocation.say(f"forebay: {proposal.message}")
        return FOUND
    invocation.say(f"{proposal.message}; nothing was changed: say --yes to do it")
    return FINE
