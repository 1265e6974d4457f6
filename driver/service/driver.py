"""The life cycle of a driver: start, run, stop, close."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from driver.batches.job.engine import Engine, NamedJob
from driver.decision_loop.stopping import Summary
from driver.http.api import tracker_application
from driver.http.batches import ReadUnfinishedBatches, with_completed
from driver.journal.leadership.lease import wait_until_stale
from driver.listeners.dispatch import Channel, EventSink, Listeners, ListenerSink, find_listener
from driver.listeners.events import Listener, StreamStarted, StreamStopped
from driver.listeners.web_hook import WebHook
from driver.service.activity import Activity
from driver.service.admission import Admission
from driver.service.agents import await_hosts
from driver.service.answers.metrics import DriverMetrics
from driver.service.answers.observing import Observing
from driver.service.answers.routing import Routing
from driver.service.answers.view import LeaderView, View
from driver.service.composition import Parts, compose
from driver.service.engine_start import EngineStart
from driver.service.housekeeping import Housekeeping
from driver.service.leadership import Leadership, refuse_direct_stream, refuse_other_keeping
from driver.service.options import DriverOptions, Given
from driver.service.placing import Placing
from driver.service.shutdown import Shutdown
from driver.service.stores import Stores
from driver.spark.early import starts_early, starts_first
from driver.traces import BatchTraces
from driver.tracker.requests import KeepWindow
from driver.web.pages import PAGES
from forebay.http.address import loopback_note
from forebay.http.server import Server
from forebay.messages import BatchEntry, StatusAnswer
from forebay.model.errors import FencedError, UnreachableError
from forebay.process.clock import Clock
from forebay.process.logs import fields
from forebay.process.notify import ServiceStatus
from forebay.security.access import Access, Guard, announce
from forebay.settings.durability_notes import without_wal
from forebay.settings.schema import Settings
from forebay.sources.kind import Upstream
from forebay.traces.sending import spans_of
from wal.blocks.encryption import load_keys
from wal.storage import open_storage

log = logging.getLogger(__name__)


class Driver:
    """One stream's driver. Call ``start``, then ``run`` in the thread for jobs; ``stop`` from any thread; then ``close``.

    ``upstream``: reads the partitions and offsets of the source. ``engine``: runs the jobs. ``listeners``: listeners in
    addition to those that the settings name. One class, because ``start`` and ``close`` share one order of parts.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        upstream: Upstream,
        engine: Engine,
        jobs: Sequence[NamedJob],
        clock: Clock,
        options: DriverOptions,
        listeners: Sequence[Listener] = (),
    ) -> None:
        self._given = given = Given(
            settings=settings,
            upstream=upstream,
            engine=engine,
            jobs=tuple(jobs),
            clock=clock,
            options=options,
            listeners=_listeners(settings, listeners, clock),
        )
        #: called with the name of a loop that has made a round: "http", and "decide" while it leads
        self.came_round: Callable[[str], None] = lambda loop: None
        #: called when a loop begins that must make rounds from then on
        self.watch: Callable[[str], None] = lambda loop: None
        self.url = ""
        self._started_at = clock.monotonic()
        self._activity = activity = Activity()
        self._leadership = Leadership(settings=settings, clock=clock, activity=activity, superseded=self._superseded)
        self._shutdown = Shutdown(given, activity=activity, leadership=self._leadership, parts=self._led_parts)
        self._admission = Admission(lambda: self._shutdown.is_stopping)
        self._view = View(activity, self._led_parts)
        self._metrics = DriverMetrics(given, state=lambda: self._view.shown()[0])
        self._observing = Observing(given, activity=activity, view=self._view, leadership=self._leadership)
        self._engine_start = EngineStart(
            engine,
            standby=options.standby,
            check_seconds=settings.driver.lease_duration,
            lost=self._shutdown.fail,
        )
        self._closing = contextlib.ExitStack()
        # known once it leads
        self._parts: Parts | None = None
        self._leader_view: LeaderView | None = None
        self._housekeeping: Housekeeping | None = None
        if options.joint is not None:
            options.joint.stopped_by(self.stop)  # last: it may stop this driver immediately

    # ---- life cycle --------------------------------------------------------------------------------------------------

    def start(self) -> bool:
        """Open the journal, which fences older drivers, serve HTTP and start all parts. Return whether the driver leads.

        A standby serves, and waits until no other driver leads. The driver does not lead if it is stopped while it waits. Raises
        LeaseHeld, FencedError, CorruptionError, StoreError, UsageError.
        """
        given, settings, options = self._given, self._given.settings, self._given.options
        starts_now = starts_first(settings, options.standby)
        if starts_now:
            self._start_engine()
        load_keys(settings.wal.key_file)  # refused now rather than when they are needed
        if settings.dead_letters.url is not None:
            open_storage(settings.dead_letters.url, settings.storage)
        stores = Stores.open(settings)
        stores.check(settings.stream)
        watches = not options.take_over and not options.standby
        if watches and not wait_until_stale(stores.journal, settings.stream, self._activity.stopping):
            return False
        self._serve()  # before another driver is fenced: a port in use must not cost the running driver its lead
        if not starts_now and starts_early(settings, options.standby):
            self._start_engine()
        led = self._leadership.lead(stores, self.url, standby=options.standby)
        if led is None:
            if self._activity.failure is not None:
                raise self._activity.failure
            return False
        opened, state = led
        self._closing.callback(opened.close)
        refuse_direct_stream(state)
        refuse_other_keeping(state, settings.has_wal)
        for warning in filter(None, (without_wal(settings), loopback_note(settings, "driver"))):
            log.warning("%s", warning)
        log.info(
            "leads stream %s at %s under journal epoch %x",
            settings.stream,
            self.url,
            opened.epoch,
            extra=fields(url=self.url, epoch=f"{opened.epoch:x}"),
        )
        spans = spans_of(settings, "driver", options.release)
        traces = BatchTraces(spans, given.clock) if spans is not None else None
        if traces is not None:
            traces.start()
            self._closing.callback(traces.stop)
        parts = compose(
            given,
            stores,
            opened,
            state,
            admission=self._admission,
            leads_since=self._leadership.since,
            failed=self._shutdown.fail,
            counting=self._metrics.counting,
            traces=traces,
        )
        self._shutdown.count_from(state)
        self._start_parts(parts, stores)
        return True

    def run(self) -> None:
        """Run batches until :meth:`stop`. Raises the error that ended the driver."""
        parts, activity = self._parts, self._activity
        engine, clock, settings = self._given.engine, self._given.clock, self._given.settings
        assert parts is not None and self._housekeeping is not None
        activity.detail = "starting the engine"
        try:
            self._engine_start.finish()
            self._closing.callback(self._engine_start.stop)
            activity.spark_ui = engine.ui_url
            log.info("the engine runs")
            self._leadership.name_application(engine.application)
            activity.await_partitions()
            self._leadership.await_earlier_tasks(fresh=self._given.options.take_over)
            await_hosts(parts.loop.ask, parts.agents, activity, clock, settings.driver.receiver_timeout)
            parts.scheduler.start()
            activity.engine_ready = True
            activity.run_if_ready()
            self._tell_started(parts)
            parts.scheduler.run()
        except BaseException as error:
            self._shutdown.fail(error)
        activity.jobs_ended.set()
        activity.stopping.set()
        self._tell_stopped(parts)
        if activity.failure is not None:
            raise activity.failure
        if self._shutdown.is_draining:
            self._housekeeping.publish_last()

    def _tell_started(self, parts: Parts) -> None:
        settings = self._given.settings
        started = StreamStarted(
            time_ms=self._given.clock.wall_ms(),
            stream=settings.stream,
            epoch=parts.journal.epoch,
            batch_interval_ms=round(settings.driver.batch_interval * 1000),
        )
        self._given.listeners.tell_all([started])

    def _tell_stopped(self, parts: Parts) -> None:
        stopped = StreamStopped.after(
            self._activity.failure,
            time_ms=self._given.clock.wall_ms(),
            stream=self._given.settings.stream,
            epoch=parts.journal.epoch,
        )
        self._given.listeners.tell_all([stopped])

    def stop(self, drain: bool = False, timeout_seconds: float | None = None) -> None:
        """Let the running jobs finish, and end. Returns immediately. May be called from any thread, and in the job.

        With ``drain`` the driver registers no more receivers, the receivers drain, and the driver first completes all records
        that were taken in, within ``timeout_seconds`` (default: ``driver.stop_timeout``). The next driver runs the batches that
        are not completed by then. May be called again: without ``drain`` it ends a drain. If the stream leads a joint job, the
        other streams stop in the same way.
        """
        self._shutdown.stop(drain, timeout_seconds)

    def close(self) -> None:
        """Stop all parts, in reverse order. Call it after :meth:`run` has returned."""
        self._shutdown.end()
        if self._parts is not None:
            self._parts.scheduler.join()
        self._closing.close()

    def _start_engine(self) -> None:
        self._closing.callback(self._engine_start.stop)
        self._engine_start.begin()

    def _serve(self) -> None:
        settings = self._given.settings
        routing = Routing(
            self._given,
            activity=self._activity,
            admission=self._admission,
            leadership=self._leadership,
            shutdown=self._shutdown,
            parts=self._led_parts,
            operator=self._closing.enter_context(ThreadPoolExecutor(1, thread_name_prefix="operator")),
        )
        guard = Guard(settings)
        Access.of_tasks(settings)  # a batch would find out too late that a token is missing
        app = tracker_application(
            routing.submit,
            status=self._status,
            ready=self._view.not_ready,
            release=self._given.options.release,
            guard=guard,
            more=self._metrics.routes(self._leadership.refusal),
            observer=self._observing,
        )
        self.watch("http")
        server = self._closing.enter_context(
            Server(app, settings.driver.url, came_round=lambda: self.came_round("http"), guard=guard, pages=PAGES)
        )
        self._closing.callback(self._observing.hub.close)  # before the server waits for its last answers
        self._closing.callback(lambda: self._leadership.end(abandon=isinstance(self._activity.failure, FencedError)))
        self.url = self._metrics.url = server.url
        self._metrics.http_requests = lambda: server.requests
        log.info("serves receivers, agents and people at %s", self.url)
        announce(guard, self.url)

    def _start_parts(self, parts: Parts, stores: Stores) -> None:
        """Start the parts, and stop them in reverse order at the end. The crash tests depend on this order."""
        given, closing, fail = self._given, self._closing, self._shutdown.fail
        pending = parts.tracker.pending_actions()
        view = LeaderView(given, parts=parts, stores=stores, view=self._view, started_at=self._started_at)
        placing = Placing(given, parts, view, stopping=self._activity.stopping, failed=fail)
        housekeeping = Housekeeping(
            given,
            parts,
            activity=self._activity,
            admission=self._admission,
            is_draining=lambda: self._shutdown.is_draining,
            caught_up=self._caught_up,
            failed=fail,
        )
        parts.reach.start()
        closing.callback(parts.reach.stop)
        self.watch("decide")
        parts.loop.came_round = lambda: self.came_round("decide")
        self._leader_view, self._housekeeping, self._parts = view, housekeeping, parts
        given.listeners.start()
        closing.callback(given.listeners.stop)
        # decided before any batch begins, or is cleaned up
        driver = given.settings.driver
        parts.loop.submit(KeepWindow(driver.window_batches, round(driver.window * 1000)))
        parts.loop.start()
        closing.callback(parts.loop.stop)
        for action in pending:
            parts.cleaner.perform(action)
        parts.cleaner.start()
        closing.callback(parts.cleaner.stop)
        parts.batch_history.start()
        closing.callback(parts.batch_history.stop)
        parts.adoption.start()
        closing.callback(parts.adoption.stop)
        placing.start()
        closing.callback(placing.join)
        housekeeping.start()
        closing.callback(housekeeping.join)
        sampler = self._observing.lead(parts, stores, view, fail)
        self._metrics.lead(parts, stores, self._observing.leading)
        sampler.start()
        closing.callback(sampler.stop)
        if self._activity.stopping.is_set():  # stopped before there was a scheduler to stop
            parts.scheduler.stop()

    def _caught_up(self) -> None:
        joint = self._given.options.joint
        if joint is not None:
            joint.catch_up()
        else:
            self.stop(drain=True)

    def _led_parts(self) -> Parts | None:
        return self._parts

    def _superseded(self, error: FencedError) -> bool:
        """Return whether the driver ends. Before it has parts, opening the journal finds out by itself, and a standby goes on."""
        if self._parts is None:
            return False
        self._shutdown.fail(error)
        return True

    # ---- what others ask ---------------------------------------------------------------------------------------------

    @property
    def overdue(self) -> Callable[[str], None]:
        """Called with the summary when a job still runs after the drain's time limit, although its Spark tasks were
        cancelled."""
        return self._shutdown.overdue

    @overdue.setter
    def overdue(self, call: Callable[[str], None]) -> None:
        self._shutdown.overdue = call

    def summary(self) -> Summary:
        """Return what this driver has completed so far, and after a drain what it did not complete. Must not be called in the
        decision loop."""
        return self._shutdown.summary()

    def batches(self) -> tuple[BatchEntry, ...]:
        """Return the unfinished batches and the newest completed ones, newest first. Before the driver leads, return (); after it
        has ended, only completed ones. Must not be called in the decision loop."""
        parts = self._parts
        if parts is None:
            return ()
        unfinished: tuple[BatchEntry, ...] = ()
        with contextlib.suppress(UnreachableError):  # the decision loop has ended
            unfinished = parts.loop.ask(ReadUnfinishedBatches(parts.scheduler.running))
        return with_completed(unfinished, parts.scheduler.batches.entries())

    def service_status(self) -> ServiceStatus:
        """Return the status for a supervisor: ready when the driver leads or is a standby."""
        return ServiceStatus(
            self._parts is not None or self._leadership.leader is not None,
            ": ".join(filter(None, self._view.shown())),
            self._shutdown.seconds if self._shutdown.is_stopping else None,
        )

    def agent_urls(self) -> dict[str, str]:
        """Return host → URL of its agent, of agents with a recent heartbeat; {} before the driver leads."""
        return self._parts.agents.urls() if self._parts is not None else {}

    def add_listener(self, listener: Listener) -> None:
        """Pass events to ``listener`` from now on. May be called at any time and from any thread."""
        self._given.listeners.add(_channel(ListenerSink(listener), self._given.settings))

    def in_callback(self) -> bool:
        """Return whether this thread runs jobs or listeners, so that it must not wait for the driver's end."""
        in_job = self._parts is not None and self._parts.scheduler.in_job()
        return in_job or self._given.listeners.in_listener()

    def _status(self) -> Future[StatusAnswer]:
        if self._parts is None or self._leader_view is None:
            return self._leadership.not_leading()
        return self._leader_view.answer()


def _listeners(settings: Settings, more: Sequence[Listener], clock: Clock) -> Listeners:
    driver = settings.driver
    receiving: list[EventSink] = [ListenerSink(find_listener(name), name) for name in driver.listeners]
    receiving += [ListenerSink(listener) for listener in more]
    if driver.web_hook is not None:
        receiving.append(WebHook(driver.web_hook, stream=settings.stream, timeout_seconds=driver.web_hook_timeout))
    return Listeners([_channel(one, settings) for one in receiving], clock.wall_ms)


def _channel(sink: EventSink, settings: Settings) -> Channel:
    return Channel(sink, settings.driver.listener_queue, int(settings.driver.listener_queue_bytes))
