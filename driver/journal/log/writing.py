"""Writing a journal that this process leads: events, snapshots, the check of the epoch, deletion of superseded segments."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from threading import Event

import msgspec

from driver.journal import events as ev
from driver.journal.files import EventsMeta, SnapshotMeta, claim_path, epoch_folder
from driver.journal.log.encoding import EncodedState
from driver.journal.state import State
from forebay.model.errors import FencedError, OutOfSpaceError, StoreError
from forebay.model.identifiers import numbered, timeline_of
from forebay.process import failpoints
from wal.segments import layout
from wal.segments.frame import FrameKind
from wal.segments.writer import LogWriter, SegmentIdentity, SegmentLimits
from wal.storage import Paths, Storage, existing

#: events after the last snapshot from which a new one is due, unless the state itself is larger
SNAPSHOT_EVENTS = 20_000
#: segments after which a snapshot is due on a store of whole objects: opening reads each of them by one request
SNAPSHOT_SEGMENTS = 256
#: empty epochs in a row after which clean-up searches no further back: an earlier driver has deleted the older ones
EMPTY_EPOCHS = 16
#: 1 / share of the events between two snapshots after which a snapshot that found no space is tried again
SNAPSHOT_RETRY_SHARE = 10
_encoder = msgspec.msgpack.Encoder()
log = logging.getLogger(__name__)


class Journal:
    """A journal that this process leads. :func:`driver.journal.log.opening.lead` makes it, and one thread uses it. Superseded
    segments are deleted in a thread of its own, because on a store of objects each deletion is a request.

    ``now``: monotonic seconds. ``new_uid``: returns a new id for each segment.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        stream: str,
        epoch: int,
        state: State,
        segment_bytes: int,
        now: Callable[[], float],
        new_uid: Callable[[], int],
    ) -> None:
        self.epoch = epoch
        #: durable events at the last check that found this epoch to be the newest; other threads may read it
        self.confirmed = 0
        self._storage = storage
        self._stream = stream
        self._state = state
        self._segment_bytes = segment_bytes
        self._now = now
        self._new_uid = new_uid
        self._since_snapshot = 0
        self._syncs_since_snapshot = 0
        self._next = self._durable = state.events  # the next event's number; the number of durable events
        self._writer: LogWriter | None = None
        self._bases: list[int] = []  # sequences of the segments that begin with a snapshot
        self._snapshot: tuple[int, float] | None = None  # events in the newest snapshot, and its time
        self._kinds: list[str] = []  # kinds of the events that are not durable yet, for failpoints
        self._deleter = ThreadPoolExecutor(1, thread_name_prefix="journal-clean-up")
        self._deletion: Future[None] | None = None  # the newest one; those before it have ended when it has
        self._closing = Event()
        # used by the deleter alone:
        self._oldest = 1  # sequence of the oldest own segment that is not deleted
        self._older_dropped = False  # whether all segments of older epochs are deleted

    def append(self, events: Sequence[ev.Event]) -> None:
        """Write ``events``, which were decided and applied in this order, as one frame. They are not durable yet."""
        assert self._writer is not None
        self._kinds = [*self._kinds, *(type(event).__name__ for event in events)] if failpoints.any_armed() else []
        failpoints.hit("journal.before-write", self._kinds)
        meta = EventsMeta(first=self._next, count=len(events), epoch=self.epoch)
        self._writer.append(FrameKind.EVENTS, _encoder.encode(meta), _encoder.encode(events))
        self._next += len(events)
        self._since_snapshot += len(events)
        failpoints.hit("journal.before-sync", self._kinds)

    def sync(self) -> None:
        """Make everything appended durable. Raises OutOfSpaceError: nothing is lost, call again. Raises StoreError: the process
        must end, since its state is ahead of the journal."""
        assert self._writer is not None
        self._writer.sync()
        self._durable = self._next
        self._syncs_since_snapshot += 1
        kinds, self._kinds = self._kinds, []
        failpoints.hit("journal.after-sync", kinds)

    def check(self) -> None:
        """Raise FencedError if a newer epoch, or the first epoch of a rebuilt journal, is claimed. Call it after each durable
        write, before any answer or action (INV-4)."""
        self._refuse_newer()
        self.confirmed = self._durable

    def free_bytes(self) -> int | None:
        """Return the free bytes of the journal's store; None if the store does not report them."""
        return self._storage.free_bytes()

    def snapshot_due(self) -> bool:
        if not self._storage.appendable and self._syncs_since_snapshot >= SNAPSHOT_SEGMENTS:
            return True
        return self._since_snapshot >= max(SNAPSHOT_EVENTS, 2 * (len(self._state.blocks) + len(self._state.batches)))

    def snapshot(self) -> None:
        """Write a full snapshot as the first frame of a new segment. It is durable on return. Everything appended before must be
        synced.

        Raises OutOfSpaceError: later events go to the old segment, and the snapshot is due again after some more events. (On a
        store of whole objects, a snapshot whose write has begun may still land. It then stays, before the later events.)
        """
        if self._writer is not None and self._writer.unsynced():
            raise AssertionError("a snapshot was requested before its events were durable")
        writer = self._new_writer()
        first = writer.next_sequence
        state = EncodedState.of(self._state)
        meta = SnapshotMeta(next=state.next, epoch=self.epoch, actions=state.actions)
        payload = state.payload()
        try:
            self._check_room(payload.length)
            pending = writer.append(FrameKind.SNAPSHOT, _encoder.encode(meta), payload)
            writer.sync()
        except OutOfSpaceError:
            self._since_snapshot -= self._since_snapshot // SNAPSHOT_RETRY_SHARE
            self._syncs_since_snapshot -= self._syncs_since_snapshot // SNAPSHOT_RETRY_SHARE
            if not self._storage.appendable and writer.unsynced():
                self._writer = writer
                raise
            writer.close()
            for sequence in range(first, writer.next_sequence + 1):  # completions need the space that it took
                self._storage.delete(layout.journal_segment(self._stream, self.epoch, sequence))
            raise
        if self._writer is not None:
            self._writer.close()
        self._writer = writer
        assert pending.handle is not None  # just synced
        place = layout.parse_journal(pending.handle.path)
        assert place is not None
        self._since_snapshot = self._syncs_since_snapshot = 0
        self._bases.append(place.sequence)
        self._snapshot = (meta.next, self._now())

    @property
    def newest_snapshot(self) -> tuple[int, float | None]:
        """The number of events in this epoch's newest snapshot, and its age in seconds (None: there is none yet). Any thread may
        read it."""
        snapshot = self._snapshot
        return (0, None) if snapshot is None else (snapshot[0], max(0.0, self._now() - snapshot[1]))

    def _check_room(self, snapshot_bytes: int) -> None:
        """Raise OutOfSpaceError if a snapshot would leave no space for the events after it. The first snapshot of an epoch is
        always tried: without it the epoch has no segment."""
        free = self._storage.free_bytes() if self._writer is not None else None
        if free is not None and free < 2 * snapshot_bytes:
            raise OutOfSpaceError(
                f"cannot write a snapshot to {self._storage.url}: {2 * snapshot_bytes} bytes are needed, but only {free} are free"
            )

    def drop_superseded(self) -> None:
        """Begin to delete the segments before the second newest snapshot of this epoch, and those of older epochs.

        The epoch just before this one keeps its segments until this epoch has two snapshots. Claims, marks and older timelines
        stay. Call it only after :meth:`check` has passed (a fenced driver deletes nothing, INV-4) and the epoch's mark is
        durable: the mark proves that no reader may fall back to an older epoch.

        Returns immediately. What a StoreError leaves, or a thread that can't be started, is deleted after the next snapshot or by
        the next leader. Raises any other error that ended an earlier deletion.
        """
        if self._deletion is not None and self._deletion.done():
            self._deletion.result()
        kept = self._bases[-2] if len(self._bases) > 1 else None
        del self._bases[:-2]
        self._deletion = None
        try:
            self._deletion = self._deleter.submit(self._delete_superseded, kept)
        except RuntimeError as error:  # no thread can be started
            log.warning("superseded segments of the journal stay until the next snapshot: %s", error)

    def await_deletion(self) -> None:
        """Wait until no deletion runs. Raises the error that ended the newest one, unless it is a StoreError."""
        if self._deletion is not None:
            self._deletion.result()

    def close(self) -> None:
        """End the deletion after the segment that it deletes, and write no more. Raises as :meth:`await_deletion` does."""
        self._closing.set()
        self._deleter.shutdown()
        if self._writer is not None:
            self._writer.close()
        self.await_deletion()

    def _refuse_newer(self) -> None:
        own = timeline_of(self.epoch)
        successors = {claim_path(self._stream, epoch): epoch for epoch in (self.epoch + 1, numbered(own + 1, 1))}
        for path in existing(self._storage, tuple(successors)):
            epoch = successors[path]
            raise FencedError(
                f"another driver leads stream {self._stream!r}: its epoch is {epoch:x}, this driver's is {self.epoch:x}"
                if timeline_of(epoch) == own
                else f"the journal of stream {self._stream!r} was rebuilt: timeline {own + 1} replaces {own}"
            )

    def _delete_superseded(self, kept: int | None) -> None:
        """Delete what is superseded if the own segments from ``kept`` on are needed. None: all own ones, and the epoch before."""
        try:
            self._refuse_newer()
            if kept is None:
                self._delete_epochs(self.epoch - 2)
                return
            while self._oldest < kept and not self._closing.is_set():  # ascending: a crash leaves no gap
                self._storage.delete(layout.journal_segment(self._stream, self.epoch, self._oldest))
                self._oldest += 1
            if not self._older_dropped:
                self._older_dropped = self._delete_epochs(self.epoch - 1)
        except FencedError:
            return  # the next check finds it, and raises it
        except StoreError as error:
            log.warning("superseded segments of the journal stay until the next snapshot: %s", error)

    def _delete_epochs(self, newest: int) -> bool:
        """Delete all segments of the epoch ``newest`` and of older epochs of this timeline. Return False if it was interrupted.

        The oldest ones go first, so that after a crash the next leader finds the rest within ``EMPTY_EPOCHS``.
        """
        found: list[Paths] = []
        empty = 0
        for epoch in range(newest, numbered(timeline_of(self.epoch), 0), -1):
            found.append(self._storage.list(epoch_folder(self._stream, epoch)))
            empty = 0 if found[-1] else empty + 1
            if empty == EMPTY_EPOCHS or self._closing.is_set():
                break
        for path in chain.from_iterable(reversed(found)):
            if self._closing.is_set():
                return False
            self._storage.delete(path)
        return True

    def _new_writer(self) -> LogWriter:
        first = 1 if self._writer is None else self._writer.next_sequence
        identity = SegmentIdentity(
            stream=self._stream, writer="driver", epoch=self.epoch, timeline=timeline_of(self.epoch)
        )
        return LogWriter(
            self._storage,
            lambda sequence: layout.journal_segment(self._stream, self.epoch, sequence),
            identity=identity,
            limits=SegmentLimits(size_bytes=self._segment_bytes, age_seconds=float("inf")),
            now=self._now,
            new_uid=self._new_uid,
            rewrite=False,
            first_sequence=first,
        )
