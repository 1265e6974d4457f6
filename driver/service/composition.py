"""Makes the parts of a driver that leads. It starts no thread and sends no request to a store or broker."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from driver.background.adoption import Adopter, AdoptionThread
from driver.background.batch_history import BatchHistory, fill_from_state
from driver.background.cleaner import CleanedWal, Cleaner
from driver.background.discovery import subscription
from driver.background.reach import INTERVAL_SECONDS, Ends, Probe, Reach, offsets_of_known, store_probe
from driver.background.snapshot_copies import SnapshotCopies
from driver.background.state_files import StateFiles
from driver.batches.backpressure import Backpressure
from driver.batches.batch_log import BatchLog
from driver.batches.job.dead_letters import confirm_dead_letters
from driver.batches.job.keyed_state import newest_run
from driver.batches.job_failures import FailingJobs
from driver.batches.joint.jobs import refuse_alone
from driver.batches.runner import AttemptRules, BatchHooks, Completed
from driver.batches.scheduler import BatchOptions, Scheduler
from driver.decision_loop.loop import DriverLoop
from driver.decisions.allocation import BatchLimits
from driver.decisions.clean_up import retention_limits
from driver.decisions.rate import Gains
from driver.decisions.rate_sharing import RateLimits, RateSharing
from driver.decisions.receiver_lifecycle import ManagedReceivers, ManagedRules
from driver.http.health import Grace, Health
from driver.journal.events import Event
from driver.journal.history import HistoryWriter
from driver.journal.leadership.lease import lease_path
from driver.journal.log.writing import Journal
from driver.journal.retention_clock import RetentionClock, newest_completion_ms
from driver.journal.state import State
from driver.listeners.events import Happened
from driver.listeners.offsets import submitted_offsets
from driver.metrics.counting import Counting
from driver.service.admission import Admission
from driver.service.agents import ActiveAgents
from driver.service.commits import CommitCheck
from driver.service.options import Given
from driver.service.stores import Stores
from driver.traces import BatchTraces
from driver.tracker import CopyRules, CursorRules, Tracker, TrackerOptions
from forebay.model.identifiers import managed_ordinal, timeline_of
from forebay.model.values import TopicPartition
from forebay.process.clock import Clock
from forebay.settings.schema import Settings
from forebay.sources.kind import Upstream, source_kind
from wal.blocks.encryption import load_keys
from wal.segments import layout
from wal.segments.writer import SegmentLimits
from wal.storage import Storage

#: maximum number of batches beyond the completed ones if ``driver.max_queued_batches`` is unset; one of them waits at most
QUEUED_MAX = 4
#: pause between two rounds of clean-up if ``wal.cleanup_interval`` is unset; each lists the WAL, which object stores charge for
CLEANUP_SECONDS, CLEANUP_OF_OBJECTS_SECONDS = 2.0, 60.0
#: pause between two groups of events on a store of whole objects if ``driver.journal_flush_interval`` is unset
FLUSH_OF_OBJECTS_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The parts of a driver that leads. ``copies``: None in a stream without a WAL. ``ends``: None for a custom source."""

    tracker: Tracker
    journal: Journal
    loop: DriverLoop
    scheduler: Scheduler
    cleaner: Cleaner
    batch_history: BatchHistory
    adoption: AdoptionThread
    copies: SnapshotCopies | None
    commits: CommitCheck
    agents: ActiveAgents
    reach: Reach
    ends: Ends | None
    health: Health


def compose(
    given: Given,
    stores: Stores,
    opened: Journal,
    state: State,
    *,
    admission: Admission,
    leads_since: float,
    failed: Callable[[BaseException], None],
    counting: Counting,
    traces: BatchTraces | None = None,
) -> Parts:
    """Make the parts around the journal that was opened, and connect them.

    ``leads_since``: when this driver began to lead, on the monotonic clock. ``failed`` gets the error that ended a part's thread.
    ``counting``: counts what the parts do, for metrics. ``traces``: None: nothing is traced.
    """
    settings, clock = given.settings, given.clock
    tracker = make_tracker(settings, state, opened.epoch)
    agents = ActiveAgents(tracker, clock, settings.driver.receiver_timeout)
    ageing = RetentionClock(clock, float(settings.wal.retention), newest_completion_ms(state))

    def durable(events: Sequence[Event]) -> None:
        scheduler.note(events)
        adoption.note(events)
        given.listeners.note(events)
        counting.note(events)
        if traces is not None:
            traces.note(events)

    loop = DriverLoop(
        tracker,
        opened,
        clock,
        perform=lambda action: cleaner.perform(action),
        failed=failed,
        durable=durable,
        flush_seconds=_flush_seconds(settings, stores.journal),
        reserve_bytes=int(settings.driver.journal_reserve),
    )
    given.listeners.records_of = lambda batch_id: state.index.records.get(batch_id)
    given.listeners.offsets_of = partial(submitted_offsets, state)
    loop.answered, loop.synced = counting.answered, counting.synced
    adopter = Adopter(
        stores.wal,
        stream=settings.stream,
        host=settings.receiver.host or settings.agent.host or socket.gethostname(),
        instance_id=f"adoption-{opened.epoch:x}",
        compression=settings.wal.compression,
        limits=SegmentLimits(size_bytes=settings.wal.segment_size, age_seconds=settings.wal.segment_age),
        topic_ids=given.upstream.topic_ids,
        wall_ms=clock.wall_ms,
        new_uid=_new_uid,
        stopping=lambda: adoption.stopping,
        keys=lambda: load_keys(settings.wal.key_file),
    )
    adoption = AdoptionThread(adopter, loop, failed)
    copies = _copies(settings, stores, loop, opened.epoch, ageing)
    history = HistoryWriter(
        stores.journal,
        settings.stream,
        opened.epoch,
        segment_bytes=settings.driver.journal_segment_size,
        now=lambda: clock.wall_ms() / 1000.0,
        new_uid=_new_uid,
    )
    cleaner = Cleaner(
        loop,
        _cleaned_wal(settings, stores, loop, copies, opened.epoch),
        history_writer=history,
        stream=settings.stream,
        clock=ageing,
        pause_seconds=_cleanup_seconds(settings, stores.wal),
        failed=failed,
    )
    scheduler = make_scheduler(
        given,
        loop,
        state,
        epoch=opened.epoch,
        completions=ageing,
        copies=agents.copies,
        counting=counting,
        traces=traces,
    )
    ends = _ends(settings, given.upstream, tracker, clock)
    reach = Reach(_probes(settings, given.upstream, stores, tracker, ends, clock))
    return Parts(
        tracker=tracker,
        journal=opened,
        loop=loop,
        scheduler=scheduler,
        cleaner=cleaner,
        batch_history=BatchHistory(
            scheduler.batches, stores.journal, settings.stream, epoch=opened.epoch, rebuilds=state.rebuilds
        ),
        adoption=adoption,
        copies=copies,
        commits=CommitCheck(settings=settings, upstream=given.upstream, ask=loop.ask, admission=admission),
        agents=agents,
        reach=reach,
        ends=ends,
        health=make_health(settings, tracker, reach, leads_since),
    )


def make_tracker(settings: Settings, state: State, epoch: int) -> Tracker:
    """Make the tracker. Until discovery has asked Kafka, receivers subscribe to the topics that the journal names."""
    driver = settings.driver
    options = TrackerOptions(
        on_gap=settings.kafka.on_gap,
        max_queued_batches=(driver.max_queued_batches or QUEUED_MAX) + driver.concurrent_jobs - 1,
        retention=retention_limits(settings),
        batch_limits=BatchLimits(max_records=driver.max_batch_records, max_bytes=driver.max_batch_bytes),
        copy_rules=_copy_rules(settings),
        cursor_rules=CursorRules(
            in_use_seconds=float(driver.cursor_lease), timeout_seconds=float(driver.cursor_timeout)
        ),
        host_timeout_seconds=float(driver.receiver_timeout),
        batch_interval_ms=round(driver.batch_interval * 1000),
        concurrent_jobs=driver.concurrent_jobs,
    )
    tracker = Tracker(
        state, epoch, options, sharing=_sharing(settings, state), managed=_managed(settings, state, epoch)
    )
    tracker.subscription = subscription(settings.kafka, state.topics)
    return tracker


def make_scheduler(
    given: Given,
    loop: DriverLoop,
    state: State,
    *,
    epoch: int,
    completions: Clock,
    copies: Callable[[], Mapping[str, tuple[str, ...]]],
    counting: Counting,
    traces: BatchTraces | None = None,
) -> Scheduler:
    """Make the scheduler of an intake's batches."""
    settings, engine, driver, joint = given.settings, given.engine, given.settings.driver, given.options.joint

    def tell(happened: Sequence[Happened]) -> None:
        if joint is not None:
            joint.tell(happened)
        given.listeners.tell_all(happened)
        counting.tell(happened)
        if traces is not None:
            traces.tell(happened)

    batches = BatchLog(driver.batch_history)
    fill_from_state(batches, state, driver.batch_history)
    return Scheduler(
        loop,
        engine,
        given.jobs,
        clock=given.clock,
        options=BatchOptions(
            batch_interval_seconds=driver.batch_interval,
            tasks=lambda: driver.tasks_per_batch or max(driver.tasks_min, engine.parallelism),
            headers=settings.kafka.headers,
            epoch=epoch,
            concurrent_jobs=driver.concurrent_jobs,
            window_batches=driver.window_batches,
            window_ms=round(driver.window * 1000),
            empty_batches=driver.empty_batches == "deliver" and joint is None,
            ahead=driver.max_queued_batches is not None,
            copies=copies,
            joint=joint,
        ),
        rules=AttemptRules(
            max_failures=driver.job_max_failures,
            retry_delay_seconds=driver.job_retry_delay,
            unreadable_retry_seconds=driver.unreadable_retry,
            waits_when_failed=given.options.waits_when_failed,
        ),
        hooks=BatchHooks(
            check=joint.check if joint is not None else refuse_alone,
            completed=_backpressure(settings, loop, state, given.clock.wall_ms()),
            confirm=confirm_dead_letters,
            tell=tell,
            is_listening=lambda: bool(given.listeners),
        ),
        failing=FailingJobs(given.clock, max_failures=driver.job_max_failures, known=state.failures),
        completions=completions,
        batches=batches,
    )


def make_health(settings: Settings, tracker: Tracker, reach: Reach, since: float) -> Health:
    """Make the object that finds the stream's problems. ``since``: when the driver began to lead, on the monotonic clock."""
    managed = settings.receiver.mode == "managed"
    timeout = float(settings.driver.receiver_timeout)
    return Health(
        tracker,
        Grace(timeout, max(timeout, float(settings.receiver.start_timeout)) if managed else timeout),
        managed=managed,
        since=since,
        outages=reach.outages,
        topics=frozenset(settings.kafka.topics) or None,  # none: a pattern, or a custom source
    )


def _new_uid() -> int:
    return secrets.randbits(64)


def _copies(settings: Settings, stores: Stores, loop: DriverLoop, epoch: int, clock: Clock) -> SnapshotCopies | None:
    if stores.wal is None:
        return None
    copies = SnapshotCopies(
        loop.ask,
        stores.wal,
        stream=settings.stream,
        epoch=epoch,
        clock=clock,
        interval_seconds=settings.driver.snapshot_copy_interval,
        limits=retention_limits(settings),
        new_uid=_new_uid,
    )
    loop.snapshot_taken = copies.want
    return copies


def _cleaned_wal(
    settings: Settings, stores: Stores, loop: DriverLoop, copies: SnapshotCopies | None, epoch: int
) -> CleanedWal | None:
    if stores.wal is None or copies is None:
        return None
    next_timeline = layout.timeline_marker(settings.stream, timeline_of(epoch) + 1)
    states = StateFiles(loop.ask, stores.wal, stream=settings.stream, epoch=epoch, newest_run=newest_run)
    return CleanedWal(stores.wal, retention_limits(settings), copies, partial(stores.wal.exists, next_timeline), states)


def _ends(settings: Settings, upstream: Upstream, tracker: Tracker, clock: Clock) -> Ends | None:
    if not source_kind(settings).has_groups:
        return None

    # the dictionary is copied in one step, since the decision loop goes on meanwhile
    def known() -> list[TopicPartition]:
        return [p.tp for p in tuple(tracker.state.partitions.values())]

    def lows(partitions: list[TopicPartition]) -> Mapping[TopicPartition, int]:
        return upstream.starting_offsets("earliest", partitions, settings.group)

    return Ends(
        lambda: offsets_of_known(upstream.ends, known()), clock, ask_lows=lambda: offsets_of_known(lows, known())
    )


def _probes(
    settings: Settings, upstream: Upstream, stores: Stores, tracker: Tracker, ends: Ends | None, clock: Clock
) -> list[Probe]:
    """Return the probes of Kafka and of the stores."""
    probes = [store_probe("journal", stores.journal, lease_path(settings.stream), clock)]
    if stores.wal is not None:
        marker = layout.timeline_marker(settings.stream, tracker.state.timeline)
        probes.append(store_probe("wal", stores.wal, marker, clock))
    if ends is not None:
        probes.append(
            Probe("kafka", ends.read, clock, interval_seconds=INTERVAL_SECONDS, why_silent=upstream.why_silent)
        )
    return probes


def _sharing(settings: Settings, state: State) -> RateSharing | None:
    if not settings.driver.backpressure:
        return None
    receiver = settings.receiver
    limits = RateLimits(
        max_rate=receiver.max_rate,
        max_rate_per_partition=receiver.max_rate_per_partition,
        min_rate_per_partition=receiver.min_rate_per_partition,
    )
    return RateSharing(limits, state.learned.rate if state.learned is not None else 0.0)


def _backpressure(settings: Settings, loop: DriverLoop, state: State, now_ms: int) -> Completed | None:
    driver = settings.driver
    if not driver.backpressure:
        return None
    gains = Gains(
        driver.backpressure_proportional,
        driver.backpressure_integral,
        driver.backpressure_derivative,
        driver.backpressure_min_rate,
    )
    return Backpressure(
        loop, gains=gains, batch_interval_seconds=driver.batch_interval, learned=state.learned, begun_ms=now_ms
    ).completed


def _managed(settings: Settings, state: State, driver_epoch: int) -> ManagedReceivers:
    """Return the receivers that this driver keeps running, with the hosts where the journal says that they ran last."""
    managed = settings.receiver.mode == "managed"
    known = {
        number: receiver.host
        for receiver in state.receivers.values()
        if receiver.instance_id and (number := managed_ordinal(settings.stream, receiver.receiver_id)) is not None
    }
    return ManagedReceivers(
        settings.stream,
        driver_epoch=driver_epoch,
        count=settings.receiver.count if managed else 0,
        known=known if managed else {},
        rules=ManagedRules.of(settings),
    )


def _copy_rules(settings: Settings) -> CopyRules | None:
    own = settings.receiver
    if settings.has_wal and own.copies < 2:
        return None
    return CopyRules(
        copies=own.copies,
        timeout_seconds=settings.driver.receiver_timeout,
        room_bytes=int(own.memory),
        beside_wal=settings.has_wal,
    )


def _flush_seconds(settings: Settings, journal_storage: Storage) -> float:
    if settings.driver.journal_flush_interval is not None:
        return settings.driver.journal_flush_interval
    return 0.0 if journal_storage.appendable else FLUSH_OF_OBJECTS_SECONDS


def _cleanup_seconds(settings: Settings, wal_storage: Storage | None) -> float:
    if settings.wal.cleanup_interval is not None:
        return settings.wal.cleanup_interval
    return CLEANUP_SECONDS if wal_storage is None or wal_storage.appendable else CLEANUP_OF_OBJECTS_SECONDS
