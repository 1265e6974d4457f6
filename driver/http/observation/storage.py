"""The WAL and the journal as observers see them."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from driver.decisions.clean_up import retention_limits
from driver.http.observation.snapshot import Snapshot
from driver.journal.files import epoch_folder
from driver.journal.leadership.lease import stored_lease
from driver.journal.log.writing import Journal
from driver.journal.state import State
from driver.tracker.requests import Read
from forebay import messages as m
from forebay.model.identifiers import timeline_of
from forebay.settings.redaction import redacted
from forebay.settings.schema import Settings
from wal.segments import layout
from wal.storage import Storage

#: maximum number of segments in an answer
SEGMENTS_MAX = 100


@dataclass(frozen=True, slots=True)
class WalState:
    """What the decision loop reads of the WAL for an answer. ``free_bytes``: of segments that nothing needs."""

    free_segments: int
    free_bytes: int
    held_for_cursors: int
    oldest: tuple[m.WalSegment, ...]
    oldest_ms: int | None


@dataclass(frozen=True, slots=True)
class ReadWal(Read[WalState]):
    """Reads the segments of the WAL. There are far fewer segments than blocks."""

    def read(self, state: State) -> WalState:
        index = state.index
        segments = index.segments
        oldest = [
            m.WalSegment(
                path=path,
                bytes=segments[path].bytes,
                blocks=len(segments[path].blocks),
                held=segments[path].held,
                unread=segments[path].unread,
                released_ms=released_ms,
            )
            for released_ms, path in itertools.islice(index.free, SEGMENTS_MAX)
        ]
        first = next(iter(state.blocks.values()), None)
        return WalState(
            free_segments=len(index.free),
            free_bytes=sum(segments[path].bytes for _, path in index.free),
            held_for_cursors=held_for_cursors(state),
            oldest=tuple(oldest),
            oldest_ms=first.meta.created_ms if first is not None else None,
        )


@dataclass(frozen=True, slots=True)
class ReadHeldForCursors(Read[int]):
    """Reads the bytes of the segments that are kept only for cursors."""

    def read(self, state: State) -> int:
        return held_for_cursors(state)


def held_for_cursors(state: State) -> int:
    """Return the bytes of the segments that are kept only for cursors."""
    if not state.cursors:
        return 0
    return sum(segment.bytes for segment in state.index.segments.values() if segment.unread and not segment.held)


def wal_answer(settings: Settings, snapshot: Snapshot, found: WalState) -> m.WalAnswer:
    """Return the answer from ``snapshot`` and what :class:`ReadWal` found."""
    limits = retention_limits(settings)
    unsynced = sum(last.heartbeat.buffered_bytes for last in snapshot.receiver_heartbeats.values())
    totals = snapshot.totals
    return m.WalAnswer(
        url=redacted(settings.wal.url) if settings.has_wal else "",
        segments=totals.wal_segments,
        blocks=totals.wal_blocks,
        bytes=totals.wal_bytes,
        free_segments=found.free_segments,
        free_bytes=found.free_bytes,
        held_for_cursors=found.held_for_cursors,
        unsynced_bytes=unsynced,
        oldest_ms=found.oldest_ms,
        retention_seconds=limits.retention_ms / 1000,
        retention_bytes=limits.retention_bytes,
        oldest=found.oldest,
    )


@dataclass(frozen=True, slots=True)
class JournalState:
    """What the decision loop reads of the journal for an answer."""

    timeline: int
    events: int
    rebuilds: int


@dataclass(frozen=True, slots=True)
class ReadJournal(Read[JournalState]):
    """Reads how far the journal is."""

    def read(self, state: State) -> JournalState:
        return JournalState(state.timeline, state.events, len(state.rebuilds))


def journal_answer(
    settings: Settings, storage: Storage, journal: Journal, found: JournalState, now_ms: int
) -> m.JournalAnswer:
    """Return the answer. Lists the folder of the epoch in ``storage``, so it must not be called in the decision loop. Raises
    StoreError."""
    epoch = journal.epoch
    snapshot_events, snapshot_age_seconds = journal.newest_snapshot
    paths = [path for path in storage.list(epoch_folder(settings.stream, epoch)) if layout.parse_journal(path)]
    lease = stored_lease(storage, settings.stream)
    return m.JournalAnswer(
        url=redacted(settings.driver.journal),
        timeline=timeline_of(epoch),
        driver_epoch=epoch,
        segments=len(paths),
        # on a store of whole objects, each size is a request that costs
        bytes=sum(storage.size(path) for path in paths) if storage.appendable else None,
        events=found.events,
        snapshot_events=snapshot_events,
        snapshot_ms=None if snapshot_age_seconds is None else now_ms - round(snapshot_age_seconds * 1000),
        holder=lease.text if lease is not None else "",
        lease_seconds=lease.duration_seconds if lease is not None else None,
        free_bytes=storage.free_bytes(),
        rebuilds=found.rebuilds,
    )
