"""``forebay audit``: the proof that each offset lies in exactly one batch, or why it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from deploy.console.invocation import FINE, FOUND, Invocation, example, pass_invocation, shared_options
from forebay.settings.schema import Settings

if TYPE_CHECKING:
    from rich.console import Group

    from recovery.audit import AuditReport, Finding


def read(settings: Settings) -> AuditReport:
    """Audits the stream's journal read-only: fences nobody, and a driver may be at work."""
    from recovery import audit as driver_audit
    from wal.storage import open_storage

    return driver_audit.audit(open_storage(settings.driver.journal, settings.storage), settings.stream)


def tables(report: AuditReport) -> list[Group]:
    from deploy.console.table import table

    return [
        table(
            f"Audit of stream {report.stream}: {report.batches_completed} batches completed, "
            f"{report.batches_unfinished} unfinished, {report.records_completed} records completed",
            (
                "partition",
                "life",
                "from",
                "until",
                "completed",
                "batches",
                "records",
                "waiting",
                "gaps",
                "accepted losses",
                "duplicates",
                "missing",
            ),
            [
                (
                    f"{incarnation.topic}/{incarnation.partition}",
                    incarnation.number,
                    incarnation.start,
                    incarnation.until,
                    incarnation.completed_until,
                    incarnation.batches,
                    incarnation.records,
                    incarnation.waiting,
                    ", ".join(f"[{gap.from_offset}, {gap.until_offset}) {gap.cause}" for gap in incarnation.gaps)
                    or "none",
                    ", ".join(incarnation.accepted_losses) or "none",
                    incarnation.duplicates,
                    incarnation.missing,
                )
                for incarnation in report.incarnations
            ],
        ),
        table("Exceptions, each decided by somebody", ("what", "where", "by whom, and why"), exceptions(report)),
    ]


def exceptions(report: AuditReport) -> list[tuple[str, str, str]]:
    """What is as it is because it was decided, in words: what, where, who decided it and why."""
    unknown = "an older release did not keep it"
    told = []
    for incarnation in report.incarnations:
        where = f"{incarnation.topic}/{incarnation.partition}"
        if incarnation.number > 1:
            event = f"life {incarnation.number} began: from here on an offset means another record"
            told.append((event, f"{where} at {incarnation.start}", incarnation.cause))
        of = "" if incarnation.number == 1 else f" life {incarnation.number}"
        told += [
            ("gap: Kafka lost these offsets before they were taken in", f"{where}[{g.from_offset}, {g.until_offset}){of}",
             g.cause)
            for g in incarnation.gaps
        ]  # fmt: skip
    told += [
        (f"accepted loss: batch {loss.batch_id} ran without this range", loss.label, loss.cause or unknown)
        for loss in report.losses
    ]
    for rebuild in report.rebuilds:
        told.append((f"the journal was lost and rebuilt as lineage {rebuild.timeline}; {rebuild.attested} offsets are "
                     f"called finished by its snapshot copy alone", rebuild.copy, rebuild.cause))  # fmt: skip
        told += [
            (f"{f'batch {batch.batch_id}' if batch.batch_id else 'a batch of unknown id'} may have run before the rebuild, "
             "and was given to the job again", ", ".join(batch.ranges), rebuild.cause)
            for batch in rebuild.repeated
        ]  # fmt: skip
    if report.older_replays:
        told.append(
            (
                f"replays 1 to {report.older_replays}: completed batches ran again; the journal keeps no more of them",
                "",
                "",
            )
        )
    for replay in report.replays:
        how = "" if replay.completed_ms is not None else f" ({replay.completed} of {replay.batches} done)"
        what = f"replay {replay.replay}: completed batches ran again, each with the rows it had{how}"
        told.append((what, f"batches {replay.first_id} to {replay.last_id}", replay.cause))
        told += [
            (f"accepted loss: replay {replay.replay} ran without this range; the first run had it", loss.label,
             loss.cause or unknown)
            for loss in replay.losses
        ]  # fmt: skip
    return told


def sentence(finding: Finding) -> str:
    where = f"{finding.topic}/{finding.partition}[{finding.from_offset}, {finding.until_offset}) of life {finding.incarnation}"
    batches = ", ".join(map(str, finding.batches))
    if finding.kind == "replay":
        return f"the replay of batch {batches} has other blocks or another packing than the batch ran with"
    if finding.kind == "missing":
        return f"{where} is in no batch, does not wait and is no gap"
    if finding.kind == "duplicate":
        return f"{where} is held more than once, by batches {batches}"
    return f"{where} lies past the durable position, in batch {batches}"


@click.command(
    short_help="Prove that each offset lies in exactly one batch.",
    epilog=example("forebay audit", "forebay audit --json | jq .findings"),
)
@shared_options
@pass_invocation
def audit(invocation: Invocation) -> int:
    """Lay all batches, waiting blocks and gaps of each partition side by side: what is there twice, or not at all?

    Gaps, new lives, accepted losses, replays and rebuilds of the journal are listed with who decided them and why; they
    are no findings.

    Reads the journal alone: it fences nobody, and a driver may be at work. Exits with 1 on any finding.
    """
    return answer(invocation, read(invocation.settings()))


def answer(invocation: Invocation, report: AuditReport) -> int:
    """Shows the report; the exit code."""
    invocation.write(report, lambda: tables(report))
    for finding in report.findings:
        invocation.say(f"forebay: {sentence(finding)}")
    return FINE if report.clean else FOUND
