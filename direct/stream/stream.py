"""A direct stream from its start to its end."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from direct.checkpoint.leadership import lead
from direct.intake.access import IntakeEndpoint
from direct.intake.coverage import COMMITTED, KeptByIntake
from direct.parameters import checked_options, warn_once
from direct.rdd.deserializers import Deserializer, deserializer
from direct.rdd.locations import LocationStrategy, PreferConsistent
from direct.rdd.tasks import TaskReading
from direct.stream.batch import DirectJobs
from direct.stream.commits import DirectCommits
from direct.stream.cursor import StreamCursor
from direct.stream.metrics import Running, StreamMetrics
from direct.stream.planner import BatchPlanner
from direct.stream.reads import ReadProgress, ReadRangesToKeep, ReadUnfinishedSpans
from direct.stream.scheduling import LagEvents, make_scheduler, partition_lags
from direct.stream.settings import StreamSettings
from direct.stream.strategies import ConsumerStrategy, check, find_partitions
from driver.background.cleaner import Cleaner
from driver.batches.job.dead_letters import letters_of
from driver.batches.job.engine import Engine, Job, NamedJob
from driver.batches.scheduler import Scheduler
from driver.decision_loop.loop import DriverLoop
from driver.http.batches import ReadUnfinishedBatches, with_completed
from driver.journal import history
from driver.journal.events import Event
from driver.journal.leadership.lease import Lease, await_tasks_of, read_lease, wait_until_stale
from driver.journal.log.opening import SEGMENT_BYTES
from driver.listeners.dispatch import Channel, EventSink, Listeners, ListenerSink
from driver.listeners.events import Happened, Listener, PartitionLag, StreamStarted, StreamStopped
from driver.listeners.offsets import submitted_offsets
from driver.listeners.web_hook import WebHook
from driver.tracker.requests import KeepWindow, NameCursor
from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.consume.range_reader import Reading
from forebay.kafka.options.access import TIMEOUT_SECONDS, KafkaAccess
from forebay.kafka.options.safe import SafeOptions
from forebay.messages import BatchEntry, TrackedListener
from forebay.model.errors import FencedError, UsageError
from forebay.model.values import TopicPartition
from forebay.process.clock import Clock, SystemClock
from forebay.process.ending import Ending
from pyspark_forebay.options.source import CURSOR_LENGTH_MAX
from wal.storage import Storage, open_storage
from wal.storage.probe import probe

#: pause between two moves of finished batches to the history
HISTORY_SECONDS = 10.0


def create_direct_stream(
    spark: Any,
    kafka_params: Mapping[str, object],
    consumer_strategy: ConsumerStrategy,
    settings: StreamSettings,
    location_strategy: LocationStrategy = PreferConsistent(),  # noqa: B008 - a value
    *,
    key_deserializer: Deserializer = None,
    value_deserializer: Deserializer = None,
    reading: Reading = Reading(),  # noqa: B008 - a value
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> DirectStream:
    """Return a stream of the partitions that ``consumer_strategy`` selects.

    Set its job with ``foreach_batch``, then call ``start``.

    ``spark``: a SparkSession. A partition begins where the first of these says: the checkpoint, the strategy's offsets,
    the committed offsets of ``group.id``, ``auto.offset.reset``; the log names each. A partition that is created later
    begins at its beginning. Parameters, deserializers and location strategies are those of ``create_rdd``. Raises
    UsageError and SettingsError.
    """
    check(consumer_strategy)
    for what, given in (("key_deserializer", key_deserializer), ("value_deserializer", value_deserializer)):
        deserializer(what, given)
    safe = checked_options(kafka_params)
    how = TaskReading(
        KafkaAccess(safe.options, safe.task_group, timeout_seconds),
        reading,
        key=key_deserializer,
        value=value_deserializer,
        intake=IntakeEndpoint.of(settings.tracker),
    )
    commits = DirectCommits(safe.group)
    letters = partial(letters_of, letters=settings.dead_letters, storage=settings.storage_options, options=safe.options)
    engine = DirectJobs(
        spark,
        how=how,
        strategy=location_strategy,
        commits=commits,
        letters_of=letters,
        concurrent_jobs=settings.concurrent_jobs,
    )
    return DirectStream(
        safe=safe,
        strategy=consumer_strategy,
        settings=settings,
        engine=engine,
        commits=commits,
        timeout_seconds=timeout_seconds,
    )


# one class, because it closes in reverse order what its start opens, also if the start fails half-way
class DirectStream:
    """A direct stream, returned by :func:`direct.create_direct_stream`.

    Call ``foreach_batch``, then ``start`` once. ``stop`` may be called from any thread and in the job.
    """

    def __init__(
        self,
        *,
        safe: SafeOptions,
        strategy: ConsumerStrategy,
        settings: StreamSettings,
        engine: Engine,
        commits: DirectCommits,
        timeout_seconds: float = TIMEOUT_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        self._safe = safe
        self._strategy = strategy
        self._settings = settings
        self._engine = engine
        self._commits = commits
        self._timeout = timeout_seconds
        self._endpoint = IntakeEndpoint.of(settings.tracker)
        self._clock = clock or SystemClock()
        self._jobs: tuple[NamedJob, ...] = ()
        self._closing = contextlib.ExitStack()
        self._stopping = threading.Event()
        self._ending = Ending()
        self._started = False
        self._thread: threading.Thread | None = None
        self._loop: DriverLoop | None = None
        self._epoch = 0
        self._scheduler: Scheduler | None = None
        self._admin: KafkaAdmin | None = None
        self._lease_before: Lease | None = None
        self._listeners = Listeners([], self._clock.wall_ms)
        if settings.web_hook is not None:
            self._listen(WebHook(settings.web_hook, stream=settings.name, timeout_seconds=settings.web_hook_timeout))
        self._running: Running | None = None
        self._metrics = StreamMetrics(
            settings.name,
            interval_seconds=settings.interval_seconds,
            clock=self._clock,
            running=lambda: self._running,
            listeners=lambda: self._listeners.status,
        )

    def foreach_batch(self, job: Job, name: str = "job") -> DirectStream:
        """Set the job, which is called with each :class:`direct.DirectBatch` in order; or add one of several outputs.

        ``name``: the name by which the checkpoint stores whether the output is done. Returns the stream. Raises
        UsageError for a name that is already used, and after the start.
        """
        if self._loop is not None or name in (known.name for known in self._jobs):
            raise UsageError(f"output {name!r}: name each output of a batch once, before the stream starts")
        self._jobs = (*self._jobs, NamedJob(name, job))
        return self

    def add_listener(self, listener: Listener) -> DirectStream:
        """Pass the stream's events to ``listener`` from now on; see ``driver.listeners``. Returns the stream.

        There are those of the stream, its batches and outputs, rates, gaps and lag, and none of receivers.
        """
        self._listen(ListenerSink(listener))
        return self

    @property
    def listeners(self) -> tuple[TrackedListener, ...]:
        """The listeners and the web hook: how many events each has got, how many wait, and how many were dropped."""
        return self._listeners.status

    def _listen(self, sink: EventSink) -> None:
        settings = self._settings
        self._listeners.add(Channel(sink, settings.listener_queue, settings.listener_queue_bytes))

    def start(self) -> None:
        """Lead the checkpoint, which fences its previous leader, determine where partitions begin, and start making batches.

        Raises UsageError, SettingsError, LeaseHeld, StoreError, CorruptionError, UnreachableError.
        """
        if not self._jobs or self._loop is not None:
            raise UsageError("a direct stream needs a job (call foreach_batch first) and can be started only once")
        for warning in self._safe.changes:
            warn_once(warning)
        try:
            self._open()
        except BaseException:
            self._close()
            raise
        self._started = True
        self._thread = threading.Thread(target=self._run, name="direct-batches", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let the running job finish, and begin no other.

        Return immediately when called in the job, by a listener, in a callback of a commit or before the start has
        returned, else when the stream has ended. May be repeated.
        """
        self._begin_stop()
        own = threading.current_thread() is self._thread or (self._scheduler is not None and self._scheduler.in_job())
        own = own or self._listeners.in_listener()
        if self._started and not own:
            self._ending.wait()

    def _begin_stop(self) -> None:
        self._stopping.set()
        if self._scheduler is not None:
            self._scheduler.stop()

    def await_termination(self, timeout_seconds: float | None = None) -> bool:
        """Wait until the stream has ended, and return whether it has. Raises an error of a background thread, once."""
        return self._ending.wait_and_raise(timeout_seconds)

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """The offset of each partition at which the next batch begins."""
        return self._running_loop.ask(ReadProgress()).positions

    @property
    def progress(self) -> tuple[PartitionLag, ...]:
        """How far each partition is: the offset at which the next batch begins, the offset before which all batches are
        completed, and Kafka's end offset when the last batch was planned."""
        loop = self._running_loop
        return partition_lags(loop, self._running.ends() if self._running is not None else {})

    @property
    def metrics(self) -> StreamMetrics:
        """The metrics of the stream, for a registry of ``prometheus_client``, also before the start."""
        return self._metrics

    @property
    def batches(self) -> tuple[BatchEntry, ...]:
        """The unfinished batches, and the newest ones that this process has completed, with their statistics, the newest
        first."""
        loop = self._running_loop
        assert self._scheduler is not None
        unfinished = loop.ask(ReadUnfinishedBatches(self._scheduler.running))
        return with_completed(unfinished, self._scheduler.batches.entries())

    @property
    def _running_loop(self) -> DriverLoop:
        if self._loop is None:
            raise UsageError("the direct stream is not started: call start first")
        return self._loop

    # ---- start and end --------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        settings = self._settings
        storage = open_storage(settings.checkpoint, settings.storage_options)
        probe(storage, settings.name, lambda: secrets.randbits(64))
        self._lease_before = read_lease(storage, settings.name)
        if wait_until_stale(storage, settings.name, self._stopping) is False:
            raise UsageError(
                f"direct stream {settings.name} was stopped while it waited until another process's lease ends"
            )
        self._admin = self._closing.enter_context(
            KafkaAdmin(self._safe.options, timeout_seconds=self._timeout, client_id="forebay-direct")
        )
        find_partitions(self._admin, self._strategy)  # Kafka must answer before the previous leader is fenced
        queued = settings.max_queued_batches + settings.concurrent_jobs - 1
        led = self._closing.enter_context(lead(storage, settings.name, queued, self._clock, self._fail, self._durable))
        self._listeners.start()
        self._closing.callback(self._listeners.stop)
        loop, state = led.loop, led.state
        self._listeners.offsets_of = partial(submitted_offsets, state)
        kept = self._open_intake(self._endpoint) if self._endpoint is not None else None
        planner = BatchPlanner(
            safe=self._safe,
            strategy=self._strategy,
            settings=settings,
            timeout_seconds=self._timeout,
            commits=self._commits,
            clock=self._clock,
            admin=self._admin,
            loop=loop,
            kept=kept,
        )
        self._engine.start()
        self._closing.callback(self._engine.stop)
        led.lease.name_application(*self._engine.application)
        self._scheduler = make_scheduler(
            settings,
            loop,
            self._engine,
            self._jobs,
            clock=self._clock,
            epoch=led.epoch,
            learned=state.learned,
            planner=planner,
            lag=LagEvents(lambda: partition_lags(loop, planner.ends), self._listeners, self._clock),
            tell=self._tell,
            is_listening=lambda: bool(self._listeners),
        )
        self._loop, self._epoch = loop, led.epoch
        self._running = Running(loop, self._scheduler.running, lambda: planner.ends)
        loop.ask(KeepWindow(settings.window_batches))  # before any batch begins or moves to the history
        cleaner = Cleaner(
            loop,
            None,
            history_writer=self._history(storage, led.epoch),
            stream=settings.name,
            clock=self._clock,
            pause_seconds=HISTORY_SECONDS,
            failed=self._fail,
        )
        cleaner.start()
        self._closing.callback(cleaner.stop)
        cursor = self._open_cursor(loop, self._endpoint) if self._endpoint is not None else None
        planner.begin()
        if cursor is not None:
            cursor.start()

    def _durable(self, events: Sequence[Event]) -> None:
        """Note events that have become durable. Called in the decision loop."""
        self._metrics.counting.note(events)
        self._listeners.note(events)

    def _tell(self, happened: Sequence[Happened]) -> None:
        self._metrics.counting.tell(happened)
        self._listeners.tell_all(happened)

    def _tell_started(self) -> None:
        started = StreamStarted(
            time_ms=self._clock.wall_ms(),
            stream=self._settings.name,
            epoch=self._epoch,
            batch_interval_ms=round(self._settings.interval_seconds * 1000),
        )
        self._tell([started])

    def _tell_stopped(self) -> None:
        now_ms, name = self._clock.wall_ms(), self._settings.name
        self._tell([StreamStopped.after(self._ending.failure, time_ms=now_ms, stream=name, epoch=self._epoch)])

    @property
    def _isolation(self) -> str:
        return self._safe.options.get("isolation.level", COMMITTED)

    def _open_intake(self, endpoint: IntakeEndpoint) -> KeptByIntake:
        kept = KeptByIntake(endpoint, self._isolation, self._timeout)
        self._closing.callback(kept.close)
        return kept

    def _open_cursor(self, loop: DriverLoop, endpoint: IntakeEndpoint) -> StreamCursor:
        """Open the cursor in the intake. It keeps everything until partitions begin, so that nothing is deleted before."""
        name = f"direct-{self._settings.name[:CURSOR_LENGTH_MAX]}-{secrets.token_hex(4)}"
        name = loop.ask(NameCursor(name, self._clock.wall_ms()))
        cursor = StreamCursor(
            endpoint,
            isolation=self._isolation,
            name=name,
            user=f"direct stream {self._settings.name} on {socket.gethostname()} pid {os.getpid()} {secrets.token_hex(4)}",
            key=secrets.token_hex(16),
            wanted=lambda: loop.ask(ReadRangesToKeep()),
            failed=self._fail,
        )
        self._closing.callback(cursor.stop)
        return cursor

    def _history(self, storage: Storage, epoch: int) -> history.HistoryWriter:
        return history.HistoryWriter(
            storage,
            self._settings.name,
            epoch,
            segment_bytes=SEGMENT_BYTES,
            now=lambda: self._clock.wall_ms() / 1000,
            new_uid=lambda: secrets.randbits(64),
        )

    def _run(self) -> None:
        assert self._scheduler is not None
        try:
            try:
                await_tasks_of(self._lease_before, self._stopping)
                self._scheduler.start()
                self._tell_started()
                if self._stopping.is_set():  # stop was called before there was a scheduler
                    self._scheduler.stop()
                self._scheduler.run()
            finally:
                self._scheduler.join()
                if self._admin is not None:
                    self._commits.send_last(self._admin, lambda: self._running_loop.ask(ReadUnfinishedSpans()))
        except BaseException as error:
            self._fail(error)
        finally:
            self._tell_stopped()
            self._close()

    def _close(self) -> None:
        try:
            self._closing.close()
        except BaseException as error:
            self._ending.fail(error)
        finally:
            self._ending.end()

    def _fail(self, error: BaseException) -> None:
        self._ending.fail(error)
        self._begin_stop()
        if isinstance(error, FencedError):
            # the job's Spark tasks would write beside the newer stream (INV-4)
            self._engine.cancel()
