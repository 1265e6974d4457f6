"""The intake from a program of one's own: the same driver as ``forebay driver``, under the caller's Spark session."""

from __future__ import annotations

import threading
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any

from driver.background.upstream import upstream_of
from driver.batches.batch import Job, NamedJob
from driver.decision_loop.stopping import Summary
from driver.listeners.dispatch import Listener
from driver.main import find_jobs, make_engine
from driver.service import Driver
from forebay.model.errors import UsageError
from forebay.process.clock import SystemClock
from forebay.process.ending import Ending
from forebay.settings.load import load
from forebay.settings.schema import Settings


class IngestContext:
    """Follows a stream's intake, batch by batch::

        with IngestContext(spark, "forebay.toml") as intake:
            intake.foreach_batch(process)
            intake.await_termination()

    ``spark``: a SparkSession, or None with ``engine = "local"``. ``settings``: a path or Settings. Entering does nothing
    yet; ``foreach_batch`` names the job and starts. ``start`` and ``stop`` may be repeated; ``stop`` may be called in the
    job, whose batch then still completes, and by a listener. Leaving the ``with`` stops, and raises what failed in the
    background.
    """

    def __init__(self, spark: Any, settings: Settings | str | Path, *, take_over: bool = False) -> None:
        self._spark = spark
        self._settings = settings if isinstance(settings, Settings) else load(settings)
        self._take_over = take_over
        self._jobs: tuple[NamedJob, ...] = ()
        self._begun = False
        self._listeners: list[Listener] = []
        self._lock = threading.Lock()
        self._driver: Driver | None = None
        self._thread: threading.Thread | None = None
        self._ending = Ending(ended=True)

    def __enter__(self) -> IngestContext:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if error is None:
            self.await_termination()
        else:
            self._ending.wait()

    @property
    def url(self) -> str:
        """Where receivers, agents and people reach the tracker; "" before ``start``."""
        return self._driver.url if self._driver is not None else ""

    @property
    def summary(self) -> Summary:
        """What was done since ``start``, and after a stop with ``drain`` what it left."""
        return self._driver.summary() if self._driver is not None else Summary(0, 0)

    def foreach_batch(self, job: Job, name: str | None = None) -> IngestContext:
        """Names the job and starts; or, with a ``name``, one of several outputs of each batch, made in the order named, which
        ``start`` or ``await_termination`` begins. The journal remembers by its name which output of a batch is done.

        Raises UsageError while the intake runs, and for a name given twice."""
        with self._lock:
            if not self._ending.is_set:
                raise UsageError("the intake is running with its job: stop it first")
            if self._begun or name is None:
                self._jobs, self._begun = (), False
            if name is not None and name in (known.name for known in self._jobs):
                raise UsageError(f"output {name!r} is named twice: give each output of a batch a name of its own")
            self._jobs = (*self._jobs, NamedJob(name or _name_of(job), job))
        if name is None:
            self.start()
        return self

    def add_listener(self, listener: Listener) -> IngestContext:
        """Tells ``listener`` what happens in the stream, from now on and after every ``start``; see ``driver.listeners``."""
        with self._lock:
            self._listeners.append(listener)
            if self._driver is not None and not self._ending.is_set:
                self._driver.add_listener(listener)
        return self

    def start(self) -> None:
        """Opens the journal and begins; nothing if it is running. The job is the one of ``foreach_batch``, else the one the
        settings name. Raises as ``Driver.start`` does."""
        with self._lock:
            if not self._ending.is_set:
                return
            jobs = self._jobs or find_jobs(self._settings)
            driver: Driver
            engine = make_engine(self._settings, lambda: driver.agent_urls(), self._spark)
            driver = Driver(
                self._settings,
                upstream_of(self._settings),
                engine,
                jobs,
                SystemClock(),
                version("forebay"),
                self._take_over,
                listeners=self._listeners,
            )
            try:
                driver.start()
            except BaseException:
                driver.close()
                raise
            self._begun = True
            self._driver = driver
            self._ending.begin()
            self._thread = threading.Thread(target=self._run, args=(driver,), name="batches", daemon=True)
            self._thread.start()

    def _run(self, driver: Driver) -> None:
        try:
            driver.run()
        except BaseException as error:
            self._ending.fail(error)
        finally:
            try:
                driver.close()
            finally:
                self._ending.end()

    def stop(self, drain: bool = False, timeout_seconds: float | None = None) -> None:
        """Lets the running jobs finish, then ends; with ``drain`` as :meth:`driver.service.Driver.stop`. Returns immediately when
        called in the job or by a listener, else when it has ended."""
        driver = self._driver
        if driver is not None:
            driver.stop(drain, timeout_seconds)
        if driver is None or not driver.in_callback():
            self._ending.wait()

    def await_termination(self, timeout_seconds: float | None = None) -> bool:
        """Waits until the intake has ended; False if it has not within ``timeout_seconds``. Starts what was named and not
        started yet. Raises what failed in the background, once."""
        if self._jobs and not self._begun:
            self.start()
        return self._ending.wait_and_raise(timeout_seconds)


def _name_of(job: Job) -> str:
    return f"{getattr(job, '__module__', '')}:{getattr(job, '__qualname__', type(job).__qualname__)}"
