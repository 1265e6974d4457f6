"""Copies of the journal's state beside the WAL: what a rebuild begins from when the journal is lost.

A copy is a segment of its own in the WAL's store, with one SNAPSHOT frame. The state is encoded in the deciding thread, as an
answer of its own: it leaves when all that it says is durable and the epoch was checked after that, so a copy is always a true
prefix of the journal, whoever writes it and however late it lands. Writing it is the clean-up thread's.

The last two are kept, and a WAL segment may go only when **both** say that all its blocks are released (INV-8): whichever of
them a rebuild begins from, every block that it finds needed is there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import msgspec

from driver.journal.log import SnapshotMeta
from driver.journal.state import SnapshotCopy, State
from driver.tracker.requests import Ask, Copied, Request
from forebay.model.errors import StoreError
from forebay.model.values import timeline_of
from forebay.process import failpoints
from forebay.process.clock import Clock
from wal.decisions.retention import Limits
from wal.segments import layout
from wal.segments.frame import FrameKind
from wal.segments.writer import LogWriter, SegmentIdentity, SegmentLimits
from wal.storage import Storage

log = logging.getLogger(__name__)

#: a copy is taken after so long even if nothing asks for one: what came after it is what a rebuild may run again
PERIOD_SECONDS = 600.0

_encoder = msgspec.msgpack.Encoder()


class Due(Enum):
    NOW = "there is none, or the newest does not know a partition or a life"
    SOON = "clean-up waits for one"
    LATER = "the journal has gone on since"
    NO = "the newest says all there is"


def copy_due(state: State, limits: Limits, now_ms: int) -> Due:
    """Whether a copy is wanted, by the journal alone."""
    if not state.created:
        return Due.NO
    newest = state.copies[-1].next if state.copies else 0
    if not state.copies or state.shaped > newest:
        return Due.NOW
    for segment, _ in state.index.due(limits, now_ms):
        if segment.path not in state.cleaning_segments and not state.is_covered(segment.path):
            return Due.SOON
    return Due.LATER if state.events > newest + 1 else Due.NO  # the event that tells of a copy is no news


def encoded(state: State) -> tuple[int, bytes]:
    """The number of the next event, and the state: read in the deciding thread."""
    return state.events, _encoder.encode(state)


class SnapshotCopies:
    """``ask`` is the deciding thread's. ``interval_seconds``: copies that clean-up waits for are taken at most so often."""

    def __init__(
        self,
        ask: Callable[[Request], Any],
        wal: Storage,
        stream: str,
        epoch: int,
        clock: Clock,
        interval_seconds: float,
        limits: Limits,
        new_uid: Callable[[], int],
    ) -> None:
        self._ask = ask
        self._wal = wal
        self._stream = stream
        self._epoch = epoch
        self._clock = clock
        self._interval_seconds = interval_seconds
        self._limits = limits
        self._new_uid = new_uid
        self._next_sequence = 1
        self._not_before = float("-inf")
        self._period_ends = clock.monotonic() + PERIOD_SECONDS
        self._wanted = False
        self._lock = threading.Lock()

    def want(self) -> None:
        """The next round takes a copy whatever the journal says. From any thread."""
        self._wanted = True

    def keep_up(self, limits: Limits | None = None) -> None:
        """Takes a copy if one is due, and deletes those that the last two make unnecessary. ``limits``: of this round of
        clean-up; None: those of the settings. Raises OutOfSpaceError or
        StoreError: nothing is lost, call again."""
        with self._lock:
            due = self._ask(Ask(lambda state: copy_due(state, limits or self._limits, self._clock.wall_ms())))
            if not self._is_time(due):
                return
            self._wanted = False
            now = self._clock.monotonic()
            self._not_before, self._period_ends = now + self._interval_seconds, now + PERIOD_SECONDS
            following, state = self._ask(Ask(encoded))
            path = self.write(following, state)
            failpoints.hit("copy.after-write")
            copies = self._ask(Copied(following, path))
            failpoints.hit("copy.after-event")
            self.prune(copies)

    def _is_time(self, due: Due) -> bool:
        now = self._clock.monotonic()
        if due is Due.NOW or (self._wanted and due is not Due.NO):
            return True
        return (due is Due.SOON and now >= self._not_before) or (due is Due.LATER and now >= self._period_ends)

    def write(self, following: int, state: bytes) -> str:
        """Durable on return; returns its path."""
        writer = LogWriter(
            self._wal,
            lambda sequence: layout.snapshot_copy(self._stream, self._epoch, sequence),
            SegmentIdentity(stream=self._stream, writer="driver", epoch=self._epoch, timeline=timeline_of(self._epoch)),
            SegmentLimits(size_bytes=0, age_seconds=0.0),
            lambda: self._clock.wall_ms() / 1000.0,
            self._new_uid,
            rewrite=False,
            first_sequence=self._next_sequence,
        )
        try:
            meta = SnapshotMeta(next=following, epoch=self._epoch)
            pending = writer.append(FrameKind.SNAPSHOT, _encoder.encode(meta), state)
            writer.sync()
        finally:
            # an attempt that failed may have left its name, now or later
            self._next_sequence = max(self._next_sequence + 1, writer.next_sequence)
            writer.close()
        if pending.handle is None:
            raise StoreError(f"{self._wal.url}: a snapshot copy was synced and has no place")
        return pending.handle.path

    def prune(self, copies: Sequence[SnapshotCopy]) -> None:
        """Deletes what is older than ``copies``, those that a kill left behind too. Can be repeated."""
        if len(copies) < 2:
            return
        oldest = layout.parse_snapshot_copy(copies[0].path)
        if oldest is None:
            raise StoreError(f"{copies[0].path} is no snapshot copy's path")
        for path in self._wal.list(layout.snapshot_folder(self._stream)):
            place = layout.parse_snapshot_copy(path)
            if place is not None and place < oldest:
                self._wal.delete(path)
