"""The parts of a simulated driver that run in threads: the product's, with pauses in place of waits (``shells.py``)."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from driver.background.adoption.adopter import Adopter
from driver.background.cleaner import CleanedWal, Cleaner
from driver.background.snapshot_copies import SnapshotCopies
from driver.decision_loop.loop import DriverLoop
from driver.decisions.clean_up import CleanSegment
from driver.journal.history import HistoryWriter
from driver.journal.state import State
from driver.service.activity import Activity
from driver.service.admission import Admission
from driver.service.commits import CommitCheck
from driver.service.housekeeping import Housekeeping
from driver.service.options import DriverOptions, Given
from driver.tracker import Decision
from driver.tracker.requests import Request
from tests.simulation.options import SETTINGS
from tests.simulation.shells import (
    AskedLoop,
    SteppedEvent,
    SteppedJournal,
    SteppedLock,
    SteppedPause,
    SteppedPool,
    SteppedQueue,
    SteppedStore,
    Task,
    stepped,
)
from tests.simulation.upstream import SimulatedUpstream
from wal.decisions.retention import RetentionLimits
from wal.segments.writer import SegmentLimits
from wal.storage import Storage

if TYPE_CHECKING:
    from tests.simulation.driver_process import DriverProcess

#: operations of clean-up on the WAL → the step before them
CLEAN_UP_STEPS = {"list": "list", "size": "scan", "create": "copy", "put_new": "copy"}


class CheckedTracker:
    """The tracker of a driver, whose decisions are checked."""

    def __init__(self, driver: DriverProcess) -> None:
        self._driver = driver

    def decide(self, request: Request, now: float, now_ms: int) -> Decision:
        driver = self._driver
        driver.tracker.receivers.id_limits = driver.world.id_limits
        return driver.world.invariants.decide(driver, request, now, now_ms)


def decision_loop(driver: DriverProcess) -> DriverLoop:
    loop = driver.world.kinds.loop(
        cast(Any, CheckedTracker(driver)),
        cast(Any, SteppedJournal(driver.journal, driver, driver.world.options.snapshot_events)),
        driver.clock,
        perform=lambda action: driver.cleaner.perform(action),
        failed=lambda _: None,  # by its thread, which is never started
        reserve_bytes=driver.world.options.journal_reserve_bytes,
    )
    loop._queue = cast(Any, SteppedQueue())
    loop._stopping = cast(Any, SteppedEvent())
    return loop


def clean_up(driver: DriverProcess, history: HistoryWriter) -> tuple[SnapshotCopies, Cleaner]:
    """Return the snapshot copies and the clean-up. The clean-up's thread is a task."""
    world = driver.world
    limits = RetentionLimits(retention_ms=world.options.retention_ms, retention_bytes=world.options.retention_bytes)
    storage = cast(Storage, SteppedStore(world.wal, CLEAN_UP_STEPS, partial(world.invariants.deleting, driver)))
    asked = cast(Any, driver.asked_type({CleanSegment: "judge"}))
    copies = SnapshotCopies(
        asked.ask,
        storage,
        stream=world.stream,
        epoch=driver.journal.epoch,
        clock=driver.ageing,
        interval_seconds=0.0,
        limits=limits,
        new_uid=world.new_uid,
    )
    copies._lock = cast(Any, SteppedLock())
    cleaner = Cleaner(
        asked,
        None if world.options.copies else CleanedWal(storage, limits, copies),
        history_writer=cast(Any, SteppedStore(history, {"append": "archive"}, lambda _: None)),
        stream=world.stream,
        clock=driver.ageing,
        pause_seconds=1.0,
        failed=driver.fail,
    )
    cleaner._actions = cast(Any, SteppedQueue("begin"))
    cleaner._pool = cast(Any, SteppedPool())
    cleaner._stopping = cast(Any, SteppedEvent())
    return copies, cleaner


def adopter(driver: DriverProcess) -> Adopter:
    world = driver.world
    return world.kinds.adopter(
        None if world.options.copies else world.wal,
        stream=world.stream,
        host="host-driver",
        instance_id=driver.name,
        compression="none",
        limits=SegmentLimits(size_bytes=world.options.segment_bytes, age_seconds=float("inf")),
        topic_ids=lambda topics: {topic: world.kafka.topic_id(topic) for topic in topics},
        wall_ms=lambda: driver.clock.wall_ms(),
        new_uid=world.new_uid,
    )


class HousekeepingThread:
    """The housekeeping of a driver. ``admission``: what housekeeping opens once the partitions are known."""

    def __init__(self, driver: DriverProcess) -> None:
        self._world = world = driver.world
        asked = cast(Any, AskedLoop())
        self._upstream = upstream = SimulatedUpstream(driver)
        self.admission = admission = Admission(lambda: False)
        self._rounds = SteppedPause(lambda: world.now)
        activity = Activity()
        activity.stopping = cast(Any, self._rounds)
        given = Given(
            settings=SETTINGS,
            upstream=upstream,
            engine=cast(Any, None),
            jobs=(),
            clock=driver.clock,
            options=DriverOptions(release="simulated"),
            listeners=cast(Any, None),
        )
        parts = SimpleNamespace(
            loop=asked,
            tracker=driver.tracker,
            copies=None if world.options.copies else driver.copies,
            commits=CommitCheck(settings=SETTINGS, upstream=upstream, ask=asked.ask, admission=admission),
        )
        self._housekeeping = Housekeeping(
            given,
            cast(Any, parts),
            activity=activity,
            admission=admission,
            is_draining=lambda: False,
            caught_up=lambda: None,
            failed=driver.fail,
        )

    def run(self) -> Task:
        yield "begin"
        yield from stepped(self._housekeeping._run)

    def is_due(self, state: State) -> bool:
        return self._rounds.is_over(self._world.now) and self._has_work(state)

    def _has_work(self, state: State) -> bool:
        if not self.admission.copied:
            return True
        published = self._upstream.published
        return any(published.get(p.tp) != p.completed for p in state.partitions.values())
