"""What a crash at this moment would leave: the synced bytes of a store, and the journal that they hold.

The journal is read by ``driver.journal.log.reading``. Between two whole readings, only what was added is read and applied: a
whole reading follows each change that is not an addition to the newest epoch, and every ``WHOLE_EVERY`` additions.
"""

from __future__ import annotations

from driver.journal import history
from driver.journal.leadership.lease import lease_path
from driver.journal.log import reading as journal
from driver.journal.state import State
from tests.support.stores.forgetful import ForgetfulStorage
from wal.segments import layout
from wal.segments.scan import SegmentScan, TornTail
from wal.storage import Paths

#: additions to the journal after which it is read whole again
WHOLE_EVERY = 64
Signature = dict[str, int]


class SyncedImage:
    """A store as the worst crash of its host would leave it: only the durable bytes of each file. Read-only."""

    appendable = True  # for readers: objects would be read by threads

    def __init__(self, storage: ForgetfulStorage) -> None:
        self.url = storage.url
        self._storage = storage

    def list(self, prefix: str) -> Paths:
        return [path for path in self._storage.paths(prefix) if self._storage.durable_bytes(path)]

    def size(self, path: str) -> int:
        return self._storage.durable_bytes(path)

    def exists(self, path: str) -> bool:
        return bool(self._storage.durable_bytes(path))

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        end = self._storage.durable_bytes(path)
        if not end:
            raise FileNotFoundError(path)
        until = end if length is None else min(end, offset + length)
        return self._storage.stored(path)[offset : max(offset, until)]

    def signature(self, prefix: str) -> Signature:
        return self._storage.durable_sizes(prefix)


class StoredImage:
    """A store as a reader sees it now, without faults: all bytes of each file. Read-only."""

    def __init__(self, storage: ForgetfulStorage) -> None:
        self._storage = storage

    def size(self, path: str) -> int:
        return len(self._storage.stored(path))

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        data = self._storage.stored(path)
        return data[offset:] if length is None else data[offset : offset + length]


class DurableJournal:
    """The journal and its history in the synced bytes of ``storage``.

    ``state``: None if there is no journal. ``changes``: how often the journal's synced bytes have changed.
    """

    def __init__(self, storage: ForgetfulStorage, stream: str) -> None:
        self._image = SyncedImage(storage)
        self._storage = storage
        self._stream = stream
        self._steps = -1
        self._damages = 0
        self._added = 0
        self._epoch = 0
        self._scans: dict[str, SegmentScan] = {}  # of the segments that were added to
        self._journal: Signature = {}
        self._history: Signature = {}
        self.state: State | None = None
        self.finished: tuple[history.FinishedBatch, ...] = ()
        self.changes = 0

    def refresh(self) -> bool:
        """Return whether the synced bytes have changed. Raises as ``driver.journal.log.reading.read``."""
        if self._storage.steps == self._steps:
            return False
        self._steps = self._storage.steps
        sizes = self._image.signature(self._stream)
        past = {path: size for path, size in sizes.items() if "/history/" in path}
        now = {path: size for path, size in sizes.items() if path not in past}
        if now == self._journal and past == self._history:
            return False
        self.changes += 1
        before, self._journal = self._journal, now
        if now != before:
            self._read(before, now)
        if past != self._history:
            self._history = past
            found = history.read(self._image, self._stream)  # type: ignore[arg-type]
            self.finished = tuple({b.batch_id: b for b in found}.values())
        return True

    def _read(self, before: Signature, now: Signature) -> None:
        added = self._additions(before, now)
        if added is not None:
            assert self.state is not None
            self._added += 1
            for path in added:
                self._add(path, self.state)
            return
        self._added, self._damages = 0, self._storage.damages
        self._scans.clear()
        # a driver that wakes may still renew the lease of a lost journal
        if not any("/epochs/" in path for path in now):
            self.state, self._epoch = None, 0
            return
        reading = journal.read(self._image, self._stream)  # type: ignore[arg-type]
        self.state, self._epoch = reading.state, reading.epoch

    def _add(self, path: str, state: State) -> None:
        """Apply what was added to a segment since it was read."""
        if path not in self._scans:
            self._scans[path] = SegmentScan(self._image, path)
        found = list(self._scans[path].more(sealed=True))
        if any(isinstance(item, TornTail) for item in found):
            del self._scans[path]  # the bytes after it may be of the same frame
        journal.replay_frames(journal.intact_frames(found, path), path, state, [])

    def _additions(self, before: Signature, now: Signature) -> list[str] | None:
        """Return the segments that were added to; None if more has happened, and the journal must be read whole."""
        if self.state is None or self._added >= WHOLE_EVERY or self._damages != self._storage.damages:
            return None
        if not before.keys() <= now.keys():
            return None
        changed = [path for path, size in now.items() if before.get(path) != size]
        changed = [path for path in changed if path != lease_path(self._stream)]
        for path in changed:
            place = layout.parse_journal(path)
            if place is None or place.epoch != self._epoch or before.get(path, 0) > now[path]:
                return None
        return sorted(changed)
