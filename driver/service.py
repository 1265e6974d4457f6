"""The driver's parts, put together in one place: journal, deciding thread, HTTP, discovery, lease, clean-up, batches."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as AnswerLate
from functools import partial
from typing import Any

import msgspec

from driver.background.adoption import Adopter, AdoptionThread
from driver.background.catch_up import CatchUp
from driver.background.cleaner import CleanedWal, Cleaner
from driver.background.discovery import check_commits, discover, foreign_commits, subscription
from driver.background.reach import INTERVAL_SECONDS, Ends, Probe, Reach, ends_of_known, soon, store_probe
from driver.background.resetting import Resetting
from driver.background.snapshot_copies import SnapshotCopies
from driver.background.upstream import Upstream
from driver.batches.backpressure import Backpressure
from driver.batches.batch import Engine, NamedJob
from driver.batches.dead_letters import settle
from driver.batches.job_failures import FailingJobs
from driver.batches.scheduler import Completed, Scheduler
from driver.decision_loop.loop import RESERVE_REACHED, DriverLoop
from driver.decision_loop.rewinding import begin_replay
from driver.decision_loop.stopping import GRACE_SECONDS, Drain, Remaining, Summary, remaining
from driver.decisions.allocation import BatchLimits
from driver.decisions.clean_up import retention_limits
from driver.decisions.intake import intake, span
from driver.decisions.problems import in_answer
from driver.decisions.rate import Gains
from driver.decisions.rate_sharing import RateLimits, RateSharing
from driver.decisions.receiver_lifecycle import ManagedReceivers
from driver.http.api import Submitted, tracker_application
from driver.http.health import WAITING_FOR_SPACE, Grace, Health, HealthLog, Verdict, journal_is_away
from driver.http.status import receiver_state, status
from driver.journal import history
from driver.journal import log as journal
from driver.journal.events import Event
from driver.journal.lease import Lease, LeaseKeeper, await_tasks_of, lease_path, read_lease, stand_by, wait_until_stale
from driver.journal.retention_clock import RetentionClock, newest_completion_ms
from driver.journal.state import State
from driver.listeners.dispatch import Channel, Listener, Listeners, Receiving, SeenReceiver, Told, ended, find_listener
from driver.listeners.web_hook import WebHook
from driver.tracker import CopyRules, LastAgentHeartbeat, Tracker
from driver.tracker.cursors import CursorRules
from driver.tracker.requests import Ask, ExpireCursors, KeepWindow, PlaceReceivers
from forebay.http.server import Server
from forebay.kafka.client.admin import Committed
from forebay.messages import (
    AgentHeartbeatRequest,
    ClaimRequest,
    ForgetRequest,
    IntakeAnswer,
    IntakePartition,
    IntakeRequest,
    LookupRequest,
    OperatorAnswer,
    RegisterRequest,
    ReplayRequest,
    ResetRequest,
    RetryRequest,
    SpanAnswer,
    SpanRequest,
    StatusAnswer,
    StopRequest,
)
from forebay.model.errors import (
    CorruptionError,
    FencedError,
    ForebayError,
    NotTakenError,
    SourceError,
    StoreError,
    UnknownTopicError,
    UnreachableError,
    UsageError,
)
from forebay.model.values import TopicPartition, is_reserved, managed_ordinal, timeline_of
from forebay.process.clock import Clock
from forebay.process.notify import ServiceStatus
from forebay.security.access import Access, Guard, announce
from forebay.settings.durability_notes import without_wal
from forebay.settings.schema import Settings
from wal.blocks.encryption import load_keys
from wal.segments import layout
from wal.segments.writer import SegmentLimits
from wal.storage import Storage, open_storage
from wal.storage.probe import probe

log = logging.getLogger(__name__)

#: of Kafka's options, what queries over the intake are told
SHOWN_OPTIONS = ("bootstrap.servers", "isolation.level")
#: between two looks at whether the agents that are needed were heard of
HOSTS_LOOK_SECONDS = 0.1
#: between two rounds of publishing completed positions
ROUND_SECONDS = 2.0
#: between two rounds of clean-up, if the settings don't say: each lists the WAL, which object stores charge for
CLEANUP_SECONDS, CLEANUP_OF_OBJECTS_SECONDS = 2.0, 60.0
#: between two groups of events on a store of whole objects, if the settings don't say
FLUSH_OF_OBJECTS_SECONDS = 0.1
#: the way out of a journal that can't be read whole
DAMAGED_JOURNAL = (
    "`forebay journal inspect` shows what is damaged, `forebay journal rebuild` makes a new one from the WAL"
)
DAMAGED_JOURNAL_WITHOUT_WAL = (
    "Without a WAL it can't be rebuilt: bring it back from a backup, or begin a stream of another name"
)
#: the longest time that a stop may be given over HTTP
STOP_SECONDS_MAX = 86_400.0
#: how long the summary of a stop waits for the deciding thread
SUMMARY_SECONDS = 5.0
#: a supervisor is told that a stop takes so long at most: a running job where nothing is drained, then the end of Spark
LEAVE_SECONDS, CLOSE_SECONDS = 30.0, 15.0
#: how often a standby looks at the lease, in the time that it lasts
LOOKS_PER_LEASE = 10
#: how long status waits for the deciding thread while the journal's store is out of reach
JOURNAL_PATIENCE_SECONDS = 2.0


class Driver:
    """One stream's driver. Call ``start``, then ``run`` in the thread for jobs; ``stop`` from anywhere; then ``close``.

    ``admin`` tells what there is to receive; ``make_engine`` makes the engine once agents and stores are known.
    ``waits_when_failed``: as in ``driver.batches.scheduler.Scheduler``.
    """

    def __init__(
        self,
        settings: Settings,
        admin: Upstream,
        engine: Engine,
        jobs: Sequence[NamedJob],
        clock: Clock,
        release: str,
        take_over: bool = False,
        until_caught_up: bool = False,
        standby: bool = False,
        listeners: Sequence[Listener] = (),
        waits_when_failed: bool = False,
    ) -> None:
        self._waits_when_failed = waits_when_failed
        self._listeners = _listeners(settings, listeners, clock)
        self._settings = settings
        self._admin = admin
        self._engine = engine
        self._jobs = tuple(jobs)
        self._clock = clock
        self._release = release
        self._take_over = take_over
        self._standby = standby
        self._leader: str | None = None  # while it stands by: where the driver at work is, "" if none is known
        self._lease: LeaseKeeper | None = None
        self._lease_before: Lease | None = None  # of the driver that led before
        self._targets: CatchUp | None = None
        self._until_caught_up = until_caught_up
        self._drain: Drain | None = None
        self._drain_lock = threading.Lock()
        self._seen: dict[str, SeenReceiver] = {}
        self._ran = threading.Event()  # no job runs any more
        self._published: dict[TopicPartition, int] = {}
        self._before = (0, 0)  # batches and records completed when this driver began
        #: called when a job goes on after the time for a drain, and what Spark did for it was cancelled
        self.overdue: Callable[[str], None] = log.error
        #: called with the name of a loop that comes round: "http", and "decide" while it leads
        self.came_round: Callable[[str], None] = lambda loop: None
        #: called when a loop begins that must come round from then on
        self.watch: Callable[[str], None] = lambda loop: None
        self._owner = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._stopping = threading.Event()
        self._detail = "opening the journal"
        self._engine_ready = False
        self._partitions_found = False
        self._commits_checked = False
        self._copied = False
        self._copies: SnapshotCopies | None = None
        self._not_shown = ""
        self._foreign: dict[TopicPartition, str] = {}  # commits that others have set, in words
        self._state = "waiting"
        self._failure: BaseException | None = None
        self._closing = contextlib.ExitStack()
        self._stores: dict[str, Storage] = {}
        self._started_at = clock.monotonic()
        self._leads_since = self._started_at  # nobody could speak to it before
        self._tracker: Tracker | None = None
        self._loop: DriverLoop | None = None
        self._scheduler: Scheduler | None = None
        self._health: Health | None = None
        self._health_log = HealthLog(settings.stream)
        self._reach = Reach(())
        self._ends: Ends | None = None
        self.url = ""

    # ---- life ----------------------------------------------------------------------------------------------------

    def start(self) -> bool:
        """Opens the journal (which fences older drivers), serves HTTP, begins discovery. As a standby it serves, and waits
        until nobody leads before. Whether it leads: one that is stopped while it waits does not. Raises LeaseHeld, FencedError,
        CorruptionError, StoreError, UsageError."""
        settings = self._settings
        load_keys(settings.wal.key_file)  # refused now rather than when they are needed
        if settings.dead_letters.url is not None:
            open_storage(settings.dead_letters.url, settings.storage)
        journal_storage = open_storage(settings.driver.journal, settings.storage)
        wal_storage = open_storage(settings.wal.url, settings.storage) if settings.has_wal else None
        self._stores = {"journal": journal_storage} | ({"wal": wal_storage} if wal_storage is not None else {})
        for storage in self._stores.values():
            probe(storage, settings.stream, lambda: secrets.randbits(64))
        watches = not self._take_over and not self._standby
        if watches and not wait_until_stale(journal_storage, settings.stream, self._stopping):
            return False
        self._serve()  # before anybody is fenced: a port that is taken must not cost the driver at work its lead
        self._lease_before = read_lease(journal_storage, settings.stream)
        led = (
            self._wait_and_lead(journal_storage, wal_storage)
            if self._standby
            else self._lead(journal_storage, wal_storage)
        )
        if led is None:
            return False
        self._leads_since = self._clock.monotonic()
        opened, state = led
        self._closing.callback(opened.close)
        refuse_direct_stream(state)
        refuse_other_keeping(state, settings.has_wal)
        if words := without_wal(settings):
            log.warning("%s", words)
        log.info("leads stream %s under journal epoch %x", settings.stream, opened.epoch)
        tracker = Tracker(
            state,
            opened.epoch,
            settings.kafka.on_gap,
            settings.driver.max_queued_batches + settings.driver.concurrent_jobs - 1,
            round(settings.wal.retention * 1000),
            int(settings.wal.retention_size),
            BatchLimits(settings.driver.max_batch_records, settings.driver.max_batch_bytes),
            _sharing(settings, state),
            _managed(settings, state, opened.epoch),
            _copy_rules(settings),
            CursorRules(float(settings.driver.cursor_lease), float(settings.driver.cursor_timeout)),
            float(settings.driver.receiver_timeout),
        )
        tracker.subscription = subscription(settings.kafka, state.topics)  # until Kafka is asked
        self._tracker = tracker
        self._before = (state.batches_completed, state.records_completed)
        again = tracker.pending_actions()
        writer = history.HistoryWriter(
            journal_storage,
            settings.stream,
            opened.epoch,
            settings.driver.journal_segment_size,
            self._wall_seconds,
            lambda: secrets.randbits(64),
        )

        def durable(events: Sequence[Event]) -> None:
            scheduler.note(events)
            adoption.note(events)
            self._listeners.note(events)

        loop = DriverLoop(
            tracker,
            opened,
            self._clock,
            lambda a: cleaner.perform(a),
            self._fail,
            durable,
            _flush_seconds(settings, journal_storage),
            int(settings.driver.journal_reserve),
        )
        adopter = Adopter(
            wal_storage,
            settings.stream,
            settings.receiver.host or settings.agent.host or socket.gethostname(),
            f"adoption-{opened.epoch:x}",
            settings.wal.compression,
            SegmentLimits(settings.wal.segment_size, settings.wal.segment_age),
            self._admin.topic_ids,
            self._clock.wall_ms,
            lambda: secrets.randbits(64),
            lambda: adoption.stopping,
            lambda: load_keys(settings.wal.key_file),
        )
        adoption = AdoptionThread(adopter, loop, self._fail)
        limits = retention_limits(settings)
        ageing = RetentionClock(self._clock, float(settings.wal.retention), newest_completion_ms(state))
        cleaned: CleanedWal | None = None
        if wal_storage is not None:
            copies = SnapshotCopies(
                loop.ask,
                wal_storage,
                settings.stream,
                opened.epoch,
                ageing,
                settings.driver.snapshot_copy_interval,
                limits,
                lambda: secrets.randbits(64),
            )
            loop.snapshot_taken = copies.want
            self._copies = copies
            next_timeline = layout.timeline_marker(settings.stream, timeline_of(opened.epoch) + 1)
            cleaned = CleanedWal(wal_storage, limits, copies, partial(wal_storage.exists, next_timeline))
        cleaner = Cleaner(
            loop, cleaned, writer, settings.stream, ageing, _cleanup_seconds(settings, wal_storage), self._fail
        )
        scheduler = Scheduler(
            loop,
            self._engine,
            self._jobs,
            self._clock,
            settings.driver.batch_interval,
            lambda: settings.driver.tasks_per_batch or max(settings.driver.tasks_min, self._engine.parallelism),
            settings.driver.job_max_failures,
            settings.driver.job_retry_delay,
            settings.kafka.headers,
            opened.epoch,
            settings.driver.concurrent_jobs,
            settings.driver.window_batches,
            settings.driver.empty_batches == "deliver",
            _backpressure(settings, loop, state, self._clock.wall_ms()),
            settle,
            self._listeners.tell_all,
            self.cached_copies,
            settings.driver.unreadable_retry,
            waits_when_failed=self._waits_when_failed,
            failing=FailingJobs(self._clock, settings.driver.job_max_failures, state.failures),
            completions=ageing,
        )
        self._watch_reach(tracker)
        self.watch("decide")
        loop.came_round = lambda: self.came_round("decide")
        self._loop, self._scheduler = loop, scheduler
        self._listeners.start()
        self._closing.callback(self._listeners.stop)
        loop.submit(KeepWindow(settings.driver.window_batches))  # decided before any batch begins, or is cleaned up
        loop.start()
        self._closing.callback(loop.stop)
        for action in again:
            cleaner.perform(action)
        cleaner.start()
        self._closing.callback(cleaner.stop)
        adoption.start()
        self._closing.callback(adoption.stop)
        placing = threading.Thread(target=self._keep_receivers, name="placing", daemon=True)
        placing.start()
        self._closing.callback(placing.join)
        self._housekeeping = threading.Thread(target=self._keep_house, name="housekeeping", daemon=True)
        self._housekeeping.start()
        self._closing.callback(self._housekeeping.join)
        if self._stopping.is_set():  # told before there was anything to stop
            scheduler.stop()
        return True

    def _watch_reach(self, tracker: Tracker) -> None:
        """Kafka and the stores are asked from now on whether they answer; what is missing is remembered."""
        settings, clock = self._settings, self._clock
        probes = [store_probe("journal", self._stores["journal"], lease_path(settings.stream), clock)]
        if "wal" in self._stores:
            marker = layout.timeline_marker(settings.stream, tracker.state.timeline)
            probes.append(store_probe("wal", self._stores["wal"], marker, clock))
        if not settings.custom_source:
            # the dictionary is copied in one step, since the deciding thread goes on meanwhile
            def ends() -> Mapping[TopicPartition, int]:
                return ends_of_known(self._admin, [p.tp for p in tuple(tracker.state.partitions.values())])

            self._ends = Ends(ends, clock)
            probes.append(Probe("kafka", self._ends.read, clock, INTERVAL_SECONDS, self._admin.why_silent))
        self._reach = Reach(probes)
        managed = settings.receiver.mode == "managed"
        timeout = float(settings.driver.receiver_timeout)
        grace = Grace(timeout, max(timeout, float(settings.receiver.start_timeout)) if managed else timeout)
        topics = frozenset(settings.kafka.topics) or None  # none: a pattern, or a custom source
        self._health = Health(tracker, grace, managed, self._leads_since, self._reach.outages, topics)
        self._reach.start()
        self._closing.callback(self._reach.stop)

    def _wait_and_lead(
        self, journal_storage: Storage, wal_storage: Storage | None
    ) -> tuple[journal.Journal, State] | None:
        """None: told to stop. A standby that another one forestalled goes on as standby."""
        self._state = "standby"
        look_seconds = self._settings.driver.lease_duration / LOOKS_PER_LEASE
        while True:
            self._see_leader(None)
            lease = stand_by(
                journal_storage, self._settings.stream, self._clock, look_seconds, self._stopping, self._see_leader
            )
            if self._stopping.is_set():
                return None
            self._detail = "opening the journal"
            log.info("nobody leads stream %s any more: taking over", self._settings.stream)
            try:
                led = self._lead(journal_storage, wal_storage)
            except FencedError as error:
                log.info("%s: going on as standby", error)
                continue
            self._state, self._leader = "waiting", None
            self._lease_before = lease
            return led

    def _see_leader(self, lease: Lease | None) -> None:
        detail = f"{lease.words} leads" if lease is not None else "looking for the driver at work"
        if detail != self._detail:
            log.info("standby: %s", detail)
        self._leader, self._detail = lease.url if lease is not None else "", detail

    def _lead(self, journal_storage: Storage, wal_storage: Storage | None) -> tuple[journal.Journal, State]:
        """Opens the journal. The lease is kept from the claim on, or another standby would take over from one that reads."""
        settings = self._settings
        try:
            opened, state = journal.lead(
                journal_storage,
                settings.stream,
                self._owner,
                self._clock.wall_ms(),
                self._wall_seconds,
                lambda: secrets.randbits(64),
                settings.driver.journal_segment_size,
                wal_storage,
                self._keep_lease,
            )
        except CorruptionError as error:
            way_out = DAMAGED_JOURNAL if wal_storage is not None else DAMAGED_JOURNAL_WITHOUT_WAL
            raise CorruptionError(error.path, error.offset, f"{error.reason}. {way_out}") from None
        except FencedError:
            self._end_lease(abandon=True)
            raise
        assert self._lease is not None  # kept since the claim
        self._lease.follow(lambda: opened.confirmed)
        return opened, state

    def _keep_lease(self, epoch: int) -> None:
        self._lease = LeaseKeeper(
            self._stores["journal"],
            self._settings.stream,
            epoch,
            self._owner,
            self.url,
            self._settings.driver.lease_duration,
            self._superseded,
        )
        self._lease.start()

    def _superseded(self, error: FencedError) -> None:
        if self._loop is not None:  # before, opening finds out by itself, and a standby goes on
            self._fail(error)

    def _end_lease(self, abandon: bool) -> None:
        lease, self._lease = self._lease, None
        if lease is not None and abandon:
            lease.abandon()
        elif lease is not None:
            lease.stop()

    def _serve(self) -> None:
        self._operator = self._closing.enter_context(ThreadPoolExecutor(1, thread_name_prefix="operator"))
        guard = Guard(self._settings)
        Access.of_tasks(self._settings)  # each batch asks for it anew, and then it is late to say that there is none
        app = tracker_application(self._submit, self._status, self._not_ready, self._release, guard)
        self.watch("http")
        server = self._closing.enter_context(
            Server(app, self._settings.driver.url, came_round=lambda: self.came_round("http"), guard=guard)
        )
        self._closing.callback(lambda: self._end_lease(abandon=isinstance(self._failure, FencedError)))
        self.url = server.url
        log.info("serves receivers, agents and people at %s", self.url)
        announce(guard, self.url)

    def _submit(self, request: Submitted) -> Future[Any]:
        if self._loop is None:
            return self._not_leading()
        if isinstance(request, IntakeRequest):
            return self._loop.submit(Ask(lambda state: self._read_intake(intake(state))))
        if isinstance(request, SpanRequest):
            return self._loop.submit(Ask(partial(self._read_span, request)))
        if isinstance(
            request, ReplayRequest
        ):  # the history is read beside the deciding thread, which goes on meanwhile
            storage = open_storage(self._settings.driver.journal, self._settings.storage)
            return self._operator.submit(begin_replay, self._loop.ask, storage, self._settings.stream, request)
        if isinstance(request, ResetRequest):
            if not self._copied:
                return _refused("no copy of the journal's snapshot lies beside the WAL yet")
            seconds = self._settings.driver.receiver_timeout
            resetting = Resetting(self._loop.ask, self._admin, self._settings.group, self._stopping, seconds)
            return self._operator.submit(resetting.run, request)
        if isinstance(request, ForgetRequest):
            return self._loop.submit(Ask(partial(self._forget_as_told, request)))
        if isinstance(request, RetryRequest):
            return _outcome(self._retry_as_told, request)
        if isinstance(request, StopRequest):
            return _outcome(self._stop_as_told, request)
        if isinstance(request, RegisterRequest) and (self._drain is not None or self._stopping.is_set()):
            return _refused("the driver is stopping: it registers no receivers")
        if not self._commits_checked and isinstance(request, AgentHeartbeatRequest):
            # an empty journal knows no block: until Kafka's commits say that it was not lost, no copy is a stray one
            request = msgspec.structs.replace(request, old_blocks=())
        if not self._commits_checked and isinstance(request, LookupRequest | ClaimRequest):
            # whoever claims commits the position first, which would wipe out a commit that proves a lost journal (rule 5)
            return _refused("Kafka's commits have not been laid beside the journal yet")
        if not self._copied and isinstance(request, LookupRequest | ClaimRequest):
            # what is accepted before there is a copy could not be found again if the journal were lost
            return _refused("no copy of the journal's snapshot lies beside the WAL yet")
        return self._loop.submit(request)

    def _await_hosts(self) -> None:
        """Without a WAL only hosts have what is unfinished, and a driver that has just begun has heard of none: their agents have
        as long as one that fell silent."""
        assert self._loop is not None
        hosts: set[str] = self._ask(hosts_needed)
        until = self._clock.monotonic() + self._settings.driver.receiver_timeout
        while missing := sorted(hosts - self.agent_urls().keys()):
            detail = f"waiting for the agents of hosts that keep blocks: {', '.join(missing)}"
            if detail != self._detail:
                log.warning("%s. Next step: start `forebay agent` there", detail)
            self._detail = detail
            if self._clock.monotonic() >= until or self._stopping.wait(HOSTS_LOOK_SECONDS):
                break
        self._detail = "finding the partitions" if not self._partitions_found else ""

    def _not_leading(self) -> Future[Any]:
        if self._leader is None:
            return _refused(self._detail)
        refused: Future[Any] = Future()
        refused.set_exception(NotTakenError(f"standby: {self._detail}", self._leader))
        return refused

    def run(self) -> None:
        """Runs batches until :meth:`stop`, or raises what ended the driver."""
        assert self._scheduler is not None
        self._detail = "starting the engine"
        try:
            self._engine.start()
            self._closing.callback(self._engine.stop)
            if self._lease is not None:
                self._lease.name_application(*self._engine.application)
            self._detail = "finding the partitions" if not self._partitions_found else ""
            await_tasks_of(self._lease_before, self._stopping, fresh=self._take_over)
            self._await_hosts()
            self._scheduler.start()
            self._engine_ready = True
            self._settle_state()
            self._scheduler.run()
        except BaseException as error:
            self._fail(error)
        self._ran.set()
        self._stopping.set()
        if self._failure is not None:
            raise self._failure
        if self._drain is not None:
            self._publish_last()

    def stop(self, drain: bool = False, timeout_seconds: float | None = None) -> None:
        """Lets the running jobs finish and ends. With ``drain`` registration is refused from now on, receivers drain, and all
        that was taken in is completed first, within ``timeout_seconds`` (default: ``driver.stop_timeout``); what is not
        completed then waits for the next driver. Returns at once. May be called from any thread, also from the job, and
        again: without ``drain`` it ends one that is under way."""
        if drain and self._scheduler is not None and self._loop is not None:
            with self._drain_lock:
                if self._drain is None and not self._stopping.is_set():
                    self._begin_drain(self._loop, self._scheduler, timeout_seconds)
            return
        self._stopping.set()
        if self._state != "failed":
            self._state = "stopping"
        if self._scheduler is not None:
            self._scheduler.stop()

    def _begin_drain(self, loop: DriverLoop, scheduler: Scheduler, timeout_seconds: float | None) -> None:
        tracker, seconds = self._tracker, self._settings.driver.receiver_timeout
        assert tracker is not None
        if self._state != "failed":
            self._state, self._detail = "stopping", "draining"
        self._drain = Drain(
            loop.ask,
            lambda _: remaining(tracker, self._clock.monotonic(), self._leads_since, seconds),
            lambda: scheduler.allocate(self._clock.wall_ms()),
            self._stopping,
            self._clock,
            self._settings.driver.stop_timeout if timeout_seconds is None else timeout_seconds,
            lambda: scheduler.waits_for_retry,
        )
        scheduler.drain()
        threading.Thread(target=self._drain_and_stop, args=(self._drain,), name="drain", daemon=True).start()

    def _drain_and_stop(self, drain: Drain) -> None:
        try:
            drained = drain.run()
        except BaseException as error:
            self._fail(error)
            return
        cut_off = not drained and not self._stopping.is_set()
        self.stop()
        if not cut_off:
            return
        why = "a batch failed again" if drain.hopeless else "its time is over"
        log.warning("the drain ends since %s: %s left", why, drain.left.words)
        self._engine.cancel()
        if not self._ran.wait(GRACE_SECONDS):
            self.overdue(str(self.summary()))

    def summary(self) -> Summary:
        """What this driver did so far, and after a drain what it left. Not to be called from the deciding thread."""
        if self._tracker is None or self._loop is None:
            return Summary(0, 0)
        try:
            summary = self._loop.ask(Ask(self._summary_of), SUMMARY_SECONDS)
        except (UnreachableError, AnswerLate):  # the deciding thread has ended, or waits for space: it changes nothing
            return self._summary_of(self._tracker.state)
        assert isinstance(summary, Summary)
        return summary

    def _summary_of(self, state: State) -> Summary:
        batches, records = self._before
        done = (state.batches_completed - batches, state.records_completed - records)
        drain = self._drain
        if drain is None:
            left = Remaining((), len(state.waiting), len(state.unfinished()) + len(state.replaying))
            return Summary(*done, left=left)
        return Summary(*done, drain.drained, drain.left)

    def _stop_as_told(self, request: StopRequest) -> OperatorAnswer:
        limit = f"{STOP_SECONDS_MAX:g}"
        if not 0 <= request.timeout_seconds <= STOP_SECONDS_MAX:
            raise UsageError(f"a stop may take 0 to {limit} seconds, not {request.timeout_seconds:g}")
        if not request.drain:
            self.stop()
            return OperatorAnswer(message="stopping when the running jobs have finished")
        seconds = request.timeout_seconds or self._settings.driver.stop_timeout
        self.stop(drain=True, timeout_seconds=seconds)
        return OperatorAnswer(message=f"draining, for {seconds:g} s at most; `forebay status` shows how far it is")

    def _forget_as_told(self, request: ForgetRequest, _: State) -> OperatorAnswer:
        assert self._health is not None
        self._health.forget(request.name, self._clock.monotonic())
        return OperatorAnswer(
            message=f"{request.name} is forgotten: its silence is no problem until its next heartbeat"
        )

    def _retry_as_told(self, _: RetryRequest) -> OperatorAnswer:
        batches = self._scheduler.retry() if self._scheduler is not None else ()
        if not batches:
            return OperatorAnswer(message="no batch is failed or unreadable: nothing to try again")
        ids = ", ".join(map(str, batches))
        return OperatorAnswer(message=f"batch {ids} is tried again now; `forebay status` shows how it goes")

    def in_callback(self) -> bool:
        """Whether the calling thread runs jobs or listeners: a wait in it for the driver's end would wait for itself."""
        in_job = self._scheduler is not None and self._scheduler.in_job()
        return in_job or self._listeners.in_listener()

    def close(self) -> None:
        """Frees everything, in reverse order. After :meth:`run` has returned."""
        self.stop()
        if self._scheduler is not None:
            self._scheduler.join()
        self._closing.close()

    def _fail(self, error: BaseException) -> None:
        if self._failure is None and not (self._stopping.is_set() and isinstance(error, UnreachableError)):
            self._failure = error
            self._state, self._detail = "failed", str(error)
        self.stop()
        if isinstance(self._failure, FencedError) and not self._ran.is_set():
            # a newer driver runs these batches: what Spark still does for them here would write beside it (INV-4)
            self._engine.cancel()

    def _wall_seconds(self) -> float:
        return self._clock.wall_ms() / 1000.0

    def service_status(self) -> ServiceStatus:
        """How it stands, for a supervisor: ready when it leads, or stands by."""
        settings = self._settings.driver
        stopping = self._stopping.is_set() or self._drain is not None
        seconds = settings.stop_timeout + GRACE_SECONDS if settings.stop == "drain" or self._drain else LEAVE_SECONDS
        return ServiceStatus(
            self._loop is not None or self._leader is not None,
            ": ".join(filter(None, self._shown())),
            seconds + CLOSE_SECONDS if stopping else None,
        )

    # ---- what people see -----------------------------------------------------------------------------------------

    def _shown(self) -> tuple[str, str]:
        """State and detail: a running driver with a failed batch is ``failed``."""
        failed = self._scheduler.failed if self._scheduler is not None and self._state == "running" else ""
        return ("failed", failed) if failed else (self._state, self._detail)

    def _not_ready(self) -> str | None:
        if self._loop is not None and self._loop.waiting_for_space:
            return WAITING_FOR_SPACE
        if self._loop is not None and self._loop.reserve_reached:
            return RESERVE_REACHED
        state, detail = self._shown()
        return None if state == "running" and not detail else f"{state}: {detail}"

    def _status(self) -> Future[Any]:
        if self._loop is None or self._scheduler is None:
            return self._not_leading()
        outage = next((outage for outage in self._reach.outages() if outage.name == "journal"), None)
        if self._loop.waiting_for_space:  # the deciding thread answers nobody: said at once rather than not at all
            return _answered(self._status_without_state(""))
        answer = self._loop.submit(Ask(self._read_status))
        if outage is None:
            return answer
        return soon(answer, JOURNAL_PATIENCE_SECONDS, lambda: self._status_without_state(outage.cause))

    def _status_without_state(self, outage: str) -> StatusAnswer:
        assert self._tracker is not None
        return journal_is_away(self._settings.stream, self._release, self._tracker.driver_epoch, outage)

    def _read_status(self, _: State) -> Any:
        assert self._tracker is not None and self._scheduler is not None and self._loop is not None
        state, detail = self._shown()
        soft = {
            "state": state,
            "detail": detail or (RESERVE_REACHED if self._loop.reserve_reached else ""),
            "tiers": self._scheduler.tiers,
            "requests": self._requests(),
            "foreign": self._foreign,
            "running": dict(self._scheduler.running),
            "recent": tuple(self._scheduler.recent),
            "listeners": self._listeners.status,
        }
        verdict = self._look_at_health(self._tracker.state)
        answer = status(
            self._tracker,
            self._clock.monotonic(),
            self._release,
            self._settings.driver.receiver_timeout,
            soft,
            self._clock.wall_ms(),
            self._ends,
        )
        problems = (*verdict.problems, *in_answer(answer))
        return msgspec.structs.replace(answer, problems=problems, pending=verdict.pending)

    def _requests(self) -> dict[str, int]:
        """What this process asked of remote stores, and the seconds that this counts; nothing of local ones."""
        found = {
            f"{name}_{kind}": count
            for name, storage in self._stores.items()
            for kind, count in storage.requests.items()
        }
        return {**found, "seconds": max(1, round(self._clock.monotonic() - self._started_at))} if found else {}

    def _read_intake(self, partitions: tuple[IntakePartition, ...]) -> IntakeAnswer:
        """What readers need to know of the intake. Of Kafka's options no more than its address and what counts as a record: the
        others may be secrets, and a reader has its own."""
        settings = self._settings
        options = settings.kafka.options
        return IntakeAnswer(
            stream=settings.stream,
            partitions=partitions,
            wal_url=settings.wal.url,
            storage=settings.storage,
            key_file=settings.wal.key_file,
            blocks_directory=settings.agent.blocks,
            agent_urls=self.agent_urls(),
            kafka={} if settings.custom_source else {key: options[key] for key in SHOWN_OPTIONS if key in options},
            groups=(settings.group, settings.completed_group),
            headers=settings.kafka.headers,
        )

    def _read_span(self, request: SpanRequest, state: State) -> SpanAnswer:
        given = ((latest.heartbeat.host, latest.copies) for latest in self._agents())
        return span(state, request, given, self._read_intake)

    def agent_urls(self) -> dict[str, str]:
        """The agents that were heard of lately, by host: tasks ask no other, since one that is gone costs a time-out for
        each of its blocks; nor one that is about to go."""
        return {latest.heartbeat.host: latest.heartbeat.url for latest in self._agents()}

    def cached_copies(self) -> dict[str, tuple[str, ...]]:
        """Block id → those of these agents' hosts that say that they were given a copy of it."""
        found: dict[str, tuple[str, ...]] = {}
        for latest in self._agents():
            for block_id in latest.copies:
                found[block_id] = (*found.get(block_id, ()), latest.heartbeat.host)
        return found

    def _agents(self) -> list[LastAgentHeartbeat]:
        tracker = self._tracker
        since = self._clock.monotonic() - self._settings.driver.receiver_timeout
        agents = list(tracker.agent_heartbeats.values()) if tracker else []
        return [latest for latest in agents if latest.at >= since and latest.heartbeat.state == "active"]

    # ---- receivers -----------------------------------------------------------------------------------------------

    def _keep_receivers(self) -> None:
        """Where managed receivers run, and whether they do, is looked at in the deciding thread, once per interval."""
        assert self._loop is not None
        try:
            while not self._stopping.wait(self._settings.driver.placing_interval):
                for words in self._loop.ask(PlaceReceivers()):
                    log.info("receiver %s", words)
                self._health_log.note(self._loop.ask(Ask(self._look_at_health)))
                for words in self._loop.ask(ExpireCursors()):
                    log.error("%s", words)
                if self._listeners:
                    seen = self._loop.ask(Ask(self._see_receivers))
                    self._listeners.tell_all(ended(self._seen, seen, self._clock.wall_ms()))
                    self._seen = seen
        except BaseException as error:
            self._fail(error)

    def _look_at_health(self, _: State) -> Verdict:
        assert self._health is not None
        assert self._loop is not None
        state, detail = self._shown()
        detail = detail or (RESERVE_REACHED if self._loop.reserve_reached else "")
        return self._health.look(self._clock.monotonic(), state, detail)

    def _see_receivers(self, state: State) -> dict[str, SeenReceiver]:
        tracker, now, timeout = self._tracker, self._clock.monotonic(), self._settings.driver.receiver_timeout
        assert tracker is not None
        seen = {}
        for r in state.receivers.values():
            if not is_reserved(r.receiver_id):
                latest = tracker.receiver_heartbeats.get(r.receiver_id)
                detail = latest.heartbeat.detail if latest is not None else ""
                how = receiver_state(tracker, r, now, timeout)
                seen[r.receiver_id] = SeenReceiver(r.receiver_id, r.host, r.epoch, how, detail)
        return seen

    def add_listener(self, listener: Listener) -> None:
        """From now on ``listener`` is told what happens. At any time, from any thread."""
        self._listeners.add(Channel(Told(listener), self._settings.driver.listener_queue))

    # ---- housekeeping --------------------------------------------------------------------------------------------

    def _keep_house(self) -> None:
        """Finds partitions, checks commits against the journal once, has the journal copied beside the WAL whenever there are
        new partitions, publishes completed positions."""
        try:
            next_discovery = 0.0
            while True:
                now = self._clock.monotonic()
                try:
                    if now >= next_discovery:
                        created, missing = self._discover()
                        if created:
                            self._look_at_commits_again() if self._commits_checked else self._look_at_commits()
                        self._copy(created)
                        if missing:
                            raise UnreachableError(
                                f"no such topic yet: {', '.join(missing)}; create it, it is found then"
                            )
                        next_discovery = now + (self._settings.kafka.discovery_interval if created else 1.0)
                        self._partitions_found = self._partitions_found or self._copied
                        self._settle_state()
                    self._published = self._publish(self._published)
                    self._look_whether_caught_up()
                    self._say("")
                except (UnreachableError, UnknownTopicError, SourceError) as error:
                    self._say(f"{'source' if self._settings.custom_source else 'Kafka'}: {error}")
                except StoreError as error:  # no space included
                    self._say(f"WAL: {error}")
                often = next_discovery <= now + 1 or self._until_caught_up
                if self._stopping.wait(0.5 if often else ROUND_SECONDS):
                    return
        except BaseException as error:
            self._fail(error)

    def _look_whether_caught_up(self) -> None:
        if not self._until_caught_up or not self._partitions_found or self._drain is not None:
            return
        if self._targets is None:
            incarnations = self._ask(lambda s: {p.tp: p.incarnation.number for p in s.partitions.values()})
            self._targets = CatchUp.of(self._admin.ends(incarnations), incarnations)
            log.info("taking all there is up to %s, and ending then", self._targets)
        elif not self._ask(self._targets.missing):
            log.info("caught up: all that Kafka held at the start is completed")
            self.stop(drain=True)

    def _publish_last(self) -> None:
        """Shows what the drain completed; when the housekeeping has ended."""
        self._housekeeping.join()
        try:
            self._publish(self._published)
        except ForebayError as error:
            log.warning("group %s: completed positions could not be shown: %s", self._settings.completed_group, error)

    def _copy(self, created: bool) -> None:
        if created:
            if self._copies is not None:
                self._copies.keep_up()
            self._copied = True

    def _settle_state(self) -> None:
        """Running: the engine is up, and the stream's partitions are known."""
        if self._state == "waiting" and self._engine_ready and self._partitions_found:
            self._state, self._detail = "running", ""

    def _say(self, detail: str) -> None:
        """Shows on status what is waited for, and logs it when it changes."""
        if (
            self._state == "failed"
            or detail == self._detail
            or (not detail and not self._detail.startswith(("Kafka", "source", "WAL")))
        ):
            return
        self._detail = detail
        if detail:
            log.warning("waiting: %s", detail)

    def _ask(self, read: Callable[[State], Any]) -> Any:
        assert self._loop is not None
        return self._loop.ask(Ask(read))

    def _discover(self) -> tuple[bool, list[str]]:
        """Whether the stream is created, and which of its topics are not there. Receivers are told the topics of a pattern
        once their partitions are in the journal."""
        assert self._loop is not None and self._tracker is not None
        kafka = self._settings.kafka
        known, topics, created = self._ask(lambda s: (set(s.partitions), set(s.topics), s.created))
        there = self._admin.partitions(kafka.topics, kafka.pattern)
        found = discover(self._admin, self._settings, there, known, topics, created, self._clock.wall_ms())
        if found is not None:
            self._loop.ask(found)
            log.info("partitions begun: %s", ", ".join(f"{s.topic}/{s.partition} at {s.start}" for s in found.starts))
        self._tracker.subscription = subscription(kafka, {tp.topic for tp in there})
        if self._tracker.subscription == () and not created:
            raise UnreachableError(
                f"no topic matches kafka.pattern = {kafka.pattern!r}; a topic created later is found"
            )
        missing = set(kafka.topics) - topics - ({s.topic for s in found.starts} if found else set())
        return created or found is not None, sorted(missing)

    def _look_at_commits_again(self) -> None:
        try:
            self._look_at_commits()
        except UnreachableError:
            raise
        except ForebayError as error:  # it is only to be pointed out what others have set
            log.warning("%s", error)

    def _look_at_commits(self) -> None:
        """Commits first, positions after: a commit follows its position, so a commit read before can't be ahead of it."""
        committed = self._admin.committed(
            self._settings.group, self._ask(lambda s: {p.tp for p in s.partitions.values()})
        )
        positions = self._ask(lambda s: {p.tp: (p.incarnation.number, p.position) for p in s.partitions.values()})
        if not self._commits_checked:
            check_commits(committed, self._settings.group, self._ask(lambda s: s.timeline), positions)
            self._commits_checked = True
        foreign = foreign_commits(
            committed, self._settings.group, {tp: position for tp, (_, position) in positions.items()}
        )
        for tp in foreign.keys() - self._foreign.keys():
            log.warning("%s", foreign[tp])
        self._foreign = foreign

    def _publish(self, published: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Shows in a second consumer group how far batches are completed; never authority, so a refusal is only told."""
        completed, timeline = self._ask(
            lambda s: ({p.tp: (p.completed, p.incarnation.number) for p in s.partitions.values()}, s.timeline)
        )
        changed = {
            tp: Committed(offset, -1, f"forebay:{timeline}:{incarnation}")
            for tp, (offset, incarnation) in completed.items()
            if published.get(tp) != offset
        }
        try:
            errors = self._admin.publish(self._settings.completed_group, changed)
        except UnreachableError:
            raise
        except ForebayError as error:  # somebody reads under the group's name, or we may not write it
            errors = dict.fromkeys(changed, str(error))
        not_shown = "; ".join(sorted(set(errors.values())))
        if not_shown and not_shown != self._not_shown:
            log.warning(
                "group %s: completed positions could not be shown: %s", self._settings.completed_group, not_shown
            )
        self._not_shown = not_shown
        return {tp: offset for tp, (offset, _) in completed.items() if tp not in errors}


def _listeners(settings: Settings, more: Sequence[Listener], clock: Clock) -> Listeners:
    driver = settings.driver
    receiving: list[Receiving] = [Told(find_listener(name), name) for name in driver.listeners]
    receiving += [Told(listener) for listener in more]
    if driver.web_hook is not None:
        receiving.append(WebHook(driver.web_hook, settings.stream, driver.web_hook_timeout))
    return Listeners([Channel(one, driver.listener_queue) for one in receiving], clock.wall_ms)


def _sharing(settings: Settings, state: State) -> RateSharing | None:
    if not settings.driver.backpressure:
        return None
    receiver = settings.receiver
    limits = RateLimits(receiver.max_rate, receiver.max_rate_per_partition, receiver.min_rate_per_partition)
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
    return Backpressure(loop, gains, driver.batch_interval, state.learned, now_ms).completed


def _managed(settings: Settings, state: State, driver_epoch: int) -> ManagedReceivers:
    """Those that this driver keeps, with the hosts where the journal says that they ran last."""
    managed = settings.receiver.mode == "managed"
    known = {
        number: receiver.host
        for receiver in state.receivers.values()
        if receiver.instance_id and (number := managed_ordinal(settings.stream, receiver.receiver_id)) is not None
    }
    return ManagedReceivers(
        settings.stream,
        driver_epoch,
        settings.receiver.count if managed else 0,
        known if managed else {},
        preferred=settings.receiver.preferred_hosts,
        hosts_wait_seconds=settings.receiver.hosts_wait,
        moves_max=settings.receiver.moves_max,
        timeout_seconds=settings.driver.receiver_timeout,
        round_seconds=settings.driver.placing_interval,
        start_timeout_seconds=settings.receiver.start_timeout,
        host_failures_max=settings.receiver.host_failures_max,
        avoid_seconds=settings.receiver.avoid_host,
    )


def _copy_rules(settings: Settings) -> CopyRules | None:
    if settings.has_wal:
        return None
    return CopyRules(settings.receiver.copies, settings.driver.receiver_timeout, int(settings.receiver.memory))


def refuse_direct_stream(state: State) -> None:
    """A direct stream's batches have no blocks: as an intake's they would be completed unread. Raises UsageError."""
    if state.is_direct:
        raise UsageError(
            f"driver.journal: it holds the checkpoint of a direct stream named {state.stream!r}: give the intake a name or a "
            "journal of its own"
        )


def refuse_other_keeping(state: State, has_wal: bool) -> None:
    """A stream changes between a WAL and none only while the journal names no block. Raises UsageError."""
    other = next((block.id for block in state.blocks.values() if block.in_wal != has_wal), None)
    if other is None:
        return
    words = "lie on hosts alone, since they were taken in without a WAL" if has_wal else "lie in the WAL"
    raise UsageError(
        f"wal.url: the journal of stream {state.stream!r} names blocks that {words} ({other} is one). Set wal.url as it was, or "
        "begin a stream of another name"
    )


def hosts_needed(state: State) -> set[str]:
    """Those with copies of blocks that no WAL holds and that no finished batch has. In the deciding thread."""
    return {
        host
        for block in state.blocks.values()
        if not block.in_wal and block.id not in state.released
        for host in block.hosts
    }


def _flush_seconds(settings: Settings, journal_storage: Storage) -> float:
    if settings.driver.journal_flush_interval is not None:
        return settings.driver.journal_flush_interval
    return 0.0 if journal_storage.appendable else FLUSH_OF_OBJECTS_SECONDS


def _cleanup_seconds(settings: Settings, wal_storage: Storage | None) -> float:
    if settings.wal.cleanup_interval is not None:
        return settings.wal.cleanup_interval
    return CLEANUP_SECONDS if wal_storage is None or wal_storage.appendable else CLEANUP_OF_OBJECTS_SECONDS


def _answered(answer: Any) -> Future[Any]:
    return _outcome(lambda given: given, answer)


def _outcome(function: Callable[[Any], Any], argument: Any) -> Future[Any]:
    outcome: Future[Any] = Future()
    try:
        outcome.set_result(function(argument))
    except ForebayError as error:
        outcome.set_exception(error)
    return outcome


def _refused(words: str) -> Future[Any]:
    refused: Future[Any] = Future()
    refused.set_exception(UnreachableError(words))
    return refused
