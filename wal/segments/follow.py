"""Following a stream's block segments while receivers write them, in the order of each receiver.

A frame that is yielded was written, but not necessarily accepted: only the journal shows that. On a store of appendable files a
frame may be yielded before its sync. Following changes nothing and does not involve the writer. Names are dense, so the
follower asks for the next name; it lists only to find other receivers, new epochs, and segments that clean-up deleted first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from wal.segments.layout import BlockPlace, block_folder, block_segment, parse_block
from wal.segments.scan import Scanned, SegmentScan
from wal.storage import Storage


@dataclass(frozen=True, slots=True)
class Skipped:
    """Segments ``[sequence, until)`` of an epoch, deleted before they were read; all their blocks had been released (INV-8)."""

    sequence: int
    until: int


class EpochFollower:
    """Follows one epoch of one receiver. ``at``: the place of the segment that it reads next or is reading."""

    def __init__(self, storage: Storage, at: BlockPlace) -> None:
        self.at = at
        self._storage = storage
        self._scan = SegmentScan(storage, _path(at))

    def more(self) -> Iterator[tuple[str, Scanned]]:
        """Yield (path, finding) for everything that was added since the last call."""
        while True:
            following = self.at._replace(sequence=self.at.sequence + 1)
            # asked before the segment is read: a sealed segment does not grow any more
            sealed = not self._storage.appendable or self._storage.exists(_path(following))
            try:
                for found in self._scan.more(sealed):
                    yield self._scan.path, found
            except FileNotFoundError:
                return  # not written yet, or deleted: skip_to finds out
            if not sealed:
                return
            self._go_to(following)

    def skip_to(self, listed: list[int]) -> Skipped | None:
        """If the next segment was deleted, continue at the lowest sequence in ``listed``. Return the skipped segments."""
        later = [sequence for sequence in listed if sequence >= self.at.sequence]
        if not later or min(later) == self.at.sequence:
            return None
        skipped = Skipped(self.at.sequence, min(later))
        self._go_to(self.at._replace(sequence=min(later)))
        return skipped

    def _go_to(self, place: BlockPlace) -> None:
        self.at = place
        self._scan = SegmentScan(self._storage, _path(place))


class StreamFollower:
    """Follows all receivers of a stream, or only ``receiver``, from the oldest existing segments."""

    def __init__(self, storage: Storage, stream: str, receiver: str | None = None) -> None:
        self._storage = storage
        self._stream = stream
        self._folder = block_folder(stream, receiver)
        self._epochs: dict[tuple[str, int], EpochFollower] = {}

    def look(self) -> Iterator[tuple[str, Scanned | Skipped]]:
        """List the store, and yield everything new of every epoch."""
        listed: dict[tuple[str, int], list[int]] = {}
        for path in self._storage.list(self._folder):
            place = parse_block(path)
            if place is not None:
                listed.setdefault((place.receiver, place.epoch), []).append(place.sequence)
        for (receiver, epoch), sequences in listed.items():
            if (receiver, epoch) not in self._epochs:
                oldest = BlockPlace(self._stream, receiver, epoch, min(sequences))
                self._epochs[receiver, epoch] = EpochFollower(self._storage, oldest)
        for key in sorted(self._epochs):
            yield from self._more(self._epochs[key], listed.get(key, []))

    def more(self) -> Iterator[tuple[str, Scanned]]:
        """Yield everything new of each receiver's newest epoch, without a listing.

        Older epochs are fenced: :meth:`look` reads them.
        """
        newest = dict(sorted(self._epochs))
        for key in newest.items():
            yield from self._epochs[key].more()

    def _more(self, epoch: EpochFollower, listed: list[int]) -> Iterator[tuple[str, Scanned | Skipped]]:
        while True:
            yield from epoch.more()
            path = _path(epoch.at)
            skipped = epoch.skip_to(listed)
            if skipped is None:
                return
            yield path, skipped


def _path(place: BlockPlace) -> str:
    return block_segment(*place)
