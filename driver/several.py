"""Several streams in one driver process: each has a driver of its own, and all use one Spark session.

A stream that fails is started again after growing delays, as a supervisor does it with a process; the others go on. A stream that
can't lead any more (fenced) or whose settings are wrong ends by itself. If Spark ends, all streams end, since a process has one
Spark session.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from importlib.metadata import version
from typing import Any
from urllib.parse import urlsplit

import msgspec

from driver.batches.job.engine import NamedJob
from driver.joint_jobs import jobs_of, joint_members
from driver.main import make_engine
from driver.service import Driver, DriverOptions
from forebay.model.errors import (
    AlreadyRunningError,
    EngineLostError,
    FencedError,
    ForebayError,
    SettingsError,
    UsageError,
)
from forebay.process.clock import Clock, SystemClock
from forebay.process.notify import Notifier, ServiceStatus
from forebay.process.signals import stop_signals
from forebay.settings.schema import Settings
from forebay.sources.kind import source_kind

log = logging.getLogger(__name__)

#: delay before a failed stream is started again: at first, and at most
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 1.0, 60.0

#: options of Spark that several streams need: each has a pool of its name, so none waits for the tasks of another
FAIR = {"spark.scheduler.mode": "FAIR"}


def run_several(
    streams: Sequence[Settings],
    variables: dict[str, str],
    *,
    take_over: bool = False,
    until_caught_up: bool = False,
    standby: bool = False,
) -> int:
    """Run the drivers of ``streams`` until a signal (SIGTERM, SIGINT) ends them, or all have ended. Return the exit code: 1 if
    Spark ended, else that of the first stream that failed for good, else 0. The arguments are those of ``driver.main.run``.

    Raises SettingsError if the streams do not fit together, as :func:`sharing_spark` and :func:`driver.joint_jobs.joint_members`.
    """
    clock = SystemClock()
    options = DriverOptions(
        release=version("forebay"),
        take_over=take_over,
        until_caught_up=until_caught_up,
        standby=standby,
        waits_when_failed=not until_caught_up,
    )
    streams = sharing_spark(streams)
    members = joint_members(streams)
    if members and standby:
        raise SettingsError(
            "--standby: the streams of a joint job (driver.joins) need one process, and each standby waits for a lease of its "
            "own: have a supervisor start this process again instead"
        )
    notifier = Notifier.of(variables, clock, lambda: status_of(runs), os.getpid())
    stopping = threading.Event()
    ended = threading.Semaphore(0)

    def stop_all() -> None:
        stopping.set()
        for run in runs:
            run.stop()

    runs = [
        StreamRun(
            settings,
            jobs_of(settings, members.get(settings.stream)),
            options=replace(options, joint=members.get(settings.stream)),
            clock=clock,
            notifier=notifier,
            stopping=stopping,
            lost=stop_all,
            ended=ended.release,
        )
        for settings in streams
    ]
    with stop_signals(stop_all), _session_kept(streams):
        for run in runs:
            run.thread.start()
        for _ in runs:
            ended.acquire()
    code = exit_code([run.failure for run in runs if run.failure is not None])
    if any(run.overdue and run.thread.is_alive() for run in runs):
        log.error("exiting while a job is still running")
        os._exit(code)
    return code


def exit_code(failures: Sequence[ForebayError]) -> int:
    """Return the exit code of the process. The end of Spark comes first: it ends streams that a supervisor has to start again."""
    lost = [failure for failure in failures if isinstance(failure, EngineLostError)]
    return next((failure.exit_code for failure in (*lost, *failures)), 0)


def _session_kept(streams: Sequence[Settings]) -> AbstractContextManager[None]:
    if all(settings.driver.engine != "spark" for settings in streams):
        return nullcontext()
    from driver.spark.engine import session_kept

    return session_kept()


class StreamRun:
    """One stream of the process. :attr:`thread` runs its driver, and starts it again when it failed.

    ``stopping``: set when the process ends. ``lost``: called when Spark has ended. ``ended``: called once, when the stream has
    ended, or when a job still runs after the time for its drain (``overdue``).
    """

    def __init__(
        self,
        settings: Settings,
        jobs: Sequence[NamedJob],
        *,
        options: DriverOptions,
        clock: Clock,
        notifier: Notifier,
        stopping: threading.Event,
        lost: Callable[[], None],
        ended: Callable[[], None],
    ) -> None:
        self.stream = settings.stream
        self.failure: ForebayError | None = None
        self.overdue = False
        #: set when the first start has ended, well or not
        self.started = threading.Event()
        self.thread = threading.Thread(target=self._run, name=f"stream {self.stream}", daemon=True)
        self._settings = settings
        self._jobs = tuple(jobs)
        self._options = options
        # one for all starts of the driver: it knows the tasks that still run
        self._engine = make_engine(settings, lambda: self._driver.agent_urls() if self._driver is not None else {})
        self._clock = clock
        self._notifier = notifier
        self._stopping = stopping
        self._lost = lost
        self._ended = ended
        self._lock = threading.Lock()
        self._driver: Driver | None = None
        self._text = "starting"
        self._over = False

    def stop(self) -> None:
        """Stop the driver as ``driver.stop`` says: it drains, or lets the running jobs finish. Returns immediately."""
        with self._lock:
            driver = self._driver
        if driver is not None:
            drain = self._settings.driver.stop == "drain"
            log.info(
                "stream %s: %s", self.stream, "draining" if drain else "stopping when the running job has finished"
            )
            driver.stop(drain)

    def service_status(self) -> ServiceStatus:
        """Return the status for a supervisor. A stream that has ended, or waits for its next start, keeps no other from being
        ready."""
        driver = self._driver
        if driver is None:
            return ServiceStatus(self.started.is_set(), f"{self.stream}: {self._text}")
        status = driver.service_status()
        return ServiceStatus(status.ready, f"{self.stream}: {status.text}", status.stop_seconds)

    def _run(self) -> None:
        try:
            self._run_again_and_again()
        finally:
            self._end()

    def _run_again_and_again(self) -> None:
        delay = RETRY_SECONDS_MIN
        while not self._stopping.is_set() and not (self._options.joint is not None and self._options.joint.is_over):
            began = self._clock.monotonic()
            try:
                self._drive()
                self._text = "ended"
                break
            except ForebayError as error:
                if self._is_final(error):
                    break
                reason = str(error)
            except BaseException as error:  # a job may raise CancelledError or KeyboardInterrupt
                log.exception("stream %s failed", self.stream)
                reason = f"{type(error).__name__}: {error}"
            finally:
                self._leave()
            delay = RETRY_SECONDS_MIN if self._clock.monotonic() - began > RETRY_SECONDS_MAX else delay
            self._text = f"starts again in {delay:g} s after a failure: {reason}"
            log.error("stream %s %s", self.stream, self._text)
            self._stopping.wait(delay)
            delay = min(2 * delay, RETRY_SECONDS_MAX)

    def _drive(self) -> None:
        settings = self._settings
        driver = Driver(
            settings,
            upstream=source_kind(settings).upstream(),
            engine=self._engine,
            jobs=self._jobs,
            clock=self._clock,
            options=self._options,
        )
        driver.overdue = self._leave_behind
        driver.watch = lambda loop: self._notifier.watch(self._loop(loop))
        driver.came_round = lambda loop: self._notifier.came_round(self._loop(loop))
        with self._lock:
            self._driver = driver
        with closing(driver):
            if self._stopping.is_set() or not driver.start():
                return
            self._options = replace(self._options, take_over=False)  # once: a later leader is there rightly
            self.started.set()
            driver.run()
            log.info("the driver of stream %s ends: %s", self.stream, driver.summary())

    def _is_final(self, error: ForebayError) -> bool:
        """Note an error that ended the driver. Return whether the stream is not started again."""
        if isinstance(error, EngineLostError):
            self._lost()
        elif not (
            isinstance(error, FencedError | UsageError)
            or self._options.until_caught_up
            or self._is_led_elsewhere(error)
        ):
            return False
        self.failure, self._text = error, f"ended: {error}"
        log.error("stream %s ends: %s", self.stream, error)
        if self._options.joint is not None:
            self._options.joint.fail()
        return True

    def _is_led_elsewhere(self, error: ForebayError) -> bool:
        """Return whether this is the leading stream of a joint job, and another process has its lease.

        The job runs only in a process that has the leases of all its streams. If both processes waited, each could get the lease
        of one stream, and no job would run. So this one ends and frees the other streams.
        """
        joint = self._options.joint
        return joint is not None and joint.leads and isinstance(error, AlreadyRunningError)

    def _leave(self) -> None:
        with self._lock:
            self._driver = None
        for loop in ("http", "decide"):
            self._notifier.forget(self._loop(loop))
        self.started.set()

    def _leave_behind(self, reason: str) -> None:
        log.error("stream %s: a job is still running: %s", self.stream, reason)
        self.overdue = True
        self._end()

    def _end(self) -> None:
        with self._lock:
            over, self._over = self._over, True
        if not over:
            self._ended()

    def _loop(self, name: str) -> str:
        return f"{name} of {self.stream}"


def status_of(runs: Sequence[StreamRun]) -> ServiceStatus:
    """Return the status of a process with several streams: ready when all are."""
    statuses = [run.service_status() for run in runs]
    seconds = [status.stop_seconds for status in statuses if status.stop_seconds is not None]
    return ServiceStatus(
        all(status.ready for status in statuses),
        "; ".join(status.text for status in statuses),
        max(seconds) if seconds else None,
    )


def sharing_spark(streams: Sequence[Settings]) -> list[Settings]:
    """Return the settings of streams that share a process, with fair shares of Spark, and one archive of Java's classes.

    Raises SettingsError if two streams have one name or URL, or differ in ``[spark]``.
    """
    archive = next((settings.spark.class_archive for settings in streams if settings.spark.class_archive), None)
    streams = [_with_spark(settings, class_archive=archive) for settings in streams]  # each may have its own ``data``
    _differ("stream", [(settings.stream, settings.stream) for settings in streams])
    _differ("driver.url", [(settings.stream, settings.driver.url) for settings in streams if not _any_port(settings)])
    with_spark = [settings for settings in streams if settings.driver.engine == "spark"]
    for settings in with_spark[1:]:
        mine, theirs = (msgspec.structs.asdict(found.spark) for found in (settings, with_spark[0]))
        if mine != theirs:
            raise SettingsError(
                f"spark: {_difference(mine, theirs)} differs between stream {with_spark[0].stream!r} and stream "
                f"{settings.stream!r}: a process has one Spark session, so write the same [spark] in both configurations"
            )
    return [_with_spark(settings, options={**FAIR, **settings.spark.options}) for settings in streams]


def _differ(key: str, values: Sequence[tuple[str, str]]) -> None:
    seen: dict[str, str] = {}
    for stream, value in values:
        if value in seen:
            raise SettingsError(
                f"{key} = {value!r} applies to two configurations (streams {seen[value]} and {stream}); each stream of a process "
                "needs its own"
            )
        seen[value] = stream


def _any_port(settings: Settings) -> bool:
    return urlsplit(settings.driver.url).port == 0


def _difference(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """Return the first key whose values differ, also within tables."""
    key = next(key for key in {**mine, **theirs} if mine.get(key) != theirs.get(key))
    first, second = mine.get(key), theirs.get(key)
    return _difference(first, second) if isinstance(first, Mapping) and isinstance(second, Mapping) else str(key)


def _with_spark(settings: Settings, **changes: Any) -> Settings:
    return msgspec.structs.replace(settings, spark=msgspec.structs.replace(settings.spark, **changes))
