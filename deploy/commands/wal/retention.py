"""``forebay wal retention``: which segments of the WAL the next clean-up deletes, which it keeps, and why."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import click
import msgspec

from deploy.console.invocation import FINE, Invocation, example, pass_invocation, shared_options
from deploy.console.progress import spinner
from forebay.model.errors import StoreError, UsageError

if TYPE_CHECKING:
    from rich.console import Group

    from driver.journal.state import State
    from wal.decisions.retention import RetentionLimits
    from wal.storage import Storage

#: maximum number of reasons that a row names
REASONS_SHOWN = 3


class SegmentRetention(msgspec.Struct, frozen=True):
    """Whether the next clean-up deletes a segment (``goes``).

    ``blocks``: number of its blocks that the journal names. ``released_ms``: time when the last of them was released; 0 if
    one is still needed, or the journal names none.
    """

    path: str
    bytes: int
    blocks: int
    released_ms: int
    goes: bool
    reason: str


class RetentionReport(msgspec.Struct, frozen=True):
    """What the next clean-up would delete and keep; sizes in bytes.

    ``named_bytes`` and ``named_blocks``: segments and blocks that the journal names, which ``wal.retention_size`` and
    ``wal.retention_blocks`` limit. ``free_bytes``: free space of the WAL's store, None if it has no such limit.
    ``keep_free_bytes``: ``wal.retention_free``.
    """

    stream: str
    retention_ms: int
    retention_bytes: int
    retention_blocks: int
    keep_free_bytes: int
    free_bytes: int | None
    named_bytes: int
    named_blocks: int
    kept_bytes: int
    going_bytes: int
    segments: tuple[SegmentRetention, ...]


def judge_segments(
    journal_storage: Storage, wal_storage: Storage, stream: str, limits: RetentionLimits, now_ms: int
) -> RetentionReport:
    """Return what a clean-up at ``now_ms`` would do. Only reads the journal and the headers of frames; fences no process."""
    from driver.journal.log import reading as journal
    from wal.segments.layout import parse_block

    state = journal.read_beside_a_writer(journal_storage, stream).state
    if state is None:
        raise UsageError(
            f"{journal_storage.url} holds no journal of stream {stream!r}: check stream and driver.journal"
        )
    free_bytes = wal_storage.free_bytes()
    limits = limits.within(free_bytes, state.index.bytes)
    listed = [path for path in wal_storage.list(f"{stream}/blocks") if parse_block(path) is not None]
    newest: dict[tuple[str, int], int] = {}
    for path in listed:
        place = parse_block(path)
        assert place is not None
        writer = (place.receiver, place.epoch)
        newest[writer] = max(newest.get(writer, -1), place.sequence)
    due = {segment.path: why.value for segment, why in state.index.due(limits, now_ms)}
    segments = []
    for path in sorted({*listed, *state.index.segments}):
        place = parse_block(path)
        share = state.index.segments.get(path)
        goes, reason = False, "missing from the WAL: see `forebay recover`"
        size = share.bytes if share is not None else 0
        if path in listed and place is not None:
            try:
                size = wal_storage.size(path)
                sealed = place.sequence < newest[place.receiver, place.epoch]
                goes, reason = _judged(state, wal_storage, path, sealed, limits, now_ms, due.get(path))
            except FileNotFoundError:
                goes, reason = True, "deleted since this report began"
            except StoreError as error:  # of this segment: the clean-up keeps it, and judges the others
                goes, reason = False, str(error)
        elif path in state.cleaning_segments:
            goes, reason = True, "being deleted"
        released_ms = share.released_ms if share is not None and not share.needed else 0
        segments.append(
            SegmentRetention(path, size, len(share.blocks) if share is not None else 0, released_ms, goes, reason)
        )
    return RetentionReport(
        stream=stream,
        retention_ms=limits.retention_ms,
        retention_bytes=int(limits.retention_bytes),
        retention_blocks=limits.retention_blocks,
        keep_free_bytes=limits.free_bytes,
        free_bytes=free_bytes,
        named_bytes=state.index.bytes,
        named_blocks=state.index.blocks,
        kept_bytes=sum(s.bytes for s in segments if not s.goes),
        going_bytes=sum(s.bytes for s in segments if s.goes),
        segments=tuple(segments),
    )


def _judged(
    state: State, storage: Storage, path: str, sealed: bool, limits: RetentionLimits, now_ms: int, due: str | None
) -> tuple[bool, str]:
    """Return whether a clean-up deletes the segment, and why. Like the clean-up, scans only segments that may be deleted."""
    from driver.decisions.clean_up import CleanSegment, judge
    from wal.decisions.retention import segment_facts
    from wal.segments.layout import parse_block
    from wal.segments.scan import scan_segment

    place = parse_block(path)
    assert place is not None
    if path in state.cleaning_segments:
        return True, "being deleted"
    if path in state.index.segments and due is None:
        return False, _held(state, path) or "within wal.retention and its limits"
    facts = segment_facts(path, scan_segment(storage, path, payloads=False), sealed=sealed, fenced=False)
    judgement = judge(state, CleanSegment(facts, place.receiver, place.epoch, now_ms), limits)
    if judgement.deletable:
        return True, due or "the journal names no block of it and accepts none any more"
    more = len(judgement.reasons) - REASONS_SHOWN
    reason = "; ".join(judgement.reasons[:REASONS_SHOWN])
    return False, f"{reason}; and {more} more reasons" if more > 0 else reason


def _held(state: State, path: str) -> str:
    """Return why blocks of the segment are still needed; "" if none is."""
    holders: Counter[str] = Counter()
    for block_id in state.index.segments[path].blocks:
        batch_id = state.batch_of.get(block_id)
        if block_id in state.waiting:
            holders["waiting for a batch"] += 1
        elif batch_id is not None:
            batch = state.batches[batch_id]
            done = "is not in the history yet" if batch.completed_ms is not None else "is not completed"
            holders[f"of batch {batch_id}, which {done}"] += 1
        elif state.index.unread(state.blocks[block_id]):
            holders["not yet read by a cursor"] += 1
    shown = [f"{count} blocks {reason}" for reason, count in holders.most_common(REASONS_SHOWN)]
    return "; ".join(shown) + ("; and others" if len(holders) > REASONS_SHOWN else "")


def tables(report: RetentionReport) -> list[Group]:
    """Return the table of a report."""
    from rich.filesize import decimal

    from deploy.console.table import table

    limit = decimal(report.retention_bytes) if report.retention_bytes else "any size"
    count = f"{report.retention_blocks:,} blocks" if report.retention_blocks else "any number of blocks"
    free = "" if report.free_bytes is None else f" with {decimal(report.free_bytes)} of its store free"
    return [
        table(
            f"Retention of stream {report.stream}: {report.retention_ms / 1000:g} s, {limit}, {count}; the journal names "
            f"{decimal(report.named_bytes)} in {report.named_blocks:,} blocks{free}; "
            f"{decimal(report.going_bytes)} would be deleted, {decimal(report.kept_bytes)} kept",
            ("segment", "size", "blocks", "goes", "reason"),
            [(s.path, decimal(s.bytes), s.blocks, "yes" if s.goes else "no", s.reason) for s in report.segments],
        )
    ]


@click.command(
    "retention",
    epilog=example("forebay wal retention --dry-run", "forebay wal retention --dry-run --json | jq .going_bytes"),
)
@click.option("--dry-run", "dry_run", is_flag=True, help="Only show [default; only the driver deletes].")
@shared_options
@pass_invocation
def retention(invocation: Invocation, dry_run: bool) -> int:
    """Show for each segment of the WAL its size, whether the next clean-up deletes it, and why.

    A segment is deleted when no block in it is needed, by age (wal.retention) or by one of the limits: size, number of blocks,
    free space. Changes nothing, because only the driver deletes; the driver may be running.
    """
    from driver.decisions.clean_up import retention_limits
    from wal.storage import open_storage

    settings = invocation.settings()
    with spinner("reading the journal"):
        report = judge_segments(
            open_storage(settings.driver.journal, settings.storage),
            open_storage(settings.wal.url, settings.storage),
            settings.stream,
            retention_limits(settings),
            int(time.time() * 1000),
        )
    invocation.write(report, lambda: tables(report))
    return FINE
