"""Carrying out a recovery: write blocks again, journal their new places, and delete damaged segments.

A recovery leads the journal, so it fences every driver. The order is WAL, journal, deletion. Each step is durable before the
next begins, so after a kill the next call finds what was done and continues. At worst a frame is in the WAL twice; only the
journal says which one counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from driver.journal import events as ev
from driver.journal.log.writing import Journal
from driver.journal.state import REPAIR_WRITER, State
from driver.journal.transitions import apply
from forebay.model.bounds import Sha256
from forebay.model.errors import CorruptionError, ForebayError
from forebay.model.identifiers import timeline_of
from forebay.model.values import Block, Handle
from forebay.process import failpoints
from recovery.copies import BlockCopy, CopySources
from recovery.examination import Examination, Segment, journal_view
from recovery.plan import (
    BlockRecovery,
    DamagedSegment,
    Loss,
    aside_path,
    broken_blocks,
    damaged_segments,
    forgettable,
    loss_of,
    recovery_of,
)
from wal.blocks import decode_meta, encode_meta
from wal.blocks.digests import fits
from wal.decisions.retention import JournalView
from wal.segments.frame import Frame, FrameKind
from wal.segments.layout import block_segment
from wal.segments.scan import scan_segment
from wal.segments.writer import LogWriter, Pending, SegmentIdentity, SegmentLimits
from wal.storage import Storage

#: bytes of blocks that are synced and journalled together, approximately
GROUP_BYTES = 16_000_000
_COPIES_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Carried:
    """What a recovery did. ``forgotten``: as in :class:`~recovery.plan.RecoveryPlan`."""

    outcomes: tuple[BlockRecovery | Loss, ...]
    damaged: tuple[DamagedSegment, ...]
    forgotten: tuple[str, ...]


class Restoration:
    """One recovery. ``state``: the state of the journal ``led``; events that the recovery journals change it. Not
    thread-safe."""

    def __init__(
        self,
        led: Journal,
        state: State,
        *,
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
            identity=SegmentIdentity(stream, REPAIR_WRITER, epoch, timeline_of(epoch)),
            limits=limits,
            now=now,
            new_uid=new_uid,
            failpoints=True,
        )
        #: block, SHA-256 of the bytes if they differ from the accepted ones, whether they are the accepted ones
        self._written: list[tuple[Block, Sha256 | msgspec.UnsetType, bool, Pending]] = []
        self._written_bytes = 0

    def carry_out(
        self, examined: Examination, sources: CopySources, progress: Callable[[int], None] = lambda _: None
    ) -> Carried:
        """Write the broken blocks again, set damaged segments aside, and forget segments without anything left.

        May be killed at any step and called again with a new examination. Raises OutOfSpaceError, StoreError, FencedError.
        """
        outcomes = tuple(self.restore(broken_blocks(examined), sources, progress))
        self.commit()
        view = journal_view(self._state)
        segments = {segment.path: segment for segment in examined.segments}
        damaged = tuple(
            found if found.kept else self.set_aside(segments[found.path], view) for found in damaged_segments(examined)
        )
        gone = {s.path for s in examined.segments if s.holds_nothing} | {d.path for d in damaged if d.done}
        lost = {outcome.block_id for outcome in outcomes if isinstance(outcome, Loss)}
        forgotten = tuple(forgettable(self._state, gone, lost))
        for path in forgotten:
            self.forget(path)
        return Carried(outcomes, damaged, forgotten)

    def restore(
        self, blocks: Iterable[Block], sources: CopySources, progress: Callable[[int], None] = lambda _: None
    ) -> Iterator[BlockRecovery | Loss]:
        """Write each block again from the first source that has it. The yielded blocks are durable only after :meth:`commit`.

        Raises OutOfSpaceError, StoreError, FencedError. After an error, the blocks journalled so far stay recovered; call it
        again for the rest.
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

    def commit(self) -> None:
        """Make everything written so far durable, and journal it."""
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
        """Write the whole blocks of ``segment`` again, copy the segment aside, and delete it. Its writer must be fenced or must
        have sealed it.

        Blocks that the journal names there are kept, and blocks that may still be adopted.
        """
        self._keep_whole(segment, view)
        self.commit()
        aside = copy_aside(self._wal, segment.path)
        failpoints.hit("recovery.after-aside")
        if segment.path in self._state.index.segments:
            self._journal.check()
            self._wal.delete(segment.path)
            failpoints.hit("recovery.after-delete")
        else:  # of orphans only: the journal does not know the segment, and a barrier would use its name
            number = self._state.cleanup_count + 1
            self._append(ev.CleanupIntended(number=number, segments=(segment.path,)))
            self._wal.delete(segment.path)
            failpoints.hit("recovery.after-delete")
            self._append(ev.CleanupDone(number))
        return DamagedSegment(segment.path, "", aside, done=True)

    def forget(self, path: str) -> None:
        """Remove the blocks of a deleted segment from the journal: only a replay could need them (INV-8)."""
        number = self._state.cleanup_count + 1
        self._append(ev.CleanupIntended(number=number, segments=(path,)), ev.CleanupDone(number))

    def close(self) -> None:
        self._writer.close()

    def _write(self, block: Block, found: BlockCopy) -> None:
        pending = self._writer.append(FrameKind.BLOCK, encode_meta(found.meta), found.payload)
        digest = msgspec.UNSET if found.exact else found.meta.sha256  # the journal has the accepted bytes' own
        self._written.append((block, digest, found.exact, pending))
        self._count(found.payload)

    def _count(self, payload: Any) -> None:
        self._written_bytes += memoryview(payload).nbytes
        if self._written_bytes >= GROUP_BYTES:
            self.commit()

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
            except CorruptionError:  # the examination reports it; the copy aside has its bytes
                continue
            block = self._state.blocks.get(meta.id)
            if block is not None:
                whole = _is_at(block.handle, segment.path, item) and fits(block.meta.sha256, item.payload)
                if whole and not segment.swapped:
                    self._write(block, BlockCopy("WAL", meta, item.payload, exact=True))
            elif not all(view.status_of(r).is_final for r in meta.ranges):
                self._writer.append(FrameKind.BLOCK, item.metadata, item.payload)
                orphans = True
        if orphans:
            self._writer.sync()


def copy_aside(storage: Storage, path: str) -> str:
    """Copy a segment outside the log, durably, and return the copy's path. May be repeated. Raises StoreError."""
    data = storage.read(path)
    for number in range(_COPIES_MAX):
        aside = aside_path(path) + (f".{number}" if number else "")
        try:
            storage.put_new(aside, data)
        except FileExistsError:  # an earlier call made it: the same copy, or another segment of the same name
            if storage.read(aside) != data:
                continue
        return aside
    raise ForebayError(
        f"{path} can't be set aside: {aside_path(path)} has {_COPIES_MAX} copies already; move them elsewhere"
    )


def _handle(pending: Pending) -> Handle:
    assert pending.handle is not None  # just synced
    return pending.handle


def _is_at(handle: Handle, path: str, frame: Frame) -> bool:
    return handle == Handle(path, frame.offset, frame.length, frame.header.payload_checksum)
