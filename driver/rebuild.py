"""Rebuilding a lost journal from its newest snapshot copy and the frames of the WAL after it, as a new lineage.

:func:`rebuilt` decides on values alone: which frames are taken in, what the new lineage's state is. :func:`look` reads what
there is, :func:`steps` does it, in an order of which every prefix, cut off, leaves a journal that no driver leads.

Why the walk takes what the lost journal accepted: a claim is given at the durable position, so where a block was accepted no
frame with a higher token begins; and no range is written twice under one token except as the same block. What was never
accepted is taken too where nothing else goes on at the position: its records are those of these offsets, if they are of the
life's topic. Where that can't be told (:meth:`Walk._is_sure`), only what was accepted is taken.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from driver import bounds, history, journal, lineage
from driver.history import FinishedBatch, FinishedRange, HistoryWriter
from driver.journal import Claim, Journal, claim_path, newest_claim
from driver.state import (
    REPAIR_WRITER,
    AttestedRange,
    BrokenInvariant,
    Cleanup,
    EndedEpoch,
    Life,
    Partition,
    Rebuild,
    RecordedGap,
    RepeatedBatch,
    Replay,
    State,
)
from driver.transitions import UNBARRED_MAX
from forebay import failpoints
from forebay.errors import CorruptionError, FencedError, ForebayError, NewerVersionError, RefusedError, StoreError
from forebay.values import Block, BlockMeta, Gap, Handle, OffsetRange, lineage_of, numbered
from wal import layout
from wal.blocks import decode_meta
from wal.frame import Frame, FrameKind
from wal.scan import Damage, Newer, read_frame, scan_segment
from wal.storage import Storage
from wal.writer import LogWriter, Pending, SegmentIdentity, SegmentLimits

#: topics → their ids in Kafka now, "" for one that is not there; raises ForebayError where nobody answers
TopicIds = Callable[[Iterable[str]], Mapping[str, str]]

FOUND_IN_WAL = "found in the WAL by a rebuild"
#: bytes of blocks that are written between two syncs
GROUP_BYTES = 64_000_000


# ---- the walk: values alone -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FoundBlock:
    """A block after the copy. ``whole``: its payload has the checksum that its header names."""

    block: Block
    whole: bool


@dataclass(frozen=True, slots=True)
class NotTaken:
    block_id: str
    path: str
    ranges: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Hole:
    """Whole frames begin beyond the position reached, and nothing leads there: intake goes on at ``position``."""

    topic: str
    partition: int
    life: int
    position: int
    next_from: int


@dataclass(slots=True)
class _Frames:
    """Ranges of one life of one partition, by where they begin. ``over_gaps``: those that a gap leads to."""

    by_start: dict[int, list[tuple[int, str]]] = field(default_factory=lambda: defaultdict(list))
    over_gaps: list[tuple[Gap, int, str]] = field(default_factory=list)
    first: int = 1 << 63
    first_token: int = 1 << 63

    def add(self, held: OffsetRange, block_id: str) -> None:
        self.by_start[held.from_offset].append((held.token, block_id))
        begins = held.from_offset
        if held.preceding_gap is not None:
            self.over_gaps.append((held.preceding_gap, held.token, block_id))
            begins = held.preceding_gap.from_offset
        self.first = min(self.first, begins)
        self.first_token = min(self.first_token, held.token)

    def best(self, position: int) -> str | None:
        """The block that goes on at ``position`` under the highest token, over a gap that begins there or before."""
        found = list(self.by_start.get(position, ()))
        found += [
            (token, name) for gap, token, name in self.over_gaps if gap.from_offset <= position < gap.until_offset
        ]
        return max(found)[1] if found else None

    def goes_on_at(self, position: int) -> bool:
        return self.best(position) is not None


class Walk:
    """Takes ``found`` in, on from ``partitions``, which it changes. ``finished``: what a surviving history proves.

    ``named``: blocks of its batches. ``topic_ids``: of topics in Kafka after ``found`` was, none if it could not be asked.
    ``unsure``: blocks that are not taken since they may hold records of another topic of that name.
    """

    def __init__(
        self,
        partitions: dict[str, Partition],
        found: Iterable[FoundBlock],
        finished: Iterable[FinishedRange],
        named: Collection[str],
        topic_ids: Mapping[str, str],
        time_ms: int,
    ) -> None:
        self.partitions = partitions
        self.taken: list[FoundBlock] = []
        self.unsure: dict[str, Block] = {}
        self._named = named
        self._topic_ids = topic_ids
        self._found = {one.block.id: one for one in found}
        self._time_ms = time_ms
        self._taken_ids: set[str] = set()
        self._frames: dict[tuple[str, int], _Frames] = defaultdict(_Frames)
        self._ready: list[tuple[int, str]] = []
        self._finished: dict[tuple[str, int], list[FinishedRange]] = defaultdict(list)
        #: (receiver, epoch, topic, topic's id) → the last block that says that it was checked
        self._checked: dict[tuple[str, int, str, str], int] = {}
        for r in finished:
            self._finished[f"{r.topic}/{r.partition}", r.life].append(r)
        for one in self._found.values():
            for held in one.block.meta.ranges:
                self._frames[str(held.tp), held.life].add(held, one.block.id)
                if str(held.tp) not in partitions:
                    partitions[str(held.tp)] = self._unknown(held)
                if one.block.meta.checked is True:
                    key = self._writer_and_topic(one.block.meta, held)
                    self._checked[key] = max(self._checked.get(key, 0), one.block.meta.sequence)

    def run(self) -> None:
        for key in self.partitions:
            self._look(key)
        while self._take_ready() or self._follow_history() or self._begin_life():
            pass

    def not_taken(self) -> list[NotTaken]:
        return [
            NotTaken(
                one.block.id, one.block.handle.path, tuple(r.label for r in one.block.meta.ranges), self._reason(one)
            )
            for one in self._found.values()
            if one.block.id not in self._taken_ids
        ]

    def holes(self) -> list[Hole]:
        found = []
        for partition in self.partitions.values():
            frames = self._frames.get((str(partition.tp), partition.life.life))
            beyond = [at for at in frames.by_start if at > partition.position] if frames is not None else []
            if beyond:
                found.append(
                    Hole(partition.topic, partition.partition, partition.life.life, partition.position, min(beyond))
                )
        return found

    def _best(self, partition: Partition) -> str | None:
        frames = self._frames.get((str(partition.tp), partition.life.life))
        return frames.best(partition.position) if frames is not None else None

    def _look(self, key: str) -> None:
        block_id = self._best(self.partitions[key])
        if block_id is not None:
            heapq.heappush(self._ready, (self._found[block_id].block.meta.created_ms, block_id))

    def _take_ready(self) -> bool:
        """Takes every block that is the best at all its positions, older ones first; whether there was any."""
        progress = False
        while self._ready:
            one = self._found[heapq.heappop(self._ready)[1]]
            if one.block.id in self._taken_ids or not self._fits(one):
                continue
            self._take(one)
            progress = True
        return progress

    def _fits(self, one: FoundBlock) -> bool:
        if not one.whole and not self._continued(one):
            return False
        if not all(
            held.life == self.partitions[str(held.tp)].life.life
            and self._best(self.partitions[str(held.tp)]) == one.block.id
            for held in one.block.meta.ranges
        ):
            return False
        if not self._is_sure(one.block.meta):
            self.unsure[one.block.id] = one.block
            return False
        return True

    def _is_sure(self, meta: BlockMeta) -> bool:
        """Whether its records are of its lives' topics, or it was accepted, which is the same.

        An id that is the life's, read after the block was found, was the same when the block was polled: ids never come back.
        So was one that the same receiver read after a later poll. A life without an id (of a broker that can't tell, or begun
        since the copy) is believed.
        """
        return (
            meta.checked is True
            or all(self._is_of_topic(meta, held) for held in meta.ranges)
            or self._was_accepted(meta)
        )

    def _is_of_topic(self, meta: BlockMeta, held: OffsetRange) -> bool:
        topic_id = self.partitions[str(held.tp)].topic_id(held.life)
        return (
            not topic_id
            or self._topic_ids.get(held.topic) == topic_id
            or self._checked.get(self._writer_and_topic(meta, held), 0) > meta.sequence
        )

    def _writer_and_topic(self, meta: BlockMeta, held: OffsetRange) -> tuple[str, int, str, str]:
        topic_id = self.partitions[str(held.tp)].topic_id(held.life)
        return meta.receiver_id, meta.epoch, held.topic, topic_id

    def _was_accepted(self, meta: BlockMeta) -> bool:
        """Whether the history names it, a later claim was answered with where it ends, a gap begins there, or what goes on
        there under the same token was accepted. (That something does, alone, says nothing: a receiver writes ahead of its
        reports.)"""
        waiting, seen = [meta], {meta.id}
        while waiting:
            meta = waiting.pop()
            if meta.id in self._named:
                return True
            for held in meta.ranges:
                frames = self._frames[str(held.tp), held.life]
                if any(gap.from_offset == held.until_offset for gap, _, _ in frames.over_gaps):
                    return True
                for token, name in frames.by_start.get(held.until_offset, ()):
                    if token > held.token:
                        return True
                    if token == held.token and name not in seen:
                        seen.add(name)
                        waiting.append(self._found[name].block.meta)
        return False

    def _continued(self, one: FoundBlock) -> bool:
        """Whether a frame goes on behind it: then it was written before that, and is damaged rather than cut off."""
        return any(self._frames[str(r.tp), r.life].goes_on_at(r.until_offset) for r in one.block.meta.ranges)

    def _take(self, one: FoundBlock) -> None:
        self.taken.append(one)
        self._taken_ids.add(one.block.id)
        for held in one.block.meta.ranges:
            partition = self.partitions[str(held.tp)]
            if held.preceding_gap is not None and partition.position < held.from_offset:
                gap = Gap(partition.position, held.from_offset, held.preceding_gap.cause)
                partition.gaps.append(RecordedGap(life=held.life, gap=gap, time_ms=self._time_ms))
            partition.position = held.until_offset
            partition.token = max(partition.token, held.token)
            if held.leader_epoch >= 0:
                partition.leader_epoch = held.leader_epoch
            self._look(str(held.tp))

    def _follow_history(self) -> bool:
        """A batch that the history calls finished is finished, whether its frames are there or not."""
        for key, partition in self.partitions.items():
            for r in self._finished.get((key, partition.life.life), ()):
                if r.from_offset <= partition.position < r.until_offset:
                    partition.position = r.until_offset
                    self._look(key)
                    return True
        return False

    def _begin_life(self) -> bool:
        """The next life that frames name, of the partition whose first token in it is the oldest: tokens are given in the
        order of decisions, so nothing that was accepted before it is left behind."""
        following = [
            (frames.first_token, key, life)
            for (key, life), frames in self._frames.items()
            if life > self.partitions[key].life.life
        ]
        if not following:
            return False
        _, key, _ = min(following)
        life = min(life for _, name, life in following if name == key)
        partition = self.partitions[key]
        partition.life.end = partition.position
        start = self._frames[key, life].first
        for number in range(partition.life.life + 1, life + 1):
            end = start if number < life else None
            partition.lives.append(Life(number, "", start, self._time_ms, FOUND_IN_WAL, end))
        partition.position = start
        self._look(key)
        return True

    def _unknown(self, held: OffsetRange) -> Partition:
        """A partition that the copy does not know: its first life has not begun for the walk."""
        return Partition(
            topic=held.topic,
            partition=held.partition,
            lives=[Life(0, "", 0, self._time_ms, FOUND_IN_WAL)],
            position=0,
            completed=0,
            leader_epoch=-1,
        )

    def _reason(self, one: FoundBlock) -> str:
        if one.block.id in self.unsure:
            return (
                "nobody can tell whether its topic had been created again when it was read, and nothing shows that it was "
                "accepted: what Kafka holds of it is read again"
            )
        if not one.whole:
            return "its payload is not whole, and nothing goes on behind it"
        for held in one.block.meta.ranges:
            partition = self.partitions[str(held.tp)]
            if held.life < partition.life.life:
                return f"life {held.life} of {held.tp} has ended"
            if held.from_offset < partition.position:
                return f"{held.tp} stands at {partition.position}: its offsets came in otherwise"
            best = self._best(partition)
            if held.from_offset > partition.position and best != one.block.id:
                return f"{held.tp} stands at {partition.position}, and nothing leads to {held.from_offset}"
            if best != one.block.id:
                return f"a newer token begins at {held.from_offset} of {held.tp}"
        return "another range of it does not go on at its position"


# ---- the new lineage's state ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Evidence:
    """What there is. ``copy``: the state that it begins from, at ``copy_path``. ``found``: blocks of the WAL that the copy
    does not know or settle. ``archived``: finished batches that survived. ``gone``: segments of the copy's blocks that are
    not there. ``notes``: what could not be read, in words. ``topic_ids``: topic → id, of those that Kafka told after the look at
    the WAL; asked only where something hangs on it."""

    copy: State
    copy_path: str
    found: tuple[FoundBlock, ...]
    archived: tuple[FinishedBatch, ...]
    gone: frozenset[str]
    notes: tuple[str, ...] = ()
    topic_ids: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """``taken``: to be written anew, since nobody knows what of it was synced. ``archive``: finished batches that the copy
    alone remembers. ``missing``: blocks that wait again and whose segment is gone, by label of range."""

    state: State
    copy_path: str
    taken: tuple[FoundBlock, ...]
    not_taken: tuple[NotTaken, ...]
    holes: tuple[Hole, ...]
    archive: tuple[FinishedBatch, ...]
    missing: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def rebuild(self) -> Rebuild:
        return self.state.rebuilds[-1]


def rebuilt(evidence: Evidence, new_lineage: int, time_ms: int, cause: str) -> Plan:
    """The state of ``new_lineage``: what ``evidence`` shows, with no claims, no receivers and no open batches."""
    copy = evidence.copy
    archived = [batch for batch in evidence.archived if not copy.is_void(batch.batch_id, batch.number)]
    in_history = {batch.batch_id for batch in archived}
    archive = tuple(
        batch for batch in history.finished(copy, limit=1 << 40, windows=False) if batch.batch_id not in in_history
    )
    named = {block_id for batch in archived for task in batch.tasks for block_id in task}
    known_number = copy.completed_number
    numbers = {batch.number for batch in archived}
    while known_number + 1 in numbers:  # a driver that did not know of the loss may have archived some beyond
        known_number += 1
    archived = [batch for batch in archived if batch.number <= known_number]
    finished = [*archived, *archive]

    partitions = {key: _unclaimed(partition) for key, partition in copy.partitions.items()}
    finished_ranges = (r for batch in archived for r in batch.ranges)
    walk = Walk(partitions, evidence.found, finished_ranges, named, evidence.topic_ids, time_ms)
    walk.run()
    for partition in partitions.values():
        partition.lives = [life for life in partition.lives if life.life]  # of one that the copy did not know

    blocks = {**copy.blocks, **{one.block.id: one.block for one in walk.taken}}
    released = dict(copy.released)
    for batch in finished:
        if batch.number > copy.archived_number:
            released |= {
                block_id: batch.completed_ms for task in batch.tasks for block_id in task if block_id in blocks
            }
    deleted = [block_id for block_id in released if blocks[block_id].handle.path in evidence.gone]
    for block_id in deleted:  # by a clean-up that the copy does not know of, or knows as intended
        del released[block_id], blocks[block_id]
    waiting = dict.fromkeys((block_id for block_id in blocks if block_id not in released), True)
    for partition in partitions.values():
        partition.completed = _completed(partition, (blocks[block_id] for block_id in waiting))

    number = max(copy.batch_count, known_number)
    since = [batch for batch in finished if batch.number > copy.completed_number]
    record = Rebuild(
        lineage=new_lineage,
        time_ms=time_ms,
        cause=cause,
        copy=evidence.copy_path,
        known_number=known_number,
        repeated=tuple(_repeated(copy, blocks, waiting, known_number, walk.unsure.values())),
        attested=tuple(_attested(partitions, copy, finished, [blocks[block_id] for block_id in waiting])),
        batch_count=number,
    )
    cleanups = _cleanups(copy, evidence.gone, numbered(new_lineage, 0))
    state = msgspec.structs.replace(
        copy,
        lineage=new_lineage,
        events=0,
        epochs=0,
        tokens=0,
        batch_count=number,
        completed_number=number,
        archived_number=number,
        cleanup_count=max(cleanups, default=numbered(new_lineage, 0)),
        partitions=partitions,
        receivers={},
        unbarred=_ended(copy, evidence.found),
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
    )
    missing = tuple(r.label for b in waiting if blocks[b].handle.path in evidence.gone for r in blocks[b].meta.ranges)
    return Plan(
        state=state,
        copy_path=evidence.copy_path,
        taken=tuple(walk.taken),
        not_taken=tuple(walk.not_taken()),
        holes=tuple(walk.holes()),
        archive=archive,
        missing=missing,
        notes=evidence.notes,
    )


def _ended(copy: State, found: Iterable[FoundBlock]) -> list[EndedEpoch]:
    """The lost journal's epochs, as far as they are known: what they sent may still land."""
    segments = {(ended.receiver_id, ended.epoch): ended.segments for ended in copy.unbarred}
    segments |= {(receiver.receiver_id, receiver.epoch): receiver.segments for receiver in copy.receivers.values()}
    for one in found:
        place = layout.parse_block(one.block.handle.path)
        if place is not None and place.receiver not in (REPAIR_WRITER, lineage.REBUILDER):
            segments[place[1:3]] = max(segments.get(place[1:3], 0), place.sequence)
    newest = sorted(segments, key=lambda writer: writer[1])[-UNBARRED_MAX:]
    return [EndedEpoch(*writer, segments[writer]) for writer in newest]


def _unclaimed(partition: Partition) -> Partition:
    """A copy of its own, of which nobody holds a claim."""
    return msgspec.structs.replace(
        partition,
        lives=[msgspec.structs.replace(life) for life in partition.lives],
        gaps=list(partition.gaps),
        owner="",
        owner_epoch=0,
        trouble=None,
        writers=[],
    )


def _completed(partition: Partition, waiting: Iterable[Block]) -> int:
    """Up to here no block of the current life waits."""
    begins = (
        held.from_offset
        for block in waiting
        for held in block.meta.ranges
        if (held.tp, held.life) == (partition.tp, partition.life.life)
    )
    return min(begins, default=partition.position)


def _repeated(
    copy: State, blocks: Mapping[str, Block], waiting: Collection[str], known_number: int, unsure: Iterable[Block]
) -> Iterator[RepeatedBatch]:
    """Batches that may have run, and whose blocks wait again; last, under id 0, those begun after the copy, whose ids
    nobody knows: of ``unsure`` too, since what of them was accepted may have run, and is read again."""
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
    ranges = history.merge(r for block in blocks for r in block.meta.ranges)
    return tuple(
        f"{r.topic}/{r.partition}[{r.from_offset}, {r.until_offset})" + ("" if r.life == 1 else f" life {r.life}")
        for r in ranges
    )


def _attested(
    partitions: Mapping[str, Partition], copy: State, finished: Iterable[FinishedBatch], waiting: Iterable[Block]
) -> Iterator[AttestedRange]:
    """What no history and no block accounts for, up to where the copy stood: finished by the copy's word, since the history
    that said so is lost."""
    known: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    for batch in finished:
        for r in batch.ranges:
            known[f"{r.topic}/{r.partition}", r.life].append((r.from_offset, r.until_offset))
    for block in waiting:
        for held in block.meta.ranges:
            known[str(held.tp), held.life].append((held.from_offset, held.until_offset))
    for rebuild in copy.rebuilds:
        for a in rebuild.attested:
            known[f"{a.topic}/{a.partition}", a.life].append((a.from_offset, a.until_offset))
    for key, partition in partitions.items():
        for recorded in partition.gaps:
            known[key, recorded.life].append((recorded.gap.from_offset, recorded.gap.until_offset))
        for life in partition.lives:
            reached = life.start
            until = _stood_at(copy, key, life.life)
            for begin, end in [*sorted(known[key, life.life]), (until, until)]:
                if min(begin, until) > reached:
                    yield AttestedRange(partition.topic, partition.partition, life.life, reached, min(begin, until))
                reached = max(reached, end)


def _stood_at(copy: State, key: str, life: int) -> int:
    """Up to where ``copy`` says that offsets of the life came in; 0 if it does not know it."""
    partition = copy.partitions.get(key)
    if partition is None or life > partition.life.life:
        return 0
    end = next((one.end for one in partition.lives if one.life == life), None)
    return partition.position if end is None else end


def _cleanups(copy: State, gone: Collection[str], number: int) -> dict[int, Cleanup]:
    """Open deletions of segments that are still there, numbered anew: beyond what any agent may have acknowledged. Those of
    local copies are intended again when they are due."""
    paths = [p for cleanup in copy.cleanups.values() for p in cleanup.segments if p not in gone]
    return {number + at: Cleanup(number + at, "", (), (path,)) for at, path in enumerate(paths, start=1)}


def _cut_off(replay: Replay, time_ms: int) -> Replay:
    if replay.completed_ms is not None:
        return replay
    return msgspec.structs.replace(replay, completed_ms=time_ms, cause=f"{replay.cause} (cut off by a rebuild)")


# ---- what there is ----------------------------------------------------------------------------------------------------


def snapshot_copies(wal: Storage, stream: str) -> list[str]:
    """Paths of the snapshot copies, the newest first. After those that a listing shows, the next ones are asked for."""
    folder = layout.snapshot_folder(stream)
    places = {place for path in wal.list(folder) if (place := layout.parse_snapshot_copy(path)) is not None}
    for place in sorted(places):
        following = place.sequence + 1
        while wal.exists(layout.snapshot_copy(stream, place.epoch, following)):
            places.add(place._replace(sequence=following))
            following += 1
    return [layout.snapshot_copy(stream, place.epoch, place.sequence) for place in sorted(places, reverse=True)]


def newest_copy(wal: Storage, stream: str) -> tuple[State, str, list[str]]:
    """The newest copy that can be read, its path, and words about newer ones that can't. Raises RefusedError."""
    words: list[str] = []
    for path in snapshot_copies(wal, stream):
        try:
            brought: list[str] = []
            state = journal.snapshot_in(wal, path, brought)
        except FileNotFoundError:
            continue  # superseded meanwhile
        except (CorruptionError, NewerVersionError) as error:
            words.append(f"snapshot copy {path} can't be used, an older one is: {error}")
            continue
        if state is not None:
            return state, path, [*words, *brought, *(bounds.begin_again(state) if brought else ())]
        words.append(f"snapshot copy {path} was not finished; an older one is used")
    detail = f": {'; '.join(words)}" if words else ""
    raise RefusedError(
        f"{wal.url} holds no snapshot copy of stream {stream!r} from which a journal could be rebuilt{detail}. Bring back "
        "the journal or a copy of the WAL's folder",
        "not-found",
    )


def look(journal_storage: Storage, wal: Storage, stream: str, topic_ids: TopicIds) -> Evidence:
    """Reads the newest usable copy, the headers of all block segments, the payloads of what came after the copy, and what
    survived of the history; last it asks for ``topic_ids``. Changes nothing. Raises RefusedError if there is no copy;
    NewerVersionError; StoreError."""
    copy, copy_path, notes = newest_copy(wal, stream)
    archived: list[FinishedBatch] = []
    try:
        archived.extend(history.read(journal_storage, stream))
    except (CorruptionError, FileNotFoundError) as error:
        notes.append(f"the history beside the journal can't be read whole, what was read of it is used: {error}")
    found: dict[str, FoundBlock] = {}
    elsewhere: dict[str, list[Block]] = defaultdict(list)
    paths = _segments(wal, stream)
    for path in paths:
        for one in _after(wal, path, copy, notes, elsewhere):
            known = found.get(one.block.id)
            if (
                known is None or one.whole or not known.whole
            ):  # written again after a failed sync: the later one is synced
                found[one.block.id] = one
    copy = _moved(wal, copy, elsewhere)
    present = set(paths)
    named = {block.handle.path for block in copy.blocks.values()}
    gone = frozenset(path for path in named if path not in present and not wal.exists(path))
    ids: Mapping[str, str] = {}
    if unchecked := _unchecked_topics(copy, found.values()):
        try:
            ids = topic_ids(unchecked)  # after the pass: an id that is the same now was the same when they were polled
        except ForebayError as error:
            notes.append(
                f"Kafka could not be asked for the topics' ids: {error}. Of blocks that were written without them only those "
                "are taken in of which something shows that they were accepted"
            )
    return Evidence(copy, copy_path, tuple(found.values()), tuple(archived), gone, tuple(notes), ids)


def _unchecked_topics(copy: State, found: Iterable[FoundBlock]) -> set[str]:
    """Topics of blocks that don't say that they were checked, in lives whose topic's id is known."""
    return {
        held.topic
        for one in found
        if one.block.meta.checked is not True
        for held in one.block.meta.ranges
        if (partition := copy.partition(held.tp)) is not None and partition.topic_id(held.life)
    }


def _segments(wal: Storage, stream: str) -> list[str]:
    """Block segments in order of receiver, epoch and sequence: those listed, in the holes between, and after them."""
    listed: dict[tuple[str, int], set[int]] = defaultdict(set)
    for path in wal.list(layout.block_folder(stream)):
        place = layout.parse_block(path)
        if place is not None:
            listed[place.receiver, place.epoch].add(place.sequence)
    paths = []
    for (receiver, epoch), sequences in sorted(listed.items()):
        sequence, last = min(sequences), max(sequences)
        while True:
            path = layout.block_segment(stream, receiver, epoch, sequence)
            if sequence in sequences or wal.exists(path):
                paths.append(path)
            elif sequence > last:
                break
            sequence += 1
    return paths


def _moved(wal: Storage, copy: State, elsewhere: Mapping[str, Sequence[Block]]) -> State:
    """``copy`` with the places of blocks that a recovery wrote anew since, and whose old places are gone or damaged."""
    blocks = dict(copy.blocks)
    for block_id, places in elsewhere.items():
        known = blocks[block_id]
        if _is_there(wal, known.handle):
            continue
        for one in reversed(places):  # the same offsets and digests: encoded anew, it holds the same records
            if one.meta.ranges == known.meta.ranges and _is_there(wal, one.handle):
                local = known.local and one.handle.checksum == known.handle.checksum
                blocks[block_id] = Block(one.meta, one.handle, local)
                break
    return msgspec.structs.replace(copy, blocks=blocks) if blocks != copy.blocks else copy


def _after(
    wal: Storage, path: str, copy: State, notes: list[str], elsewhere: dict[str, list[Block]]
) -> Iterator[FoundBlock]:
    """The blocks in a segment that the copy neither knows nor settles. ``elsewhere`` gets those that it has in another place."""
    try:
        for item in scan_segment(wal, path, payloads=False):
            if isinstance(item, Newer):
                raise NewerVersionError(path, item.offset, item.version, item.newest, item.feature)
            if isinstance(item, Damage):
                notes.append(f"{path} is damaged at byte {item.offset}: {item.reason}")
            if not isinstance(item, Frame) or item.header.kind != FrameKind.BLOCK:
                continue
            try:
                meta = decode_meta(item.metadata, path, item.offset)
            except CorruptionError as error:
                notes.append(f"{path} is damaged at byte {item.offset}: {error.reason}")
                continue
            handle = Handle(path, item.offset, item.length, item.header.payload_checksum)
            known = copy.blocks.get(meta.id)
            if known is not None and handle != known.handle:
                elsewhere[meta.id].append(Block(meta, handle, False))
            if known is not None or all(_settled(copy, held) for held in meta.ranges):
                continue
            yield FoundBlock(Block(meta, handle, False), _is_whole(wal, handle))
    except FileNotFoundError:
        return  # cleaned up meanwhile: nothing needs it


def _settled(copy: State, held: OffsetRange) -> bool:
    partition = copy.partition(held.tp)
    if partition is None or held.life > partition.life.life:
        return False
    return held.life < partition.life.life or held.until_offset <= partition.position


def _is_whole(wal: Storage, handle: Handle) -> bool:
    try:
        read_frame(wal, handle)
    except CorruptionError:
        return False
    return True


def _is_there(wal: Storage, handle: Handle) -> bool:
    try:
        return _is_whole(wal, handle)
    except FileNotFoundError:
        return False


# ---- doing it ---------------------------------------------------------------------------------------------------------


def refuse_intact(journal_storage: Storage, wal: Storage, stream: str, copy: State) -> None:
    """Raises RefusedError if the journal is whole and of the WAL's lineage, and its newest copy (``copy``) is no newer than
    it: then a driver can lead it, and a rebuild would only forget. NewerVersionError: a newer release can."""
    newest, marked = newest_claim(journal_storage, stream), lineage.newest_marker(wal, stream)
    if not newest or lineage_of(newest) != marked:
        return
    try:
        state = journal.read_beside_a_writer(journal_storage, stream).state
        same = journal_storage.read(claim_path(stream, numbered(marked, 1))) == wal.read(
            layout.lineage_marker(stream, marked)
        )
    except (CorruptionError, BrokenInvariant, FileNotFoundError):
        return
    if state is None or not same or (copy.lineage, copy.events) > (state.lineage, state.events):
        return
    raise RefusedError(
        f"the journal at {journal_storage.url} is whole, and belongs to this WAL: start the driver. A rebuild would only "
        "forget which batches have run; if this journal is an old copy all the same, say --even-if-intact",
        "conflict",
    )


def steps(
    journal_storage: Storage,
    wal: Storage,
    stream: str,
    topic_ids: TopicIds,
    owner: str,
    wall_ms: int,
    now: Callable[[], float],
    new_uid: Callable[[], int],
    segment_bytes: int = 64_000_000,
    compose: Callable[[Evidence, int, int, str], Plan] = rebuilt,
) -> Generator[str, None, Plan]:
    """Rebuilds, step by step: yields the name of each step done, returns what was done.

    Marked and claimed first: from then on no driver of an older lineage acts, and none leads, until this one's snapshot is
    there. Every attempt begins a lineage of its own, so one that was killed, or that sleeps, is nothing to the next. Raises
    FencedError if another rebuild or driver came in between.
    """
    marked = lineage.newest_marker(wal, stream)
    if not marked:
        raise RefusedError(
            f"{wal.url} was never the WAL of stream {stream!r}: there is no journal to rebuild", "not-found"
        )
    newest_copy(wal, stream)  # refused before anything is changed
    new_lineage = marked + 1
    epoch = numbered(new_lineage, 1)
    claim = msgspec.json.encode(Claim(epoch=epoch, owner=owner, time_ms=wall_ms))
    try:
        wal.put_new(layout.lineage_marker(stream, new_lineage), claim)
    except FileExistsError:
        raise FencedError(f"another rebuild of stream {stream!r} has begun lineage {new_lineage}") from None
    yield "marked"
    failpoints.hit("rebuild.after-marker")
    for older in range(2, new_lineage + 1):  # a driver asks for the lineage after its own: none may be left out
        _put_claim(journal_storage, stream, older, wal.read(layout.lineage_marker(stream, older)))
    yield "claimed"
    failpoints.hit("rebuild.after-claim")
    plan = compose(look(journal_storage, wal, stream, topic_ids), new_lineage, wall_ms, owner)
    yield "read"
    limits = SegmentLimits(size_bytes=segment_bytes, age_seconds=float("inf"))
    state = _write_again(wal, stream, epoch, plan, limits, now, new_uid)
    yield "written"
    failpoints.hit("rebuild.after-blocks")
    if plan.archive:
        writer = HistoryWriter(journal_storage, stream, epoch, segment_bytes, now, new_uid)
        try:
            writer.append(plan.archive)
        finally:
            writer.close()
    yield "archived"
    failpoints.hit("rebuild.after-history")
    opened = Journal(journal_storage, stream, epoch, state, segment_bytes, now, new_uid)
    try:
        opened.snapshot()
        yield "snapshot"
        failpoints.hit("rebuild.after-snapshot")
        opened.check()
    finally:
        opened.close()
    return plan


def rebuild(
    journal_storage: Storage,
    wal: Storage,
    stream: str,
    topic_ids: TopicIds,
    owner: str,
    wall_ms: int,
    now: Callable[[], float],
    new_uid: Callable[[], int],
    segment_bytes: int = 64_000_000,
) -> Plan:
    """:func:`steps`, all of them."""
    doing = steps(journal_storage, wal, stream, topic_ids, owner, wall_ms, now, new_uid, segment_bytes)
    while True:
        try:
            next(doing)
        except StopIteration as end:
            plan: Plan = end.value
            return plan


def _put_claim(journal_storage: Storage, stream: str, of_lineage: int, claim: bytes) -> None:
    path = claim_path(stream, numbered(of_lineage, 1))
    try:
        journal_storage.put_new(path, claim)
    except FileExistsError:
        if journal_storage.read(path) != claim:
            raise RefusedError(
                f"{journal_storage.url} holds a journal of lineage {of_lineage} of another WAL: set [driver].journal or "
                "[wal].url right",
                "conflict",
            ) from None


def _write_again(
    wal: Storage,
    stream: str,
    epoch: int,
    plan: Plan,
    limits: SegmentLimits,
    now: Callable[[], float],
    new_uid: Callable[[], int],
) -> State:
    """The plan's state with new handles of what it took in: a frame that nobody reported may lie in a cache alone, or in a
    segment whose sync failed, and neither shows. One that is damaged stays where it is."""
    if not plan.taken:
        return plan.state
    writer = LogWriter(
        wal,
        lambda sequence: layout.block_segment(stream, lineage.REBUILDER, epoch, sequence),
        SegmentIdentity(stream=stream, writer=lineage.REBUILDER, epoch=epoch, lineage=lineage_of(epoch)),
        limits,
        now,
        new_uid,
    )
    blocks = dict(plan.state.blocks)
    group: list[tuple[Block, Pending]] = []
    size = 0

    def sync() -> None:
        writer.sync()
        for block, pending in group:
            if pending.handle is None:
                raise StoreError(f"block {block.id} was synced and has no place")
            blocks[block.id] = msgspec.structs.replace(block, handle=pending.handle)
        group.clear()

    try:
        for one in plan.taken:
            if not one.whole or one.block.id not in blocks:
                continue
            frame = read_frame(wal, one.block.handle)
            pending = writer.append(FrameKind.BLOCK, bytes(frame.metadata), frame.payload)
            group.append((one.block, pending))
            size += one.block.handle.length
            if size >= GROUP_BYTES:
                sync()
                size = 0
        sync()
    finally:
        writer.close()
    return msgspec.structs.replace(plan.state, blocks=blocks)
