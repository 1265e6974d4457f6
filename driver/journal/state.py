"""The state that results from the journal's events. Only ``driver.journal.transitions.apply``
changes it (INV-7)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import msgspec

from driver.journal import events as ev
from driver.journal.block_index import BlockIndex, Place, reached_by
from driver.journal.leadership.timeline import REBUILDER
from driver.journal.state_parts import (
    Batch,
    Cleanup,
    Cursor,
    EndedCursor,
    EndedEpoch,
    JointBatch,
    LearnedRate,
    Partition,
    Rebuild,
    Receiver,
    Replay,
    ReplayedRun,
    SnapshotCopy,
)
from driver.journal.versions import DroppedVersion, KeyedVersions
from forebay.model.errors import ForebayError
from forebay.model.identifiers import RESERVED_PREFIX, count_of, numbered, timeline_of
from forebay.model.values import Block, TopicPartition
from forebay.model.wire import WIRE_NAMES

#: the writer of the segments of ``forebay recover --apply``, under its journal epoch
REPAIR_WRITER = "forebay-repair"
#: the receiver id under which the driver adopts blocks (``driver.background.adoption``)
ADOPTER = f"{RESERVED_PREFIX}adoption"


class BrokenInvariant(ForebayError):
    """The journal's events contradict an invariant. The process must not continue."""


class State(msgspec.Struct, dict=True, rename=WIRE_NAMES):
    """Everything that the journal says. A snapshot is this struct as msgpack.

    ``blocks``: id → block, of every block whose bytes are not deleted. ``waiting``: the blocks in no batch, in order of
    acceptance (a dict, because it keeps the order and finds an id fast; its values are unused). ``batch_of``: block id →
    batch id. Code that adds, moves, releases or drops a block must change :attr:`index` too.
    """

    stream: str
    timeline: int
    created: bool = False
    events: int = 0  # events applied since the timeline began: the number of the next one
    epochs: int = 0  # epochs of receivers and cursors given in this timeline
    tokens: int = 0
    batch_count: int = 0
    cleanup_count: int = 0
    partitions: dict[str, Partition] = {}
    receivers: dict[str, Receiver] = {}
    blocks: dict[str, Block] = {}
    waiting: dict[str, bool] = {}
    batches: dict[int, Batch] = {}
    batch_of: dict[str, int] = {}
    released: dict[str, int] = {}  # block of a batch in the history, not deleted yet → when the batch was completed
    cleanups: dict[int, Cleanup] = {}
    cleaning_blocks: dict[str, bool] = {}  # local copies that an open intent names
    cleaning_segments: dict[str, bool] = {}
    cursors: dict[str, Cursor] = {}
    topics: dict[str, bool] = {}
    batches_completed: int = 0
    records_completed: int = 0
    completed_number: int = 0  # the contiguous completed prefix, as a batch number
    archived_number: int = 0  # batches up to this number are only in the history
    replays: list[Replay] = []  # the newest, with consecutive numbers; the last one may be running
    replaying: dict[int, ev.ReplayedBatch] = {}  # the batches that the running replay has not completed, in order
    replay_window: dict[int, ev.ReplayedBatch] = {}  # the batches before them that their windows contain, in order
    replayed: list[ReplayedRun] = []  # the newest batches that replays have completed, in order
    window_batches: int = 0  # number of batches before an uncompleted one that stay readable
    #: the number after that of the newest event that added a partition, began an incarnation or ended a replay of keyed states
    shaped: int = 0
    copies: tuple[SnapshotCopy, ...] = ()  # the last two, the older first
    uncovered: dict[str, int] = {}  # released block → event that released it, while a copy does not contain that event
    unbarred: list[EndedEpoch] = []  # oldest first; only a store of whole objects needs barriers
    ended_epochs: list[EndedEpoch] = []  # the newest ones, in the order in which they ended
    rebuilds: list[Rebuild] = []
    learned: LearnedRate | None = None
    direct: bool = False  # whether it is a direct stream's; also False for one that an older release began
    next_offsets: dict[str, int] = {}  # of a direct stream: topic/partition → start of its next span
    topic_ids: dict[str, str] = {}  # of a direct stream
    cursor: str = ""  # of a direct stream that reads through an intake: the name of its cursor there
    ended_cursors: list[EndedCursor] = []  # the newest ones, in the order in which they ended
    lost: dict[str, str] = {}  # label of a range whose loss an operator accepted → the cause
    failures: dict[int, ev.JobFailed] = {}  # uncompleted batch → its last attempt, if that failed
    pause: ev.PauseChanged | None = None  # while an operator has paused the batches
    keyed: dict[str, KeyedVersions] = {}  # keyed state → its versions
    dropped_versions: dict[str, DroppedVersion] = {}  # by manifest; while a snapshot copy may still name it
    joint: JointBatch | None = None  # the newest one

    @property
    def is_direct(self) -> bool:
        """Whether the journal is of a direct stream, whose batches have spans and no blocks."""
        return self.direct or bool(self.next_offsets) or any(batch.spans for batch in self.batches.values())

    def __post_init__(self) -> None:
        try:
            self.__dict__["index"] = self.build_index()
        except LookupError as error:  # a decoder reports a ValueError as damage
            raise ValueError(f"it names {error}, which it does not contain") from None

    @property
    def index(self) -> BlockIndex:
        """The block index. It is derived from the fields and is not part of a snapshot."""
        index: BlockIndex = self.__dict__["index"]
        return index

    def build_index(self) -> BlockIndex:
        """Return a new index of the state as it is. Reads all of the state once."""
        index = BlockIndex()
        for block_id in self.waiting:
            index.wait(self.blocks[block_id])
        for batch in self.batches.values():
            if batch.number > self.completed_number:
                index.reached[batch.batch_id] = reached_by(self.blocks[b] for b in batch.block_ids)
            if batch.completed_ms is None:
                records = sum(self.blocks[b].meta.records for b in batch.block_ids)
                index.records[batch.batch_id] = records + sum(span.size for span in batch.spans)
        for cursor in self.cursors.values():
            for key, place in cursor.vector.items():
                index.lowest[key] = min(place, index.lowest.get(key, place))
        for block in self.blocks.values():
            index.add(block)
        for completed_ms, of_batch in itertools.groupby(self.released.items(), key=lambda item: item[1]):
            index.release((self.blocks[block_id] for block_id, _ in of_batch), completed_ms)
        again = self.replay_blocks()
        for block_id in again:
            if block_id in self.released:
                index.hold(self.blocks[block_id])
        for batch in self.batches.values():
            if self.is_past(batch.number):
                index.finish(b for block_id in batch.block_ids if (b := self.blocks[block_id]).in_wal)
        index.finish(self.blocks[block_id] for block_id in self.released)
        index.clean(self.blocks[block_id] for block_id in again if block_id in self.blocks)
        for cleanup in self.cleanups.values():
            index.clean((self.blocks[b] for b in cleanup.blocks if b in self.blocks), cleanup.host)
        return index

    def replay_blocks(self) -> dict[str, None]:
        """Return the ids of the blocks that the batches of a replay, or their windows, have not read yet, in order."""
        batches = (*self.replay_window.values(), *self.replaying.values())
        return {block_id: None for batch in batches for task in batch.tasks for block_id in task}

    def unread_blocks(self) -> set[str]:
        """Return the ids of the blocks in the WAL that a cursor has not read yet. Reads all blocks once."""
        if not self.cursors:
            return set()
        return {block.id for block in self.blocks.values() if block.in_wal and self.index.unread(block)}

    def slowest_cursor(self, key: str) -> Place | None:
        """Return the place before which every cursor that reads the partition has finished; None if no cursor reads it."""
        return min((cursor.vector[key] for cursor in self.cursors.values() if key in cursor.vector), default=None)

    def is_covered(self, path: str) -> bool:
        """Whether both snapshot copies say that every block in the segment is released (INV-8)."""
        share = self.index.segments.get(path)
        return share is None or (len(self.copies) == 2 and self.uncovered.keys().isdisjoint(share.blocks))

    def is_void(self, batch_id: int, number: int) -> bool:
        """As :func:`is_void`."""
        return is_void(self.rebuilds, batch_id, number)

    def partition(self, tp: TopicPartition) -> Partition | None:
        """Return a partition; None if the stream does not have it."""
        return self.partitions.get(str(tp))

    def batch(self, number: int) -> Batch | None:
        """Return the batch with this number in the journal's timeline; None if the state does not hold it."""
        return self.batches.get(numbered(self.timeline, number))

    def known_epochs(self) -> list[EndedEpoch]:
        """Return the newest epochs of receivers, as if those that have not ended had ended now. Some are there twice."""
        running = (EndedEpoch(known.receiver_id, known.epoch, known.segments) for known in self.receivers.values())
        return [*self.ended_epochs, *self.unbarred, *running]  # an older release wrote only the second list

    def next_epoch(self) -> int:
        """Return the epoch of the next registration, of a receiver or a cursor's user."""
        return numbered(self.timeline, self.epochs + 1)

    def next_token(self) -> int:
        """Return the token of the next claim."""
        return numbered(self.timeline, self.tokens + 1)

    def next_batch_id(self) -> int:
        """Return the id of the next batch."""
        return numbered(self.timeline, self.batch_count + 1)

    def next_replay(self) -> int:
        """Return the number of the next replay."""
        return self.replays[-1].replay + 1 if self.replays else 1

    @property
    def replay(self) -> Replay | None:
        """The running replay; None if there is none."""
        return self.replays[-1] if self.replaying else None

    @property
    def replay_reach(self) -> int:
        """How many batches before a batch of the running replay stay readable."""
        return max(self.window_batches, self.replays[-1].reach if self.replays else 0)

    def is_past(self, number: int) -> bool:
        """Whether the batch is in the completed prefix, and no uncompleted batch's window contains it."""
        return number <= self.completed_number - self.window_batches

    def unfinished(self) -> list[Batch]:
        """Return the batches that are allocated and not completed, in order."""
        return sorted((b for b in self.batches.values() if b.completed_ms is None), key=lambda batch: batch.batch_id)


def is_void(rebuilds: Iterable[Rebuild], batch_id: int, number: int) -> bool:
    """Whether a rebuild dissolved the batch, even if a driver of an older timeline still completed it."""
    following = next((r for r in rebuilds if r.timeline > timeline_of(batch_id)), None)
    return following is not None and number > following.known_number


def is_fenced(state: State, writer: str, epoch: int) -> bool:
    """Return whether ``epoch`` of ``writer`` is fenced, so that nothing it still writes into the WAL counts.

    Recovery and a rebuild lead the journal while they write. So if another process leads now, their writers are fenced.
    """
    receiver = state.receivers.get(writer)
    return (
        timeline_of(epoch) < state.timeline
        or writer in (REPAIR_WRITER, REBUILDER)
        or (receiver is not None and receiver.epoch != epoch)
        or is_forgotten(state, writer, epoch)
    )


def is_forgotten(state: State, receiver_id: str, epoch: int) -> bool:
    """Whether ``epoch`` was given in this timeline before ``state``, to a receiver that the state no longer knows."""
    return (
        receiver_id not in state.receivers
        and timeline_of(epoch) == state.timeline
        and 0 < count_of(epoch) <= state.epochs
    )
