"""Events of blocks: a block is accepted, or recovery writes it at another place."""

from __future__ import annotations

import msgspec

from driver.journal import events as ev
from driver.journal.state import ADOPTER, BrokenInvariant, State
from driver.journal.transitions.partition import partition_of
from driver.journal.transitions.receivers import count_segment
from forebay.model.values import Block


def block_added(state: State, event: ev.BlockAdded) -> None:
    block = event.block
    meta = block.meta
    if meta.id in state.blocks:
        raise BrokenInvariant(f"block {meta.id} was added twice (INV-2)")
    if not block.in_wal and not block.hosts:
        raise BrokenInvariant(f"block {meta.id} is held by no WAL and no host (INV-1)")
    for r in meta.ranges:
        partition = partition_of(state, r.topic, r.partition)
        if r.incarnation != partition.incarnation.number or r.from_offset != partition.position:
            raise BrokenInvariant(
                f"block {meta.id}: {r.label} of incarnation {r.incarnation} does not continue position "
                f"{partition.position} of incarnation {partition.incarnation.number} (INV-2)"
            )
        if r.token != partition.token or partition.owner != meta.receiver_id:
            raise BrokenInvariant(f"block {meta.id}: {r.label} came under an outdated token (INV-4)")
        partition.position = r.until_offset
        if partition.fault is not None:  # a receiver that continues by itself leaves nothing to decide
            adopted = meta.receiver_id == ADOPTER
            partition.fault = partition.fault.moved(r.until_offset) if adopted else None
        if r.leader_epoch >= 0:
            partition.leader_epoch = r.leader_epoch
            if r.from_offset == partition.incarnation.start:
                partition.incarnation.first_epoch = r.leader_epoch
    receiver = state.receivers[meta.receiver_id]
    receiver.accepted = max(receiver.accepted, meta.sequence)
    count_segment(state, block.handle.path)
    state.blocks[meta.id] = block
    state.waiting[meta.id] = True
    index = state.index
    index.add(block)
    index.wait(block)


def block_moved(state: State, event: ev.BlockMoved) -> None:
    block = state.blocks.get(event.block_id)
    if block is None:
        raise BrokenInvariant(f"block {event.block_id} was moved, and the journal names no such block")
    if event.local and not (block.local and event.handle.checksum == block.handle.checksum):
        raise BrokenInvariant(f"block {event.block_id} was moved to bytes that its local copy does not hold")
    if event.handle.path in state.cleaning_segments:
        raise BrokenInvariant(f"block {event.block_id} was moved into a segment that is being deleted (INV-8)")
    sha256, others = event.sha256, block.other_hosts
    if event.handle.checksum != block.handle.checksum:
        others = ()  # the replicas hold other bytes
    elif sha256 is msgspec.UNSET:
        sha256 = block.meta.sha256  # the same bytes at another place
    meta = msgspec.structs.replace(block.meta, sha256=sha256)
    state.blocks[block.id] = Block(meta, event.handle, event.local, others)
    state.index.move(block, state.blocks, state.released, state.replay_blocks())
