"""What may be deleted (INV-8), as far as the journal says: WAL segments, and local copies that nothing needs. Pure.

``driver.tracker`` asks them and journals the intent; ``driver.background.cleaner`` is the hand.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace

from driver.journal.state import State, is_fenced, is_forgotten
from forebay.model.values import TopicPartition, timeline_of
from forebay.settings.schema import Settings
from wal.decisions.retention import JournalView, Judgement, Limits, Position, SegmentFacts, judge_segment

#: local copies that one clean-up names at most
COPIES_AT_ONCE = 10_000
#: a block's id as ``forebay.model.values.block_id`` makes it: receiver, epoch, sequence
_BLOCK_ID = re.compile(r"(.+)-([0-9a-f]{1,16})-([0-9]{1,20})")


def retention_limits(settings: Settings) -> Limits:
    wal = settings.wal
    return Limits(
        retention_ms=round(wal.retention * 1000),
        retention_bytes=int(wal.retention_size),
        retention_blocks=wal.retention_blocks,
        free_bytes=int(wal.retention_free),
    )


@dataclass(frozen=True, slots=True)
class CleanSegment:
    """Delete one WAL segment, if INV-8 lets it. ``facts``: what a scan found, for a writer not known to be fenced; whether it
    is, the journal says. ``receiver_id`` and ``epoch``: of the writer, from the segment's name. ``limits``: of this round of
    clean-up; None: the driver's settings, whatever the store's free space."""

    facts: SegmentFacts
    receiver_id: str
    epoch: int
    now_ms: int
    limits: Limits | None = None


def is_stray(state: State, block_id: str) -> bool:
    """Whether a local copy belongs to no block that the journal names or could still accept: its epoch is fenced, or a
    later block of the same epoch was accepted (reports come in order, so this one was refused, or is cleaned up)."""
    if block_id in state.blocks:
        return False
    named = _BLOCK_ID.fullmatch(block_id)
    if named is None:
        return False
    receiver_id, epoch = named[1], int(named[2], 16)
    if 0 < timeline_of(epoch) < state.timeline or is_forgotten(state, receiver_id, epoch):
        return True
    receiver = state.receivers.get(receiver_id)
    if receiver is None:
        return False
    return f"{receiver.epoch:x}" != named[2] or int(named[3]) < receiver.accepted


def is_left_over(state: State, block_id: str, host: str) -> bool:
    """Whether ``host`` was given a copy of a block of which the journal names none there, and no batch, window or replay reads
    it any more."""
    block = state.blocks.get(block_id)
    if block is None or state.replaying or host in block.hosts:
        return False
    batch = state.batches.get(state.batch_of.get(block_id, 0))
    return block_id in state.released or (batch is not None and state.is_past(batch.number))


def to_give_up(state: State, host: str, short_bytes: int) -> tuple[str, ...]:
    """Blocks that the WAL holds, and ``host`` too, of so many bytes at least if there are; of those that were taken in last,
    since batches read them last."""
    going: list[str] = []
    for block in itertools.islice(reversed(state.blocks.values()), COPIES_AT_ONCE) if short_bytes > 0 else ():
        own = block.in_wal and block.local and block.meta.host == host
        if own and block.id not in state.cleaning_blocks:
            going.append(block.id)
            short_bytes -= block.handle.length
            if short_bytes <= 0:
                break
    return tuple(going)


def judge(state: State, request: CleanSegment, limits: Limits) -> Judgement:
    """INV-8 for one segment: ``wal.decisions.retention`` decides, with what the journal says of the blocks in it.

    A block is released when the history holds its batch, no replay wants it, its segment is due (``limits``, if the
    request has none of its own), and no deletion of its local copy is under way, which would find its block gone. A
    block whose handle points elsewhere was written a second time, after a failed sync or by a recovery that was cut
    off: here it is a copy, which stays until the block is released, and then is an orphan. What a snapshot copy does
    not call released would be needed again by a journal rebuilt from it.
    """
    facts = request.facts
    if facts.path in state.cleaning_segments:
        return Judgement(facts.path, ("its deletion is under way",))
    if request.now_ms < facts.bars_until_ms:
        return Judgement(facts.path, ("it is a barrier: what its fenced writer sent may still land without it",))
    fenced = is_fenced(state, request.receiver_id, request.epoch)
    # A block accepted since the scan (its writer could still append, and was fenced only then), or one that the scan did
    # not find: whatever the reason, it would go with the segment.
    scanned = {frame.block_id for frame in facts.frames}
    share = state.index.segments.get(facts.path)
    for block_id in share.blocks if share is not None else ():
        if block_id not in scanned:
            return Judgement(facts.path, (f"block {block_id} was not seen by the scan",))
    gone = state.index.is_due(facts.path, request.limits or limits, request.now_ms)
    needed: set[str] = set()
    released: set[str] = set()
    positions: dict[TopicPartition, Position] = {}
    for frame in facts.frames:
        for r in frame.ranges:
            if (partition := state.partition(r.tp)) is not None:
                positions[r.tp] = Position(partition.incarnation.number, partition.position)
        known = state.blocks.get(frame.block_id)
        if known is None or known.handle.path != facts.path:
            if known is not None and frame.block_id not in state.released:
                needed.add(frame.block_id)  # its place may be damaged, and this the last copy
            continue
        (released if gone and frame.block_id not in state.cleaning_blocks else needed).add(frame.block_id)
    judgement = judge_segment(replace(facts, fenced=fenced), JournalView(needed, released, positions))
    if judgement.deletable and not state.is_covered(facts.path):
        return Judgement(facts.path, ("the last two snapshot copies don't both say yet that its blocks are released",))
    return judgement
