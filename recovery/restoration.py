"""Recovery's hand: writes blocks anew, journals where they lie, takes damaged segments out of the log.

It leads the journal, so it fences every driver, and everything goes in the order WAL, journal, deletion: each step is durable
before the next begins, and a kill between any two leaves what the next call finds and goes on with. At worst a frame lies in
the WAL twice, and only the journal says which one counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from driver.journal import events as ev
from driver.journal.log import Journal
from driver.journal.state import REPAIR_WRITER, State
from driver.journal.transitions import apply
from forebay.model.errors import CorruptionError, ForebayError
from forebay.model.values import Block, Handle, Sha256, timeline_of
from forebay.process import failpoints
from recovery.copies import Found, Sources
from recovery.examination import Segment
from recovery.plan import DamagedSegment, Loss, Recovery, aside_path, loss_of, recovery_of
from wal.blocks import decode_meta, encode_meta
from wal.digests import fits
from wal.frame import Frame, FrameKind
from wal.layout import block_segment
from wal.retention import JournalView
from wal.scan import scan_segment
from wal.storage import Storage
from wal.writer import LogWriter, Pending, SegmentIdentity, SegmentLimits

#: blocks are made durable, and journalled, in groups of about so many bytes
GROUP_BYTES = 16_000_000
_COPIES_MAX = 1_000


class Restoration:
    """``state``: of the journal ``led``, changed by what is journalled here. One thread uses it."""

    def __init__(
        self,
        led: Journal,
        state: State,
        wal: Storage,
        limits: SegmentLimits,
        now: Callable[[], float],
        new_uid: Callable[[], int],
    ) -> None:
        self._journal = led
        self._state = state
        self._wal = wal
        stream, epoch = state.stream, led.epoch
        self._writer = LogWriter(
            wal,
            lambda sequence: block_segment(stream, REPAIR_WRITER, epoch, sequence),
            SegmentIdentity(stream, REPAIR_WRITER, epoch, timeline_of(epoch)),
            limits,
            now,
            new_uid,
            failpoints=True,
        )
        #: block, SHA-256 of bytes that are others than those accepted, whether they are those accepted
        self._written: list[tuple[Block, Sha256 | msgspec.UnsetType, bool, Pending]] = []
        self._written_bytes = 0

    def restore(
        self, blocks: Iterable[Block], sources: Sources, progress: Callable[[int], None] = lambda _: None
    ) -> Iterator[Recovery | Loss]:
        """Writes each block anew from the first source that has it. What it yields is durable once :meth:`settle` returned.

        Raises OutOfSpaceError, StoreError, FencedError: what was journalled until then stays, the rest comes next time.
        """
        for block in blocks:
            found, reasons = sources.find(block)
            if found is None:
                yield loss_of(self._state, block, reasons)
            else:
                done = recovery_of(self._state, block, found.source, found.exact, done=True)
                self._write(block, found)
                yield done
            progress(1)

    def settle(self) -> None:
        """Everything written so far is durable, and journalled, on return."""
        if not self._written:
            return
        self._writer.sync()
        failpoints.hit("recovery.after-write")
        moved = [
            ev.BlockMoved(block_id=block.id, handle=_handle(pending), local=block.local and exact, sha256=digest)
            for block, digest, exact, pending in self._written
        ]
        self._written, self._written_bytes = [], 0
        self._append(*moved)
        failpoints.hit("recovery.after-journal")

    def set_aside(self, segment: Segment, view: JournalView) -> DamagedSegment:
        """Writes what is whole in ``segment`` anew, copies the segment aside, deletes it. Nobody may write to it any more.

        Whole are blocks that the journal names there, and those that may still be adopted.
        """
        self._keep_whole(segment, view)
        self.settle()
        aside = copy_aside(self._wal, segment.path)
        failpoints.hit("recovery.after-aside")
        if segment.path in self._state.index.segments:
            self._journal.check()
            self._wal.delete(segment.path)
            failpoints.hit("recovery.after-delete")
        else:  # of orphans alone: the journal has not counted it, and a barrier would take its name for the next one
            number = self._state.cleanup_count + 1
            self._append(ev.CleanupIntended(number=number, segments=(segment.path,)))
            self._wal.delete(segment.path)
            failpoints.hit("recovery.after-delete")
            self._append(ev.CleanupDone(number))
        return DamagedSegment(segment.path, "", aside, done=True)

    def forget(self, path: str) -> None:
        """Takes the blocks of a segment that is gone out of the journal: nothing but a replay would need them (INV-8)."""
        number = self._state.cleanup_count + 1
        self._append(ev.CleanupIntended(number=number, segments=(path,)), ev.CleanupDone(number))

    def close(self) -> None:
        self._writer.close()

    def _write(self, block: Block, found: Found) -> None:
        pending = self._writer.append(FrameKind.BLOCK, encode_meta(found.meta), found.payload)
        digest = msgspec.UNSET if found.exact else found.meta.sha256  # of the same bytes the journal has its own
        self._written.append((block, digest, found.exact, pending))
        self._count(found.payload)

    def _count(self, payload: Any) -> None:
        self._written_bytes += memoryview(payload).nbytes
        if self._written_bytes >= GROUP_BYTES:
            self.settle()

    def _append(self, *events: ev.Event) -> None:
        for event in events:
            apply(self._state, event)
        self._journal.append(events)
        self._journal.sync()
        self._journal.check()

    def _keep_whole(self, segment: Segment, view: JournalView) -> None:
        orphans = False
        for item in scan_segment(self._wal, segment.path, swapped=segment.swapped):
            if not isinstance(item, Frame) or item.header.kind != FrameKind.BLOCK:
                continue
            try:
                meta = decode_meta(item.metadata, segment.path, item.offset)
            except CorruptionError:  # a finding of the examination; its bytes go aside with the rest
                continue
            block = self._state.blocks.get(meta.id)
            if block is not None:
                whole = _lies_at(block.handle, segment.path, item) and fits(block.meta.sha256, item.payload)
                if whole and not segment.swapped:
                    self._write(block, Found("WAL", meta, item.payload, exact=True))
            elif not all(view.status(r).settled for r in meta.ranges):
                self._writer.append(FrameKind.BLOCK, item.metadata, item.payload)
                orphans = True
        if orphans:
            self._writer.sync()


def copy_aside(storage: Storage, path: str) -> str:
    """Copies a segment to where nothing looks for the log, durably; may be repeated. Returns where. Raises StoreError."""
    data = storage.read(path)
    for number in range(_COPIES_MAX):
        aside = aside_path(path) + (f".{number}" if number else "")
        try:
            storage.put_new(aside, data)
        except FileExistsError:  # of an earlier call: this very copy, or another state of the same name
            if storage.read(aside) != data:
                continue
        return aside
    raise ForebayError(f"{aside_path(path)} has {_COPIES_MAX} copies already: move them away")


def _handle(pending: Pending) -> Handle:
    assert pending.handle is not None  # just synced
    return pending.handle


def _lies_at(handle: Handle, path: str, frame: Frame) -> bool:
    return handle == Handle(path, frame.offset, frame.length, frame.header.payload_checksum)
