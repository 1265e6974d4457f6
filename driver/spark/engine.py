"""Runs the job with Spark: one Spark partition for each task of the batch's journalled packing (INV-3)."""

from __future__ import annotations

import itertools
import logging
import os
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import pyarrow as pa
from py4j.clientserver import ClientServer
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import AccumulatorParam, SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from driver.batches.batch import Batch, BatchWork, Job
from driver.batches.decoding import DeadLetterPlan, Decoder, decode_in_task
from driver.batches.local_engine import LocalRows, dead_letter_plan, read_plan
from driver.batches.tasks import KafkaRecord, TaskBlocks, read_in_task, records, tasks_in, unreadable
from driver.decisions.batch_order import RunKey
from driver.spark.address import addressed
from driver.spark.blocks import TaskPartitions, executors, hosts_of
from driver.spark.executors import check, far, is_local, ship, strangers
from driver.spark.java import check_java
from forebay.model.errors import EngineLostError, ForebayError, JobError, UsageError
from forebay.settings.schema import Settings
from pyspark_forebay.schema import spark_schema
from wal.reading import ReadPlan, TierCounts

log = logging.getLogger(__name__)

#: defaults that ``[spark]`` in the configuration overrides
DEFAULTS = {
    "spark.app.name": "forebay",
    "spark.ui.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}

#: a module of the user's own does not hide one of Forebay's from Spark's workers
_OWN_DAEMON = {"spark.python.daemon.module": "forebay_start.spark_daemon"}

_LOOK_SECONDS = 0.05


#: in the names of job groups: a session ends with its process, may serve engines of several streams, one after another or at
#: once, and remembers the groups that were cancelled in it
_ENGINES = itertools.count(1)


class SparkJobs(ABC):
    """Runs jobs in ``session``, which it then never stops, or in one that it makes by ``options``. What a job is given is for a
    subclass to say. ``ship_code``: whether Forebay's own code goes to executors elsewhere, and with it the user's ``modules``.
    ``old_tasks_seconds``: how long a retry waits for the tasks of the attempt before it."""

    def __init__(
        self,
        session: SparkSession | None = None,
        options: Mapping[str, str] | None = None,
        concurrent_jobs: int = 1,
        ship_code: bool = True,
        old_tasks_seconds: float = 120.0,
        modules: Sequence[str] = (),
    ) -> None:
        self._old_tasks_seconds = old_tasks_seconds
        self._modules = tuple(modules)
        self._ship_code = ship_code
        self._options = options or {}
        self._concurrent_jobs = concurrent_jobs
        self._given = session
        self._session = session
        self._lock = threading.Lock()
        self._attempts = 0
        self._number = next(_ENGINES)
        self._groups: dict[RunKey, str] = {}  # of attempts that run, or failed
        self._stopping = threading.Event()
        self._checked: frozenset[str] = frozenset()  # executors that were looked at, as host:port

    @abstractmethod
    def _batch(self, work: BatchWork, counts: Any) -> Batch:
        """What a job is given: a batch whose tasks add their records and bytes by tier to ``counts``, an accumulator."""

    @property
    def parallelism(self) -> int:
        return max(1, int(self.session.sparkContext.defaultParallelism))

    @property
    def application(self) -> tuple[str, str]:
        context = self.session.sparkContext
        return (context.applicationId or "", context.master or "")

    @property
    def session(self) -> SparkSession:
        """Raises UsageError before ``start``."""
        if self._session is None:
            raise UsageError("the Spark engine is not started")
        return self._session

    def start(self) -> None:
        """Starts Spark if no session was given. Raises UsageError if it can't start, for want of Java above all."""
        self._stopping.clear()
        if self._session is None:
            self._session = self._make_session()
        pinned = isinstance(self._session.sparkContext._gateway, ClientServer)
        if self._concurrent_jobs > 1 and not pinned:
            raise UsageError(
                "driver.concurrent_jobs > 1 needs PySpark's pinned threads, by which it tells the tasks of one batch from "
                "another's: leave PYSPARK_PIN_THREAD out of the environment, or set it to true"
            )
        context = self._session.sparkContext
        self._checked = frozenset()
        if self._far and self._ship_code:
            ship(context, self._modules)
        self._check_executors(context)

    @property
    def _far(self) -> bool:
        return far(self.session.sparkContext)

    def _check_executors(self, context: SparkContext) -> None:
        """Those that were not there before; one that was started again may run another Python. Raises UsageError if what they
        have does not fit."""
        if not self._far:
            return
        there = executors(context)
        if there - self._checked:
            check(context, sorted(hosts_of(there - self._checked)), self._modules)
        self._checked = there

    def _make_session(self) -> SparkSession:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
        builder = SparkSession.builder
        # executors elsewhere that Forebay is not installed on know no module of ours when a worker begins
        own_daemon = _OWN_DAEMON if is_local(self._options.get("spark.master", "")) or not self._ship_code else {}
        for key, value in {**DEFAULTS, **own_daemon, **self._options}.items():
            builder = builder.config(key, value)
        on_interrupt = signal.getsignal(signal.SIGINT)
        try:
            with addressed(self._options.get("spark.master", "")):
                return builder.getOrCreate()
        except ForebayError:
            raise
        except Exception as error:
            check_java()  # of a Java that is missing or too old, Spark says no more than that its gateway ended
            raise UsageError(f"Spark can't start: {error}") from error
        finally:
            if on_interrupt is not None and threading.current_thread() is threading.main_thread():
                # PySpark takes Ctrl-C for itself, and raises KeyboardInterrupt amid a batch
                signal.signal(signal.SIGINT, on_interrupt)

    def run(self, work: BatchWork, job: Job) -> TierCounts:
        """As ``driver.batches.batch.Engine.run``. Raises JobError if the old attempt's tasks don't end in time."""
        context = self.session.sparkContext
        if why := why_lost(context):
            raise EngineLostError(f"{why}; the batch is intact and runs again with the next driver")
        if self._given is None:
            log_task_failures(context, work.attempt == 1)
        run = (work.replay, work.batch_id)
        self._await_old_tasks(context, run)
        self._check_executors(context)
        counts = context.accumulator(TierCounts(), _Counts())
        batch = self._batch(work, counts)
        with self._lock:
            self._attempts += 1
            group = f"forebay-batch-{work.batch_id}-{self._number}-{self._attempts}"
            self._groups[run] = group
        # a property of the thread, and of the threads that the job makes of it
        context.setJobGroup(group, f"batch {work.number} (id {work.batch_id})", interruptOnCancel=True)
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
                for name in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
                    context.setLocalProperty(name, None)  # type: ignore[arg-type, unused-ignore]
        return counts.value

    def cancel(self) -> None:
        """As ``driver.batches.batch.Engine.cancel``."""
        session = self._session
        if session is None:
            return
        with self._lock:
            groups = list(self._groups.values())
        for group in groups:
            _cancel(session.sparkContext, group)

    def stop(self) -> None:
        """Stops Spark, unless the session was given: then it returns when no task of a failed attempt is left in it, since
        whoever goes on in this session knows nothing of them."""
        self._stopping.set()
        if self._session is None:
            return
        if self._given is None:
            self._session.stop()
            self._session = None
        elif self._session.sparkContext._jsc is not None:
            for group in self._groups.values():
                try:
                    self._await_end(self._session.sparkContext, group, threading.Event())
                except JobError as error:
                    log.error("%s", error)
        self._groups.clear()

    def _await_old_tasks(self, context: SparkContext, run: RunKey) -> None:
        """Returns when no task of the failed attempt runs any more: a late one could write over the retry's output."""
        group = self._groups.get(run)
        if group is None:
            return
        self._await_end(context, group, self._stopping)
        with self._lock:
            self._groups.pop(run, None)

    def _await_end(self, context: SparkContext, group: str, stopping: threading.Event) -> None:
        limit = self._old_tasks_seconds
        waited = 0.0
        while (running := _running_tasks(context, group)) and not stopping.is_set():
            if waited >= limit:
                raise JobError(
                    f"{running} tasks of an earlier attempt still run {limit:g} s after they were cancelled "
                    "(driver.old_tasks_timeout)"
                )
            _cancel(context, group)
            stopping.wait(_LOOK_SECONDS)
            waited += _LOOK_SECONDS


class SparkEngine(SparkJobs):
    """Makes a Spark session as ``[spark]`` in ``settings`` says, or takes ``session``, which it then never stops.

    ``agent_urls`` (host → url) is asked at the beginning of each run, since agents come and go.
    """

    def __init__(
        self,
        settings: Settings,
        agent_urls: Callable[[], Mapping[str, str]],
        session: SparkSession | None = None,
    ) -> None:
        super().__init__(
            session,
            settings.spark.options,
            settings.driver.concurrent_jobs,
            settings.spark.ship == "auto",
            settings.driver.old_tasks_timeout,
            settings.spark.modules,
        )
        self._settings = settings
        self._agent_urls = agent_urls
        self._strangers = ""  # what was last said of names that differ

    def _batch(self, work: BatchWork, counts: Any) -> Batch:
        urls = self._agent_urls()
        words = strangers(hosts_of(self._checked), urls)
        if words and words != self._strangers:
            log.warning("%s", words)
        self._strangers = words
        plan_of = partial(read_plan, self._settings, agent_urls=urls)
        return Batch(work, _SparkRows(self.session, work, plan_of, counts, partial(dead_letter_plan, self._settings)))


def why_lost(context: SparkContext) -> str:
    """Why no job can run in ``context`` any more; "" if it is alive."""
    try:
        stopped = context._jsc is None or bool(context._jsc.sc().isStopped())
    except (Py4JNetworkError, OSError) as error:
        return f"Spark's JVM has ended: {error}"
    return "the Spark context was stopped" if stopped else ""


#: they log each failed task with Java's and Python's stack
_TASK_LOGGERS = ("org.apache.spark.executor.Executor", "org.apache.spark.scheduler.TaskSetManager")


def log_task_failures(context: SparkContext, yes: bool) -> None:
    """Whether Spark's own log has failed tasks. It has those of the first attempt at a batch; later attempts mostly fail with
    the same error, and the driver logs it if it is another one (``driver.batches.job_failures``)."""
    log4j: Any = context._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    try:
        for name in _TASK_LOGGERS:
            log4j.core.config.Configurator.setLevel(name, log4j.Level.WARN if yes else log4j.Level.OFF)
    except (TypeError, Py4JError) as error:  # a Spark that logs by something else: its log stays as it is
        log.debug("Spark's own log levels can't be set: %s", error)


def _cancel(context: SparkContext, group: str) -> None:
    """Also what a thread that the job left behind begins later."""
    java: Any = context._jsc.sc()
    java.cancelJobGroupAndFutureJobs(group)


def _running_tasks(context: SparkContext, group: str) -> int:
    """Tasks of all jobs of ``group`` that run now.

    Which stages there are is asked of the status store, once its events have arrived; how many of their tasks run is
    asked of the scheduler, because the store's own count of them is written late.
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


def arrow_schema(schema: Any) -> pa.Schema:
    """As ``Rows.arrow_schema``, where there is Spark."""
    if isinstance(schema, pa.Schema):
        return schema
    if isinstance(schema, str):
        try:
            schema = StructType.fromDDL(schema)
        except Exception as error:
            raise UsageError(f"the schema of decoded rows {schema!r} can't be read: {error}") from None
    if not isinstance(schema, StructType):
        raise UsageError(f"decoded rows need a pyarrow or Spark schema, not {type(schema).__name__}")
    return to_arrow_schema(schema)


class _Counts(AccumulatorParam[TierCounts]):
    def zero(self, value: TierCounts) -> TierCounts:
        return TierCounts()

    def addInPlace(self, value1: TierCounts, value2: TierCounts) -> TierCounts:  # noqa: N802 - Spark's name
        return value1 + value2


class _SparkRows:
    """The rows of one batch, read in Spark's tasks."""

    def __init__(
        self,
        session: SparkSession,
        work: BatchWork,
        plan_of: Callable[[BatchWork], ReadPlan],
        counts: Any,
        letters_of: Callable[[BatchWork], DeadLetterPlan],
    ) -> None:
        self._session = session
        self._work = work
        self._plan_of = plan_of
        self._plan = plan_of(work)
        self._counts = counts
        self._letters_of = letters_of

    def over(self, work: BatchWork) -> _SparkRows:
        return _SparkRows(self._session, work, self._plan_of, self._counts, self._letters_of)

    def read(self) -> Iterator[pa.RecordBatch]:
        return self._here().read()

    def read_decoded(self, decoder: Decoder) -> Iterator[pa.RecordBatch]:
        return self._here().read_decoded(decoder)

    def _here(self) -> LocalRows:
        return LocalRows(self._work, self._plan_of, self._counts.add, self._letters_of)

    def arrow_schema(self, schema: Any) -> pa.Schema:
        return arrow_schema(schema)

    def decode(self, decoder: Decoder) -> Any:
        place, plan, counts = self._letters_of(self._work), self._plan, self._counts

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for task in tasks_in(batches):
                yield from decode_in_task(task.references, task.number, plan, counts.add, decoder, place)

        return self._partitions.frame().mapInArrow(read, from_arrow_schema(decoder.schema))

    def arrow(self) -> Any:
        plan, counts = self._plan, self._counts

        def read(tasks: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
            for task in tasks:
                yield from read_in_task(TaskBlocks.decode(task).references, plan, counts.add)

        return self._partitions.rdd().mapPartitions(read)

    def rdd(self) -> Any:
        def convert(batches: Iterable[pa.RecordBatch]) -> Iterator[KafkaRecord]:
            return records(batches)

        return self.arrow().mapPartitions(convert)

    def df(self) -> Any:
        plan, counts = self._plan, self._counts

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for task in tasks_in(batches):
                yield from read_in_task(task.references, plan, counts.add)

        return self._partitions.frame().mapInArrow(read, spark_schema(self._work.headers))

    @cached_property
    def _partitions(self) -> TaskPartitions:
        hosts = hosts_of(executors(self._session.sparkContext)).intersection(self._plan.agent_urls)
        return TaskPartitions(self._session, self._work.tasks, hosts)
