"""The lineage: which incarnation of the journal a WAL belongs to, told by markers in the WAL's root.

``<stream>/lineage-<8 digits>`` holds the first claim of that lineage's journal; markers are dense and never deleted. The
first journal marks its WAL before anybody may claim a partition; a rebuild marks it before it does anything else. So a
journal without the newest marker's lineage is empty, lost, another one, or one whose rebuild was not finished.
"""

from __future__ import annotations

from forebay.model.errors import ForebayError, StoreError
from wal.segments import layout
from wal.storage import Storage

#: writes the blocks that a rebuild takes in; fenced for every driver, since only what came before its lead is of use
REBUILDER = "forebay-rebuild"


class TimelineFound(ForebayError):
    """The WAL is not this journal's: the journal was lost, or its rebuild was not finished, or it is another one."""


def newest_marker(wal: Storage, stream: str) -> int:
    """The newest lineage that marked the WAL; 0 if none. Asks for one name after the other, by no listing."""
    timeline = 0
    while wal.exists(layout.timeline_marker(stream, timeline + 1)):
        timeline += 1
    return timeline


def refuse_other(journal: Storage, wal: Storage, stream: str, claimed: int) -> int:
    """The newest lineage of the WAL, before an epoch of lineage ``claimed`` (0: the journal is empty) is claimed. Raises
    TimelineFound where the journal's newest claims are not of that lineage."""
    marked = newest_marker(wal, stream)
    if marked and not claimed:
        raise TimelineFound(
            f"the journal at {journal.url} is empty, but the WAL at {wal.url} holds stream {stream!r} "
            f"({layout.timeline_marker(stream, marked)}): the journal was lost or [driver].journal points elsewhere. "
            "Nothing was changed. Bring the journal back, or make a new one from the WAL with `forebay journal rebuild`"
        )
    if claimed < marked:
        raise unfinished(journal, stream, marked)
    if claimed > max(marked, 1):
        raise _belongs_elsewhere(journal, wal, stream)
    return marked


def unfinished(journal: Storage, stream: str, timeline: int) -> TimelineFound:
    return TimelineFound(
        f"the journal at {journal.url} of stream {stream!r} has no snapshot of lineage {timeline}, which the WAL or a claim "
        "names: it was lost, or its rebuild was not finished. Nothing was changed. Run `forebay journal rebuild` (again)"
    )


def mark(journal: Storage, wal: Storage, stream: str, timeline: int, first_claim: bytes) -> None:
    """The WAL is this journal's from now on, or was already. Raises TimelineFound if it is another one's."""
    marker = layout.timeline_marker(stream, timeline)
    try:
        wal.put_new(marker, first_claim)
    except FileExistsError:
        try:
            found = wal.read(marker)
        except FileNotFoundError:
            raise StoreError(f"{marker} was there a moment ago, and is gone") from None
        if found != first_claim:
            raise _belongs_elsewhere(journal, wal, stream) from None


def _belongs_elsewhere(journal: Storage, wal: Storage, stream: str) -> TimelineFound:
    return TimelineFound(
        f"the WAL at {wal.url} belongs to another journal of stream {stream!r} than the one at {journal.url}. "
        "Nothing was changed. Set [driver].journal or [wal].url right"
    )
