"""``forebay wal verify``: every checksum of every segment, and what the journal says must be there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from deploy.console.invocation import FINE, FOUND, Invocation, example, pass_invocation, shared_options
from deploy.console.progress import progress_bar
from forebay.model.errors import CorruptionError, NewerVersionError, UsageError
from recovery.examination import (
    NEEDS_A_PERSON,
    Examination,
    MissingSegments,
    Place,
    block_segments,
    described,
    examine,
    examine_beside_a_driver,
    total_bytes,
)
from wal.decisions.recovery import FrameCondition
from wal.storage import Storage, open_storage

if TYPE_CHECKING:
    from rich.console import Group


class Verification(msgspec.Struct, frozen=True):
    """``journal``: why the WAL was not laid beside the journal, "" if it was. ``counts``: decision → places; ``findings``: what
    is not as it was written or accepted; ``holes``: see ``recovery.examination.MissingSegments``."""

    stream: str
    journal: str
    segments: int
    bytes: int
    frames: int
    counts: dict[str, int]
    findings: tuple[Place, ...]
    holes: tuple[MissingSegments, ...]


def verified(storage: Storage, stream: str, journal_storage: Storage | None) -> Verification:
    """Verifies the WAL of ``stream`` against the journal in ``journal_storage``, or by itself where that is None or can't be
    read. Without the journal a torn tail may have been accepted, and a hole may not have been cleaned up: both are findings
    then. Raises UsageError if there is neither a journal nor a segment, StoreError."""
    paths = block_segments(storage, stream)
    why = "only the WAL was to be looked at"
    with progress_bar("verify", total_bytes(storage, stream)) as progress:
        if journal_storage is not None:
            try:
                return _summed_up(examine_beside_a_driver(journal_storage, storage, stream, progress), "")
            except (UsageError, CorruptionError, NewerVersionError) as error:
                if not paths:
                    raise
                why = f"the journal can't be read: {error}"
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
        segments=sum(segment.bytes > 0 for segment in examined.segments),
        bytes=sum(segment.bytes for segment in examined.segments),
        frames=sum(segment.frames for segment in examined.segments),
        counts=examined.counts,
        findings=findings,
        holes=examined.missing_segments,
    )


def tables(found: Verification) -> list[Group]:
    from deploy.console.table import bytes_text, table

    against = "laid beside the journal" if not found.journal else found.journal
    made = [
        table(
            f"Stream {found.stream}: {found.segments} segments, {found.frames} frames, "
            f"{bytes_text(found.bytes)}; {against}",
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
                    (p.path, p.offset, p.until, p.decision, p.block_id or "-", "\n".join(p.ranges) or "-", p.words)
                    for p in found.findings
                ],
            )
        )
    if found.holes:
        made.append(
            table(
                "Segments that are not there, of which the journal needs nothing",
                ("receiver", "epoch", "from", "to"),
                [(h.receiver, f"{h.epoch:x}", h.first, h.last) for h in found.holes],
            )
        )
    return made


@click.command(
    "verify",
    short_help="Verify every checksum, and what must be there.",
    epilog=example("forebay wal verify", "forebay wal verify --wal-only --json"),
)
@click.option("--wal-only", is_flag=True, help="Don't read the journal: what is absent can't be told then.")
@shared_options
@pass_invocation
def verify(invocation: Invocation, wal_only: bool) -> int:
    """Read the whole WAL, verify every checksum, and lay it beside the journal: what is damaged, torn, swapped or absent.

    Changes nothing, fences nobody, and may be run beside a driver at work. Exits with 1 on any finding; `forebay recover`
    says what can be done about it.
    """
    settings = invocation.settings()
    journal_storage = None if wal_only else open_storage(settings.driver.journal, settings.storage)
    found = verified(open_storage(settings.wal.url, settings.storage), settings.stream, journal_storage)
    invocation.write(found, lambda: tables(found))
    said = sentences(found, wal_only)
    for words in said:
        invocation.say(f"forebay: {words}")
    return FOUND if said else FINE


def sentences(found: Verification, wal_only: bool) -> list[str]:
    said = [] if wal_only or not found.journal else [f"{found.journal}; the WAL was verified by itself"]
    for p in found.findings:
        ranges = f", which held {', '.join(p.ranges)}" if p.ranges else ""
        said.append(f"{p.path}, bytes {p.offset} to {p.until}{ranges}: {p.decision}: {p.words}")
    if found.journal:
        said += [
            f"receiver {h.receiver}, epoch {h.epoch:x}: segments {h.first} to {h.last} are not there"
            for h in found.holes
        ]
    return said
