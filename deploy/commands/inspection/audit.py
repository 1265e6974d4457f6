"""``forebay audit``: the proof that each offset is in exactly one batch, or the reason why it is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from deploy.console.invocation import FINDINGS, FINE, Invocation, example, pass_invocation, shared_options
from deploy.console.progress import spinner
from forebay.settings.schema import Settings

if TYPE_CHECKING:
    from rich.console import Group

    from recovery.audit import AuditReport, Finding


def read(settings: Settings) -> AuditReport:
    """Audit the stream's journal. Only reads, fences no process, and is safe while a driver is running."""
    from recovery import audit as driver_audit
    from wal.storage import open_storage

    with spinner("reading the journal"):
        return driver_audit.audit(open_storage(settings.driver.journal, settings.storage), settings.stream)


def tables(report: AuditReport) -> list[Group]:
    from deploy.console.table import table

    return [
        table(
            f"Audit of stream {report.stream}: {report.batches_completed} batches completed, "
            f"{report.batches_unfinished} unfinished, {report.records_completed} records completed",
            (
                "partition",
                "incarnation",
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
        table("Decided exceptions", ("what", "where", "decided by, and why"), exceptions(report)),
    ]


def exceptions(report: AuditReport) -> list[tuple[str, str, str]]:
    """Return rows on accepted losses, gaps and other decisions: what happened, where, who decided it and why."""
    unknown = "not recorded: decided under an older release"
    listed = []
    for incarnation in report.incarnations:
        where = f"{incarnation.topic}/{incarnation.partition}"
        if incarnation.number > 1:
            event = f"incarnation {incarnation.number} began: from here on, offsets name different records"
            listed.append((event, f"{where} at {incarnation.start}", incarnation.cause))
        label = "" if incarnation.number == 1 else f" life {incarnation.number}"
        listed += [
            ("gap: Kafka lost these offsets before they were taken in", f"{where}[{g.from_offset}, {g.until_offset}){label}",
             g.cause)
            for g in incarnation.gaps
        ]  # fmt: skip
    listed += [
        (
            f"accepted loss: batch {loss.batch_id} was skipped: no further output got this range"
            if loss.skipped
            else f"accepted loss: batch {loss.batch_id} ran without this range",
            loss.label,
            loss.cause or unknown,
        )
        for loss in report.losses
    ]
    for rebuild in report.rebuilds:
        listed.append((f"the journal was lost and rebuilt as timeline {rebuild.timeline}; only its snapshot copy says that "
                     f"{rebuild.attested} offsets are completed", rebuild.copy, rebuild.cause))  # fmt: skip
        listed += [
            (f"{f'batch {batch.batch_id}' if batch.batch_id else 'a batch of unknown id'} ran again after the rebuild, and may "
             "have run before it", ", ".join(batch.ranges), rebuild.cause)
            for batch in rebuild.repeated
        ]  # fmt: skip
    if report.older_replays:
        listed.append(
            (
                f"replays 1 to {report.older_replays}: completed batches ran again; the journal no longer has the details",
                "",
                "",
            )
        )
    for replay in report.replays:
        how = "" if replay.completed_ms is not None else f" ({replay.completed} of {replay.batches} done)"
        what = f"replay {replay.replay}: completed batches ran again, each with the same rows{how}"
        listed.append((what, f"batches {replay.first_id} to {replay.last_id}", replay.cause))
        listed += [
            (f"accepted loss: replay {replay.replay} ran without this range, which the first run had", loss.label,
             loss.cause or unknown)
            for loss in replay.losses
        ]  # fmt: skip
    return listed


def sentence(finding: Finding) -> str:
    """Return a finding as one sentence."""
    where = (
        f"{finding.topic}/{finding.partition}[{finding.from_offset}, {finding.until_offset}) life {finding.incarnation}"
    )
    batches = ", ".join(map(str, finding.batches))
    if finding.kind == "replay":
        return f"the replay of batch {batches} has different blocks, or a different packing, than the batch ran with"
    if finding.kind == "missing":
        return f"{where} is in no batch, is not waiting, and is not a gap"
    if finding.kind == "duplicate":
        return f"{where} is in more than one place: batches {batches}"
    return f"{where} is beyond the durable position, in batch {batches}"


@click.command(
    epilog=example("forebay audit", "forebay audit --json | jq .findings"),
)
@shared_options
@pass_invocation
def audit(invocation: Invocation) -> int:
    """Prove that each offset is in exactly one batch, waits for one, or is in a known gap. Exit with 1 on any finding.

    A finding is a range that is in several batches, in none, or in a replay that differs from the first run. Gaps, new
    incarnations, accepted losses, replays and rebuilds of the journal are not findings; they are listed with the person who
    decided them and the reason.

    Only reads the journal. Safe while the driver is running.
    """
    return answer(invocation, read(invocation.settings()))


def answer(invocation: Invocation, report: AuditReport) -> int:
    """Print the report, and return the exit code."""
    invocation.write(report, lambda: tables(report))
    for finding in report.findings:
        invocation.say(f"forebay: {sentence(finding)}")
    return FINE if report.clean else FINDINGS
