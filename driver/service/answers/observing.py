"""The driver's side of the routes for observers (``driver.http.observation``): what each answer reads, and where."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError as LateError
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile

from driver.http.batches import BatchAnswers, BatchQuery
from driver.http.observation.blocks import (
    RANGES_ALONE_MAX,
    BlockQuery,
    BlockTable,
    ReadableBlock,
    ReadBlock,
    ReadBlocks,
    ReadMembership,
    block_entry,
    block_list,
)
from driver.http.observation.events import EventHub
from driver.http.observation.keyed_states import KeyedStates, ReadKeyedStates
from driver.http.observation.lists import Query
from driver.http.observation.overview import DriverIdentity, PresentWork, lag_seconds, late, overview
from driver.http.observation.records import records_answer
from driver.http.observation.series import Sampler, Series
from driver.http.observation.snapshot import SharedSnapshot, Snapshot, SnapshotContext, take
from driver.http.observation.storage import (
    ReadHeldForCursors,
    ReadJournal,
    ReadWal,
    WalState,
    journal_answer,
    wal_answer,
)
from driver.journal.state import State
from driver.listeners.dispatch import Listeners
from driver.listeners.events import PartitionLag
from driver.listeners.lag import measured
from driver.service.activity import Activity
from driver.service.answers.view import LeaderView, View
from driver.service.composition import Parts
from driver.service.leadership import Leadership
from driver.service.options import Given
from driver.service.stores import Stores
from driver.tracker.requests import Answered, AnswerType, Read
from forebay import messages as m
from forebay.model.errors import RefusedError, UnreachableError
from forebay.settings.in_force import in_force

#: how long a list of all blocks, and an answer about the journal's files, is used again
BLOCKS_SECONDS, JOURNAL_SECONDS = 1.0, 10.0
#: maximum time that an observer waits for the decision loop
ASK_SECONDS = 10.0
#: name of the leader in a standby's overview while it knows none
UNKNOWN_LEADER = "?"


@dataclass(frozen=True, slots=True)
class ReadSnapshot(Read[Snapshot]):
    """Takes a snapshot for observers."""

    leading: Leading

    def read(self, state: State) -> Snapshot:
        return self.leading.take()


class Leading:
    """What observers see of a driver that leads: the shared snapshot, the series, and lists that are kept for a moment."""

    def __init__(
        self, given: Given, parts: Parts, *, stores: Stores, view: LeaderView, failed: Callable[[BaseException], None]
    ) -> None:
        self.parts = parts
        self.stores = stores
        self.view = view
        self.series = Series()
        self.shared = SharedSnapshot(self._ask_for_snapshot, given.clock)
        self.sampler = Sampler(
            self.series,
            snapshot=self.shared.get,
            completed_since=self._completed_since,
            failed=failed,
            sampled=partial(tell_lag, given.listeners),
        )
        self.batches = BatchAnswers(
            ask=self.ask,
            running=parts.scheduler.running,
            completed=parts.scheduler.batches,
            storage=stores.journal,
            stream=given.settings.stream,
        )
        self.states = KeyedStates(stores.wal)
        self._given = given
        self._blocks_lock, self._journal_lock = threading.Lock(), threading.Lock()
        self._blocks: tuple[float, BlockTable] | None = None
        self._journal: tuple[float, m.JournalAnswer] | None = None

    def take(self) -> Snapshot:
        """Return a new snapshot. Called in the decision loop."""
        given, parts = self._given, self.parts
        state, detail = self.view.shown()
        around = SnapshotContext(
            state=state,
            detail=detail,
            verdict=self.view.recent_verdict(),
            receiver_timeout=given.settings.driver.receiver_timeout,
            running=dict(parts.scheduler.running),
            foreign=parts.commits.foreign,
            ends=parts.ends,
        )
        return take(parts.tracker, around, given.clock.monotonic(), given.clock.wall_ms())

    def ask(self, request: Answered[AnswerType], /) -> AnswerType:
        """Send ``request`` to the decision loop and return the answer. Raises UnreachableError if there is none in time."""
        if self.parts.loop.waiting_for_space:  # it answers no request
            raise UnreachableError(self.view.away().cause)
        try:
            return self.parts.loop.submit(request).result(ASK_SECONDS)
        except LateError:
            raise UnreachableError(f"the decision loop has not answered for {ASK_SECONDS:g} s") from None

    def blocks(self) -> BlockTable:
        """Return all blocks, as they were at most ``BLOCKS_SECONDS`` ago."""
        with self._blocks_lock:
            now = self._given.clock.monotonic()
            if self._blocks is None or now - self._blocks[0] >= BLOCKS_SECONDS:
                self._blocks = (now, self.ask(ReadBlocks()))
            return self._blocks[1]

    def batch_ids(self, block_ids: Sequence[str]) -> Mapping[str, int]:
        """Return block id → batch id, as far as the batches are known here; older ones are only in the history."""
        return self.ask(ReadMembership(tuple(block_ids))).named(self.parts.scheduler.batches.entries())

    def journal(self) -> m.JournalAnswer:
        """Return the state of the journal's files, as it was at most ``JOURNAL_SECONDS`` ago. Raises StoreError."""
        with self._journal_lock:
            given, now = self._given, self._given.clock.monotonic()
            if self._journal is None or now - self._journal[0] >= JOURNAL_SECONDS:
                found = self.ask(ReadJournal())
                answer = journal_answer(
                    given.settings, self.stores.journal, self.parts.journal, found, given.clock.wall_ms()
                )
                self._journal = (now, answer)
            return self._journal[1]

    def wal(self) -> WalState:
        """Return what the decision loop knows of the WAL."""
        return self.ask(ReadWal())

    def held_for_cursors(self) -> int:
        """Return the bytes of WAL segments that are kept only for cursors."""
        return self.ask(ReadHeldForCursors())

    def _completed_since(self, since_ms: int) -> list[m.BatchEntry]:
        newest_first = self.parts.scheduler.batches.entries()
        return list(takewhile(lambda batch: (batch.completed_ms or 0) >= since_ms, newest_first))

    def _ask_for_snapshot(self, timeout_seconds: float) -> Snapshot:
        if self.parts.loop.waiting_for_space:
            raise UnreachableError(self.view.away().cause)
        return self.parts.loop.submit(ReadSnapshot(self)).result(timeout_seconds)


def tell_lag(listeners: Listeners, snapshot: Snapshot) -> None:
    """Tell listeners how far the stream of ``snapshot`` is behind Kafka, if one wants events."""
    if not listeners:
        return
    seconds = lag_seconds(snapshot.tracked_partitions)
    partitions = (
        PartitionLag(p.topic, p.partition, p.position, p.completed, None if p.lag is None else p.high_watermark)
        for p in snapshot.tracked_partitions
    )
    listeners.tell_all([measured(partitions, seconds, snapshot.now_ms)])


class Observing:
    """Answers observers, as ``driver.http.observation.observer.Observer``. ``lead`` is called when the driver leads."""

    def __init__(self, given: Given, *, activity: Activity, view: View, leadership: Leadership) -> None:
        self._given = given
        self._activity = activity
        self._view = view
        self._leadership = leadership
        self._leading: Leading | None = None
        settings = given.settings
        self._identity = DriverIdentity(
            stream=settings.stream,
            release=given.options.release,
            job=", ".join(job.name for job in given.jobs),
            batch_interval_ms=round(settings.driver.batch_interval * 1000),
            heartbeat_seconds=float(max(settings.receiver.heartbeat_interval, settings.agent.heartbeat_interval)),
        )
        self.hub = EventHub(lambda: asyncio.to_thread(self.overview))
        given.listeners.attach(self.hub)

    def lead(self, parts: Parts, stores: Stores, view: LeaderView, failed: Callable[[BaseException], None]) -> Sampler:
        """Answer from ``parts`` from now on. Return the sampler, which the caller starts and stops."""
        self.hub.records_of = self._given.listeners.records_of
        self.hub.offsets_of = self._given.listeners.offsets_of
        self._leading = leading = Leading(self._given, parts, stores=stores, view=view, failed=failed)
        return leading.sampler

    @property
    def leading(self) -> Leading:
        """What all observers share. Raises NotTakenError until the driver leads."""
        return self._led()

    def overview(self) -> m.OverviewAnswer:
        leading = self._leading
        if leading is None:
            return self._without_lead()
        snapshot = leading.shared.get()
        work = PresentWork(
            rates=leading.sampler.rates(snapshot),
            last_batch=leading.parts.scheduler.batches.newest,
            spark_ui=self._activity.spark_ui,
        )
        answer = overview(snapshot, self._identity, work)
        return late(answer, leading.view.away()) if leading.shared.is_late else answer

    def snapshot(self) -> Snapshot:
        return self._led().shared.get()

    def series(self, since_ms: int, points_max: int) -> m.SeriesAnswer:
        return self._led().series.answer(since_ms, points_max)

    def held_for_cursors(self) -> int:
        return self._led().held_for_cursors()

    def batches(self, query: BatchQuery) -> m.BatchesAnswer:
        return self._led().batches.list(query)

    def batch(self, batch_id: int) -> m.BatchDetail:
        return self._led().batches.detail(batch_id)

    def blocks(self, query: BlockQuery) -> m.BlockListAnswer:
        leading = self._led()
        if query.batch_id:
            of_batch = frozenset(leading.batches.detail(query.batch_id).block_ids)
            query = replace(query, of_batch=of_batch)
        return block_list(leading.blocks(), query, leading.batch_ids)

    def block(self, block_id: str) -> m.BlockEntry:
        found = self._block(block_id)
        batch_id = found.batch_id or self._led().batch_ids([block_id]).get(block_id, 0)
        return block_entry(found.block, found.state, batch_id, RANGES_ALONE_MAX)

    def records(self, block_id: str, first: int, limit: int, bytes_max: int) -> m.RecordsAnswer:
        found, urls = self._block(block_id), self._led().parts.agents.urls()
        return records_answer(self._given.settings, found, urls, first=first, limit=limit, bytes_max=bytes_max)

    def wal(self) -> m.WalAnswer:
        leading = self._led()
        return wal_answer(self._given.settings, leading.shared.get(), leading.wal())

    def states(self, query: Query) -> m.StatesAnswer:
        leading = self._led()
        return leading.states.answer(leading.ask(ReadKeyedStates()), query)

    def journal(self) -> m.JournalAnswer:
        return self._led().journal()

    def settings(self) -> m.SettingsAnswer:
        found = in_force(self._given.settings)
        return m.SettingsAnswer(
            settings=tuple(
                m.SettingEntry(key=one.key, value=one.value, origin=one.origin, description=one.description)
                for one in found
            )
        )

    def listeners(self) -> m.ListenersAnswer:
        return m.ListenersAnswer(listeners=self._given.listeners.status)

    def _led(self) -> Leading:
        if self._leading is None:
            self._leadership.not_leading().result()  # raises the refusal
            raise UnreachableError("the driver begins to lead: try again")
        return self._leading

    def _block(self, block_id: str) -> ReadableBlock:
        found = self._led().ask(ReadBlock(block_id))
        if found is None:
            raise RefusedError(
                f"the journal names no block {block_id!r}: it was never accepted, or it is deleted; `forebay blocks` lists them",
                "not-found",
            )
        return found

    def _without_lead(self) -> m.OverviewAnswer:
        """Return the overview of a standby, or of a driver that is opening the journal."""
        state, detail = self._view.shown()
        leader = self._leadership.leader
        return m.OverviewAnswer(
            time_ms=self._given.clock.wall_ms(),
            stream=self._identity.stream,
            release=self._identity.release,
            state=state,
            detail=detail,
            leader="" if leader is None else leader or UNKNOWN_LEADER,
        )
