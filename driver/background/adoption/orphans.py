"""Which orphans of the WAL are adopted. Decision logic, without I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from driver.tracker.requests import Search
from forebay.model.values import BlockMeta, BlockRange, Handle


@dataclass(frozen=True, slots=True)
class Orphan:
    """One range of an orphaned block. ``checked``: whether the receiver read the topic's id after it polled the last record,
    and the id was that of the incarnation."""

    handle: Handle
    meta: BlockMeta
    held: BlockRange

    @property
    def checked(self) -> bool:
        return self.meta.checked is True


def eligible(found: Iterable[Orphan], search: Search, same_topic: bool) -> list[Orphan]:
    """Return the orphans in ``found`` that contain offsets of the search's incarnation at or after its position.

    ``same_topic``: whether the topic's id, read after the orphans were found, is still that of the incarnation. Ids are never
    used again, so then all orphans belong to it. Otherwise a block may hold records of a topic that was created in its place
    and polled before any receiver noticed; then only orphans that were checked count.
    """
    return [
        orphan
        for orphan in found
        if (orphan.held.tp, orphan.held.incarnation) == (search.tp, search.incarnation)
        and orphan.held.until_offset > search.position
        and (same_topic or orphan.checked)
    ]


def covering(orphans: Iterable[Orphan], position: int) -> Orphan | None:
    """Return the orphan that contains ``position`` and reaches furthest; None: there is none."""
    at = [orphan for orphan in orphans if orphan.held.from_offset <= position < orphan.held.until_offset]
    return max(at, key=lambda orphan: orphan.held.until_offset, default=None)


def next_from(orphans: Iterable[Orphan], search: Search) -> int:
    """Return the lowest offset at which an orphan begins, after the position and before the first offset that Kafka holds; -1
    if there is none."""
    later = (orphan.held.from_offset for orphan in orphans)
    return min((at for at in later if at > search.position and (search.limit is None or at < search.limit)), default=-1)


def until(orphan: Orphan, limit: int | None) -> int:
    """Return the offset up to which ``orphan`` is adopted; Kafka holds the records from ``limit`` on."""
    return orphan.held.until_offset if limit is None else min(limit, orphan.held.until_offset)
