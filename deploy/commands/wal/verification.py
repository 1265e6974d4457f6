"""``forebay wal verify``: all checksums of the WAL, and its comparison with the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from deploy.console.invocation import FINDINGS, FINE, Invocation, example, pass_invocation, shared_options
from deploy.console.progress import progress_bar
from forebay.model.errors import CorruptionError, NewerVersionError, UsageError
from recovery.examination import (
    NEEDS_A_PERSON,
    Examination,
    MissingSegments,
    Place,
    described,
    examine,
    examine_beside_a_driver,
    listed_segments,
    total_bytes,
)
from wal.decisions.recovery import FrameCondition
from wal.storage import Storage, open_storage

if TYPE_CHECKING:
    from rich.console import Group


class Verification(msgspec.Struct, frozen=True, rename={"missing_segments": "holes"}):
    """The result of a verification.

    ``journal``: why the WAL was not compared with the journal, "" if it was. ``counts``: decision → number of places.
    ``findings``: places that differ from what was written or accepted. ``missing_segments``: those that the journal does
    not need.
    """

    stream: str
    journal: str
    segments: int
    bytes: int
    frames: int
    counts: dict[str, int]
    findings: tuple[Place, ...]
    missing_segments: tuple[MissingSegments, ...]


def verified(storage: Storage, stream: str, journal_storage: Storage | None) -> Verification:
    """Verify the WAL of ``stream`` against the journal, or by itself if ``journal_storage`` is None or can't be read.

    Without the journal, torn tails and missing segments are findings, because the journal may name them. Raises UsageError
    if there is neither a journal nor a segment, StoreError.
    """
    paths = listed_segments(storage, stream)
    why = "only the WAL was verified, because of --wal-only"
    with progress_bar("verify", total_bytes(storage, stream)) as progress:
        if journal_storage is not None:
            try:
                return _summed_up(examine_beside_a_driver(journal_storage, storage, stream, progress), "")
            except (UsageError, CorruptionError, NewerVersionError) as error:
                if not paths:
                    raise
                why = f"cannot read the journal: {error}"
        return _summed_up(examine(None, storage, stream, progress=progress), why)


def _summed_up(examined: Examination, why: str) -> Verification:
    findings = tuple(
        described(verdict, examined.state)
        for verdict in examined.verdicts
        if verdict.decision in NEEDS_A_PERSON
        or verdict.condition is FrameCondition.DAMAGED
        or (verdict.condition is FrameCondition.TORN and bool(why))
    )
    return Verification(
        stream=examined.stream,
        journal=why,
        segments=sum(not segment.holds_nothing for segment in examined.segments),
        bytes=sum(segment.bytes for segment in examined.segments),
        frames=sum(segment.frames for segment in examined.segments),
        counts=examined.counts,
        findings=findings,
        missing_segments=examined.missing_segments,
    )


def tables(found: Verification) -> list[Group]:
    """Return the tables of a verification."""
    from rich.filesize import decimal

    from deploy.console.table import table

    against = "compared with the journal" if not found.journal else found.journal
    made = [
        table(
            f"Stream {found.stream}: {found.segments} segments, {found.frames} frames, "
            f"{decimal(found.bytes)}; {against}",
            ("decision", "places"),
            sorted(found.counts.items()),
        )
    ]
    if found.findings:
        made.append(
            table(
                "Findings",
                ("segment", "offset", "until", "decision", "block", "ranges", "why"),
                [
                    (p.path, p.offset, p.until, p.decision, p.block_id or "-", "\n".join(p.ranges) or "-", p.reason)
                    for p in found.findings
                ],
            )
        )
    if found.missing_segments:
        made.append(
            table(
                "Missing segments that the journal does not need",
                ("receiver", "epoch", "from", "to"),
                [(h.receiver, f"{h.epoch:x}", h.first, h.last) for h in found.missing_segments],
            )
        )
    return made


@click.command(
    "verify",
    epilog=example("forebay wal verify", "forebay wal verify --wal-only --json"),
)
@click.option("--wal-only", is_flag=True, help="Verify the WAL without the journal; missing blocks are not detected.")
@shared_options
@pass_invocation
def verify(invocation: Invocation, wal_only: bool) -> int:
    """Read the whole WAL, verify all checksums, and report blocks that are damaged, torn, swapped, missing or unreadable.

    Changes nothing and fences no process; the driver may be running. Exits with 1 on any finding. For the repair of a
    finding, run `forebay recover`.
    """
    settings = invocation.settings()
    journal_storage = None if wal_only else open_storage(settings.driver.journal, settings.storage)
    found = verified(open_storage(settings.wal.url, settings.storage), settings.stream, journal_storage)
    invocation.write(found, lambda: tables(found))
    findings = sentences(found, wal_only)
    for sentence in findings:
        invocation.say(f"forebay: {sentence}")
    return FINDINGS if findings else FINE


def sentences(found: Verification, wal_only: bool) -> list[str]:
    """Return one sentence for each finding."""
    findings = [] if wal_only or not found.journal else [f"{found.journal}; the WAL was verified by itself"]
    for p in found.findings:
        ranges = f" ({', '.join(p.ranges)})" if p.ranges else ""
        findings.append(f"{p.path}, bytes {p.offset} to {p.until}{ranges}: {p.decision}: {p.reason}")
    if found.journal:
        findings += [
            f"receiver {h.receiver}, epoch {h.epoch:x}: segments {h.first} to {h.last} are missing"
            for h in found.missing_segments
        ]
    return findings
