"""The plan of a recovery: making it without a change, and carrying it out."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from deploy.commands.recovery.surroundings import Surroundings
from deploy.console.progress import progress_bar
from forebay.model.errors import CorruptionError, NewerVersionError, StoreError
from forebay.settings.schema import Settings

if TYPE_CHECKING:
    from driver.journal.state import State
    from recovery.copies import ReadRanges
    from recovery.examination import Examination
    from recovery.plan import BlockRecovery, DamagedSegment, HistoryView, KafkaView, Loss, RecoveryPlan
    from wal.storage import Storage


def make_plan(
    settings: Settings,
    journal_storage: Storage,
    wal_storage: Storage,
    surroundings: Surroundings,
    read_ranges: ReadRanges | None = None,
    *,
    lost_wal: bool = False,
) -> RecoveryPlan:
    """Return the plan of a recovery. Only reads, fences no process, and is safe while driver and receivers are running.

    ``lost_wal``: the WAL was lost, and ``wal_storage`` is a new one.

    Raises UsageError if there is no journal, TimelineFound if the WAL belongs to another journal, CorruptionError or
    NewerVersionError if it can't be read.
    """
    from driver.journal.log.opening import refuse_other_wal
    from recovery import plan as rp
    from recovery.examination import examine_beside_a_driver

    with _reading_wal(wal_storage, settings.stream) as progress:
        examined = examine_beside_a_driver(journal_storage, wal_storage, settings.stream, progress)
    state = examined.state
    assert state is not None
    if not lost_wal:
        refuse_other_wal(journal_storage, wal_storage, settings.stream)
    surroundings.find_agents()
    kafka = surroundings.kafka(state)
    sources = surroundings.sources(examined, wal_storage, kafka, read_ranges)
    outcomes: list[BlockRecovery | Loss] = []
    broken = rp.broken_blocks(examined)
    with _reading_blocks(len(broken)) as progress:
        for block in broken:
            found, reasons = sources.find(block)
            outcomes.append(
                rp.loss_of(state, block, reasons)
                if found is None
                else rp.recovery_of(state, block, found.source, found.exact, done=False)
            )
            progress(1)
    damaged = rp.damaged_segments(examined)
    gone = {s.path for s in examined.segments if s.holds_nothing} | {d.path for d in damaged if not d.kept}
    lost = {o.block_id for o in outcomes if isinstance(o, rp.Loss)}
    return _plan(
        examined, False, outcomes, damaged, rp.forgettable(state, gone, lost), surroundings, journal_storage, kafka
    )


def _plan(
    examined: Examination,
    applied: bool,
    outcomes: Sequence[BlockRecovery | Loss],
    damaged: Sequence[DamagedSegment],
    forgotten: Sequence[str],
    surroundings: Surroundings,
    journal_storage: Storage,
    kafka: KafkaView,
) -> RecoveryPlan:
    from recovery import plan as rp

    assert examined.state is not None
    return rp.make_plan(
        examined,
        applied=applied,
        recoveries=[o for o in outcomes if isinstance(o, rp.BlockRecovery)],
        losses=[o for o in outcomes if isinstance(o, rp.Loss)],
        damaged=damaged,
        forgotten=forgotten,
        copies=surroundings.copies(examined.state),
        history=_history(journal_storage, examined.state),
        kafka=kafka,
    )


def apply_plan(
    settings: Settings,
    journal_storage: Storage,
    wal_storage: Storage,
    surroundings: Surroundings,
    read_ranges: ReadRanges | None = None,
    *,
    lost_wal: bool = False,
) -> RecoveryPlan:
    """Lead the journal, carry out the plan, and return it. May be killed at any step and called again.

    ``lost_wal``: the WAL was lost, and ``wal_storage`` is a new one.

    Raises LeaseHeld if a driver is running, UsageError if there is no journal, TimelineFound if the WAL belongs to another
    journal, FencedError if a driver takes over meanwhile, OutOfSpaceError, StoreError.
    """
    from driver.journal.leadership.lease import LeaseKeeper
    from driver.journal.log import opening as journal
    from forebay.process.clock import SystemClock
    from recovery import plan as rp
    from recovery.examination import examine, read_state
    from recovery.restoration import Restoration
    from wal.segments.writer import SegmentLimits

    stream = settings.stream
    read_state(journal_storage, stream)
    _refuse_beside_a_driver(journal_storage, stream)
    if lost_wal:
        journal.begin_wal(journal_storage, wal_storage, stream)
    clock = SystemClock()
    owner = f"forebay recover {socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"

    def now() -> float:
        return clock.wall_ms() / 1000.0

    def new_uid() -> int:
        return secrets.randbits(64)

    with contextlib.ExitStack() as closing:
        led, state = journal.lead(
            journal_storage,
            stream,
            owner,
            clock.wall_ms(),
            now,
            new_uid,
            segment_bytes=settings.driver.journal_segment_size,
            wal=wal_storage,
        )
        closing.callback(led.close)
        lease = LeaseKeeper(
            journal_storage,
            stream,
            led.epoch,
            owner=owner,
            url="",
            duration_seconds=float(settings.driver.lease_duration),
        )
        lease.follow(lambda: led.confirmed)
        lease.start()
        closing.callback(lease.stop)
        with _reading_wal(wal_storage, stream) as progress:
            examined = examine(state, wal_storage, stream, progress=progress)
        surroundings.find_agents()
        kafka = surroundings.kafka(state)
        limits = SegmentLimits(size_bytes=settings.wal.segment_size, age_seconds=float(settings.wal.segment_age))
        restoration = Restoration(led, state, wal=wal_storage, limits=limits, now=now, new_uid=new_uid)
        closing.callback(restoration.close)
        sources = surroundings.sources(examined, wal_storage, kafka, read_ranges)
        with _reading_blocks(len(rp.broken_blocks(examined))) as progress:
            done = restoration.carry_out(examined, sources, progress)
        return _plan(examined, True, done.outcomes, done.damaged, done.forgotten, surroundings, journal_storage, kafka)


def _refuse_beside_a_driver(journal_storage: Storage, stream: str) -> None:
    from driver.journal.leadership.lease import LeaseHeld, wait_until_stale

    try:
        wait_until_stale(journal_storage, stream, threading.Event())
    except LeaseHeld as error:
        raise LeaseHeld(
            f"{error}. Recovery writes to the journal: stop `forebay driver` (or `forebay up`) with SIGTERM, then repeat "
            "this command; receivers may keep running, and wait for the driver"
        ) from None


@contextlib.contextmanager
def _reading_wal(storage: Storage, stream: str) -> Iterator[Callable[[int], None]]:
    from recovery.examination import total_bytes

    with progress_bar("reading the WAL", total_bytes(storage, stream)) as progress:
        yield progress


@contextlib.contextmanager
def _reading_blocks(count: int) -> Iterator[Callable[[int], None]]:

    with progress_bar("looking for copies", count, unit_bytes=False) as progress:
        yield progress


def _history(storage: Storage, state: State) -> HistoryView:
    from driver.journal import history
    from recovery.plan import HistoryView, history_view

    try:
        return history_view(state, history.read(storage, state.stream))
    except (CorruptionError, NewerVersionError, StoreError, FileNotFoundError) as error:
        return HistoryView(0, f"cannot read the history: {error}")
