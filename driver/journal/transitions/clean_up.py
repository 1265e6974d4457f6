"""Events by which blocks leave the state: batches move to the history, snapshot copies, deletions (INV-8)."""

from __future__ import annotations

from driver.journal import events as ev
from driver.journal.state import BrokenInvariant, State
from driver.journal.state_parts import Cleanup, SnapshotCopy
from driver.journal.transitions.receivers import count_segment, delete_segment
from forebay.model.values import Block


def batches_archived(state: State, event: ev.BatchesArchived) -> None:
    for batch_id in event.batch_ids:
        batch = state.batches.pop(batch_id)
        if batch.completed_ms is None or batch.number != state.archived_number + 1:
            raise BrokenInvariant(f"batch {batch_id} left the state out of order or unfinished (INV-3)")
        if batch.number > state.completed_number:
            raise BrokenInvariant(f"batch {batch_id} was archived beyond the completed prefix (INV-3)")
        if not state.is_past(batch.number):
            raise BrokenInvariant(f"batch {batch_id} was archived while a window reaches back to it (INV-8)")
        state.archived_number = batch.number
        block_ids = batch.block_ids
        for block_id in block_ids:
            del state.batch_of[block_id]
        state.released.update(dict.fromkeys(block_ids, batch.completed_ms))
        blocks = [state.blocks[block_id] for block_id in block_ids]
        in_wal = [block for block in blocks if block.in_wal]
        if len(in_wal) < len(blocks):
            # the copies of the others are the data itself: they stay as long as a WAL's segments would
            state.index.finish(block for block in blocks if not block.in_wal)
        state.uncovered.update((block.id, state.events) for block in in_wal)
        state.index.release(in_wal, batch.completed_ms)
        if batch_id in state.replaying or batch_id in state.replay_window:
            for block in in_wal:
                state.index.hold(block)


def snapshot_copied(state: State, event: ev.SnapshotCopied) -> None:
    state.copies = (*state.copies, SnapshotCopy(next=event.next, path=event.path))[-2:]
    if len(state.copies) == 2:
        said = min(copy.next for copy in state.copies)
        state.uncovered = {block: number for block, number in state.uncovered.items() if number >= said}
        state.dropped_versions = {path: d for path, d in state.dropped_versions.items() if d.event >= said}


def cleanup_intended(state: State, event: ev.CleanupIntended) -> None:
    if event.number != state.cleanup_count + 1:
        raise BrokenInvariant(f"clean-up {event.number} is not the next one")
    state.cleanup_count += 1
    state.cleanups[event.number] = Cleanup(
        number=event.number, host=event.host, blocks=event.blocks, segments=event.segments
    )
    named = [block_id for block_id in event.blocks if _is_named(state, block_id, event.host)]
    state.cleaning_blocks.update(dict.fromkeys(named, True))
    state.index.clean((state.blocks[b] for b in named if b in state.blocks), event.host)
    for path in event.segments:
        share = state.index.segments.get(path)
        if share is not None and share.unread:  # a cursor opened later gets an error if it begins before the segment
            raise BrokenInvariant(f"segment {path} is to be deleted while a cursor has yet to read it (INV-8)")
    state.cleaning_segments.update(dict.fromkeys(event.segments, True))
    for path in event.segments:
        count_segment(state, path)
        delete_segment(state, path)


def _is_named(state: State, block_id: str, host: str) -> bool:
    """Whether the copy at ``host`` is one that the journal may name, and not a cached copy."""
    block = state.blocks.get(block_id)
    return block is None or host in (block.meta.host, *block.other_hosts)


def cleanup_done(state: State, event: ev.CleanupDone) -> None:
    cleanup = state.cleanups.pop(event.number)
    for block_id in cleanup.blocks:
        if not _is_named(state, block_id, cleanup.host):
            continue
        state.cleaning_blocks.pop(block_id, None)
        block = state.blocks.get(block_id)
        if block is None:
            continue
        left = block.without_copy(cleanup.host)
        if left.in_wal or left.hosts:
            state.blocks[block_id] = left
        elif state.released.pop(block_id, None) is not None:
            _forget_block(state, block_id)
        else:
            raise BrokenInvariant(f"the last copy of block {block_id} was deleted while a batch may need it (INV-8)")
    for path in cleanup.segments:
        state.cleaning_segments.pop(path, None)
        share = state.index.segments.get(path)
        held = share is not None and share.held > 0
        for block_id in state.index.drop(path, state.blocks):
            state.uncovered.pop(block_id, None)
            if state.released.pop(block_id, None) is None or held:
                raise BrokenInvariant(f"block {block_id} was deleted while a batch may need it (INV-8)")
            state.index.clean((_forget_block(state, block_id),))


def _forget_block(state: State, block_id: str) -> Block:
    block = state.blocks.pop(block_id)
    if state.lost:
        for r in block.meta.ranges:
            state.lost.pop(r.label, None)
    return block
