"""``forebay driver``: one driver process, from settings to exit code."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import closing
from importlib.metadata import version
from typing import Any

from driver.batches.job.engine import Engine, NamedJob
from driver.service import Driver, DriverOptions
from forebay.model.errors import FencedError, ForebayError, SettingsError
from forebay.process import logs
from forebay.process.clock import SystemClock
from forebay.process.garbage import freeze_present
from forebay.process.notify import Notifier
from forebay.process.signals import stop_signals
from forebay.settings.named import find
from forebay.settings.schema import Settings
from forebay.sources.kind import source_kind

log = logging.getLogger(__name__)


def run(
    settings: Settings,
    variables: dict[str, str],
    *,
    take_over: bool = False,
    until_caught_up: bool = False,
    standby: bool = False,
) -> int:
    """Run the driver until a signal (SIGTERM, SIGINT) or a failure ends it, or a newer driver fences it. Return the exit code.

    At a signal the running jobs finish; ``driver.stop`` says whether the driver drains before it ends. ``variables``: of
    systemd (``forebay.process.notify.taken_out``). ``take_over``: lead without waiting for another driver's lease to end.
    ``until_caught_up``: end when all records that the source held at the start are completed. ``standby``: lead when no other
    driver leads.

    Exit codes: 0 stopped by a signal or caught up, 1 failed (the reason is logged), 2 wrong settings, 4 fenced.
    """
    logs.configure(settings.log.format, settings.log.level, service="driver", stream=settings.stream)
    refuse_joins(settings)
    jobs = find_jobs(settings)
    try:
        with_engine(settings, jobs, variables, take_over, until_caught_up, standby)
    except ForebayError as error:
        log.error("%s", error)
        return error.exit_code
    return 0


def with_engine(
    settings: Settings,
    jobs: Sequence[NamedJob],
    variables: dict[str, str],
    take_over: bool,
    until_caught_up: bool = False,
    standby: bool = False,
) -> None:
    driver: Driver
    clock = SystemClock()
    notifier = Notifier.of(variables, clock, lambda: driver.service_status(), os.getpid())
    engine = make_engine(settings, lambda: driver.agent_urls())
    driver = Driver(
        settings,
        upstream=source_kind(settings).upstream(),
        engine=engine,
        jobs=jobs,
        clock=clock,
        options=DriverOptions(
            release=version("forebay"),
            take_over=take_over,
            until_caught_up=until_caught_up,
            standby=standby,
            waits_when_failed=not until_caught_up,  # a driver that is to end by itself ends with the failure
        ),
    )
    driver.overdue = _end_at_once
    driver.watch, driver.came_round = notifier.watch, notifier.came_round

    def stop() -> None:
        drain = settings.driver.stop == "drain"
        message = (
            "draining; a second signal stops immediately" if drain else "stopping when the running job has finished"
        )
        log.info("%s", message)
        driver.stop(drain)

    with stop_signals(stop), closing(driver):
        if standby:
            log.info("standby of stream %s", settings.stream)
        try:
            if not driver.start():
                return
            freeze_present()
            driver.run()
        except FencedError as error:
            # no result of this process counts any more: it does not wait for its jobs
            log.error("%s", error)
            raise
        log.info("the driver ends: %s", driver.summary())


def _end_at_once(message: str) -> None:
    """End the process, as a second signal does. The next driver runs the batch of the running job again."""
    log.error("exiting while a job is still running: %s", message)
    os._exit(0)


def make_engine(settings: Settings, agent_urls: Callable[[], dict[str, str]], session: Any = None) -> Engine:
    """Return the engine that ``driver.engine`` names. ``session``: a SparkSession to use; None: the engine makes one."""
    if settings.driver.engine == "local":
        from driver.batches.local_engine import LocalEngine

        return LocalEngine(settings, agent_urls)
    from driver.spark.engine import SparkEngine

    return SparkEngine(settings, agent_urls, session)


def refuse_joins(settings: Settings) -> None:
    """Raise SettingsError if the job needs other streams, because this process runs none."""
    if settings.driver.joins:
        others = " ".join(f"--with {stream}.toml" for stream in settings.driver.joins)
        raise SettingsError(
            f"driver.joins: the job of stream {settings.stream!r} gets batches of {', '.join(settings.driver.joins)}: run these "
            f"streams in one process, as in `forebay driver {others}`, or with IngestStreams"
        )


def find_jobs(settings: Settings) -> tuple[NamedJob, ...]:
    """Import the functions that ``driver.job`` names. Raises SettingsError."""
    if not settings.driver.jobs:
        raise SettingsError('driver.job is missing: name your function, as in job = "jobs:process"')
    return tuple(NamedJob(name, find("driver.job", name, "function")) for name in settings.driver.jobs)
