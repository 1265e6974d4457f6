"""What may be deleted according to the journal (INV-8): WAL segments and superfluous local copies. Decision logic, without I/O.

``driver.tracker`` journals the intent, and ``driver.background.cleaner`` deletes.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace

from driver.journal.state import State, is_fenced, is_forgotten
from forebay.model.identifiers import timeline_of
from forebay.model.values import TopicPartition
from forebay.settings.schema import Settings
from wal.decisions.retention import (
    JournalView,
    Judgement,
    PartitionPosition,
    RetentionLimits,
    SegmentFacts,
    judge_segment,
)

#: maximum number of local copies that one clean-up names
COPIES_AT_ONCE = 10_000
#: a block's id as ``forebay.model.values.block_id`` makes it: receiver, epoch, sequence
_BLOCK_ID = re.compile(r"(.+)-([0-9a-f]{1,16})-([0-9]{1,20})")


def retention_limits(settings: Settings) -> RetentionLimits:
    """Return the rewind horizon's limits, as ``[wal]`` sets them."""
    wal = settings.wal
    return RetentionLimits(
        retention_ms=round(wal.retention * 1000),
        retention_bytes=int(wal.retention_size),
        retention_blocks=wal.retention_blocks,
        free_bytes=int(wal.retention_free),
    )


@dataclass(frozen=True, slots=True)
class CleanSegment:
    """Request to delete one WAL segment if INV-8 permits it.

    ``facts``: what a scan found; the journal adds whether the writer is fenced. ``receiver_id``, ``epoch``: the writer, from
    the segment's name. ``limits``: the retention limits of this round of clean-up; None: the limits of the settings, without a
    limit by free space.
    """

    facts: SegmentFacts
    receiver_id: str
    epoch: int
    now_ms: int
    limits: RetentionLimits | None = None


def is_stray(state: State, block_id: str) -> bool:
    """Whether a local copy belongs to no block that the journal names or could still accept.

    This is so if its epoch is fenced, or if a later block of the same epoch was accepted: reports come in order, so this
    block was refused or deleted.
    """
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
    """Whether the copy of a block at ``host`` is a cached copy that no batch, window or replay reads any more."""
    block = state.blocks.get(block_id)
    if block is None or state.replaying or host in block.hosts:
        return False
    batch = state.batches.get(state.batch_of.get(block_id, 0))
    return block_id in state.released or (batch is not None and state.is_past(batch.number))


def to_give_up(state: State, host: str, short_bytes: int) -> tuple[str, ...]:
    """Return blocks of the WAL whose copies ``host`` can delete to free ``short_bytes``, or fewer bytes if there are not enough.

    The newest blocks come first, because batches read them last.
    """
    going: list[str] = []
    for block in itertools.islice(reversed(state.blocks.values()), COPIES_AT_ONCE) if short_bytes > 0 else ():
        if block.in_wal and host in block.hosts and block.id not in state.cleaning_blocks:
            going.append(block.id)
            short_bytes -= block.handle.length
            if short_bytes <= 0:
                break
    return tuple(going)


def judge(state: State, request: CleanSegment, limits: RetentionLimits) -> Judgement:
    """Decide whether one segment may be deleted (INV-8): by ``wal.decisions.retention`` and the journal.

    A block is released if the history has its batch, no replay needs it, its segment is due (by ``limits``, unless the
    request has its own), and no deletion of its local copy is open, which could no longer find the block.

    A block whose handle names another segment was written twice, after a failed sync or by an interrupted recovery. The copy
    in this segment stays until the block is released, and then is an orphan. A block that a snapshot copy does not call
    released stays too: a journal rebuilt from this copy would need it.
    """
    facts = request.facts
    if facts.path in state.cleaning_segments:
        return Judgement(facts.path, ("its deletion has begun",))
    if request.now_ms < facts.bars_until_ms:
        return Judgement(facts.path, ("it is a barrier: without it, blocks of its fenced writer may still land",))
    fenced = is_fenced(state, request.receiver_id, request.epoch)
    # a block that was accepted after the scan, or that the scan did not find, would be deleted with the segment
    scanned = {frame.block_id for frame in facts.frames}
    share = state.index.segments.get(facts.path)
    for block_id in share.blocks if share is not None else ():
        if block_id not in scanned:
            return Judgement(facts.path, (f"the scan did not find block {block_id}",))
    gone = state.index.is_due(facts.path, request.limits or limits, request.now_ms)
    needed: set[str] = set()
    released: set[str] = set()
    positions: dict[TopicPartition, PartitionPosition] = {}
    for frame in facts.frames:
        for r in frame.ranges:
            if (partition := state.partition(r.tp)) is not None:
                positions[r.tp] = PartitionPosition(partition.incarnation.number, partition.position)
        known = state.blocks.get(frame.block_id)
        if known is None or known.handle.path != facts.path:
            if known is not None and frame.block_id not in state.released:
                needed.add(frame.block_id)  # the named place may be damaged, and this copy the last one
            continue
        (released if gone and frame.block_id not in state.cleaning_blocks else needed).add(frame.block_id)
    judgement = judge_segment(replace(facts, fenced=fenced), JournalView(needed, released, positions))
    if judgement.deletable and not state.is_covered(facts.path):
        return Judgement(facts.path, ("not both of the last two snapshot copies say that its blocks are released",))
    return judgement
