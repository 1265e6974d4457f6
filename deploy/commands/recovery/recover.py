"""``forebay recover``: find and repair losses, accept a loss, or replay completed batches."""

from __future__ import annotations

import click

from deploy.commands.recovery.accepted_loss import accept_loss, range_label
from deploy.commands.recovery.replay import replay
from deploy.commands.recovery.surroundings import Surroundings, agent_option, range_reader
from deploy.console.invocation import (
    FINDINGS,
    FINE,
    Invocation,
    because_option,
    changing_options,
    example,
    pass_invocation,
    shared_options,
)
from deploy.console.ownership import refuse_as_root
from deploy.console.parameters import MomentType, NumberType
from deploy.console.progress import spinner
from forebay.settings.schema import Settings


@click.command(
    epilog=example(
        "forebay recover", "forebay recover --apply", "forebay recover --accept-loss 12 'flights/0[1200, 1800)' --apply"
    ),
)
@click.option("--no-kafka", is_flag=True, help="Make the plan without Kafka.")
@click.option(
    "--agent",
    "agents",
    metavar="HOST=URL",
    multiple=True,
    help="URL of a host's agent to read copies from; repeatable.",
)
@click.option(
    "--accept-loss",
    "batch",
    metavar="BATCH",
    type=NumberType(1),
    help="Id or number of a batch to continue without the RANGEs.",
)
@click.argument("ranges", metavar="[RANGE]...", nargs=-1)
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
@click.option(
    "--lost-wal",
    is_flag=True,
    help="The WAL was lost for good, and wal.url is a new, empty folder.",
)
@because_option
@changing_options
@shared_options
@pass_invocation
def recover(
    invocation: Invocation,
    no_kafka: bool,
    agents: tuple[str, ...],
    lost_wal: bool,
    batch: int | None,
    ranges: tuple[str, ...],
    to_batch: int | None,
    to_time: int | None,
    because: str,
    yes: bool,
) -> int:
    """Compare journal, WAL, history, local copies and Kafka, and print a recovery plan.

    The plan lists what is torn, damaged, orphaned (in the WAL, but not in the journal) or missing, with exact ranges, and the
    copy that can replace it. Without --apply nothing is changed, no process is fenced, and the driver may be running. With
    --apply, stop the driver first: the command writes lost blocks again and sets damaged segments aside. If it is killed,
    repeat it. Exits with 1 if anything still needs --apply or a decision.

    With --accept-loss BATCH: allow the batch to continue without the RANGEs, which no tier can read. Use it only when the
    plan shows no copy. The journal and every audit keep the loss.

    With --to-batch or --to-time: show the completed batches that would run again. With --apply the driver runs them from the
    WAL, marked as a replay, before any other batch. Use it after a fix of the job. Exits with 1 if the WAL no longer holds
    all of them.

    If the WAL has no trace of the stream, it is probably not mounted, and the command refuses to go on. If it was lost for good,
    add --lost-wal: the plan names what copies and Kafka still hold of it. With --apply this is written to the new WAL.

    For a stream without a WAL the plan lists the damaged copies that this host's agent set aside. With --apply the command
    restores those whose records the journal proves; the driver may be running.
    """
    settings = invocation.settings()
    if [batch, to_batch, to_time].count(None) < 2:
        raise click.UsageError("--accept-loss, --to-batch and --to-time exclude each other")
    if batch is not None:
        return accept_loss(invocation, settings, batch, tuple(map(range_label, ranges)), because, yes)
    if (to_batch is not None or to_time is not None) and not ranges:
        return replay(invocation, settings, to_batch or 0, to_time or 0, because, yes)
    if ranges:
        raise click.UsageError("RANGE is only allowed with --accept-loss BATCH")
    if yes:
        written = (settings.driver.journal, settings.wal.url) if settings.has_wal else (settings.agent.blocks,)
        refuse_as_root(settings.stream, *written)
    if not settings.has_wal:
        return recover_copies(invocation, settings, yes)
    from deploy.commands.recovery.execution import apply_plan, make_plan
    from deploy.commands.recovery.tables import tables
    from recovery.plan import sentences
    from wal.storage import open_storage

    surroundings = Surroundings(settings, kafka=not no_kafka, agents=[agent_option(text) for text in agents])
    journal = open_storage(settings.driver.journal, settings.storage)
    wal = open_storage(settings.wal.url, settings.storage)
    if yes:
        plan = apply_plan(settings, journal, wal, surroundings, range_reader(settings), lost_wal=lost_wal)
    else:
        plan = make_plan(settings, journal, wal, surroundings, range_reader(settings), lost_wal=lost_wal)
    invocation.write(plan, lambda: tables(plan))
    for sentence in sentences(plan):
        invocation.say(f"forebay: {sentence}")
    return FINDINGS if plan.open else FINE


def recover_copies(invocation: Invocation, settings: Settings, yes: bool) -> int:
    """Show this host's damaged copies, for a stream without a WAL; with ``yes``, restore them. Return the exit code."""
    from deploy.commands.recovery.tables import tables_of_copies
    from recovery import damaged_copies
    from wal.storage import open_storage

    execute = damaged_copies.repair_copies if yes else damaged_copies.plan_copies
    with spinner("reading the journal and copies"):
        plan = execute(settings, open_storage(settings.driver.journal, settings.storage))
    invocation.write(plan, lambda: tables_of_copies(plan))
    for sentence in damaged_copies.sentences(plan):
        invocation.say(f"forebay: {sentence}")
    return FINDINGS if plan.open else FINE
