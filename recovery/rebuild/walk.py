"""The walk: it starts at the positions of the snapshot copy and takes in the blocks of the WAL that continue each partition.
Without I/O.

Why it takes exactly the blocks that the lost journal had accepted:

* A claim is given at the durable position. So where a block was accepted, no frame with a higher token begins.
* No range is written twice under one token, except as the same block.

The walk also takes a block that was never accepted, if no other block continues at its position. Its records are the records of
these offsets, if they are of the incarnation's topic. Where that can't be known (:meth:`Walk._is_sure`), the walk takes only
what was accepted.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from driver.journal.history import FinishedRange
from driver.journal.state_parts import Incarnation, Partition, RecordedGap
from forebay.model.values import Block, BlockMeta, BlockRange, Gap
from recovery.rebuild.evidence import FoundBlock

FOUND_IN_WAL = "found in the WAL by a rebuild"


@dataclass(frozen=True, slots=True)
class NotTaken:
    """A block that the walk did not take, and the reason as a sentence."""

    block_id: str
    path: str
    ranges: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class MissingOffsets:
    """Offsets that no frame has: intake continues at ``position``, and the next frame of the partition begins at
    ``next_from``."""

    topic: str
    partition: int
    incarnation: int
    position: int
    next_from: int


@dataclass(slots=True)
class _Frames:
    """The frames of one incarnation of one partition, by the first offset of their ranges. ``over_gaps``: ranges that follow a
    gap."""

    by_start: dict[int, list[tuple[int, str]]] = field(default_factory=lambda: defaultdict(list))
    over_gaps: list[tuple[Gap, int, str]] = field(default_factory=list)
    first: int = 1 << 63
    first_token: int = 1 << 63

    def add(self, held: BlockRange, block_id: str) -> None:
        self.by_start[held.from_offset].append((held.token, block_id))
        begins = held.from_offset
        if held.preceding_gap is not None:
            self.over_gaps.append((held.preceding_gap, held.token, block_id))
            begins = held.preceding_gap.from_offset
        self.first = min(self.first, begins)
        self.first_token = min(self.first_token, held.token)

    def best(self, position: int) -> str | None:
        """Return the block that continues at ``position`` under the highest token, directly or after a gap that covers it."""
        found = list(self.by_start.get(position, ()))
        found += [
            (token, name) for gap, token, name in self.over_gaps if gap.from_offset <= position < gap.until_offset
        ]
        return max(found)[1] if found else None

    def goes_on_at(self, position: int) -> bool:
        return self.best(position) is not None


class Walk:
    """Takes blocks of ``found`` in, starting at the positions of ``partitions``, and changes these in place.

    ``finished``: ranges that a surviving history calls finished; ``named``: blocks of its batches. ``topic_ids``: topic → its id,
    read from Kafka after the blocks were read from the WAL; empty if Kafka could not be asked. After :meth:`run`, ``taken`` holds
    the blocks in the order in which they were taken, and ``unsure`` those that were left out because their records may be of an
    earlier or later topic of the same name.
    """

    def __init__(
        self,
        partitions: dict[str, Partition],
        *,
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
            self._finished[f"{r.topic}/{r.partition}", r.incarnation].append(r)
        for one in self._found.values():
            for held in one.block.meta.ranges:
                self._frames[str(held.tp), held.incarnation].add(held, one.block.id)
                if str(held.tp) not in partitions:
                    partitions[str(held.tp)] = self._unknown(held)
                if one.block.meta.checked is True:
                    key = self._writer_and_topic(one.block.meta, held)
                    self._checked[key] = max(self._checked.get(key, 0), one.block.meta.sequence)

    def run(self) -> None:
        for key in self.partitions:
            self._look(key)
        while self._take_ready() or self._follow_history() or self._begin_incarnation():
            pass

    def not_taken(self) -> list[NotTaken]:
        return [
            NotTaken(
                one.block.id, one.block.handle.path, tuple(r.label for r in one.block.meta.ranges), self._reason(one)
            )
            for one in self._found.values()
            if one.block.id not in self._taken_ids
        ]

    def missing_offsets(self) -> list[MissingOffsets]:
        found = []
        for partition in self.partitions.values():
            frames = self._frames.get((str(partition.tp), partition.incarnation.number))
            beyond = [at for at in frames.by_start if at > partition.position] if frames is not None else []
            if beyond:
                found.append(
                    MissingOffsets(
                        partition.topic,
                        partition.partition,
                        partition.incarnation.number,
                        partition.position,
                        min(beyond),
                    )
                )
        return found

    def _best(self, partition: Partition) -> str | None:
        frames = self._frames.get((str(partition.tp), partition.incarnation.number))
        return frames.best(partition.position) if frames is not None else None

    def _look(self, key: str) -> None:
        block_id = self._best(self.partitions[key])
        if block_id is not None:
            heapq.heappush(self._ready, (self._found[block_id].block.meta.created_ms, block_id))

    def _take_ready(self) -> bool:
        """Take every block that is the best candidate at the positions of all its partitions, oldest first. Return whether
        there was one."""
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
            held.incarnation == self.partitions[str(held.tp)].incarnation.number
            and self._best(self.partitions[str(held.tp)]) == one.block.id
            for held in one.block.meta.ranges
        ):
            return False
        if not self._is_sure(one.block.meta):
            self.unsure[one.block.id] = one.block
            return False
        return True

    def _is_sure(self, meta: BlockMeta) -> bool:
        """Return whether the block's records are certainly of its incarnations' topics. This is always so for an accepted
        block.

        A topic id is never given again. So if Kafka's id, read after the block was found, is the incarnation's, it was the same
        when the receiver polled the block. The same holds for an id that this receiver read after a later poll. An incarnation
        without an id (the broker has none, or it began after the copy) passes.
        """
        return (
            meta.checked is True
            or all(self._is_of_topic(meta, held) for held in meta.ranges)
            or self._was_accepted(meta)
        )

    def _is_of_topic(self, meta: BlockMeta, held: BlockRange) -> bool:
        topic_id = self.partitions[str(held.tp)].topic_id(held.incarnation)
        return (
            not topic_id
            or self._topic_ids.get(held.topic) == topic_id
            or self._checked.get(self._writer_and_topic(meta, held), 0) > meta.sequence
        )

    def _writer_and_topic(self, meta: BlockMeta, held: BlockRange) -> tuple[str, int, str, str]:
        topic_id = self.partitions[str(held.tp)].topic_id(held.incarnation)
        return meta.receiver_id, meta.epoch, held.topic, topic_id

    def _was_accepted(self, meta: BlockMeta) -> bool:
        """Return whether the lost journal surely accepted the block.

        It did if the history names the block, if a later claim or a gap begins where a range of it ends, or if a block that
        continues there under the same token was accepted. A continuing block alone proves nothing: a receiver writes blocks
        before the answers to its earlier reports.
        """
        waiting, seen = [meta], {meta.id}
        while waiting:
            meta = waiting.pop()
            if meta.id in self._named:
                return True
            for held in meta.ranges:
                frames = self._frames[str(held.tp), held.incarnation]
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
        """Return whether another frame continues after the block. If so, the block was written completely and was damaged
        later."""
        return any(self._frames[str(r.tp), r.incarnation].goes_on_at(r.until_offset) for r in one.block.meta.ranges)

    def _take(self, one: FoundBlock) -> None:
        self.taken.append(one)
        self._taken_ids.add(one.block.id)
        for held in one.block.meta.ranges:
            partition = self.partitions[str(held.tp)]
            if held.preceding_gap is not None and partition.position < held.from_offset:
                gap = Gap(partition.position, held.from_offset, held.preceding_gap.cause)
                partition.gaps.append(RecordedGap(incarnation=held.incarnation, gap=gap, time_ms=self._time_ms))
            partition.position = held.until_offset
            partition.token = max(partition.token, held.token)
            if held.leader_epoch >= 0:
                partition.leader_epoch = held.leader_epoch
            self._look(str(held.tp))

    def _follow_history(self) -> bool:
        """Move a position to the end of a range that the history calls finished; its frames may be deleted already.

        Return whether a position moved.
        """
        for key, partition in self.partitions.items():
            for r in self._finished.get((key, partition.incarnation.number), ()):
                if r.from_offset <= partition.position < r.until_offset:
                    partition.position = r.until_offset
                    self._look(key)
                    return True
        return False

    def _begin_incarnation(self) -> bool:
        """Begin the next incarnation that frames name, of the partition whose first token in it is the oldest.

        Tokens are given in the order of decisions, so every block that was accepted before it is taken already. Return False if
        there is none.
        """
        following = [
            (frames.first_token, key, incarnation)
            for (key, incarnation), frames in self._frames.items()
            if incarnation > self.partitions[key].incarnation.number
        ]
        if not following:
            return False
        _, key, _ = min(following)
        incarnation = min(incarnation for _, name, incarnation in following if name == key)
        partition = self.partitions[key]
        partition.incarnation.end = partition.position
        start = self._frames[key, incarnation].first
        for number in range(partition.incarnation.number + 1, incarnation + 1):
            end = start if number < incarnation else None
            partition.incarnations.append(Incarnation(number, "", start, self._time_ms, FOUND_IN_WAL, end))
        partition.position = start
        self._look(key)
        return True

    def _unknown(self, held: BlockRange) -> Partition:
        """Return a partition that the copy does not know, before its first incarnation."""
        return Partition(
            topic=held.topic,
            partition=held.partition,
            incarnations=[Incarnation(0, "", 0, self._time_ms, FOUND_IN_WAL)],
            position=0,
            completed=0,
            leader_epoch=-1,
        )

    def _reason(self, one: FoundBlock) -> str:
        if one.block.id in self.unsure:
            return (
                "its topic may have been deleted and created again before it was read, and nothing shows that the lost "
                "journal accepted it: receivers read these offsets from Kafka again"
            )
        if not one.whole:
            return "its payload is not whole, and no block continues after it"
        for held in one.block.meta.ranges:
            partition = self.partitions[str(held.tp)]
            if held.incarnation < partition.incarnation.number:
                return f"incarnation {held.incarnation} of {held.tp} has ended"
            if held.from_offset < partition.position:
                return f"{held.tp} is at {partition.position}: its offsets came in otherwise"
            best = self._best(partition)
            if held.from_offset > partition.position and best != one.block.id:
                return f"{held.tp} is at {partition.position}, and no block leads to {held.from_offset}"
            if best != one.block.id:
                return f"a block with a newer token begins at {held.from_offset} of {held.tp}"
        return "another range of it does not continue at its partition's position"
