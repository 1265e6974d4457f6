"""``forebay direct``: inspect a direct stream by its checkpoint, accept a loss in it, or replay its batches."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any

import click
import msgspec

from deploy.commands.inspection.lag import limit_options
from deploy.console.invocation import (
    FINDINGS,
    FINE,
    Invocation,
    because_option,
    changing_options,
    example,
    pass_invocation,
    person,
    shared_options,
)
from deploy.console.ownership import refuse_as_root
from deploy.console.parameters import MomentType, NumberType
from deploy.console.progress import spinner
from forebay.model.errors import UsageError
from forebay.model.wire import WIRE_NAMES

if TYPE_CHECKING:
    from rich.console import Group

    from direct.checkpoint.checkpoint import Checkpoint
    from direct.checkpoint.losses import Loss
    from direct.intake.access import IntakeAccess
    from forebay.settings.schema import SecuritySettings

#: number of completed batches that `batches` shows by default
LAST = 20

#: status → its meaning
STATUSES = {
    "running": "running",
    "stopped": "stopped",
    "ended": "not running; its last process exited without stopping it",
    "silent": "silent; its last process no longer renews the lease",
}


class PartitionStatus(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    """The state of one partition.

    ``position``: offset where the next batch begins. ``completed``: offset before which all batches are completed. ``read``:
    whether the stream still reads the partition.
    """

    topic: str
    partition: int
    incarnation: int
    start: int
    position: int
    completed: int
    gaps: tuple[str, ...]
    read: bool


class DirectStatus(msgspec.Struct, frozen=True, rename={"status": "standing"}):
    """The state of a direct stream.

    ``status``: running, stopped, ended or silent. ``owner``, ``host``, ``pid``: of its process, "" and 0 if it
    stopped. ``unfinished``, ``replaying``: ids of batches.
    """

    name: str
    status: str
    owner: str
    host: str
    pid: int
    batches_completed: int
    records_completed: int
    unfinished: tuple[int, ...]
    replaying: tuple[int, ...]
    partitions: tuple[PartitionStatus, ...]


class ShownBatch(msgspec.Struct, frozen=True):
    """A batch with its offset ranges. ``lost``: accepted losses. The statistics are as in the HTTP API; None if unknown."""

    batch_id: int
    number: int
    time_ms: int
    state: str
    records: int
    ranges: tuple[str, ...]
    lost: tuple[str, ...]
    attempts: int | None = None
    scheduling_delay_ms: int | None = None
    processing_ms: int | None = None
    total_delay_ms: int | None = None


def of_checkpoint(kafka: bool, intake: bool = False) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Add the arguments CHECKPOINT and NAME to a command, which gets ``checkpoint: Checkpoint``.

    ``kafka``: add --broker. ``intake``: add --tracker.
    """

    def decorate(function: Callable[..., int]) -> Callable[..., int]:
        @functools.wraps(function)
        def command(
            invocation: Invocation,
            checkpoint: str,
            name: str,
            broker: str = "",
            tracker: str = "",
            **others: Any,
        ) -> int:
            from direct.checkpoint.checkpoint import Checkpoint

            settings = invocation.settings() if invocation.config is not None else None
            options = settings.kafka.options if settings is not None else {}
            params = {**options, "bootstrap.servers": broker} if broker else options
            storage = settings.storage if settings is not None else None
            through = _through(tracker, settings.security if settings is not None else None)
            return function(
                invocation, Checkpoint(checkpoint, name, params or None, storage=storage, tracker=through), **others
            )

        made: Callable[..., int] = pass_invocation(command)
        if kafka:
            made = click.option("--broker", metavar="HOST:PORT", default="", help="Address of a Kafka broker.")(made)
        if intake:
            made = click.option(
                "--tracker",
                metavar="URL",
                default="",
                help="URL of the intake's driver, for a stream that reads over an intake.",
            )(made)
        made = click.argument("name")(made)
        made = click.argument("checkpoint")(made)
        return shared_options(made)

    return decorate


def _through(url: str, security: SecuritySettings | None) -> IntakeAccess | None:
    from direct.intake.access import IntakeAccess

    if not url or security is None:
        return IntakeAccess(url) if url else None
    return IntakeAccess(url, security.token_file, security.ca_file, security.cert_file, security.key_file)


@click.group(
    epilog=example("forebay direct status file:///var/lib/direct flights"),
)
@shared_options
def direct() -> None:
    """Inspect a direct stream by its checkpoint, accept a loss in it, or replay its batches.

    CHECKPOINT and NAME are those of the stream's StreamSettings. The stream may run during an inspection; for an accepted loss
    or a replay it must be stopped. Commands that need Kafka take --broker. With --config FILE, the sections [kafka], [storage]
    and [security] of a forebay.toml apply.
    """


@direct.command(
    short_help="Show whether the stream runs, and the position of each partition.",
    epilog=example("forebay direct status file:///var/lib/direct flights --json"),
)
@of_checkpoint(kafka=False)
def status(invocation: Invocation, checkpoint: Checkpoint) -> int:
    """Show whether the stream runs, its unfinished batches, and for each partition the offset where the next batch begins.

    The command may watch the stream's lease for up to 10 s, the duration of a lease. Exits with 1 if the process of the stream
    exited without stopping it, or is silent.
    """
    from deploy.console.table import table

    with spinner("watching the stream's lease"):
        state = checkpoint.state()
        status, lease = checkpoint.lease()
    found = DirectStatus(
        name=checkpoint.name,
        status=status,
        owner=lease.owner if lease else "",
        host=lease.host if lease else "",
        pid=lease.pid if lease else 0,
        batches_completed=state.batches_completed,
        records_completed=state.records_completed,
        unfinished=tuple(batch.batch_id for batch in state.unfinished()),
        replaying=tuple(state.replaying),
        partitions=tuple(
            PartitionStatus(
                p.topic,
                p.partition,
                p.incarnation.number,
                p.incarnation.start,
                p.position,
                p.completed,
                tuple(f"[{g.gap.from_offset}, {g.gap.until_offset}) {g.gap.cause}" for g in p.gaps),
                key in state.next_offsets,
            )
            for key, p in sorted(state.partitions.items(), key=lambda item: item[1].tp)
        ),
    )
    by = f" ({found.owner}, host {found.host}, pid {found.pid})" if lease else ""
    invocation.write(
        found,
        lambda: [
            table(
                f"Direct stream {found.name}: {STATUSES[status]}{by}; {found.batches_completed} batches completed, "
                f"{len(found.unfinished)} unfinished, {len(found.replaying)} to be replayed",
                ("partition", "incarnation", "began at", "completed", "position", "gaps", "read"),
                [
                    (f"{p.topic}/{p.partition}", p.incarnation, p.start, p.completed, p.position, "\n".join(p.gaps) or "none",
                     "yes" if p.read else "no longer")
                    for p in found.partitions
                ],
            )
        ],
    )  # fmt: skip
    return FINDINGS if status in ("ended", "silent") else FINE


@direct.command(
    short_help="Show the stream's batches with their offset ranges.",
    epilog=example(
        "forebay direct batches file:///var/lib/direct flights --last 5",
        "forebay direct batches file:///var/lib/direct flights --failed --since 2026-11-21T14:30:00Z",
    ),
)
@click.option(
    "--last",
    metavar="N",
    type=NumberType(0),
    default=LAST,
    help=f"Number of completed batches [default: {LAST}].",
)
@click.option("--failed", is_flag=True, help="Of the completed batches only those with a failed attempt.")
@click.option("--since", metavar="TIME", type=MomentType(), default=0, help="Only batches of this time or later.")
@of_checkpoint(kafka=False)
def batches(invocation: Invocation, checkpoint: Checkpoint, last: int, failed: bool, since: int) -> int:
    """Show the unfinished batches and the newest completed ones: ids, times, delays, and offset ranges."""
    with spinner("reading the checkpoint"):
        recent = takewhile(lambda b: b.time_ms >= since, _finished(checkpoint))
        shown = [*islice((b for b in recent if not failed or (b.attempts or 1) > 1), last)][::-1]
    shown += [
        ShownBatch(b.batch_id, b.number, b.time_ms, "unfinished", sum(s.size for s in b.spans), _labels(b), b.lost)
        for b in checkpoint.state().unfinished()
        if b.time_ms >= since
    ]
    invocation.write(shown, lambda: _batch_tables(checkpoint.name, shown))
    return FINE


def _finished(checkpoint: Checkpoint) -> Any:
    """Yield the completed batches, newest first, without duplicates."""
    from driver.journal import history

    state = checkpoint.state()
    seen: set[int] = set()
    waiting = history.finished(state, limit=len(state.batches), windows=False)
    for segment in (waiting, *history.read_back(checkpoint.storage, checkpoint.name)):
        for b in sorted(segment, key=lambda b: -b.batch_id):
            if b.batch_id not in seen:
                seen.add(b.batch_id)
                of = b.statistics
                yield ShownBatch(
                    b.batch_id,
                    b.number,
                    b.time_ms,
                    "completed",
                    b.records,
                    _labels(b),
                    b.lost,
                    b.attempts,
                    of.scheduling_delay_ms if of is not None else None,
                    of.processing_ms if of is not None else None,
                    of.total_delay_ms if of is not None else None,
                )


def _label(text: str) -> str:
    """Return a RANGE as ``accept-loss`` shows it; another text without its spaces, as the name of a partition."""
    from forebay.kafka.consume.spans import label_of, parse_label

    written = "".join(text.split())
    try:
        return label_of(*parse_label(written))
    except UsageError:
        return written


def _labels(batch: Any) -> tuple[str, ...]:
    from forebay.kafka.consume.spans import label_of, with_incarnations

    spans = with_incarnations(batch.spans, batch.incarnations)
    return tuple(label_of(span, incarnation) for span, incarnation in spans)


def _batch_tables(name: str, shown: list[ShownBatch]) -> list[Group]:
    from deploy.console.batch_tables import delay, moment
    from deploy.console.table import table

    rows = [
        (
            b.number,
            b.batch_id,
            moment(b.time_ms),
            b.state,
            b.records,
            b.attempts or "-",
            delay(b.scheduling_delay_ms),
            delay(b.processing_ms),
            delay(b.total_delay_ms),
            "\n".join(b.ranges),
            ", ".join(b.lost) or "none",
        )
        for b in shown
    ]
    columns = (
        "number", "id", "time", "state", "offsets", "attempts", "scheduling", "processing", "total", "ranges",
        "accepted losses",
    )  # fmt: skip
    return [table(f"Batches of direct stream {name}", columns, rows)]


@direct.command(
    short_help="Show how far the stream is behind Kafka.",
    epilog=example("forebay direct lag file:///var/lib/direct flights --broker b1:9092 --max-records 100000"),
)
@limit_options
@of_checkpoint(kafka=True)
def lag(invocation: Invocation, checkpoint: Checkpoint, max_records: int | None, max_seconds: float | None) -> int:
    """Show how far the stream is behind Kafka: records in no batch yet, and records in no completed batch yet.

    Records are counted by offsets. Seconds are the age of the oldest such record by its own timestamp. With limits, the
    command exits with 1 beyond them.
    """
    from deploy.commands.inspection.lag import answer, compare_with_kafka

    with spinner("comparing with Kafka"), checkpoint.kafka() as admin:
        found = compare_with_kafka(checkpoint.progress(), admin.ends, admin.first_timestamps)
    return answer(invocation, found, max_records, max_seconds)


@direct.command(
    short_help="Prove that each offset is in exactly one batch.",
    epilog=example("forebay direct audit file:///var/lib/direct flights --json | jq .findings"),
)
@of_checkpoint(kafka=False)
def audit(invocation: Invocation, checkpoint: Checkpoint) -> int:
    """Prove that each offset is in exactly one batch or in a known gap. Exit with 1 on any finding.

    A finding is a range that is in several batches, in none, or in a replay that differs from the first run. Gaps, new
    incarnations, accepted losses and replays are not findings; they are listed with the person who decided them and the reason.
    """
    from deploy.commands.inspection.audit import answer

    with spinner("reading the checkpoint"):
        found = checkpoint.audit()
    return answer(invocation, found)


@direct.command(
    "accept-loss",
    short_help="Show what Kafka no longer holds, and continue without it.",
    epilog=example(
        "forebay direct accept-loss file:///var/lib/direct flights --broker b1:9092",
        "forebay direct accept-loss file:///var/lib/direct flights 'flights/0[0, 500)' --broker b1:9092 --apply",
    ),
)
@because_option
@changing_options
@of_checkpoint(kafka=True, intake=True)
@click.argument("ranges", metavar="[RANGE]...", nargs=-1)
def accept_loss(
    invocation: Invocation, checkpoint: Checkpoint, ranges: tuple[str, ...], because: str, yes: bool
) -> int:
    """Show ranges of the stream that neither Kafka nor the intake at --tracker still holds; with --apply, accept their loss.

    RANGE is a range that the command shows: TOPIC/PARTITION[FROM, UNTIL) in a batch, or before the first offset that Kafka
    holds; or TOPIC/PARTITION if the topic was deleted or created again, or its log was truncated. In this last case the
    partition ends, or begins a new incarnation. A range of a later incarnation has ' life N' after it.

    With RANGEs and --apply, the checkpoint records that the stream continues without them. The stream must be stopped. Exits
    with 1 while a loss is not accepted.
    """
    wanted = set(map(_label, ranges))
    if yes:
        if not wanted:
            raise UsageError("--apply needs RANGEs: run the command without --apply to see them")
        refuse_as_root(checkpoint.name, checkpoint.storage.url)
        with spinner("comparing with Kafka"):
            accepted = checkpoint.accept_losses(wanted, person(because))
        invocation.write(accepted, lambda: _loss_tables(checkpoint.name, accepted))
        invocation.say(f"the stream continues without {', '.join(loss.label for loss in accepted)}")
        return FINE
    with spinner("comparing with Kafka"):
        found = checkpoint.losses()
    unknown = sorted(wanted - {loss.label for loss in found})
    if unknown:
        raise UsageError(
            f"no loss to accept: {', '.join(unknown)}: Kafka still holds it, or the stream does not need it; run the command "
            "without a RANGE to see the lost ranges"
        )
    losses = [loss for loss in found if not wanted or loss.label in wanted]
    invocation.write(losses, lambda: _loss_tables(checkpoint.name, losses))
    if losses:
        invocation.say("nothing was changed: to continue without some of these, name their RANGEs and add --apply")
    return FINDINGS if losses else FINE


def _loss_tables(name: str, losses: list[Loss]) -> list[Group]:
    from deploy.console.table import table

    rows = [(loss.label, loss.kind, loss.batch_id or "-", loss.message) for loss in losses]
    return [table(f"What Kafka no longer holds of direct stream {name}", ("range", "what", "batch", "detail"), rows)]


@direct.command(
    short_help="Run completed batches again that Kafka still holds.",
    epilog=example("forebay direct replay file:///var/lib/direct flights --broker b1:9092 --to-batch 12 --apply"),
)
@click.option(
    "--to-batch",
    metavar="BATCH",
    type=NumberType(1),
    help="Id or number of the first completed batch to replay, with all later ones.",
)
@click.option(
    "--to-time",
    metavar="TIME",
    type=MomentType(),
    help="Time of the first completed batch to replay, as in 2026-11-21T14:30:00Z.",
)
@because_option
@changing_options
@of_checkpoint(kafka=True)
def replay(
    invocation: Invocation, checkpoint: Checkpoint, to_batch: int | None, to_time: int | None, because: str, yes: bool
) -> int:
    """Show which completed batches a replay would run again; with --apply, request the replay.

    The batches run when the stream is started next, marked as a replay, before any other batch. The stream must be stopped.
    Exits with 1 if Kafka no longer holds all of them. Use it after a fix of the stream's function.
    """
    from deploy.commands.recovery.replay import proposal_of, show
    from driver.decisions.replay import RewindTo

    if (to_batch is None) == (to_time is None):
        raise UsageError("a replay begins at a batch or at a time: give one of --to-batch and --to-time")
    if not yes:
        with spinner("comparing with Kafka"):
            found = checkpoint.replay_plan(RewindTo(to_batch or 0, to_time or 0))
        return show(invocation, proposal_of(*found))
    refuse_as_root(checkpoint.name, checkpoint.storage.url)
    with spinner("comparing with Kafka"):
        message = checkpoint.replay(to_batch or 0, to_time or 0, person(because))
    invocation.write({"done": True, "message": message})
    invocation.say(message)
    return FINE
