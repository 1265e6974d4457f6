"""An intake in the caller's own program: the same driver as ``forebay driver``, under the caller's Spark session."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any

from driver.batches.job.engine import Job, NamedJob
from driver.batches.joint.jobs import JointJob, JointMember
from driver.decision_loop.stopping import Summary
from driver.joint_jobs import jobs_of, joining, joint_members
from driver.listeners.events import Listener
from driver.main import make_engine, refuse_joins
from driver.service import Driver, DriverOptions
from driver.several import sharing_spark
from driver.spark.classic import classic
from forebay.messages import BatchEntry
from forebay.model.errors import UsageError
from forebay.process.clock import SystemClock
from forebay.process.ending import Ending
from forebay.settings.reading.load import load
from forebay.settings.schema import Settings
from forebay.sources.kind import source_kind

log = logging.getLogger(__name__)


class IngestContext:
    """Runs the driver of a stream, and a job for each batch::

        with IngestContext(spark, "forebay.toml") as intake:
            intake.foreach_batch(process)
            intake.await_termination()

    ``spark``: a SparkSession, or None with ``engine = "local"``. ``settings``: a path or Settings. Entering the context starts
    nothing; ``foreach_batch`` sets the job and starts the driver. ``start`` and ``stop`` may be repeated. ``stop`` may be
    called in the job, whose batch then still completes, and by a listener. Leaving the context stops the driver. If an error
    ended the driver, it is raised. Raises UsageError for a session of Spark Connect.
    """

    def __init__(self, spark: Any, settings: Settings | str | Path, *, take_over: bool = False) -> None:
        self._spark = classic(spark)
        self._settings = settings if isinstance(settings, Settings) else load(settings)
        self._take_over = take_over
        self._jobs: tuple[NamedJob, ...] = ()
        self._begun = False
        self._listeners: list[Listener] = []
        self._lock = threading.Lock()
        self._driver: Driver | None = None
        self._thread: threading.Thread | None = None
        self._ending = Ending(ended=True)
        self._ended: Callable[[], None] = lambda: None
        self._joint: JointMember | None = None

    def __enter__(self) -> IngestContext:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if error is None:
            self._ending.wait_and_raise()
        else:
            self._ending.wait()

    @property
    def is_running(self) -> bool:
        """Whether the driver was started and has not ended."""
        return not self._ending.is_set

    @property
    def url(self) -> str:
        """The URL at which the driver serves receivers, agents and operators; "" before ``start``."""
        return self._driver.url if self._driver is not None else ""

    @property
    def summary(self) -> Summary:
        """A summary: what the driver has completed since ``start``, and after a drain what it did not complete."""
        return self._driver.summary() if self._driver is not None else Summary(0, 0)

    @property
    def batches(self) -> tuple[BatchEntry, ...]:
        """The unfinished batches, and the newest completed ones (``driver.batch_history``) with their statistics, the newest
        first. () before ``start``; after the end only the completed ones."""
        return self._driver.batches() if self._driver is not None else ()

    def foreach_batch(self, job: Job, name: str | None = None) -> IngestContext:
        """Set the job and start the driver; with a ``name``, add one of several outputs of each batch.

        Outputs run in the order in which they were added, after ``start`` or ``await_termination``. The journal stores by name
        which outputs of a batch are done. Raises UsageError while the driver runs, and for a name given twice.
        """
        with self._lock:
            if not self._ending.is_set:
                raise UsageError("the intake is running; call stop() before setting another job")
            if self._begun or name is None:
                self._jobs, self._begun = (), False
            if name is not None and name in (known.name for known in self._jobs):
                raise UsageError(f"output {name!r} was added twice; give each output of a batch another name")
            self._jobs = (*self._jobs, NamedJob(name or _name_of(job), job))
        if name is None:
            self.start()
        return self

    def add_listener(self, listener: Listener) -> IngestContext:
        """Pass the stream's events to ``listener``, now and after every later ``start``; see ``driver.listeners``."""
        with self._lock:
            self._listeners.append(listener)
            if self._driver is not None and not self._ending.is_set:
                self._driver.add_listener(listener)
        return self

    def start(self) -> None:
        """Start the driver; do nothing if it runs. The job is that of ``foreach_batch``, otherwise ``driver.job``.

        Raises as :meth:`driver.service.driver.Driver.start`.
        """
        with self._lock:
            if not self._ending.is_set:
                return
            if self._joint is None:
                refuse_joins(self._settings)
            elif self._joint.is_over:
                raise UsageError(
                    f"a stream of the joint job with {', '.join(self._joint.others)} has failed for good, and without it no "
                    "batch runs: IngestStreams.start() starts all of them again"
                )
            jobs = jobs_of(self._settings, self._joint, self._jobs)
            driver: Driver
            engine = make_engine(self._settings, lambda: driver.agent_urls(), self._spark)
            driver = Driver(
                self._settings,
                upstream=source_kind(self._settings).upstream(),
                engine=engine,
                jobs=jobs,
                clock=SystemClock(),
                options=DriverOptions(release=version("forebay"), take_over=self._take_over, joint=self._joint),
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
        has_failed = False
        try:
            driver.run()
        except BaseException as error:
            has_failed = True
            log.error("stream %s ends: %s", self._settings.stream, error)
            self._ending.fail(error)
        finally:
            try:
                driver.close()
            finally:
                self._ending.end()
                self._ended()
                if self._joint is not None and has_failed:
                    self._joint.fail()  # only now, so that the first stream that ends is the one that failed

    def stop(self, drain: bool = False, timeout_seconds: float | None = None) -> None:
        """Let the running jobs finish, and end; with ``drain`` as :meth:`driver.service.driver.Driver.stop`.

        Return immediately when called in the job or by a listener, otherwise when the intake has ended.
        """
        if self._driver is not None:
            self._driver.stop(drain, timeout_seconds)
        if not self._in_callback():
            self._ending.wait()

    def _has_ended(self) -> bool:
        return self._driver is not None and not self.is_running

    def _in_callback(self) -> bool:
        return self._driver is not None and self._driver.in_callback()

    def await_termination(self, timeout_seconds: float | None = None) -> bool:
        """Wait until the driver has ended; return False if it has not within ``timeout_seconds``.

        Starts the driver if outputs were added and it was not started. Raises the error that ended the driver, once.
        """
        if self._jobs and not self._begun:
            self.start()
        return self._ending.wait_and_raise(timeout_seconds)


class IngestStreams(Mapping[str, IngestContext]):
    """Runs several streams in the caller's program, each as an :class:`IngestContext`, under one Spark session::

        with IngestStreams(spark, "orders.toml", "clicks.toml") as streams:
            streams["orders"].foreach_batch(process_orders)
            streams["clicks"].foreach_batch(process_clicks)
            streams.await_any_termination()

    A mapping from the stream's name to its context. Each stream has its own topics, receivers, journal, URL, interval and jobs.
    When one fails, the others go on; the failure is logged, and raised by ``await_…`` or when the context is left. For fair
    shares of Spark, set ``spark.scheduler.mode = FAIR`` in the session: each stream's jobs run in a pool of its name. Without a
    session, Forebay makes one, with that setting. :meth:`foreach_joint` runs one job over the batches of all. Raises
    SettingsError as :func:`driver.several.sharing_spark` and :func:`driver.joint_jobs.joint_members`.
    """

    def __init__(self, spark: Any, *settings: Settings | str | Path, take_over: bool = False) -> None:
        streams = sharing_spark([found if isinstance(found, Settings) else load(found) for found in settings])
        self._contexts = {found.stream: IngestContext(spark, found, take_over=take_over) for found in streams}
        self._settings = streams
        self._changed = threading.Condition()
        for context in self._contexts.values():
            context._ended = self._tell
        self._join(streams)

    def __getitem__(self, stream: str) -> IngestContext:
        return self._contexts[stream]

    def __iter__(self) -> Iterator[str]:
        return iter(self._contexts)

    def __len__(self) -> int:
        return len(self._contexts)

    def __enter__(self) -> IngestStreams:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if error is None:
            self._wait_and_raise(None)

    def foreach_joint(self, job: JointJob, name: str | None = None) -> IngestStreams:
        """Set a job over several streams, and start them; with a ``name``, add one of several outputs.

        ``job`` gets a mapping from each stream to its batch, all of the same batch time. The first stream leads, over all others,
        unless ``driver.joins`` in a configuration says otherwise. The job runs as the leader's: its attempts, failures and
        completions are those of the leader's batches, and the batches of the others end with them. Raises SettingsError if the
        streams do not fit together, otherwise as :meth:`IngestContext.foreach_batch`.
        """
        if not any(context._joint is not None for context in self._contexts.values()):
            self._join(joining(self._settings))
        leaders = [
            context for context in self._contexts.values() if context._joint is not None and context._joint.leads
        ]
        if len(leaders) != 1:
            raise UsageError(
                f"foreach_joint needs one joint job, and there are {len(leaders)}: name the streams in driver.joins"
            )
        (leader,) = leaders
        if name is None:
            self._begin_again()
            self._start_followers(leader)
        leader.foreach_batch(job, name)  # type: ignore[arg-type]  # the leader's member passes it the mapping
        return self

    def _join(self, streams: Sequence[Settings]) -> None:
        for stream, member in joint_members(streams).items():
            self._contexts[stream]._joint = member

    def _begin_again(self) -> None:
        """If no stream runs, forget that one of a joint job has failed before."""
        if not any(context.is_running for context in self._contexts.values()):
            for context in self._contexts.values():
                if context._joint is not None:
                    context._joint.begin_again()

    def _start_followers(self, leader: IngestContext) -> None:
        assert leader._joint is not None
        for stream in leader._joint.others:
            self._contexts[stream].start()

    def start(self) -> None:
        """Start the streams that do not run. Raises as :meth:`IngestContext.start`; the streams started before run on."""
        self._begin_again()
        for context in self._contexts.values():
            context.start()

    def stop(self, drain: bool = False, timeout_seconds: float | None = None) -> None:
        """Stop all streams at the same time, each as :meth:`IngestContext.stop`."""
        threads = [
            threading.Thread(target=context.stop, args=(drain, timeout_seconds), name=f"stop {stream}", daemon=True)
            for stream, context in self._contexts.items()
        ]
        for thread in threads:
            thread.start()
        if not any(context._in_callback() for context in self._contexts.values()):
            for thread in threads:
                thread.join()

    def await_termination(self, timeout_seconds: float | None = None) -> bool:
        """Wait until all streams have ended; return False if they have not within ``timeout_seconds``. Raises the first failure,
        once."""
        self._start_named()
        return self._wait_and_raise(timeout_seconds)

    def _wait_and_raise(self, timeout_seconds: float | None) -> bool:
        clock = SystemClock()
        ends = None if timeout_seconds is None else clock.monotonic() + timeout_seconds
        for context in self._contexts.values():
            if not context._ending.wait(None if ends is None else max(ends - clock.monotonic(), 0)):
                return False
        return self._raise()

    def await_any_termination(self, timeout_seconds: float | None = None) -> bool:
        """Wait until a started stream has ended, or return immediately if one has; return False if none has within
        ``timeout_seconds``. Raises its failure, once."""
        self._start_named()
        with self._changed:
            found = self._changed.wait_for(lambda: any(map(IngestContext._has_ended, self.values())), timeout_seconds)
        return found and self._raise()

    def _start_named(self) -> None:
        """Start the streams whose outputs were added by name and that were not started."""
        self._begin_again()
        for context in self._contexts.values():
            if context._jobs and not context._begun:
                if context._joint is not None and context._joint.leads:
                    self._start_followers(context)
                context.start()

    def _raise(self) -> bool:
        for context in self._contexts.values():
            if not context.is_running:
                context._ending.wait_and_raise(0)
        return True

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()


def _name_of(job: Job) -> str:
    return f"{getattr(job, '__module__', '')}:{getattr(job, '__qualname__', type(job).__qualname__)}"
