"""Snapshot copies: copies of the journal's state beside the WAL, from which a rebuild begins when the journal is lost.

A copy is a segment of its own in the WAL's store, with one SNAPSHOT frame. The decision loop encodes the state, without its
blocks, which never change. It answers only when all of the state is durable and the epoch was checked after that. So a copy
always equals the journal up to some event, even if an outdated driver writes it late. The clean-up thread encodes the blocks and
writes the copy.

The last two copies are kept. A WAL segment may be deleted only when **both** say that all its blocks are released (INV-8). So a
rebuild from either copy finds every block that it needs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec

from driver.journal.files import SnapshotMeta
from driver.journal.log.encoding import EncodedState
from driver.journal.state import State
from driver.journal.state_parts import SnapshotCopy
from driver.tracker.requests import Ask, Copied, Read
from forebay.model.errors import StoreError
from forebay.model.identifiers import timeline_of
from forebay.process import failpoints
from forebay.process.clock import Clock
from wal.decisions.retention import RetentionLimits
from wal.segments import layout
from wal.segments.frame import FrameKind
from wal.segments.writer import LogWriter, SegmentIdentity, SegmentLimits
from wal.storage import Storage

log = logging.getLogger(__name__)

#: maximum time between two copies while the journal grows; a rebuild may run again what came after the newest copy
PERIOD_SECONDS = 600.0

_encoder = msgspec.msgpack.Encoder()


class CopyNeed(Enum):
    NOW = (
        "there is none, or the newest does not know a partition, an incarnation or the end of a replay of keyed states"
    )
    SOON = "clean-up waits for one"
    LATER = "the journal has gone on since"
    NO = "the newest says all there is"


def copy_due(state: State, limits: RetentionLimits, now_ms: int) -> CopyNeed:
    """Return whether the journal's state makes a copy due."""
    if not state.created:
        return CopyNeed.NO
    newest = state.copies[-1].next if state.copies else 0
    if not state.copies or state.shaped > newest:
        return CopyNeed.NOW
    for segment, _ in state.index.due(limits, now_ms):
        if segment.path not in state.cleaning_segments and not state.is_covered(segment.path):
            return CopyNeed.SOON
    return (
        CopyNeed.LATER if state.events > newest + 1 else CopyNeed.NO
    )  # the event of the newest copy itself does not count


@dataclass(frozen=True, slots=True)
class ReadCopyDue(Read[CopyNeed]):
    """Reads whether a copy is wanted, with the clock's time at the decision."""

    limits: RetentionLimits
    clock: Clock

    def read(self, state: State) -> CopyNeed:
        return copy_due(state, self.limits, self.clock.wall_ms())


@dataclass(frozen=True, slots=True)
class EncodeState(Read[EncodedState]):
    """Reads the encoded state."""

    def read(self, state: State) -> EncodedState:
        return EncodedState.of(state)


class SnapshotCopies:
    """Takes snapshot copies. ``ask``: sends a request to the decision loop. ``interval_seconds``: minimum time between copies
    that clean-up waits for."""

    def __init__(
        self,
        ask: Ask,
        wal: Storage,
        *,
        stream: str,
        epoch: int,
        clock: Clock,
        interval_seconds: float,
        limits: RetentionLimits,
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
        """Request that the next round takes a copy, unless the journal has no new events. Thread-safe."""
        self._wanted = True

    def keep_up(self, limits: RetentionLimits | None = None) -> None:
        """Take a copy if one is due, and delete those older than the last two.

        ``limits``: the retention limits of this round of clean-up; None: the limits of the settings. Raises OutOfSpaceError or
        StoreError; nothing is lost, and the call may be repeated.
        """
        with self._lock:
            if self._is_time(self._due(limits)):
                self._take()

    def require(self) -> None:
        """Take a copy if there is none, or if the newest lacks what a rebuild must know before more data is taken in.

        Only the clean-up takes the others, between its rounds: a copy in the middle of a round would permit the deletion of some
        segments and not of those looked at before. Raises as :meth:`keep_up`.
        """
        with self._lock:
            if self._due(None) is CopyNeed.NOW:
                self._take()

    def _due(self, limits: RetentionLimits | None) -> CopyNeed:
        return self._ask(ReadCopyDue(limits or self._limits, self._clock))

    def _take(self) -> None:
        self._wanted = False
        now = self._clock.monotonic()
        self._not_before, self._period_ends = now + self._interval_seconds, now + PERIOD_SECONDS
        state = self._ask(EncodeState())
        path = self.write(state)
        failpoints.hit("copy.after-write")
        copies = self._ask(Copied(state.next, path))
        failpoints.hit("copy.after-event")
        self.prune(copies)

    def _is_time(self, due: CopyNeed) -> bool:
        now = self._clock.monotonic()
        if due is CopyNeed.NOW or (self._wanted and due is not CopyNeed.NO):
            return True
        return (due is CopyNeed.SOON and now >= self._not_before) or (
            due is CopyNeed.LATER and now >= self._period_ends
        )

    def write(self, state: EncodedState) -> str:
        """Write a copy, durable on return. Return its path."""
        writer = LogWriter(
            self._wal,
            lambda sequence: layout.snapshot_copy(self._stream, self._epoch, sequence),
            identity=SegmentIdentity(
                stream=self._stream, writer="driver", epoch=self._epoch, timeline=timeline_of(self._epoch)
            ),
            limits=SegmentLimits(size_bytes=0, age_seconds=0.0),
            now=lambda: self._clock.wall_ms() / 1000.0,
            new_uid=self._new_uid,
            rewrite=False,
            first_sequence=self._next_sequence,
        )
        try:
            meta = SnapshotMeta(next=state.next, epoch=self._epoch, actions=state.actions)
            pending = writer.append(FrameKind.SNAPSHOT, _encoder.encode(meta), state.payload())
            writer.sync()
        finally:
            # an attempt that failed may have left its name, now or later
            self._next_sequence = max(self._next_sequence + 1, writer.next_sequence)
            writer.close()
        if pending.handle is None:
            raise StoreError(f"{self._wal.url}: a snapshot copy was synced, but the writer returned no path for it")
        return pending.handle.path

    def prune(self, copies: Sequence[SnapshotCopy]) -> None:
        """Delete all snapshot copies older than the first of ``copies``, also those that a crash left. May be repeated."""
        if len(copies) < 2:
            return
        oldest = layout.parse_snapshot_copy(copies[0].path)
        if oldest is None:
            raise StoreError(f"cannot delete old snapshot copies: {copies[0].path} is not the path of a snapshot copy")
        for path in self._wal.list(layout.snapshot_folder(self._stream)):
            place = layout.parse_snapshot_copy(path)
            if place is not None and place < oldest:
                self._wal.delete(path)
