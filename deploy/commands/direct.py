"""``forebay direct``: what the checkpoint of a direct stream says, and what a person decides about it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import datetime, timezone
from itertools import islice
from typing import TYPE_CHECKING, Any

import click
import msgspec

from deploy.commands.lag import limit_options
from deploy.commands.replay import MomentType
from deploy.console.invocation import (
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
from forebay.model.errors import UsageError
from forebay.model.wire import WIRE_NAMES

if TYPE_CHECKING:
    from rich.console import Group

    from direct.checkpoint.checkpoint import Checkpoint
    from direct.checkpoint.losses import Loss
    from direct.intake.access import IntakeAccess
    from forebay.settings.schema import SecuritySettings

#: finished batches that `batches` shows if nobody says how many
LAST = 20

WORDS = {
    "running": "a stream runs on it",
    "stopped": "no stream runs on it",
    "ended": "no stream runs on it: the process of the last one is gone, and did not stop it",
    "silent": "the stream that ran last gives no sign of life",
}


class PartitionStatus(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    """``position``: where the next batch begins; ``completed``: up to here every batch is completed. ``read``: whether the stream
    goes on with it."""

    topic: str
    partition: int
    incarnation: int
    start: int
    position: int
    completed: int
    gaps: tuple[str, ...]
    read: bool


class DirectStatus(msgspec.Struct, frozen=True, rename={"status": "standing"}):
    """``standing``: running, stopped, ended or silent. ``owner``, ``host``, ``pid``: of the process, "" and 0 if it stopped."""

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
    batch_id: int
    number: int
    time_ms: int
    state: str
    records: int
    ranges: tuple[str, ...]
    lost: tuple[str, ...]


def of_checkpoint(kafka: bool, intake: bool = False) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Adds CHECKPOINT and NAME, and with ``kafka`` and ``intake`` how to reach these, to a command, which gets ``checkpoint:
    Checkpoint``."""

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
                invocation, Checkpoint(checkpoint, name, params or None, storage, tracker=through), **others
            )

        made: Callable[..., int] = pass_invocation(command)
        if kafka:
            made = click.option("--broker", metavar="HOST:PORT", default="", help="Where Kafka is.")(made)
        if intake:
            made = click.option(
                "--tracker", metavar="URL", default="", help="The driver of the intake that the stream reads through."
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
    short_help="Direct streams: status, batches, lag, audit, accept a loss, replay.",
    epilog=example("forebay direct status file:///var/lib/direct flights"),
)
@shared_options
def direct() -> None:
    """Look at a direct stream by its checkpoint, and decide about it.

    CHECKPOINT and NAME are those of its StreamSettings. Looking fences nobody, and the stream may run; to accept a loss or to
    begin a replay it must have stopped. What needs Kafka takes --broker; with --config FILE the [kafka], [storage] and
    [security] of a forebay.toml serve.
    """


@direct.command(
    short_help="Whether it runs, and where its partitions are.",
    epilog=example("forebay direct status file:///var/lib/direct flights --json"),
)
@of_checkpoint(kafka=False)
def status(invocation: Invocation, checkpoint: Checkpoint) -> int:
    """Show whether the stream runs, its unfinished batches, and for each partition where the next batch begins.

    A stream's lease may have to be watched for as long as it lasts, 10 s. Exits with 1 if its process is gone without a stop, or
    is silent.
    """
    from deploy.console.table import table

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
                f"Direct stream {found.name}: {WORDS[status]}{by}; {found.batches_completed} batches completed, "
                f"{len(found.unfinished)} unfinished, {len(found.replaying)} to be replayed",
                ("partition", "life", "begun at", "completed", "position", "gaps", "read"),
                [
                    (f"{p.topic}/{p.partition}", p.incarnation, p.start, p.completed, p.position, "\n".join(p.gaps) or "none",
                     "yes" if p.read else "no more")
                    for p in found.partitions
                ],
            )
        ],
    )  # fmt: skip
    return FOUND if status in ("ended", "silent") else FINE


@direct.command(
    short_help="Its batches with their offset ranges.",
    epilog=example("forebay direct batches file:///var/lib/direct flights --last 5"),
)
@click.option("--last", metavar="N", type=click.IntRange(min=0), default=LAST, help=f"Finished ones [default: {LAST}].")
@of_checkpoint(kafka=False)
def batches(invocation: Invocation, checkpoint: Checkpoint, last: int) -> int:
    """Show the unfinished batches and the last finished ones: ids, times, and which offsets each holds."""
    shown = [*islice(_finished(checkpoint), last)][::-1]
    shown += [
        ShownBatch(
            b.batch_id, b.number, b.time_ms, "unfinished", sum(s.size for s in b.spans), _labels(b.spans), b.lost
        )
        for b in checkpoint.state().unfinished()
    ]
    invocation.write(shown, lambda: _batch_tables(checkpoint.name, shown))
    return FINE


def _finished(checkpoint: Checkpoint) -> Any:
    """The newest first, each once."""
    from driver.journal import history

    state = checkpoint.state()
    seen: set[int] = set()
    waiting = history.finished(state, limit=len(state.batches), windows=False)
    for segment in (waiting, *history.read_back(checkpoint.storage, checkpoint.name)):
        for b in sorted(segment, key=lambda b: -b.batch_id):
            if b.batch_id not in seen:
                seen.add(b.batch_id)
                yield ShownBatch(b.batch_id, b.number, b.time_ms, "completed", b.records, _labels(b.spans), b.lost)


def _labels(spans: Any) -> tuple[str, ...]:
    return tuple(map(str, spans))


def _batch_tables(name: str, shown: list[ShownBatch]) -> list[Group]:
    from deploy.console.table import table

    rows = [
        (b.number, b.batch_id, _moment(b.time_ms), b.state, b.records, "\n".join(b.ranges), ", ".join(b.lost) or "none")
        for b in shown
    ]
    columns = ("number", "id", "time", "state", "offsets", "ranges", "accepted losses")
    return [table(f"Batches of direct stream {name}", columns, rows)]


def _moment(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, timezone.utc).isoformat(timespec="milliseconds")


@direct.command(
    short_help="How far it is behind Kafka.",
    epilog=example("forebay direct lag file:///var/lib/direct flights --broker b1:9092 --max-records 100000"),
)
@limit_options
@of_checkpoint(kafka=True)
def lag(invocation: Invocation, checkpoint: Checkpoint, max_records: int | None, max_seconds: float | None) -> int:
    """Show how far behind Kafka the stream is: what is in no batch yet, and what no completed batch holds.

    Records are counted by offsets. Seconds are the age of the oldest record, by its own timestamp.
    """
    from deploy.commands.lag import answer, look

    with checkpoint.kafka() as admin:
        found = look(checkpoint.progress(), admin.ends, admin.first_timestamps)
    return answer(invocation, found, max_records, max_seconds)


@direct.command(
    short_help="Prove that each offset lies in exactly one batch.",
    epilog=example("forebay direct audit file:///var/lib/direct flights --json | jq .findings"),
)
@of_checkpoint(kafka=False)
def audit(invocation: Invocation, checkpoint: Checkpoint) -> int:
    """Lay all batches and gaps of each partition side by side: what is there twice, or not at all?

    Gaps, new lives, accepted losses and replays are listed with who decided them and why; they are no findings. Exits with 1 on
    any finding.
    """
    from deploy.commands.audit import answer

    return answer(invocation, checkpoint.audit())


@direct.command(
    "accept-loss",
    short_help="What Kafka no longer holds, and going on without it.",
    epilog=example(
        "forebay direct accept-loss file:///var/lib/direct flights --broker b1:9092",
        "forebay direct accept-loss file:///var/lib/direct flights 'flights/0[0, 500)' --broker b1:9092 --yes",
    ),
)
@because_option
@changing_options
@of_checkpoint(kafka=True, intake=True)
@click.argument("ranges", metavar="[RANGE]...", nargs=-1)
def accept_loss(
    invocation: Invocation, checkpoint: Checkpoint, ranges: tuple[str, ...], because: str, yes: bool
) -> int:
    """Show what of the stream Kafka no longer holds, nor the intake at --tracker; with RANGEs and --yes, journal that the stream
    goes on without them.

    RANGE is what is shown: TOPIC/PARTITION[FROM, UNTIL) of a batch, or between the position and the first offset that Kafka
    holds; or TOPIC/PARTITION where the topic is gone, was created again, or its log was cut back: the partition then ends, or
    begins another life. The stream must have stopped. Exits with 1 while something is lost and not accepted.
    """
    wanted = {"".join(text.split()).replace(",", ", ") for text in ranges}
    if yes:
        if not wanted:
            raise UsageError("name the RANGEs that are shown without --yes: nobody accepts a loss unseen")
        accepted = checkpoint.accept_losses(wanted, person(because))
        invocation.write(accepted, lambda: _loss_tables(checkpoint.name, accepted))
        invocation.say(f"journalled: the stream goes on without {', '.join(loss.label for loss in accepted)}")
        return FINE
    found = checkpoint.losses()
    unknown = sorted(wanted - {loss.label for loss in found})
    if unknown:
        raise UsageError(
            f"Kafka still holds {', '.join(unknown)}, or nobody has yet to read it: name what is shown without a RANGE"
        )
    losses = [loss for loss in found if not wanted or loss.label in wanted]
    invocation.write(losses, lambda: _loss_tables(checkpoint.name, losses))
    if losses:
        invocation.say("nothing was changed: name RANGEs of these and say --yes to go on without them")
    return FOUND if losses else FINE


def _loss_tables(name: str, losses: list[Loss]) -> list[Group]:
    from deploy.console.table import table

    rows = [(loss.label, loss.kind, loss.batch_id or "-", loss.words) for loss in losses]
    return [table(f"What Kafka no longer holds of direct stream {name}", ("range", "what", "batch", "in words"), rows)]


@direct.command(
    short_help="Run completed batches again, as far as Kafka holds them.",
    epilog=example("forebay direct replay file:///var/lib/direct flights --broker b1:9092 --to-batch 12 --yes"),
)
@click.option(
    "--to-batch", metavar="BATCH", type=click.IntRange(min=1), help="This completed batch and all later ones."
)
@click.option(
    "--to-time", metavar="TIME", type=MomentType(), help="The same, from the first batch at or after TIME on."
)
@because_option
@changing_options
@of_checkpoint(kafka=True)
def replay(
    invocation: Invocation, checkpoint: Checkpoint, to_batch: int | None, to_time: int | None, because: str, yes: bool
) -> int:
    """Rewind the stream: show which completed batches would run again; with --yes, journal it. They run when the stream is
    started, marked as a replay, before any other batch.

    The stream must have stopped. Exits with 1 if Kafka no longer holds all of them.
    """
    from deploy.commands.replay import proposal_of, show
    from driver.decisions.replay import RewindTo

    if (to_batch is None) == (to_time is None):
        raise UsageError("a replay begins at a batch or at a time: name one of --to-batch and --to-time")
    if not yes:
        return show(invocation, proposal_of(*checkpoint.replay_plan(RewindTo(to_batch or 0, to_time or 0))))
    words = checkpoint.replay(to_batch or 0, to_time or 0, person(because))
    invocation.write({"done": True, "message": words})
    invocation.say(words)
    return FINE
