"""A direct stream: each batch interval the offsets that Kafka has gained become a batch, without receivers and without a WAL.

It runs on the intake's own journal, deciding thread and batch scheduler. The journal is the checkpoint: which offsets are in
which batch is durable before the job sees it, so a rerun has the same ones (INV-3), and no two batches have one twice or leave
one out (INV-2).
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from direct.batch import DirectJobs
from direct.commits import Commits
from direct.deserializers import Deserializer, deserializer
from direct.locations import LocationStrategy, PreferConsistent
from direct.rdd import checked_options
from direct.strategies import ConsumerStrategy, check, find_partitions
from direct.tasks import TaskReading
from driver import journal
from driver.backpressure import Backpressure
from driver.batch import Engine, Job, NamedJob
from driver.lease import LeaseKeeper, wait_until_stale
from driver.loop import DriverLoop
from driver.rate import Gains
from driver.scheduler import Scheduler
from driver.state import State
from driver.tracker import AllocateSpans, Ask, BeginSpans, EndSpans, Tracker
from forebay.clock import Clock, SystemClock
from forebay.errors import FencedError, RangeNotHeldError, UnknownTopicError, UnreachableError, UsageError
from forebay.kafka.access import KafkaAccess
from forebay.kafka.admin import KafkaAdmin
from forebay.kafka.planning import PartitionRates, limit_by_rates, spans, split_ranges
from forebay.kafka.range_reader import Reading
from forebay.kafka.safe_options import SafeOptions
from forebay.kafka.starting import Known, begin
from forebay.values import TopicPartition, check_name
from wal.probe import probe
from wal.storage import open_storage

log = logging.getLogger(__name__)

LEASE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """``name`` and ``checkpoint`` (a folder's url, as for a journal) say whose offsets these are. ``interval_seconds``: between
    batches. ``rates``: of each partition; ``backpressure``: whether completed batches bound the next ones, from
    ``initial_rate`` on (records/s, 0: none). ``on_vanished``: what a partition that is gone from Kafka does: end the stream, or
    be journalled while it goes on. ``min_partitions``: of each batch. ``max_failures`` of a batch's job, with
    ``retry_seconds`` between them, end the stream."""

    name: str
    checkpoint: str
    interval_seconds: float = 1.0
    rates: PartitionRates = PartitionRates()  # noqa: RUF009 - a value
    backpressure: bool = False
    initial_rate: float = 0.0
    on_vanished: Literal["stop", "record"] = "stop"
    min_partitions: int | None = None
    max_queued_batches: int = 2
    max_failures: int = 4
    retry_seconds: float = 1.0
    storage: Mapping[str, Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        try:
            check_name("stream", self.name)
        except ValueError as error:
            raise UsageError(str(error)) from None
        if self.interval_seconds <= 0 or self.max_queued_batches < 1 or self.max_failures < 1:
            raise UsageError("a direct stream needs an interval above 0, and numbers of batches and failures from 1")
        if self.on_vanished not in ("stop", "record"):
            raise UsageError(f"on_vanished {self.on_vanished!r}: allowed are stop and record")


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
    timeout_seconds: float = 20.0,
) -> DirectStream:
    """A stream of the partitions that ``consumer_strategy`` names; ``foreach_batch`` names its job, ``start`` begins.

    ``spark``: a SparkSession. Where a partition begins, the stronger first: the checkpoint; the strategy's offsets; what
    ``group.id`` committed; ``auto.offset.reset``. The log has a line for each. A partition that comes later begins at its
    beginning. Parameters, deserialisers and strategies as for ``create_rdd``. Raises UsageError and SettingsError.
    """
    check(consumer_strategy)
    for what, given in (("key_deserializer", key_deserializer), ("value_deserializer", value_deserializer)):
        deserializer(what, given)
    safe = checked_options(kafka_params)
    how = TaskReading(
        KafkaAccess(safe.options, safe.task_group, timeout_seconds), reading, key_deserializer, value_deserializer
    )
    commits = Commits(safe.group)
    engine = DirectJobs(spark, how, location_strategy, commits)
    return DirectStream(safe, consumer_strategy, settings, engine, commits, timeout_seconds)


class DirectStream:
    """Made by :func:`create_direct_stream`. ``start`` once; ``stop`` from anywhere, also in the job; ``await_termination``."""

    def __init__(
        self,
        safe: SafeOptions,
        strategy: ConsumerStrategy,
        settings: StreamSettings,
        engine: Engine,
        commits: Commits,
        timeout_seconds: float = 20.0,
        clock: Clock | None = None,
    ) -> None:
        self._safe = safe
        self._strategy = strategy
        self._settings = settings
        self._engine = engine
        self._commits = commits
        self._timeout = timeout_seconds
        self._clock = clock or SystemClock()
        self._jobs: tuple[NamedJob, ...] = ()
        self._closing = contextlib.ExitStack()
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._unreachable = ""
        self._loop: DriverLoop | None = None
        self._scheduler: Scheduler | None = None
        self._admin: KafkaAdmin | None = None

    def foreach_batch(self, job: Job, name: str = "job") -> DirectStream:
        """Names the job, which is given each :class:`direct.batch.DirectBatch` in order; or one of several, by names that the
        checkpoint remembers. Raises UsageError for a name given twice, and after the start."""
        if self._loop is not None or name in (known.name for known in self._jobs):
            raise UsageError(f"output {name!r}: name each output of a batch once, before the stream starts")
        self._jobs = (*self._jobs, NamedJob(name, job))
        return self

    def start(self) -> None:
        """Leads the checkpoint, which fences whoever led it, finds where partitions begin, and begins. Raises UsageError,
        SettingsError, LeaseHeld, StoreError, CorruptionError, UnreachableError."""
        if not self._jobs or self._loop is not None:
            raise UsageError("a direct stream needs a job (foreach_batch), and starts once")
        for sentence in self._safe.told:
            log.info("%s", sentence)
        try:
            self._open()
        except BaseException:
            self._close()
            raise
        threading.Thread(target=self._run, name="direct-batches", daemon=True).start()

    def stop(self) -> None:
        """Lets the running job finish, and begins no other."""
        self._stopping.set()
        if self._scheduler is not None:
            self._scheduler.stop()

    def await_termination(self, timeout_seconds: float | None = None) -> bool:
        """Waits until the stream has ended; False if it has not in time. Raises what failed in the background, once."""
        if not self._ended.wait(timeout_seconds):
            return False
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return True

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """Where the next batch begins."""
        found: dict[TopicPartition, int] = self._asked.ask(Ask(_positions))
        return found

    @property
    def _asked(self) -> DriverLoop:
        if self._loop is None:
            raise UsageError("the direct stream is not started")
        return self._loop

    # ---- life --------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        settings = self._settings
        storage = open_storage(settings.checkpoint, {key: dict(own) for key, own in (settings.storage or {}).items()})
        probe(storage, settings.name, lambda: secrets.randbits(64))
        wait_until_stale(storage, settings.name, self._stopping)
        self._admin = self._closing.enter_context(
            KafkaAdmin(self._safe.options, timeout_seconds=self._timeout, client_id="forebay-direct")
        )
        find_partitions(self._admin, self._strategy)  # brokers are asked before anybody is fenced
        owner = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        opened, state = journal.lead(
            storage,
            settings.name,
            owner,
            self._clock.wall_ms(),
            lambda: self._clock.wall_ms() / 1000,
            lambda: secrets.randbits(64),
        )
        self._closing.callback(opened.close)
        if state.partitions or state.blocks:
            raise UsageError(
                f"{settings.checkpoint} holds the journal of an intake named {settings.name!r}: give the direct stream a name "
                "or a checkpoint of its own"
            )
        lease = LeaseKeeper(storage, settings.name, opened.epoch, owner, "", LEASE_SECONDS, self._fail)
        lease.start()
        self._closing.callback(lease.stop)
        self._engine.start()
        self._closing.callback(self._engine.stop)
        tracker = Tracker(state, opened.epoch, "stop", settings.max_queued_batches, 0)
        loop = DriverLoop(tracker, opened, self._clock, lambda _: None, self._fail)
        begun_ms = self._clock.wall_ms()
        learned = Backpressure(loop, Gains(), settings.interval_seconds, state.learned, begun_ms).completed
        self._scheduler = Scheduler(
            loop,
            self._engine,
            self._jobs,
            self._clock,
            settings.interval_seconds,
            lambda: 1,
            settings.max_failures,
            settings.retry_seconds,
            headers=False,
            epoch=opened.epoch,
            completed=learned if settings.backpressure else None,
            allocation=self._plan,
        )
        self._loop = loop
        loop.start()
        self._closing.callback(loop.stop)
        self._follow(self._admin, self._clock.wall_ms())
        self._scheduler.start()
        if self._stopping.is_set():  # told before there was a scheduler to tell
            self._scheduler.stop()

    def _run(self) -> None:
        assert self._scheduler is not None
        try:
            try:
                self._scheduler.run()
            finally:
                self._scheduler.join()
                if self._admin is not None:
                    self._commits.send(self._admin)
        except BaseException as error:
            self._fail(error)
        finally:
            self._close()

    def _close(self) -> None:
        try:
            self._closing.close()
        except BaseException as error:
            self._failure = self._failure or error
        finally:
            self._ended.set()

    def _fail(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self.stop()
        if isinstance(error, FencedError):
            # what Spark still does for a job here would write beside the newer stream (INV-4)
            self._engine.cancel()

    # ---- batches -----------------------------------------------------------------------------------------------------

    def _plan(self, time_ms: int) -> AllocateSpans | None:
        """The next batch, from what Kafka has gained; None if there is nothing, or Kafka is away. Called by the timer alone."""
        assert self._admin is not None
        self._commits.send(self._admin)
        try:
            found = self._gained(self._admin, time_ms)
        except UnreachableError as error:
            if str(error) != self._unreachable:  # it comes again with each interval
                log.warning("no batch is made while Kafka is away: %s", error)
            self._unreachable = str(error)
            return None
        self._unreachable = ""
        return found

    def _gained(self, admin: KafkaAdmin, time_ms: int) -> AllocateSpans | None:
        settings = self._settings
        self._follow(admin, time_ms)
        state_of = lambda state: (_positions(state), dict(state.topic_ids), state.learned)  # noqa: E731
        positions, topic_ids, learned = self._asked.ask(Ask(state_of))
        try:
            ends = admin.places(dict.fromkeys(positions, "latest"))
        except UnknownTopicError as error:  # it is being deleted: the next look at the topics tells
            raise UnreachableError(str(error)) from None
        for tp, end in ends.items():
            if end < positions[tp]:
                raise RangeNotHeldError(
                    f"{tp}: the stream is at offset {positions[tp]}, and Kafka's log ends at {end}: it was cut back"
                )
        rate = 0.0
        if settings.backpressure:
            rate = learned.rate if learned is not None else settings.initial_rate
        until = limit_by_rates(positions, ends, settings.rates, rate, settings.interval_seconds)
        parts = split_ranges(spans(positions, until, topic_ids), settings.min_partitions)
        return AllocateSpans(tuple(parts), time_ms) if parts else None

    def _follow(self, admin: KafkaAdmin, time_ms: int) -> None:
        """New partitions begin; those that are gone end the stream, or are journalled."""
        state_of = lambda state: (_positions(state), dict(state.topic_ids), state.created)  # noqa: E731
        positions, topic_ids, known_before = self._asked.ask(Ask(state_of))
        there = find_partitions(admin, self._strategy)
        ids = admin.topic_ids({tp.topic for tp in there})
        for topic, before in topic_ids.items():
            now = ids.get(topic, before)
            if before and now and now != before:
                raise RangeNotHeldError(f"topic {topic} had the id {before}, and was created again with {now}")
        missing = positions.keys() - there
        # metadata leave out what is merely without a leader: only a broker that does not know the topic counts
        found = admin.topic_ids({tp.topic for tp in missing})
        gone = sorted(tp for tp in missing if not found[tp.topic])
        if gone:
            words = f"partitions that the stream reads are gone: {', '.join(map(str, gone))}"
            if self._settings.on_vanished == "stop":
                raise UnknownTopicError(f'{words}; on_vanished = "record" goes on without them')
            log.error("%s; it goes on without them", words)
            ended = tuple(map(str, gone))
            self._asked.ask(EndSpans(ended, time_ms, "gone from Kafka"))
        new = there - positions.keys()
        if known_before and not new:
            return
        group = self._safe.group
        known = Known(
            checkpoint=positions if known_before else None,
            given=self._strategy.offsets,
            committed={tp: at.offset for tp, at in admin.committed(group, new).items()} if group else {},
            group=group,
        )
        begun = begin(admin, new, known, self._safe.reset)
        for tp, position in begun.items():
            log.info("%s begins at offset %d: %s", tp, position.offset, position.why)
        causes = "; ".join(sorted({position.why for position in begun.values()}))
        offsets = {str(tp): position.offset for tp, position in begun.items()}
        self._asked.ask(BeginSpans(offsets, ids, time_ms, causes))


def _positions(state: State) -> dict[TopicPartition, int]:
    found = {}
    for key, offset in state.next_offsets.items():
        topic, _, partition = key.rpartition("/")
        found[TopicPartition(topic, int(partition))] = offset
    return found
