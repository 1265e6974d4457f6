"""The state of the new timeline, computed from the evidence, without I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec

from driver.journal import history
from driver.journal.history import FinishedBatch
from driver.journal.leadership import timeline
from driver.journal.state import REPAIR_WRITER, State, is_void
from driver.journal.state_parts import AttestedRange, Cleanup, EndedEpoch, Partition, Rebuild, RepeatedBatch, Replay
from driver.journal.transitions.keyed_states import states_committed
from driver.journal.transitions.receivers import ENDED_MAX, UNBARRED_MAX
from driver.journal.versions import KeyedVersions, StateCommit
from forebay.model.identifiers import count_of, numbered
from forebay.model.values import Block
from recovery.rebuild.evidence import Evidence, FoundBlock
from recovery.rebuild.walk import MissingOffsets, NotTaken, Walk
from wal.segments import layout


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """What a rebuild writes.

    ``state``: the new timeline's. ``taken``: blocks to be written again, since it is unknown which of them were synced.
    ``archive``: finished batches that only the copy names; they are written into the new history. ``missing``: labels of ranges
    whose blocks wait for a batch again and whose segments were deleted. ``not_taken``, ``missing_offsets``, ``notes``: for the
    report.
    """

    state: State
    copy_path: str
    taken: tuple[FoundBlock, ...]
    not_taken: tuple[NotTaken, ...]
    missing_offsets: tuple[MissingOffsets, ...]
    archive: tuple[FinishedBatch, ...]
    missing: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def rebuild(self) -> Rebuild:
        return self.state.rebuilds[-1]


def rebuilt(evidence: Evidence, new_timeline: int, time_ms: int, cause: str) -> RebuildPlan:
    """Return the plan for timeline ``new_timeline``: what ``evidence`` shows, without claims, receivers and open batches.

    ``time_ms``: wall clock; ``cause``: who rebuilds and why. Both are written into the state.
    """
    copy = evidence.copy
    archived = [batch for batch in evidence.archived if not copy.is_void(batch.batch_id, batch.number)]
    in_history = {batch.batch_id for batch in archived}
    archive = tuple(
        batch for batch in history.finished(copy, limit=1 << 40, windows=False) if batch.batch_id not in in_history
    )
    named = {block_id for batch in archived for task in batch.tasks for block_id in task}
    known_number = copy.completed_number
    numbers = {batch.number for batch in archived}
    while known_number + 1 in numbers:  # a driver that ran on after the loss may have archived more
        known_number += 1
    archived = [batch for batch in archived if batch.number <= known_number]
    finished = [*archived, *archive]

    partitions = {key: _unclaimed(partition) for key, partition in copy.partitions.items()}
    finished_ranges = (r for batch in archived for r in batch.ranges)
    walk = Walk(
        partitions,
        found=evidence.found,
        finished=finished_ranges,
        named=named,
        topic_ids=evidence.topic_ids,
        time_ms=time_ms,
    )
    walk.run()
    for partition in partitions.values():
        partition.incarnations = [
            incarnation for incarnation in partition.incarnations if incarnation.number
        ]  # 0: the copy did not know it

    blocks = {**copy.blocks, **{one.block.id: one.block for one in walk.taken}}
    released = dict(copy.released)
    for batch in finished:
        if batch.number > copy.archived_number:
            released |= {
                block_id: batch.completed_ms for task in batch.tasks for block_id in task if block_id in blocks
            }
    deleted = [block_id for block_id in released if blocks[block_id].handle.path in evidence.gone]
    for block_id in deleted:  # a clean-up that the copy does not know, or knows as intended
        del released[block_id], blocks[block_id]
    waiting = dict.fromkeys((block_id for block_id in blocks if block_id not in released), True)
    for partition in partitions.values():
        partition.completed = _completed(partition, (blocks[block_id] for block_id in waiting))

    number = max(copy.batch_count, known_number)
    since = [batch for batch in finished if batch.number > copy.completed_number]
    record = Rebuild(
        timeline=new_timeline,
        time_ms=time_ms,
        cause=cause,
        copy=evidence.copy_path,
        known_number=known_number,
        repeated=tuple(_repeated(copy, blocks, waiting, known_number, walk.unsure.values())),
        attested=tuple(_attested(partitions, copy, finished, [blocks[block_id] for block_id in waiting])),
        batch_count=number,
    )
    cleanups = _cleanups(copy, evidence.gone, numbered(new_timeline, 0))
    unbarred = _unbarred(copy, evidence.found)
    state = msgspec.structs.replace(
        copy,
        timeline=new_timeline,
        events=0,
        epochs=0,
        tokens=0,
        batch_count=number,
        completed_number=number,
        archived_number=number,
        cleanup_count=max(cleanups, default=numbered(new_timeline, 0)),
        partitions=partitions,
        receivers={},
        unbarred=unbarred,
        ended_epochs=_ended(copy, unbarred),
        blocks=blocks,
        waiting=waiting,
        batches={},
        batch_of={},
        released=released,
        cleanups=cleanups,
        cleaning_blocks={},
        cleaning_segments={path: True for cleanup in cleanups.values() for path in cleanup.segments},
        topics={**copy.topics, **{partition.topic: True for partition in partitions.values()}},
        batches_completed=copy.batches_completed + len(since),
        records_completed=copy.records_completed + sum(batch.records for batch in since),
        replays=[_cut_off(replay, time_ms) for replay in copy.replays],
        replaying={},
        replay_window={},
        shaped=0,
        copies=(),
        uncovered=dict.fromkeys(released, -1),
        rebuilds=[*copy.rebuilds, record],
        keyed=_kept_versions(copy, [*copy.rebuilds, record]),
        dropped_versions={
            path: msgspec.structs.replace(dropped, event=-1) for path, dropped in copy.dropped_versions.items()
        },
    )
    for batch in sorted(since, key=lambda batch: batch.number):
        states_committed(state, batch.batch_id, _new_commits(state, batch))
    missing = tuple(r.label for b in waiting if blocks[b].handle.path in evidence.gone for r in blocks[b].meta.ranges)
    return RebuildPlan(
        state=state,
        copy_path=evidence.copy_path,
        taken=tuple(walk.taken),
        not_taken=tuple(walk.not_taken()),
        missing_offsets=tuple(walk.missing_offsets()),
        archive=archive,
        missing=missing,
        notes=evidence.notes,
    )


def _kept_versions(copy: State, rebuilds: Iterable[Rebuild]) -> dict[str, KeyedVersions]:
    """Return the versions of keyed states that completed batches of ``copy`` made, without a replay that the rebuild cuts off."""
    keyed: dict[str, KeyedVersions] = {}
    first_id = copy.replays[-1].first_id if copy.replaying else 0
    for name, known in copy.keyed.items():
        versions = known.versions
        if first_id:
            versions = (*(version for version in versions if version.batch_id < first_id), *known.replaced)
        kept = tuple(v for v in versions if not is_void(rebuilds, v.batch_id, count_of(v.batch_id)))
        if kept:
            keyed[name] = KeyedVersions(kept, known.dropped_id)
    return keyed


def _new_commits(state: State, batch: FinishedBatch) -> Iterator[StateCommit]:
    """Yield the versions that the batch made after the copy."""
    for commit in batch.states:
        known = state.keyed.get(commit.name)
        if known is None or not known.versions or known.versions[-1].batch_id < batch.batch_id:
            yield commit


def _unbarred(copy: State, found: Iterable[FoundBlock]) -> list[EndedEpoch]:
    """Return the known receiver epochs of the lost journal: objects that they sent may still arrive in the store."""
    segments = {(ended.receiver_id, ended.epoch): ended.segments for ended in copy.unbarred}
    segments |= {(receiver.receiver_id, receiver.epoch): receiver.segments for receiver in copy.receivers.values()}
    for one in found:
        place = layout.parse_block(one.block.handle.path)
        if place is not None and place.receiver not in (REPAIR_WRITER, timeline.REBUILDER):
            segments[place[1:3]] = max(segments.get(place[1:3], 0), place.sequence)
    newest = sorted(segments, key=lambda writer: writer[1])[-UNBARRED_MAX:]
    return [EndedEpoch(*writer, segments[writer]) for writer in newest]


def _ended(copy: State, unbarred: Iterable[EndedEpoch]) -> list[EndedEpoch]:
    """Return the epochs that a search knows as ended. Those of ``unbarred`` are kept as the newest: some of them still run."""
    segments = {(ended.receiver_id, ended.epoch): ended.segments for ended in copy.ended_epochs}
    for ended in unbarred:
        writer = (ended.receiver_id, ended.epoch)
        segments[writer] = max(ended.segments, segments.pop(writer, 0))
    return [EndedEpoch(*writer, count) for writer, count in segments.items()][-ENDED_MAX:]


def _unclaimed(partition: Partition) -> Partition:
    """Return a new partition with the same values, but without an owner and writers."""
    return msgspec.structs.replace(
        partition,
        incarnations=[msgspec.structs.replace(incarnation) for incarnation in partition.incarnations],
        gaps=list(partition.gaps),
        owner="",
        owner_epoch=0,
        fault=None,
        writers=[],
    )


def _completed(partition: Partition, waiting: Iterable[Block]) -> int:
    """Return the offset below which no block of the current incarnation waits for a batch."""
    begins = (
        held.from_offset
        for block in waiting
        for held in block.meta.ranges
        if (held.tp, held.incarnation) == (partition.tp, partition.incarnation.number)
    )
    return min(begins, default=partition.position)


def _repeated(
    copy: State, blocks: Mapping[str, Block], waiting: Collection[str], known_number: int, unsure: Iterable[Block]
) -> Iterator[RepeatedBatch]:
    """Yield the batches that may have run and whose blocks wait for a batch again.

    The last one, with id 0, represents all batches started after the copy, whose ids are unknown. It includes ``unsure``: such
    blocks may have been accepted and run, and their offsets are read again.
    """
    named: set[str] = set()
    for batch in sorted(copy.batches.values(), key=lambda batch: batch.number):
        again = [block_id for block_id in batch.block_ids if block_id in waiting]
        if again and batch.number > known_number:
            named.update(again)
            yield RepeatedBatch(batch.batch_id, batch.number, _labels(blocks[block_id] for block_id in again))
    later = [blocks[block_id] for block_id in waiting if block_id not in named] + list(unsure)
    if later:
        yield RepeatedBatch(0, 0, _labels(later))


def _labels(blocks: Iterable[Block]) -> tuple[str, ...]:
    return tuple(r.label for r in history.merge(r for block in blocks for r in block.meta.ranges))


def _attested(
    partitions: Mapping[str, Partition], copy: State, finished: Iterable[FinishedBatch], waiting: Iterable[Block]
) -> Iterator[AttestedRange]:
    """Yield the ranges before the copy's positions that no history and no block accounts for.

    They count as finished because the copy says so: the history that proved it is lost.
    """
    known: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for batch in finished:
        for r in batch.ranges:
            known[f"{r.topic}/{r.partition}", r.incarnation].append((r.from_offset, r.until_offset))
    for block in waiting:
        for held in block.meta.ranges:
            known[str(held.tp), held.incarnation].append((held.from_offset, held.until_offset))
    for rebuild in copy.rebuilds:
        for a in rebuild.attested:
            known[f"{a.topic}/{a.partition}", a.incarnation].append((a.from_offset, a.until_offset))
    for key, partition in partitions.items():
        for recorded in partition.gaps:
            known[key, recorded.incarnation].append((recorded.gap.from_offset, recorded.gap.until_offset))
        for incarnation in partition.incarnations:
            reached = incarnation.start
            until = _position_in(copy, key, incarnation.number)
            for begin, end in [*sorted(known[key, incarnation.number]), (until, until)]:
                if min(begin, until) > reached:
                    yield AttestedRange(
                        partition.topic, partition.partition, incarnation.number, reached, min(begin, until)
                    )
                reached = max(reached, end)


def _position_in(copy: State, key: str, incarnation: int) -> int:
    """Return up to which offset of the incarnation ``copy`` had accepted blocks; 0 if it does not know the incarnation."""
    partition = copy.partitions.get(key)
    if partition is None or incarnation > partition.incarnation.number:
        return 0
    end = next((one.end for one in partition.incarnations if one.number == incarnation), None)
    return partition.position if end is None else end


def _cleanups(copy: State, gone: Collection[str], number: int) -> dict[int, Cleanup]:
    """Return the open deletions of segments that still exist, numbered after any number that an agent may have acknowledged.

    Deletions of local copies are left out: the driver intends them again when they are due.
    """
    paths = [p for cleanup in copy.cleanups.values() for p in cleanup.segments if p not in gone]
    return {number + at: Cleanup(number + at, "", (), (path,)) for at, path in enumerate(paths, start=1)}


def _cut_off(replay: Replay, time_ms: int) -> Replay:
    if replay.completed_ms is not None:
        return replay
    return msgspec.structs.replace(replay, completed_ms=time_ms, cause=f"{replay.cause} (cut off by a rebuild)")
