"""``forebay status``: what the driver says of its stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import click

from deploy.console.invocation import FINE, FOUND, Invocation, example, pass_invocation, shared_options
from deploy.supervision.verdicts import described
from driver.decisions.problems import in_answer
from forebay.messages import (
    ErrorNote,
    Problem,
    StatusAnswer,
    TrackedAgent,
    TrackedBatch,
    TrackedListener,
    TrackedPartition,
    TrackedReplay,
)
from forebay.model.errors import AccessError, ForebayError, NotTakenError
from forebay.settings.schema import Settings
from wal.reading import TIERS

if TYPE_CHECKING:
    from rich.console import Group

#: one answer of a driver at work comes within a sync; a person waits no longer than this
TIMEOUT_SECONDS = 10.0


def ask(settings: Settings, timeout_seconds: float = TIMEOUT_SECONDS) -> StatusAnswer:
    """The status of the driver that leads. Raises UnreachableError."""
    from forebay.http.driver_client import DriverClient

    client = DriverClient.of(settings, timeout_seconds)
    try:
        return client.get("/v1/status", StatusAnswer)
    finally:
        client.close()


def problems(answer: StatusAnswer) -> list[Problem]:
    """The driver's verdict, and what the rest of the answer shows, which an older driver does not list."""
    return list(dict.fromkeys((*answer.problems, *in_answer(answer))))


def in_words(problem: Problem) -> str:
    """One sentence: the cause, and the next step where the cause does not name it."""
    return f"{problem.cause}. Next step: {problem.command}" if problem.command else problem.cause


def lag_in_words(partition: TrackedPartition) -> object:
    """The number of offsets, or that it is unknown and how old the end is that was read last."""
    if partition.lag is not None:
        return partition.lag
    age = partition.end_age_seconds
    return f"unknown (end read {age:.0f} s ago)" if age >= 0 else "unknown"


#: counts of a remote store that are no requests
_NO_REQUESTS = ("bytes_out", "bytes_in", "seconds")


def request_rates(counts: Mapping[str, int], prefix: str, seconds: str) -> str:
    """``240 requests/min (put 180, get 60), 310 per GB written``: of what ``counts`` says below ``prefix``, on average since
    its process began; "" if it says nothing."""
    kinds = {
        name.removeprefix(prefix): count
        for name, count in counts.items()
        if name.startswith(prefix) and name.removeprefix(prefix) not in _NO_REQUESTS
    }
    if not kinds:
        return ""
    per_minute = {kind: round(count * 60 / counts[seconds]) for kind, count in sorted(kinds.items())}
    written = counts.get(f"{prefix}bytes_out", 0)
    per_gigabyte = f", {round(sum(kinds.values()) * 1e9 / written)} per GB written" if written else ""
    which = ", ".join(f"{kind} {count}" for kind, count in per_minute.items())
    return f"{sum(per_minute.values())} requests/min ({which}){per_gigabyte}"


def _releases(answer: StatusAnswer) -> str:
    """The driver's, and who runs another one: a rolling upgrade in its middle."""
    processes = [(r.receiver_id, r.release) for r in answer.receivers if r.state not in ("lost", "fenced")]
    processes += [(f"agent of {a.host}", a.release) for a in answer.agents]
    others = [f"{name} {release}" for name, release in processes if release and release != answer.release]
    return f"{answer.release}; others: {', '.join(others)}" if others else answer.release


def tables(answer: StatusAnswer) -> list[Group]:
    from deploy.console.table import bytes_text, table

    state = f"{answer.state}: {answer.detail}" if answer.detail else answer.state
    return [
        table(
            f"Stream {answer.stream}",
            ("what", "value"),
            [
                ("driver", state),
                ("release", _releases(answer)),
                ("journal", f"lineage {answer.timeline}, epoch {answer.driver_epoch:x}"),
                ("waiting", f"{answer.waiting_blocks} blocks, {answer.waiting_records} records"),
                ("replay", _replay(answer.replay)),
                *([("rate that the job can take", _learned(answer.rate))] if answer.backpressure else []),
                ("completed", f"{answer.batches_completed} batches, {answer.records_completed} records"),
                (
                    "ranges read by tier",
                    tiers_in_words(answer.tiers),
                ),
                *(
                    (f"requests to the {name}'s store", words)
                    for name in ("journal", "wal")
                    if (words := request_rates(answer.requests, f"{name}_", "seconds"))
                ),
                *([("cursors", _cursors(answer))] if answer.cursors else []),
                *((f"listener {heard.name}", _listener(heard)) for heard in answer.listeners),
                (
                    "topic ids",
                    "checked" if answer.topic_ids_known else "the broker can't tell: only watermarks are checked",
                ),
            ],
        ),
        table(
            "Partitions",
            ("partition", "state", "life", "taken in", "completed", "end in Kafka", "lag", "receiver"),
            [
                (
                    f"{p.topic}/{p.partition}",
                    p.state,
                    p.incarnation,
                    p.position,
                    p.completed,
                    p.high_watermark if p.high_watermark >= 0 else "-",
                    lag_in_words(p),
                    p.receiver_id or "-",
                )
                for p in answer.partitions
            ],
        ),
        table(
            "Receivers",
            ("receiver", "host", "state", "silent", "buffered", "records", "records/s at most", "detail"),
            [
                (
                    r.receiver_id,
                    r.host,
                    r.state,
                    _silence(r.silent_seconds),
                    bytes_text(r.buffered_bytes),
                    r.records,
                    _rate(r.rate),
                    "; ".join(
                        filter(
                            None,
                            [
                                r.detail,
                                request_rates(r.counters, "wal_", "wal_seconds"),
                                *(
                                    f"{n} {count}"
                                    for n, count in r.counters.items()
                                    if count and not n.startswith("wal_")
                                ),
                                *(_error(e) for e in r.errors),
                            ],
                        )
                    ),
                )
                for r in answer.receivers
            ],
        ),
        *([_managed(answer)] if answer.managed else []),
        table(
            "Agents",
            ("host", "url", "state", "silent", "blocks", "used", "free", "load", "requests", "room for", "labels"),
            [
                (
                    a.host,
                    a.url,
                    a.state,
                    _silence(a.silent_seconds),
                    _blocks(a),
                    bytes_text(a.used_bytes),
                    bytes_text(a.free_bytes),
                    f"{a.load:.2f}",
                    a.requests,
                    f"{a.capacity} receivers" if a.capacity else "-",
                    ", ".join(a.labels) or "-",
                )
                for a in answer.agents
            ],
        ),
        table(
            "Batches",
            ("number", "id", "state", "replay", "blocks", "records", "attempts", "detail"),
            [
                (b.number, b.batch_id, b.state, b.replay or "-", b.blocks, b.records, b.attempts, _detail(b))
                for b in answer.batches
            ],
        ),
    ]


def _blocks(agent: TrackedAgent) -> str:
    of_these = [f"{agent.copies} given"] if agent.copies else []
    if agent.damaged_blocks:
        of_these.append(f"{agent.damaged_blocks} more damaged: `forebay recover` on that host")
    return f"{agent.blocks} ({', '.join(of_these)})" if of_these else str(agent.blocks)


def _detail(batch: TrackedBatch) -> str:
    done = [f"done: {', '.join(batch.outputs)}"] if batch.outputs else []
    return batch.detail or "; ".join((*done, *batch.written))


def _cursors(answer: StatusAnswer) -> str:
    from deploy.console.table import bytes_text

    states = [cursor.state for cursor in answer.cursors]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    return f"{counts}; the WAL keeps {bytes_text(answer.held_for_cursors)} for them alone"


def _listener(heard: TrackedListener) -> str:
    words = f"{heard.delivered} events delivered, {heard.waiting} waiting, {heard.dropped} dropped"
    return words + (f"; failed {heard.failures} times, last: {heard.last_error}" if heard.failures else "")


def tiers_in_words(counts: Mapping[str, int]) -> str:
    """Ranges by tier and failures, and the share that tasks read on their own host."""
    ranges = sum(counts.get(tier, 0) for tier in TIERS)
    if not ranges:
        return ", ".join(f"{tier} {count}" for tier, count in counts.items()) or "none yet"
    share = 100 * counts.get("local", 0) // ranges
    return ", ".join(f"{tier} {count}" for tier, count in counts.items()) + f" ({share} % local)"


def _learned(rate: float) -> str:
    return f"{rate:.0f} records/s" if rate else "not learned yet"


def _rate(rate: float) -> str:
    return f"{rate:.0f}" if rate else "-"


def _replay(replay: TrackedReplay | None) -> str:
    if replay is None:
        return "none"
    return (
        f"{replay.replay}: {replay.completed} of {replay.batches} batches done, from {replay.first_id} to {replay.last_id}; "
        f"asked for by {replay.cause}"
    )


def _managed(answer: StatusAnswer) -> Group:
    from deploy.console.table import table

    return table(
        "Managed receivers",
        ("receiver", "state", "host", "process", "restarts", "last exit", "detail"),
        [
            (
                r.receiver_id,
                r.state,
                f"{r.host} → {r.moves_to}" if r.moves_to else r.host or "-",
                r.pid or "-",
                r.restarts,
                "-" if r.exit_code is None else described(r.exit_code),
                r.detail,
            )
            for r in answer.managed
        ],
    )


def _error(error: ErrorNote) -> str:
    times = "" if error.count == 1 else f"{error.count} times, last "
    return f"{error.words} ({times}{error.seconds_ago:.0f} s ago)"


def _silence(seconds: float) -> str:
    return "not heard yet" if seconds < 0 else f"{seconds:.1f} s"


def _stores_out_of_reach(settings: Settings) -> Iterator[str]:
    """Why the journal or the WAL can't be written from here, with the next step; nothing if they can."""
    from deploy.commands.validation import check_folders
    from driver.http.health import COMMANDS

    for check in check_folders(settings):
        if check.name in ("journal", "wal") and check.outcome != "fine":
            yield f"{check.detail}. Next step: {COMMANDS[check.name]}"


@click.command(
    short_help="Show partitions, receivers, agents and batches.",
    epilog=example("forebay status", "forebay status --json | jq .waiting_records"),
)
@shared_options
@pass_invocation
def status(invocation: Invocation) -> int:
    """Ask the driver how its stream stands: partitions, receivers, agents and batches.

    Exits with 1 if there is a problem: each is said on stderr with its cause and the next step. What is missing for less than
    its grace is said too, and is no problem yet. If no driver answers, exits with 3, or with 1 if the journal's or the WAL's
    store is out of reach, and names it: a driver ends when it can't write its journal.
    """
    settings = invocation.settings()
    try:
        answer = ask(settings)
    except NotTakenError as error:
        causes = list(_stores_out_of_reach(settings))
        if not causes or isinstance(error, AccessError):
            raise
        raise ForebayError("; ".join((str(error), *causes))) from None
    invocation.write(answer, lambda: tables(answer))
    found = problems(answer)
    for problem in found:
        invocation.say(f"forebay: {in_words(problem)}")
    for problem in answer.pending:
        invocation.say(f"forebay: not yet a problem: {problem.cause}")
    for words in (partition.foreign for partition in answer.partitions if partition.foreign):
        invocation.say(f"forebay: {words}")
    return FOUND if found else FINE
