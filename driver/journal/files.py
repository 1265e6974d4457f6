"""The journal's files: their names, and the metadata of the frames.

The numbers in the names have no gaps. So a reader does not rely on a listing alone: it looks up by name any file that the
listing does not show yet.
"""

from __future__ import annotations

import re

import msgspec

from forebay.model.identifiers import numbered, timeline_of
from wal.segments import layout
from wal.storage import Storage


class EventsMeta(msgspec.Struct, frozen=True):
    """Metadata of an EVENTS frame: the number of its first event, the number of events, and the journal epoch."""

    first: int
    count: int
    epoch: int


class SnapshotMeta(msgspec.Struct, frozen=True, omit_defaults=True):
    """Metadata of a SNAPSHOT frame: the number of the next event, and the journal epoch.

    ``actions``: whether the state has a pause or a skipped batch. A release that would ignore them can't read the frame
    (``wal.segments.frame.FLAG_ACTIONS``).
    """

    next: int
    epoch: int
    actions: bool = False


class HistoryMeta(msgspec.Struct, frozen=True):
    """Metadata of a HISTORY frame with a skipped batch, as ``SnapshotMeta.actions``. Other HISTORY frames have none."""

    actions: bool


_CLAIM = re.compile(r"[0-9a-f]{16}")


def claim_path(stream: str, epoch: int) -> str:
    """Return the path of an epoch's claim."""
    return f"{stream}/epochs/{epoch:016x}"


def epoch_folder(stream: str, epoch: int) -> str:
    """Return the folder of an epoch's segments."""
    return f"{stream}/epoch-{epoch:016x}"


def segment_paths(storage: Storage, stream: str, epoch: int) -> list[str]:
    """Return the segments of ``epoch`` in order: those that a listing shows, and those before, between and after them that exist.
    Raises StoreError."""
    places = (layout.parse_journal(path) for path in storage.list(epoch_folder(stream, epoch)))
    listed = sorted(place.sequence for place in places if place is not None)
    found = {sequence: layout.journal_segment(stream, epoch, sequence) for sequence in listed}
    sequence = listed[0] - 1 if listed else 0
    while sequence > 0 and storage.exists(path := layout.journal_segment(stream, epoch, sequence)):
        found[sequence] = path
        sequence -= 1
    sequence = listed[0] if listed else 1
    while True:
        if sequence not in found:
            path = layout.journal_segment(stream, epoch, sequence)
            if storage.exists(path):
                found[sequence] = path
            elif not listed or sequence > listed[-1]:
                return [found[sequence] for sequence in sorted(found)]
        sequence += 1


def listed_claims(storage: Storage, stream: str) -> set[int]:
    """Return the epochs whose claims a listing shows. Files with other names are ignored. Raises StoreError."""
    names = (path.rpartition("/")[2] for path in storage.list(f"{stream}/epochs"))
    return {int(name, 16) for name in names if _CLAIM.fullmatch(name)}


def newest_claim(storage: Storage, stream: str, known: int = 0) -> int:
    """Return the newest epoch that was ever claimed; 0 if none was. Raises StoreError.

    ``known``: an epoch that may have been claimed, and whose claim is asked for by name if the store's listing lacks it; 0: none.
    """
    newest = max(listed_claims(storage, stream), default=0)
    if known > newest and storage.exists(claim_path(stream, known)):
        newest = known
    while True:
        for following in (newest + 1 if newest else 0, numbered(timeline_of(newest) + 1, 1)):
            if following and storage.exists(claim_path(stream, following)):
                newest = following
                break
        else:
            return newest
