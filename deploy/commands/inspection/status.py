"""``forebay status``: the state of the stream, and its problems, as the driver reports them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import click

from deploy.commands.inspection.process_tables import (
    hosts_table,
    managed_table,
    receivers_table,
    request_rates,
)
from deploy.console.batch_tables import batch_tables
from deploy.console.driver_requests import ask_status
from deploy.console.invocation import FINDINGS, FINE, Invocation, example, pass_invocation, shared_options
from driver.decisions.problems import in_answer
from forebay.messages import (
    Problem,
    StatusAnswer,
    TrackedListener,
    TrackedPartition,
    TrackedReplay,
)
from forebay.model.errors import AccessError, ForebayError, NotTakenError
from forebay.model.units import utc_text
from forebay.model.values import TIERS
from forebay.settings.schema import Settings

if TYPE_CHECKING:
    from rich.console import Group


def problems(answer: StatusAnswer) -> list[Problem]:
    """Return the problems that the driver reports, and those that the rest of its answer shows.

    An older driver does not report the latter.
    """
    return list(dict.fromkeys((*answer.problems, *in_answer(answer))))


def problem_text(problem: Problem) -> str:
    """Return the cause of a problem, followed by the next step if the cause does not name one."""
    return f"{problem.cause}. Next step: {problem.command}" if problem.command else problem.cause


def lag_text(partition: TrackedPartition) -> object:
    """Return the lag in offsets; or "unknown", with the age of the last known end of Kafka's log."""
    if partition.lag is not None:
        return partition.lag
    age = partition.end_age_seconds
    return f"unknown (end read {age:.0f} s ago)" if age >= 0 else "unknown"


def _releases(answer: StatusAnswer) -> str:
    """Return the driver's release, and the processes with a different one, as during a rolling upgrade."""
    processes = [(r.receiver_id, r.release) for r in answer.receivers if r.state not in ("lost", "fenced")]
    processes += [(f"agent of {a.host}", a.release) for a in answer.agents]
    others = [f"{name} {release}" for name, release in processes if release and release != answer.release]
    return f"{answer.release}; others: {', '.join(others)}" if others else answer.release


def _pause(answer: StatusAnswer) -> str:
    return f"paused since {utc_text(answer.paused_ms)} by {answer.pause_cause}"


def tables(answer: StatusAnswer) -> list[Group]:

    from deploy.console.table import table

    state = f"{answer.state}: {answer.detail}" if answer.detail else answer.state
    return [
        table(
            f"Stream {answer.stream}",
            ("what", "value"),
            [
                ("driver", state),
                ("release", _releases(answer)),
                ("journal", f"timeline {answer.timeline}, epoch {answer.driver_epoch:x}"),
                ("waiting", f"{answer.waiting_blocks} blocks, {answer.waiting_records} records"),
                *([("batches", _pause(answer))] if answer.paused_ms else []),
                ("replay", _replay(answer.replay)),
                *([("rate learned from the job", _learned(answer.rate))] if answer.backpressure else []),
                ("completed", f"{answer.batches_completed} batches, {answer.records_completed} records"),
                (
                    "ranges read by tier",
                    tiers_text(answer.tiers),
                ),
                *(
                    (f"requests to the {name}'s store", rates)
                    for name in ("journal", "wal")
                    if (rates := request_rates(answer.requests, f"{name}_", "seconds"))
                ),
                *([("cursors", _cursors(answer))] if answer.cursors else []),
                *((f"listener {listener.name}", _listener(listener)) for listener in answer.listeners),
                (
                    "topic ids",
                    "checked"
                    if answer.topic_ids_known
                    else "not available from the broker: only watermarks are checked",
                ),
            ],
        ),
        table(
            "Partitions",
            ("partition", "state", "incarnation", "taken in", "completed", "end in Kafka", "lag", "receiver"),
            [
                (
                    f"{p.topic}/{p.partition}",
                    p.state,
                    p.incarnation,
                    p.position,
                    p.completed,
                    p.high_watermark if p.high_watermark >= 0 else "-",
                    lag_text(p),
                    p.receiver_id or "-",
                )
                for p in answer.partitions
            ],
        ),
        receivers_table(answer.receivers),
        *([managed_table(answer.managed)] if answer.managed else []),
        hosts_table(answer.agents),
        *batch_tables(answer.batches),
    ]


def _cursors(answer: StatusAnswer) -> str:
    from rich.filesize import decimal

    states = [cursor.state for cursor in answer.cursors]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return f"{counts}; the WAL keeps {decimal(answer.held_for_cursors)} only for them"


def _listener(listener: TrackedListener) -> str:
    counts = f"{listener.delivered} events delivered, {listener.waiting} waiting, {listener.dropped} dropped"
    return counts + (f"; failed {listener.failures} times, last: {listener.last_error}" if listener.failures else "")


def tiers_text(counts: Mapping[str, int]) -> str:
    """Return the ranges read by tier, the failures, and the share that tasks read on their own host."""
    ranges = sum(counts.get(tier, 0) for tier in TIERS)
    if not ranges:
        return ", ".join(f"{tier} {count}" for tier, count in counts.items()) or "none yet"
    share = 100 * counts.get("local", 0) // ranges
    return ", ".join(f"{tier} {count}" for tier, count in counts.items()) + f" ({share} % local)"


def _learned(rate: float) -> str:
    return f"{rate:.0f} records/s" if rate else "not learned yet"


def _replay(replay: TrackedReplay | None) -> str:
    if replay is None:
        return "none"
    return (
        f"{replay.replay}: {replay.completed} of {replay.batches} batches done, from {replay.first_id} to {replay.last_id}; "
        f"requested by {replay.cause}"
    )


def _stores_out_of_reach(settings: Settings) -> Iterator[str]:
    """Return why the journal or the WAL can't be written from this machine, with the next step; nothing if they can."""
    from deploy.commands.setup.validation import check_folders
    from driver.http.health import COMMANDS

    for check in check_folders(settings):
        if check.name in ("journal", "wal") and check.outcome != "fine":
            yield f"{check.detail}. Next step: {COMMANDS[check.name]}"


@click.command(
    epilog=example("forebay status", "forebay status --json | jq .waiting_records"),
)
@shared_options
@pass_invocation
def status(invocation: Invocation) -> int:
    """Show the state of the stream: partitions, receivers, agents, batches, and problems. Exit with 1 if there is a problem.

    Each problem is printed on stderr with its cause and the next step. A condition within its grace period is printed too,
    but does not count as a problem yet.

    If no driver answers, the command exits with 3. If this machine also can't reach the store of the journal or of the WAL,
    it names that store and exits with 1, because a driver exits when it can't write its journal.
    """
    settings = invocation.settings()
    try:
        answer = ask_status(settings)
    except NotTakenError as error:
        causes = list(_stores_out_of_reach(settings))
        if not causes or isinstance(error, AccessError):
            raise
        raise ForebayError("; ".join((str(error), *causes))) from None
    invocation.write(answer, lambda: tables(answer))
    found = problems(answer)
    for problem in found:
        invocation.say(f"forebay: {problem_text(problem)}")
    for problem in answer.pending:
        invocation.say(f"forebay: not yet a problem: {problem.cause}")
    for warning in (partition.foreign for partition in answer.partitions if partition.foreign):
        invocation.say(f"forebay: {warning}")
    return FINDINGS if found else FINE
