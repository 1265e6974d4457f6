"""``forebay wal retention``: which segments of the WAL would go now, which stay, and why."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import click
import msgspec

from deploy.console.invocation import FINE, Invocation, example, pass_invocation, shared_options
from forebay.model.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Group

    from driver.journal.state import State
    from wal.decisions.retention import Limits
    from wal.storage import Storage

REASONS_SHOWN = 3


class KeptOrGoing(msgspec.Struct, frozen=True):
    """One segment. ``blocks`` and ``released_ms``: by the journal; 0 if it names none, or holds one of them."""

    path: str
    bytes: int
    blocks: int
    released_ms: int
    goes: bool
    reason: str


class RetentionReport(msgspec.Struct, frozen=True):
    """Sizes in bytes. ``named_bytes`` and ``named_blocks`` are what ``wal.retention_size`` and ``wal.retention_blocks`` are held
    against: what the journal names. ``free_bytes``: of the WAL's store, None if it has no such limit; ``keep_free_bytes``:
    ``wal.retention_free``."""

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
    segments: tuple[KeptOrGoing, ...]


def look(journal_storage: Storage, wal_storage: Storage, stream: str, limits: Limits, now_ms: int) -> RetentionReport:
    """What a round of clean-up at ``now_ms`` would do. Reads the journal and the headers of frames; fences nobody."""
    from driver.journal import log as journal
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
        goes, reason = False, "the WAL does not hold it: look with `forebay recover`"
        size = share.bytes if share is not None else 0
        if path in listed and place is not None:
            try:
                size = wal_storage.size(path)
                sealed = place.sequence < newest[place.receiver, place.epoch]
                goes, reason = _judged(state, wal_storage, path, sealed, limits, now_ms, due.get(path))
            except FileNotFoundError:
                goes, reason = True, "it is gone since this report began"
        elif path in state.cleaning_segments:
            goes, reason = True, "its deletion is under way"
        released_ms = share.released_ms if share is not None and not share.needed else 0
        segments.append(
            KeptOrGoing(path, size, len(share.blocks) if share is not None else 0, released_ms, goes, reason)
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
    state: State, storage: Storage, path: str, sealed: bool, limits: Limits, now_ms: int, due: str | None
) -> tuple[bool, str]:
    """Whether it goes, and why. Only what might go is scanned, as the clean-up does."""
    from driver.decisions.clean_up import CleanSegment, judge
    from wal.decisions.retention import segment_facts
    from wal.segments.layout import parse_block
    from wal.segments.scan import scan_segment

    place = parse_block(path)
    assert place is not None
    if path in state.cleaning_segments:
        return True, "its deletion is under way"
    if path in state.index.segments and due is None:
        return False, _held(state, path) or "within wal.retention and its limits"
    facts = segment_facts(path, scan_segment(storage, path, payloads=False), sealed=sealed, fenced=False)
    judgement = judge(state, CleanSegment(facts, place.receiver, place.epoch, now_ms), limits)
    if judgement.deletable:
        return True, due or "the journal names no block of it, and none can be accepted any more"
    more = len(judgement.reasons) - REASONS_SHOWN
    words = "; ".join(judgement.reasons[:REASONS_SHOWN])
    return False, f"{words}; and {more} more reasons" if more > 0 else words


def _held(state: State, path: str) -> str:
    """Who holds blocks of it, in words; "" if nobody does."""
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
            holders["that a cursor has yet to read"] += 1
    shown = [f"{count} blocks {words}" for words, count in holders.most_common(REASONS_SHOWN)]
    return "; ".join(shown) + ("; and others" if len(holders) > REASONS_SHOWN else "")


def tables(report: RetentionReport) -> list[Group]:
    from deploy.console.table import bytes_text, table

    limit = bytes_text(report.retention_bytes) if report.retention_bytes else "any size"
    count = f"{report.retention_blocks:,} blocks" if report.retention_blocks else "any number of blocks"
    free = "" if report.free_bytes is None else f" with {bytes_text(report.free_bytes)} of its store free"
    return [
        table(
            f"Retention of stream {report.stream}: {report.retention_ms / 1000:g} s, {limit}, {count}; the journal names "
            f"{bytes_text(report.named_bytes)} in {report.named_blocks:,} blocks{free}; "
            f"{bytes_text(report.going_bytes)} would go, {bytes_text(report.kept_bytes)} stay",
            ("segment", "size", "blocks", "goes", "reason"),
            [(s.path, bytes_text(s.bytes), s.blocks, "yes" if s.goes else "no", s.reason) for s in report.segments],
        )
    ]


@click.command(
    "retention",
    short_help="Show which segments would go now, and why.",
    epilog=example("forebay wal retention --dry-run", "forebay wal retention --dry-run --json | jq .going_bytes"),
)
@click.option("--dry-run", "dry_run", is_flag=True, help="Only look [the driver alone deletes].")
@shared_options
@pass_invocation
def retention(invocation: Invocation, dry_run: bool) -> int:
    """Show each segment of the WAL, its size, and whether the next clean-up deletes it: by need, then time, then size,
    number of blocks and free space.

    Reads the journal and the WAL and changes nothing; a driver may be at work. It is the driver that deletes.
    """
    from driver.decisions.clean_up import retention_limits
    from wal.storage import open_storage

    settings = invocation.settings()
    report = look(
        open_storage(settings.driver.journal, settings.storage),
        open_storage(settings.wal.url, settings.storage),
        settings.stream,
        retention_limits(settings),
        int(time.time() * 1000),
    )
    invocation.write(report, lambda: tables(report))
    return FINE
