"""``forebay driver``: one driver process, from settings to exit code."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from importlib.metadata import version
from typing import Any

from driver.background.upstream import upstream_of
from driver.batches.batch import Engine, NamedJob
from driver.service import Driver
from forebay.model.errors import FencedError, ForebayError, SettingsError
from forebay.process.clock import SystemClock
from forebay.process.notify import Notifier
from forebay.process.signals import stop_signals
from forebay.settings.named import find
from forebay.settings.schema import Settings

log = logging.getLogger(__name__)


def run(settings: Settings, *, take_over: bool = False, until_caught_up: bool = False, standby: bool = False) -> int:
    """Runs the driver until SIGTERM or SIGINT (the running jobs may finish; what else, ``driver.stop`` says), a failure, or a
    newer driver; ``until_caught_up``: until all is completed that Kafka held at the start; ``standby``: leads when nobody does.

    Returns the exit code: 0 stopped as told, 1 failed (reason logged), 2 wrong settings, 4 fenced.
    """
    jobs = find_jobs(settings)
    try:
        with_engine(settings, jobs, take_over, until_caught_up, standby)
    except ForebayError as error:
        log.error("%s", error)
        return error.exit_code
    return 0


def with_engine(
    settings: Settings,
    jobs: Sequence[NamedJob],
    take_over: bool,
    until_caught_up: bool = False,
    standby: bool = False,
) -> None:
    driver: Driver
    clock = SystemClock()
    # before Spark's processes are started, which have nothing to say to systemd
    notifier = Notifier.of(os.environ, clock, lambda: driver.service_status(), os.getpid())
    engine = make_engine(settings, lambda: driver.agent_urls())
    driver = Driver(
        settings,
        upstream_of(settings),
        engine,
        jobs,
        clock,
        version("forebay"),
        take_over,
        until_caught_up,
        standby,
        # one that is to end by itself ends with the failure
        waits_when_failed=not until_caught_up,
    )
    driver.overdue = _end_at_once
    driver.watch, driver.came_round = notifier.watch, notifier.came_round

    def stop() -> None:
        drain = settings.driver.stop == "drain"
        words = "draining; a second signal stops at once" if drain else "stopping when the running job has finished"
        print(f"forebay driver: {words}", file=sys.stderr, flush=True)
        driver.stop(drain)

    with stop_signals(stop), closing(driver):
        if standby:
            print(f"forebay driver: standby of stream {settings.stream}", file=sys.stderr, flush=True)
        try:
            if not driver.start():
                return
            print(f"forebay driver: leads stream {settings.stream} at {driver.url}", file=sys.stderr, flush=True)
            driver.run()
        except FencedError as error:
            # nothing of this process may count any more, and nothing it still does is worth waiting for
            log.error("%s", error)
            raise
        print(f"forebay driver: {driver.summary()}", file=sys.stderr, flush=True)


def _end_at_once(words: str) -> None:
    """As a second signal: the job that does not end is left in the middle, and its batch comes again."""
    print(f"forebay driver: ends amid a job that does not: {words}", file=sys.stderr, flush=True)
    os._exit(0)


def make_engine(settings: Settings, agent_urls: Callable[[], dict[str, str]], session: Any = None) -> Engine:
    """The engine that ``[driver].engine`` names; ``session``: a SparkSession to use instead of making one."""
    if settings.driver.engine == "local":
        from driver.batches.local_engine import LocalEngine

        return LocalEngine(settings, agent_urls)
    from driver.spark.engine import SparkEngine

    return SparkEngine(settings, agent_urls, session)


def find_jobs(settings: Settings) -> tuple[NamedJob, ...]:
    """Imports what ``[driver].job`` names. Raises SettingsError that says what is wrong with it."""
    if not settings.driver.jobs:
        raise SettingsError('driver.job is missing: name your function, as in job = "jobs:process"')
    return tuple(NamedJob(name, find("driver.job", name, "function")) for name in settings.driver.jobs)
