"""Old mistakes, planted: each was once made in such a system, and each is caught by its trace.

The product has no switches for them. A mistake is a subclass, or a generator in place of ``opening_steps``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import msgspec

from driver.background.adoption import Adopter, Orphan, OrphanSearch, eligible
from driver.background.cleaner import ReadLeaving
from driver.decision_loop.loop import DriverLoop, is_down_to_reserve
from driver.decisions.clean_up import CleanSegment
from driver.journal.block_index import BlockIndex
from driver.journal.events import BatchesArchived, BlockAdded, Event
from driver.journal.files import newest_claim
from driver.journal.history import FinishedBatch, HistoryWriter, leaving
from driver.journal.log import reading as journal
from driver.journal.log.opening import opening_steps
from driver.journal.log.writing import Journal
from driver.journal.state import ADOPTER
from driver.journal.state_parts import EndedEpoch
from driver.tracker import Decision, Tracker
from driver.tracker.batches import Batches
from driver.tracker.requests import Archived, Complete, Request, Search
from forebay import messages as m
from forebay.kafka.consume.block_ranges import RangeProgress, Wanted
from forebay.model.columns import Start
from forebay.model.errors import StoreError, TurnedAwayError
from forebay.model.values import Block, TopicPartition
from forebay.process.clock import Clock
from receiver import actions as act
from receiver.blocks.pending_block import Piece
from receiver.inputs import BlockStored
from receiver.machine import ReceiverMachine
from receiver.machine.delivery.reports import Reports
from receiver.machine.exchange.requests import Failed
from receiver.machine.membership.partition import Partition, Phase
from receiver.machine.membership.partitions import Partitions
from receiver.machine.parts import Parts
from receiver.stores.replica_store import ReplicaStore, copy_handle
from receiver.stores.store import BlockWrite
from recovery import rebuild
from tests.simulation.driver_process import DriverProcess, Waiting
from tests.simulation.kafka_tier import KafkaTier
from tests.simulation.receiver_process import ReceiverProcess
from tests.simulation.shells import AskedLoop, Task
from tests.simulation.world import Kinds
from tests.support.state.reads import ReadBy
from wal.blocks.local_writing import local_frame
from wal.segments.frame import FrameKind
from wal.segments.layout import BlockPlace
from wal.segments.writer import LogWriter


class SeekingPartitions(Partitions):
    """Rewinds by a seek: the old generation goes on, and nothing proves which record comes first after it."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self._seekable: dict[TopicPartition, int] = {}

    def start(self, partitions: Iterable[Partition], now: float) -> None:
        seeks = []
        for partition in partitions:
            generation = self._seekable.get(partition.tp)
            if generation is None:
                super().start([partition], now)
                self._seekable[partition.tp] = partition.generation
                continue
            partition.request = 0
            partition.generation = generation
            partition.phase = Phase.ACTIVE
            partition.at_start = False
            self._unsettled.discard(partition.tp)
            seeks.append(Start(partition.tp, partition.expected, partition.leader_epoch, generation))
        if seeks:
            self.outbox.do(act.StartPartitions(tuple(seeks)))
            self.outbox.do(act.Resume(tuple(seek.tp for seek in seeks)))


class RewritingReports(Reports):
    """After a report without an answer, it cuts the same ranges into another block under the same token."""

    def _failed(self, failure: Failed, now: float) -> None:
        super()._failed(failure, now)
        if self.buffer.has_open:
            return
        sealed_blocks, open_block = self.buffer.sealed, self.buffer._open
        for sealed in [sealed for sealed in sealed_blocks if sealed.stored is not None]:
            sealed_blocks.forget(sealed)
            for part in sealed.pending.ranges:
                open_block.move(part.tp, part.from_offset, part.from_offset, now)
                for piece in part.pieces:
                    open_block.add(Piece(max(piece.from_offset, part.from_offset), piece.columns), now)
                open_block.move(part.tp, part.from_offset, part.until_offset, now)


class SeekingParts(Parts):
    partitions_type = SeekingPartitions


class SeekingMachine(ReceiverMachine):
    parts_type = SeekingParts


class RewritingParts(Parts):
    reports_type = RewritingReports


class RewritingMachine(ReceiverMachine):
    parts_type = RewritingParts


class GrantingTracker(Tracker):
    """Grants a claim whatever token it names."""

    def decide(self, request: Request, now: float, now_ms: int) -> Decision:
        if isinstance(request, m.ClaimRequest):
            newest = tuple(
                msgspec.structs.replace(ask, known_token=self.state.partitions[f"{ask.topic}/{ask.partition}"].token)
                for ask in request.claims
            )
            request = msgspec.structs.replace(request, claims=newest)
        return super().decide(request, now, now_ms)


class OrphanDeletingTracker(Tracker):
    """Treats a frame that the journal does not name as garbage, and does not remember what clean-up deleted."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.reports._is_deleted = lambda block: False  # type: ignore[method-assign]

    def decide(self, request: Request, now: float, now_ms: int) -> Decision:
        if isinstance(request, CleanSegment):
            named = tuple(frame for frame in request.facts.frames if frame.block_id in self.state.blocks)
            request = replace(request, facts=replace(request.facts, frames=named))
        return super().decide(request, now, now_ms)


class ImpatientTracker(Tracker):
    """Decides what was lost without checking whether a process may still write it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.writers.unsettled = lambda partition: []  # type: ignore[method-assign]


class WholeBlockTracker(Tracker):
    """Adopts a block without comparing its ranges with the positions, because it is in the WAL."""

    def decide(self, request: Request, now: float, now_ms: int) -> Decision:
        if not isinstance(request, m.ReportRequest) or request.receiver_id != ADOPTER:
            return super().decide(request, now, now_ms)
        self.recorder.begin()
        self.recorder.apply(*map(BlockAdded, request.blocks))
        results = tuple(m.BlockResult(block_id=block.id, accepted=True) for block in request.blocks)
        return self.recorder.decision(m.ReportAnswer(results=results))


class WholeBlockAdopter(Adopter):
    """Adopts the orphan with all its ranges."""

    def _write(self, orphan: Orphan, *arguments: Any) -> Block:
        block = super()._write(orphan, *arguments)
        (adopted,) = block.meta.ranges
        whole = tuple(adopted if held.tp == adopted.tp else held for held in orphan.meta.ranges)
        meta = msgspec.structs.replace(block.meta, ranges=whole, records=sum(held.records for held in whole))
        return msgspec.structs.replace(block, meta=meta)


class TrustingSearch(OrphanSearch):
    """Trusts the incarnation that a frame names."""

    def _eligible(self, found: list[Orphan], search: Search, same_topic: bool) -> list[Orphan]:
        return eligible(found, search, same_topic=True)


class TrustingAdopter(Adopter):
    search_type = TrustingSearch


class UnbarredAdopter(Adopter):
    """Searches while the object of a fenced writer may still land."""

    def _barrier(self, epoch: EndedEpoch) -> BlockPlace:
        return BlockPlace(self._stream, epoch.receiver_id, epoch.epoch, epoch.segments + 1)


class EndingDriver(DriverProcess):
    """Ends the adoption when the decision loop refuses it."""

    def _adopt(self) -> Task:
        steps = super()._adopt()
        answer: Any = None
        while True:
            try:
                answer = yield steps.send(answer)
            except TurnedAwayError:
                return


class AnsweringEarlyLoop(DriverLoop):
    """Answers reports as soon as they are decided, and makes them durable afterwards."""

    def _commit(self, group: list[Any]) -> None:
        self._late: list[Event] = []
        super()._commit(group)
        if self._late:
            super()._make_durable(self._late)

    def _make_durable(self, events: list[Event]) -> None:
        if any(isinstance(event, BlockAdded) for event in events):
            self._late = events
        else:
            super()._make_durable(events)


class ReorderingLoop(DriverLoop):
    """Journals the last decision first."""

    def _make_durable(self, events: list[Event]) -> None:
        super()._make_durable(events[::-1])


class UncheckedDriver(DriverProcess):
    """Never checks whether a newer epoch was claimed."""

    def check_epoch(self, before_refusal: bool) -> None:
        pass


class RefusingUncheckedDriver(DriverProcess):
    """Sends a refusal without checking whether a newer epoch was claimed, because a refusal changes nothing."""

    def check_epoch(self, before_refusal: bool) -> None:
        if not before_refusal:
            super().check_epoch(before_refusal)


class TurningAwayDriver(DriverProcess):
    """Below the reserve it also refuses completions and clean-up, because they are retried."""

    def _take_queued(self) -> list[Waiting]:
        taken = super()._take_queued()
        if not is_down_to_reserve(self.journal.free_bytes(), self.world.options.journal_reserve_bytes):
            return taken
        self.queue.extend(waiting for waiting in taken if waiting.task)
        return [waiting for waiting in taken if not waiting.task]


class HopefulWriter(LogWriter):
    """Treats a request without an answer as performed."""

    def _put(self, whole: Any) -> None:
        with contextlib.suppress(StoreError):
            super()._put(whole)


class EarlyStore(ReplicaStore):
    """Reports a block as soon as its own host has it, and writes the replica afterwards."""

    def _store(self, blocks: list[BlockWrite]) -> bool:
        for item in blocks:
            item.local.result()
            meta = item.block.meta
            handle = copy_handle(local_frame(meta, item.block.payload))
            self._tell(BlockStored(item.sequence, Block(meta, handle, True, (self.replica_host,))))
        return super()._store(blocks)


class EarlyReceiver(ReceiverProcess):
    replica_store_type = EarlyStore


class OffsetTrustingTier(KafkaTier):
    """Takes the records at the offsets for those that were taken in there."""

    def _check_topics(self, held: Sequence[Wanted]) -> None:
        pass

    def _check(self, reading: RangeProgress) -> None:
        pass


class ForgetfulOfReplaysTracker(Tracker):
    """Cleans up every batch that was completed once, even if a replay needs it again."""

    def decide(self, request: Request, now: float, now_ms: int) -> Decision:
        if not isinstance(request, CleanSegment):
            return super().decide(request, now, now_ms)
        share = self.state.index.segments.get(request.facts.path)
        held = share is not None and any(name not in self.state.released for name in share.blocks)
        if held:
            return super().decide(request, now, now_ms)
        with mock.patch.object(BlockIndex, "is_due", return_value=True):
            return super().decide(request, now, now_ms)


class ForgetfulOfCursorsTracker(Tracker):
    """Cleans up every completed batch, even if a query over the intake still has to read it."""

    def decide(self, request: Request, now: float, now_ms: int) -> Decision:
        with mock.patch.object(BlockIndex, "read_to"):
            return super().decide(request, now, now_ms)


class ForgettingHistoryWriter(HistoryWriter):
    """After a full disk it writes what waited, and treats later events as written."""

    def append(self, batches: tuple[FinishedBatch, ...]) -> None:
        if not self._writer.unsynced():
            self._writer.append(FrameKind.HISTORY, b"", msgspec.msgpack.encode(batches))
        self._writer.sync()


def trusting_opening(
    storage: Any, stream: str, owner: str, wall_ms: int, now: Any, new_uid: Any, *, segment_bytes: int, wal: Any
) -> Generator[str, None, tuple[Journal, Any]]:
    """Goes on from what it read, without a snapshot of its own."""
    begun = opening_steps(storage, stream, owner, wall_ms, now, new_uid, segment_bytes=segment_bytes, wal=wal)
    yield next(begun)
    state = journal.read(storage, stream).state
    if state is None:
        yield next(begun)
        yield next(begun)
        return _returned(begun)
    yield "read"
    newest = newest_claim(storage, stream)
    opened = Journal(
        storage, stream=stream, epoch=newest, state=state, segment_bytes=segment_bytes, now=now, new_uid=new_uid
    )
    opened._writer = opened._new_writer()
    yield "snapshot"
    return opened, state


def unchecked_opening(
    storage: Any, stream: str, owner: str, wall_ms: int, now: Any, new_uid: Any, *, segment_bytes: int, wal: Any
) -> Generator[str, None, tuple[Journal, Any]]:
    """Does not check after its snapshot whether another driver opened meanwhile."""
    begun = opening_steps(storage, stream, owner, wall_ms, now, new_uid, segment_bytes=segment_bytes, wal=wal)
    for _ in range(3):
        yield next(begun)
    with mock.patch.object(Journal, "check"):
        return _returned(begun)


def _returned(begun: Generator[str, None, tuple[Journal, Any]]) -> tuple[Journal, Any]:
    try:
        next(begun)
    except StopIteration as end:
        opened: tuple[Journal, Any] = end.value
        return opened
    raise AssertionError("opening has a step too many")


class UncoveredTracker(Tracker):
    """Deletes a segment as soon as the journal calls its blocks released, whatever the snapshot copies beside the WAL
    say.
    """

    def decide(self, request: Request, now: float, now_ms: int) -> Decision:
        if not isinstance(request, CleanSegment):
            return super().decide(request, now, now_ms)
        with mock.patch.object(type(self.state), "is_covered", return_value=True):
            return super().decide(request, now, now_ms)


class HighestTracker(Tracker):
    """Assumes that batches run in order, so that the end of one is the end of all before it."""

    def decide(self, request: Request, now: float, now_ms: int) -> Decision:
        if not isinstance(request, Complete):
            return super().decide(request, now, now_ms)
        events: tuple[Event, ...] = ()
        if not request.replay:
            before = [b.batch_id for b in self.state.unfinished() if b.batch_id < request.batch_id]
            for batch_id in before:
                events += super().decide(replace(request, batch_id=batch_id), now, now_ms).events
            known = self.state.batches.get(request.batch_id)
            if known is None or known.completed_ms is not None:
                return Decision(None, events)
        last = super().decide(request, now, now_ms)
        return replace(last, events=events + last.events)


class ForgetfulOfWindowsLoop(AskedLoop):
    def ask(self, request: Any) -> Any:
        return super().ask(ReadBy(partial(leaving, windows=False)) if isinstance(request, ReadLeaving) else request)


class ForgetfulOfWindowsTracker(Tracker):
    """Journals that the history has a batch, even if a window contains the batch."""

    def decide(self, request: Request, now: float, now_ms: int) -> Decision:
        def archive(batches: Batches, request: Archived) -> None:
            batches._recorder.apply(BatchesArchived(request.batch_ids))

        with mock.patch.object(Batches, "archive", archive):
            return super().decide(request, now, now_ms)


class ForgetfulOfWindowsDriver(DriverProcess):
    """Archives every completed batch, even if the window of a later batch reaches back to it."""

    asked_type = ForgetfulOfWindowsLoop


def trusting_rebuilt(evidence: rebuild.Evidence, new_timeline: int, time_ms: int, cause: str) -> rebuild.RebuildPlan:
    """Assumes that the newest owner knows all positions: of each partition it takes the frames under the highest token,
    from where these begin.
    """
    newest: dict[TopicPartition, int] = {}
    for one in evidence.found:
        for held in one.block.meta.ranges:
            newest[held.tp] = max(newest.get(held.tp, 0), held.token)
    found = tuple(one for one in evidence.found if all(held.token == newest[held.tp] for held in one.block.meta.ranges))
    for partition in evidence.copy.partitions.values():
        begins = [h.from_offset for one in found for h in one.block.meta.ranges if h.tp == partition.tp]
        partition.position = min(begins, default=partition.position)
    return rebuild.rebuilt(replace(evidence, found=found), new_timeline, time_ms, cause)


def wall_clock(clock: Clock, retention_seconds: float, newest_ms: int | None) -> Clock:
    """Ages completed batches by the wall clock of the driver's host."""
    return clock


@dataclass(frozen=True, slots=True)
class Mistake:
    """``invariant``: the one that its trace violates, and only with the mistake planted."""

    name: str
    invariant: str
    kinds: Kinds


def _mistake(name: str, invariant: str, **kinds: Callable[..., Any]) -> Mistake:
    return Mistake(name, invariant, Kinds(**kinds))  # type: ignore[arg-type]


MISTAKES = (
    _mistake("rewind-by-seek-alone", "INV-2", machine=SeekingMachine),
    _mistake("answer-before-durable", "INV-1", loop=AnsweringEarlyLoop),
    _mistake("journal-order-unlike-decisions", "INV-7", loop=ReorderingLoop),
    _mistake("claim-without-compare-and-set", "INV-4", tracker=GrantingTracker),
    _mistake("append-after-take-over", "INV-4", driver=UncheckedDriver),
    _mistake("append-that-ends-after-a-take-over", "INV-4", driver=UncheckedDriver),
    _mistake("deletion-after-take-over", "INV-8", driver=UncheckedDriver),
    _mistake("orphan-deleted-before-its-report", "INV-8", tracker=OrphanDeletingTracker),
    _mistake("unsynced-tail-trusted", "INV-7", opening=trusting_opening),
    _mistake("range-written-twice-under-one-token", "rule 4", machine=RewritingMachine),
    _mistake("two-openers-act", "INV-4", opening=unchecked_opening),
    _mistake("gap-while-an-old-writer-can-still-sync", "INV-2", tracker=ImpatientTracker),
    _mistake("life-ended-while-its-writer-can-still-sync", "INV-2", tracker=ImpatientTracker),
    _mistake("whole-block-adopted", "INV-2", tracker=WholeBlockTracker, adopter=WholeBlockAdopter),
    _mistake("adopted-from-a-topic-created-again", "INV-2", adopter=TrustingAdopter),
    _mistake("search-before-a-late-put", "INV-2", adopter=UnbarredAdopter),
    _mistake("adoption-that-the-reserve-ends", "progress", driver=EndingDriver),
    _mistake("put-without-an-answer-taken-for-done", "INV-1", writer=HopefulWriter),
    _mistake("reported-before-the-second-copy", "INV-1", receiver=EarlyReceiver),
    _mistake("read-from-a-topic-created-again", "INV-3", kafka_tier=OffsetTrustingTier),
    _mistake("clean-up-under-a-replay", "INV-8", tracker=ForgetfulOfReplaysTracker),
    # no process may replay an intent to delete blocks that a cursor holds
    _mistake("clean-up-under-a-cursor", "INV-7", tracker=ForgetfulOfCursorsTracker),
    _mistake("clean-up-on-what-no-copy-covers", "INV-8", tracker=UncoveredTracker),
    _mistake("clean-up-by-the-wall-clock", "INV-8", retention_clock=wall_clock),
    _mistake("rebuild-that-trusts-the-highest-token-alone", "INV-4", rebuilt=trusting_rebuilt),
    _mistake("completed-with-the-highest", "INV-3", tracker=HighestTracker),
    _mistake("clean-up-under-a-window", "INV-8", driver=ForgetfulOfWindowsDriver, tracker=ForgetfulOfWindowsTracker),
    _mistake("reserve-that-turns-completions-away", "progress", driver=TurningAwayDriver),
    # found by the simulation in the code itself
    _mistake("refusal-after-take-over", "INV-4", driver=RefusingUncheckedDriver),
    _mistake("history-forgets-what-came-while-it-waited", "INV-2", history=ForgettingHistoryWriter),
)
