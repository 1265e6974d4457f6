"""The search of the WAL for orphans, and the reading of their rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from driver.background.adoption.orphans import Orphan, covering, eligible, until
from driver.journal.state_parts import EndedEpoch
from driver.tracker.requests import Search
from forebay.model.errors import (
    CorruptionError,
    NewerVersionError,
    UnreachableError,
)
from forebay.model.payload import decode_block
from forebay.model.records import as_source
from forebay.model.values import Handle, TopicPartition
from wal.blocks import block_of_frame, decode_meta
from wal.blocks.encryption import KeyRing, plain_payload
from wal.segments.frame import Frame, FrameKind
from wal.segments.names import block_segments
from wal.segments.scan import Damage, Newer, read_frame, scan_segment
from wal.storage import Storage

log = logging.getLogger(__name__)


class OrphanSearch:
    """Finds and reads orphans in the WAL.

    ``wal``: None in a stream without a WAL; then nothing is found. ``topic_ids``, ``stopping``, ``keys``: as of
    :class:`driver.background.adoption.adopter.Adopter`.
    """

    def __init__(
        self,
        wal: Storage | None,
        *,
        stream: str,
        topic_ids: Callable[[Iterable[str]], Mapping[str, str]],
        stopping: Callable[[], bool],
        keys: Callable[[], KeyRing | None],
    ) -> None:
        self._wal = wal
        self._stream = stream
        self._topic_ids = topic_ids
        self._stopping = stopping
        self._keys = keys
        # logged already
        self._damaged: set[Handle] = set()
        self._refused: set[Handle] = set()
        self._passed_over: set[tuple[str, int]] = set()

    def find(self, searches: Sequence[Search], epochs: Iterable[EndedEpoch]) -> dict[TopicPartition, list[Orphan]]:
        """Return the eligible orphans for each search, by one pass over the WAL.

        ``epochs``: the newest epochs that the journal knows, whether they have ended or not.
        """
        found: dict[TopicPartition, list[Orphan]] = {search.tp: [] for search in searches}
        wanted = {search.tp: search for search in searches}
        for path in self._segments(epochs):
            for orphan in self._in_segment(path, wanted):
                found[orphan.held.tp].append(orphan)
        # after the pass: an id that is the same now was the same when each block was polled
        topic_ids = self._topic_ids({search.tp.topic for search in searches if search.topic_id})
        return {
            search.tp: self._eligible(found[search.tp], search, topic_ids.get(search.tp.topic, "") == search.topic_id)
            for search in searches
        }

    def _eligible(self, found: list[Orphan], search: Search, same_topic: bool) -> list[Orphan]:
        orphans = eligible(found, search, same_topic)
        for orphan in eligible(found, search, True):
            if orphan not in orphans and orphan.handle not in self._refused:
                self._refused.add(orphan.handle)
                log.warning(
                    "%s is not adopted: its records may be of another topic with the same name", orphan.held.label
                )
        return orphans

    @property
    def _required_wal(self) -> Storage:
        """The WAL; called only in a stream that has one."""
        assert self._wal is not None
        return self._wal

    def _segments(self, epochs: Iterable[EndedEpoch]) -> Sequence[str]:
        if self._wal is None:
            return ()
        known = ((epoch.receiver_id, epoch.epoch, epoch.segments) for epoch in epochs)
        return block_segments(self._wal, self._stream, known, self.refuse_if_stopping)

    def _in_segment(self, path: str, wanted: Mapping[TopicPartition, Search]) -> list[Orphan]:
        """Return the orphans in a segment. This does not need the journal: a range that ends after the position was never
        accepted."""
        self.refuse_if_stopping()
        orphans = []
        damage: list[CorruptionError] = []
        readable = wanted_there = False
        try:
            for item in scan_segment(self._required_wal, path, payloads=False):
                if isinstance(item, Damage):
                    damage.append(CorruptionError(path, item.offset, item.reason))
                if isinstance(item, Newer):
                    raise NewerVersionError(
                        path, item.offset, version=item.version, newest=item.newest, feature=item.feature
                    )
                if not isinstance(item, Frame) or item.header.kind != FrameKind.BLOCK:
                    continue
                try:
                    meta = decode_meta(item.metadata, path, item.offset)
                except CorruptionError as error:
                    damage.append(error)
                    continue
                readable = True
                wanted_there = wanted_there or any(held.tp in wanted for held in meta.ranges)
                handle = Handle(path, item.offset, item.length, item.header.payload_checksum)
                orphans += [
                    Orphan(handle, meta, held)
                    for held in meta.ranges
                    if (search := wanted.get(held.tp)) is not None
                    and held.incarnation == search.incarnation
                    and held.until_offset > search.position
                ]
        except FileNotFoundError:
            return []  # deleted since: all its blocks had been accepted
        if wanted_there or not readable or any(error.offset == 0 for error in damage):
            self._pass_over(damage)
        return orphans

    def _pass_over(self, damage: Iterable[CorruptionError]) -> None:
        for error in damage:
            place = (error.path, error.offset)
            if place not in self._passed_over:
                self._passed_over.add(place)
                log.warning("%s; the search for lost records skips it", error)

    def readable(
        self, orphans: list[Orphan], position: int, limit: int | None
    ) -> tuple[Orphan | None, Sequence[pa.RecordBatch]]:
        """Return the orphan that contains ``position``, and its rows from there; remove unreadable ones from ``orphans``."""
        while (limit is None or position < limit) and (orphan := covering(orphans, position)) is not None:
            try:
                return orphan, self._rows(orphan, position, until(orphan, limit))
            except (CorruptionError, FileNotFoundError) as error:
                if orphan.handle not in self._damaged:
                    log.error("%s can't be adopted from the WAL: %s", orphan.held.label, error)
                self._damaged.add(orphan.handle)
                orphans.remove(orphan)
        return None, ()

    def _rows(self, orphan: Orphan, from_offset: int, until_offset: int) -> Sequence[pa.RecordBatch]:
        """Return the rows of ``orphan`` in ``[from_offset, until_offset)``, in the source's schema; its digest is checked."""
        stored = block_of_frame(read_frame(self._required_wal, orphan.handle), orphan.handle.path)
        place = orphan.handle
        payload = plain_payload(stored.meta, stored.payload, self._keys(), place.path)
        decoded = decode_block(payload, stored.meta, verify_digests=True, path=place.path, offset=place.offset)
        rows = []
        for held, batches in decoded:
            if held.tp != orphan.held.tp:
                continue
            for batch in batches:
                offsets = batch.column("offset").to_numpy()
                begin, end = np.searchsorted(offsets, [from_offset, until_offset])
                if begin < end:
                    rows.append(as_source(batch.slice(int(begin), int(end - begin))))
        return rows

    def refuse_if_stopping(self) -> None:
        """Raise UnreachableError if the driver stops."""
        if self._stopping():
            raise UnreachableError("the driver is stopping")
