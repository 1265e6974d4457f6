"""Timeline markers: files in the root of the WAL that say which timeline's journal writes to it.

``<stream>/lineage-<8 digits>`` contains the first claim of that timeline's journal. Markers are dense and never deleted. The
first journal creates its marker before any receiver may claim a partition; a rebuild creates it before it does anything else.
So if a journal's timeline is not the newest marker's, then the journal is empty or lost, belongs to another WAL, or its rebuild
was not finished.
"""

from __future__ import annotations

from driver.journal import claims
from forebay.model.errors import ForebayError, StoreError
from wal.segments import layout
from wal.storage import Storage

#: the writer of the blocks that a rebuild takes in; always fenced for a driver, since a rebuild has ended before a driver leads
REBUILDER = "forebay-rebuild"


class TimelineFound(ForebayError):
    """The WAL does not belong to this journal: the journal was lost, or its rebuild was not finished, or it is of another WAL."""


def newest_marker(wal: Storage, stream: str) -> int:
    """Return the newest timeline that has a marker in the WAL; 0 if none has. Checks one name after the other, without a listing.
    Raises StoreError."""
    timeline = 0
    while wal.exists(layout.timeline_marker(stream, timeline + 1)):
        timeline += 1
    return timeline


def refuse_other(journal: Storage, wal: Storage, stream: str, claimed: int, marked: int, *, has_led: bool) -> None:
    """Raise TimelineFound if the journal is not of the WAL's newest timeline. Call it before an epoch is claimed.

    ``claimed``: the timeline of the journal's newest claim; 0 if the journal is empty. ``marked``: the WAL's newest timeline.
    ``has_led``: whether a driver of the journal has led, and so has created a marker before.
    """
    if marked and not claimed:
        raise TimelineFound(
            f"the journal at {journal.url} is empty, but the WAL at {wal.url} holds stream {stream!r} "
            f"({layout.timeline_marker(stream, marked)}): the journal was lost, or [driver].journal is wrong. "
            "Nothing was changed. Restore the journal, or make a new one from the WAL with `forebay journal rebuild`"
        )
    if claimed < marked:
        raise unfinished(journal, stream, marked)
    if not marked and has_led:
        raise TimelineFound(
            f"the WAL at {wal.url} has no file {layout.timeline_marker(stream, 1)}, but drivers have led the journal at "
            f"{journal.url}: the WAL is not mounted, [wal].url is wrong, or the WAL was lost. Nothing was changed. If it was "
            "lost for good, see `forebay recover --lost-wal`. If the journal is of a stream without a WAL, or of a direct "
            "stream, choose another name for this stream"
        )
    if claimed > max(marked, 1):
        raise _belongs_elsewhere(journal, wal, stream)


def unfinished(journal: Storage, stream: str, timeline: int) -> TimelineFound:
    """The error for a journal that has no snapshot of ``timeline``."""
    return TimelineFound(
        f"the journal at {journal.url} of stream {stream!r} has no snapshot of timeline {timeline}, which the WAL or a claim "
        "names: it was lost, or its rebuild was not finished. Nothing was changed. Run `forebay journal rebuild` (again)"
    )


def mark(journal: Storage, wal: Storage, stream: str, timeline: int, first_claim: bytes) -> None:
    """Create the timeline's marker in the WAL, unless it exists.

    Raises TimelineFound if it is another journal's; CorruptionError if the marker is damaged; StoreError.
    """
    marker = layout.timeline_marker(stream, timeline)
    try:
        wal.put_new(marker, first_claim)
    except FileExistsError:
        try:
            found = wal.read(marker)
        except FileNotFoundError:
            raise StoreError(f"{marker} was deleted while it was being read; try again") from None
        if found != first_claim:
            claims.decode(found, marker, "; if the WAL is this journal's, copy the first claim of the timeline into it")
            raise _belongs_elsewhere(journal, wal, stream) from None


def _belongs_elsewhere(journal: Storage, wal: Storage, stream: str) -> TimelineFound:
    return TimelineFound(
        f"the WAL at {wal.url} belongs to another journal of stream {stream!r} than the one at {journal.url}. "
        "Nothing was changed. Correct [driver].journal or [wal].url. If `forebay recover --lost-wal --apply` was interrupted, "
        "repeat it"
    )
