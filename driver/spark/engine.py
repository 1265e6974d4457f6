"""The Spark engine: runs the job with one Spark partition for each task of the batch's journalled packing (INV-3)."""

from __future__ import annotations

import itertools
import logging
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from py4j.clientserver import ClientServer
from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from driver.batches.job.batch import Batch
from driver.batches.job.dead_letters import dead_letter_plan
from driver.batches.job.description import job_description
from driver.batches.job.engine import Job
from driver.batches.job.work import BatchWork
from driver.batches.local_engine import read_plan
from driver.batches.tasks.reading import unreadable
from driver.decisions.batch_order import RunKey
from driver.spark.address import addressed
from driver.spark.blocks import executors, hosts_of
from driver.spark.classic import classic
from driver.spark.counts import tier_counts
from driver.spark.ends import forget_stopped_context, is_turned_away, why_lost
from driver.spark.executor_watch import ExecutorWatch, watch_executors
from driver.spark.executors import check, far, ship, strangers
from driver.spark.java.check import check_java
from driver.spark.java.class_archive import ClassArchive
from driver.spark.java.jvm import archive_of, session_options, start_jvm
from driver.spark.rows import SparkRows
from driver.spark.small import SmallBatches
from driver.spark.warming import Query, Warming, queries
from forebay.model.errors import EngineLostError, ForebayError, JobError, UnreachableError, UsageError
from forebay.process.os_errors import failure
from forebay.settings.schema import DriverSettings, Settings
from wal.reading import TierCounts

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05

#: of the thread of a job, for its tasks
_JOB_PROPERTIES = (
    "spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel", "spark.scheduler.pool",
)  # fmt: skip

#: PySpark has one session for all engines of a process: the last one that uses it stops it
_SESSION_LOCK = threading.Lock()
_SESSION_USERS: set[object] = set()


#: (stream, run) → job group of a failed attempt whose tasks still ran when its engine stopped. Their session still runs,
#: so the next engine of the stream in this process waits for them
_LEFT_BEHIND: dict[tuple[str, RunKey], str] = {}

#: numbers of engines, for the names of job groups: one session may serve several engines and remembers cancelled groups
_ENGINES = itertools.count(1)
_DEFAULTS = DriverSettings(journal="")


class SparkJobs(ABC):
    """Runs jobs in Spark. A subclass makes the batch that a job gets.

    ``session``: is used and never stopped; without it, the engine makes a session with ``options``. ``ship_code``: whether
    Forebay's code and the user's ``modules`` are sent to remote executors. ``old_tasks_seconds``: maximum time that a retry
    waits for the end of the tasks of the attempt before it. ``executors_seconds``: as ``spark.executors_timeout``, for a session
    that the engine makes; 0: without end.
    """

    def __init__(
        self,
        session: SparkSession | None = None,
        *,
        options: Mapping[str, str] | None = None,
        concurrent_jobs: int,
        ship_code: bool = True,
        old_tasks_seconds: float = float(_DEFAULTS.old_tasks_timeout),
        modules: Sequence[str] = (),
        archive: ClassArchive | None = None,
        executors_seconds: float = 0.0,
    ) -> None:
        """``archive``: of the classes of a JVM that the engine starts; None: it starts without one."""
        self._archive = archive
        self._old_tasks_seconds = old_tasks_seconds
        self._modules = tuple(modules)
        self._ship_code = ship_code
        self._options = options or {}
        self._concurrent_jobs = concurrent_jobs
        self._given = self._session = classic(session)
        self._lock = threading.Lock()
        self._attempts = 0
        self._number = next(_ENGINES)
        self._stream = ""  # of the batches that it runs
        self._groups: dict[RunKey, str] = {}  # job groups of attempts that run or failed
        self._stopping = threading.Event()
        self._warming = Warming()
        self._ready = False
        self._checked: frozenset[str] = frozenset()  # executors that were checked, as host:port
        self._executors_seconds = executors_seconds
        self._watch: ExecutorWatch | None = None

    @abstractmethod
    def _batch(self, work: BatchWork, counts: Any) -> Batch:
        """Return the batch that the job gets. Its tasks add what they read from each tier to ``counts``, an accumulator."""

    @property
    def parallelism(self) -> int:
        return max(1, int(self.session.sparkContext.defaultParallelism))

    @property
    def application(self) -> tuple[str, str]:
        context = self.session.sparkContext
        return (context.applicationId or "", context.master or "")

    @property
    def ui_url(self) -> str:
        return self.session.sparkContext.uiWebUrl or ""

    @property
    def session(self) -> SparkSession:
        """The session that runs the jobs. Raises UsageError before ``start``."""
        if self._session is None:
            raise UsageError("the Spark engine is not started")
        return self._session

    def start(self) -> None:
        """Start Spark if no session was given. If it was started before, make its session the active one of this thread too.
        Raises SettingsError if there is no suitable Java, UnreachableError if the cluster does not accept the application,
        EngineLostError if Spark ends meanwhile, UsageError if it can't start otherwise or is stopped while it starts."""
        if self._ready:
            self.check()
            jvm: Any = self.session._jvm
            jvm.SparkSession.setActiveSession(self.session._jsparkSession)
            return
        self._stopping.clear()
        self._warming = Warming()
        if self._session is None:
            self._session = self._make_session()
        if self._concurrent_jobs > 1 and not self._has_pinned_threads:
            raise UsageError(
                "driver.concurrent_jobs > 1, or concurrent_jobs > 1 of a direct stream, needs PySpark's pinned threads, which "
                "separate the tasks of the batches: remove PYSPARK_PIN_THREAD from the environment, or set it to true"
            )
        context = self._session.sparkContext
        try:
            self._prepare(context)
        except ForebayError:
            raise
        except Exception as error:
            if why := why_lost(context):
                raise EngineLostError(f"{why} while it started") from error
            raise
        if self._given is None and self._far and self._executors_seconds:
            self._watch = watch_executors(context, self._executors_seconds)
        self._ready = True

    def _prepare(self, context: SparkContext) -> None:
        """Send the code to executors that are there, and check them."""
        if self.ui_url:
            log.info("Spark UI: %s", self.ui_url)
        self._checked = frozenset()
        if self._far and self._ship_code:
            ship(context, self._modules)
        self._check_executors(context)

    @property
    def _has_pinned_threads(self) -> bool:
        return isinstance(self.session.sparkContext._gateway, ClientServer)

    def check(self) -> None:
        """Raise EngineLostError if Spark was started and has ended."""
        if self._session is not None and (why := why_lost(self._session.sparkContext)):
            raise EngineLostError(why)

    def warm(self) -> None:
        """Warm Spark as ``driver.batches.job.engine.Engine.warm``. A session that was given is left as it is."""
        log.debug("this engine is not warmed")

    @property
    def _far(self) -> bool:
        return far(self.session.sparkContext)

    def _check_executors(self, context: SparkContext) -> None:
        """Check executors that are new since the last check; a restarted one may run another Python. Raises UsageError if one's
        Python or packages do not fit."""
        if not self._far:
            return
        there = executors(context)
        if there - self._checked:
            check(context, sorted(hosts_of(there - self._checked)), self._modules)
        self._checked = there

    def _make_session(self) -> SparkSession:
        builder = SparkSession.builder
        options = session_options(self._options, self._ship_code)
        for key, value in options.items():
            builder = builder.config(key, value)
        on_interrupt = signal.getsignal(signal.SIGINT)
        try:
            with addressed(self._options.get("spark.master", "")), _SESSION_LOCK:
                start_jvm(options, self._archive)
                if self._stopping.is_set():
                    raise UsageError("Spark was stopped while it started")
                session = classic(builder.getOrCreate())
                _SESSION_USERS.add(self)
                return session
        except ForebayError:
            raise
        except Exception as error:
            check_java()  # if Java is missing or too old, Spark's error only says that its gateway ended
            if is_turned_away(error):
                forget_stopped_context()  # a later start makes another one
                master = self._options.get("spark.master", "")
                raise UnreachableError(
                    f"Spark can't start: the cluster of spark.'spark.master' = \"{master}\" did not accept the application; "
                    "check that its master runs and can be reached. Spark's own lines before this one name the reason"
                ) from error
            if isinstance(error, OSError):
                raise failure("Spark can't start", error, "correct SPARK_HOME or JAVA_HOME", kind=UsageError) from error
            if "JAVA_GATEWAY_EXITED" in str(error):  # as for lack of memory: a later start may succeed
                raise EngineLostError(
                    f"Spark can't start: {error} If this lasts, look at the lines of Java before this one, and at the memory and "
                    "the Java options in [spark]"
                ) from error
            raise UsageError(f"Spark can't start: {error}") from error
        finally:
            if on_interrupt is not None and threading.current_thread() is threading.main_thread():
                # PySpark's own handler of Ctrl-C would raise KeyboardInterrupt in the middle of a batch
                signal.signal(signal.SIGINT, on_interrupt)

    def await_ready(self, work: BatchWork) -> bool:
        """Wait until the first queries that warm Spark have ended, as :meth:`driver.spark.warming.Warming.await_ready`."""
        return self._warming.await_ready()

    def run(self, work: BatchWork, job: Job) -> TierCounts:
        """Run the job as ``driver.batches.job.engine.Engine.run``. Raises JobError if the tasks of the attempt before it don't
        end in time; EngineLostError if Spark has stopped."""
        context = self.session.sparkContext
        if why := why_lost(context):
            raise EngineLostError(f"{why}; the batch is intact and runs again with the next driver")
        if self._given is None:
            # with several streams always: the levels are the JVM's, and an attempt of one may be the first of another
            _log_task_failures(context, work.attempt == 1 or len(_SESSION_USERS) > 1)
        self._stream, run = work.stream, (work.replay, work.batch_id)
        self._await_old_tasks(context, run)
        self._check_executors(context)
        counts = tier_counts(context)
        batch = self._batch(work, counts)
        with self._lock:
            self._attempts += 1
            group = f"forebay-{work.stream}-batch-{work.batch_id}-{self._number}-{self._attempts}"
            self._groups[run] = group
        # a property of this thread, inherited by threads that the job starts
        context.setJobGroup(group, job_description(work), interruptOnCancel=True)
        context.setLocalProperty("spark.scheduler.pool", work.stream)  # fair to the other streams if the mode is FAIR
        try:
            job(batch)
        except (Exception, SystemExit) as error:
            if self._session is not None:
                if why := why_lost(context):
                    raise EngineLostError(f"{why}; the batch is intact and runs again with the next driver") from error
                _cancel(context, group)
            cause = unreadable(error)
            if cause is None or cause is error:
                raise
            raise cause from error
        else:
            with self._lock:
                self._groups.pop(run, None)
        finally:
            if self._session is not None:  # the job may have stopped the engine
                for name in _JOB_PROPERTIES:
                    context.setLocalProperty(name, None)  # type: ignore[arg-type, unused-ignore]
        return counts.value

    def cancel(self) -> None:
        """Cancel running tasks as ``driver.batches.job.engine.Engine.cancel``."""
        session = self._session
        if session is None:
            return
        with self._lock:
            groups = list(self._groups.values())
        for group in groups:
            _cancel(session.sparkContext, group)

    def stop(self) -> None:
        """Stop Spark. If the session was given, or another engine of this process uses it, wait instead for the end of the tasks
        of failed attempts, because the code that continues to use the session does not know of them."""
        self._stopping.set()
        self._warming.stop()
        if self._watch is not None:
            self._watch.stop()
        self._ready = False
        if self._session is None:
            return
        if self._given is None and self._leave_session():
            self._session = None
            self._groups.clear()
        elif self._session.sparkContext._jsc is not None:
            for run, group in tuple(self._groups.items()):
                try:
                    self._await_end(self._session.sparkContext, group, threading.Event())
                except JobError as error:
                    log.error("%s", error)
                    _LEFT_BEHIND[self._stream, run] = group
                self._groups.pop(run, None)  # a run that has ended meanwhile has removed it
        self._session = self._given

    def _leave_session(self) -> bool:
        """Stop the session that this engine made, unless it is used otherwise. Return whether it is stopped."""
        assert self._session is not None
        return _leave(self, self._session)

    def _await_old_tasks(self, context: SparkContext, run: RunKey) -> None:
        """Wait until no task of the failed attempt runs: a late task could overwrite the retry's output."""
        group = self._groups.get(run) or _LEFT_BEHIND.get((self._stream, run))
        if group is None:
            return
        self._await_end(context, group, self._stopping)
        if self._stopping.is_set():  # tasks may still run: the next driver waits for them
            raise EngineLostError("the engine was stopped; the batch is intact and runs again with the next driver")
        _LEFT_BEHIND.pop((self._stream, run), None)
        with self._lock:
            self._groups.pop(run, None)

    def _await_end(self, context: SparkContext, group: str, stopping: threading.Event) -> None:
        limit = self._old_tasks_seconds
        waited = 0.0
        while (running := _running_tasks(context, group)) and not stopping.is_set():
            if waited >= limit:
                raise JobError(
                    f"{running} tasks of an earlier attempt still run {limit:g} s after they were cancelled "
                    "(driver.old_tasks_timeout); the next attempt begins only when they have ended"
                )
            _cancel(context, group)
            stopping.wait(_LOOK_SECONDS)
            waited += _LOOK_SECONDS


def _leave(user: object, session: SparkSession | None) -> bool:
    with _SESSION_LOCK:
        _SESSION_USERS.discard(user)
        if not _SESSION_USERS and session is not None:
            session.stop()
        return not _SESSION_USERS


@contextmanager
def session_kept() -> Iterator[None]:
    """While open, no engine that stops ends the session: a stream that is started again finds the tasks that it began."""
    user = object()
    with _SESSION_LOCK:
        _SESSION_USERS.add(user)
    try:
        yield
    finally:
        _leave(user, SparkSession._instantiatedSession)


class SparkEngine(SparkJobs):
    """Runs jobs in ``session``, which it never stops, or in a session that it makes as ``[spark]`` says.

    ``agent_urls``: returns host → URL of the agents; called at the start of each run.
    """

    def __init__(
        self,
        settings: Settings,
        agent_urls: Callable[[], Mapping[str, str]],
        session: SparkSession | None = None,
    ) -> None:
        super().__init__(
            session,
            options=settings.spark.options,
            concurrent_jobs=settings.driver.concurrent_jobs,
            ship_code=settings.spark.ship == "auto",
            old_tasks_seconds=settings.driver.old_tasks_timeout,
            modules=settings.spark.modules,
            archive=archive_of(settings.spark),
            executors_seconds=settings.spark.executors_timeout,
        )
        self._settings = settings
        self._agent_urls = agent_urls
        self._strangers = ""  # the last warning about different names of hosts
        self._small = SmallBatches(settings.spark.small_batch)

    def warm(self) -> None:
        if (
            self._given is not None or not self._has_pinned_threads
        ):  # without them a batch's tasks could join the job group
            return
        rounds = self._warming.run(self._queries)
        log.info("Spark is warm after %d rounds of queries over made-up records", rounds)
        if self._archive is not None and not self._stopping.is_set():
            self._make_archive(self._archive)

    def _queries(self) -> list[Query]:
        none = BatchWork(batch_id=0, number=0, time_ms=0, rerun=False, tasks=(), headers=self._settings.kafka.headers)
        return queries(self.session, read_plan(self._settings, none, {}), tier_counts(self.session.sparkContext))

    def _make_archive(self, archive: ClassArchive) -> None:
        try:
            made = archive.make(self._stopping)
        except (OSError, ForebayError) as error:
            log.warning(
                "spark.class_archive: cannot create an archive of classes in %s, so the next start of Spark is slower: %s",
                archive.folder,
                error,
            )
            return
        if made is not None:
            log.info("the next start of Spark uses the archive of classes %s", made)

    def _batch(self, work: BatchWork, counts: Any) -> Batch:
        urls = self._agent_urls()
        warning = strangers(hosts_of(self._checked), urls)
        if warning and warning != self._strangers:
            log.warning("%s", warning)
        self._strangers = warning
        plan_of = partial(read_plan, self._settings, agent_urls=urls)
        letters_of = partial(dead_letter_plan, self._settings)
        return Batch(
            work,
            SparkRows(self.session, work, plan_of=plan_of, counts=counts, letters_of=letters_of, small=self._small),
        )


#: loggers that log each failed task with Java's and Python's stack
_POOL_LOGGER = "org.apache.spark.scheduler.FairSchedulableBuilder"  # warns of every pool that no file configures
_TASK_LOGGERS = ("org.apache.spark.executor.Executor", "org.apache.spark.scheduler.TaskSetManager")


#: application and value of the last call, since each takes a dozen calls to the JVM
_logged: tuple[str | None, bool] | None = None


def _log_task_failures(context: SparkContext, yes: bool) -> None:
    """Set whether Spark logs failed tasks. It logs those of the first attempt at a batch. Later attempts mostly fail with the
    same error; if the error is another one, the driver logs it (``driver.batches.job_failures``)."""
    global _logged
    if _logged == (context.applicationId, yes):
        return
    _logged = (context.applicationId, yes)
    log4j: Any = context._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    try:
        log4j.core.config.Configurator.setLevel(_POOL_LOGGER, log4j.Level.ERROR)
        for name in _TASK_LOGGERS:
            log4j.core.config.Configurator.setLevel(name, log4j.Level.WARN if yes else log4j.Level.OFF)
    except (TypeError, Py4JError) as error:  # this Spark does not use Log4j
        log.debug("cannot set Spark's log levels: %s", error)


def _cancel(context: SparkContext, group: str) -> None:
    """Cancel the group's jobs, and those that a thread of the job starts later."""
    java: Any = context._jsc.sc()
    java.cancelJobGroupAndFutureJobs(group)


def _running_tasks(context: SparkContext, group: str) -> int:
    """Return the number of running tasks of all jobs of ``group``.

    Spark's status store names the stages, after its events have arrived. The scheduler names the number of running tasks, because
    the store updates its own number late.
    """
    java: Any = context._jsc.sc()
    java.listenerBus().waitUntilEmpty()
    tracker, scheduler = context.statusTracker(), java.taskScheduler()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    running = 0
    for stage in {stage for job in jobs if job is not None for stage in job.stageIds}:
        info = tracker.getStageInfo(stage)
        for attempt in range(info.currentAttemptId + 1 if info is not None else 0):
            tasks = scheduler.taskSetManagerForAttempt(stage, attempt)
            running += tasks.get().runningTasks() if tasks.isDefined() else 0
    return running
