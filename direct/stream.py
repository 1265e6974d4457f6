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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import msgspec

from direct.batch import DirectJobs
from direct.checkpoint import leading
from direct.commits import Commits
from direct.deserializers import Deserializer, deserializer
from direct.hold import Hold
from direct.intake import COMMITTED, IntakeAccess, KeptByIntake, Through
from direct.locations import LocationStrategy, PreferConsistent
from direct.losses import (
    NOTHING,
    Held,
    Kept,
    Loss,
    accept,
    ends_through,
    error_of,
    lacking,
    look,
    of_batch,
    of_positions,
)
from direct.parameters import checked_options, tell
from direct.reads import ReadProgress, ReadWanted
from direct.strategies import ConsumerStrategy, absent, check, find_partitions
from direct.tasks import TaskReading
from driver.background.cleaner import Cleaner
from driver.batches.backpressure import Backpressure
from driver.batches.batch import BatchWork, Engine, Job, NamedJob
from driver.batches.dead_letters import confirm_dead_letters
from driver.batches.local_engine import letters_of
from driver.batches.runner import AttemptRules, BatchHooks
from driver.batches.scheduler import BatchOptions, Scheduler
from driver.decision_loop.loop import DriverLoop
from driver.decisions.rate import Gains
from driver.journal import history
from driver.journal.lease import Lease, await_tasks_of, read_lease, wait_until_stale
from driver.tracker.requests import AllocateSpans, BeginSpans, KeepWindow, NameCursor
from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.client.starting import Known, Position, begin
from forebay.kafka.consume.planning import PartitionRates, limit_by_rates, spans, split_ranges
from forebay.kafka.consume.range_reader import Reading
from forebay.kafka.consume.spans import Span, without
from forebay.kafka.options.access import KafkaAccess
from forebay.kafka.options.safe import SafeOptions
from forebay.model.errors import FencedError, UnknownTopicError, UnreachableError, UsageError
from forebay.model.values import TopicPartition, check_name
from forebay.process.clock import Clock, SystemClock
from forebay.process.ending import Ending
from forebay.settings.schema import DeadLetterSettings
from pyspark_forebay.options import CURSOR_LENGTH_MAX
from wal.storage import Storage, StorageOptions, open_storage
from wal.storage.probe import probe

log = logging.getLogger(__name__)


#: between two moves of finished batches to the history
HISTORY_SECONDS = 10.0
#: pause before a batch with records that can't be read is tried again, as ``driver.unreadable_retry`` of an intake
UNREADABLE_RETRY_SECONDS = 30.0
HISTORY_SEGMENT_BYTES = 64_000_000


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """``name`` and ``checkpoint`` (a folder's url, as for a journal) say whose offsets these are; ``storage``: what its store
    needs. ``interval_seconds``: between batches. ``rates``: of each partition; ``backpressure``: whether completed batches bound
    the next ones, from ``initial_rate`` on (records/s, 0: none). ``on_vanished``: what a partition that is gone from Kafka, or
    offsets that it dropped before they were read, do: end the stream, or be journalled while it goes on. ``min_partitions``: of
    each batch. ``max_failures`` of a batch's job, with ``retry_seconds`` between them, end the stream. ``window_batches``: so
    many batches before one can be read with it (``batch.window``). ``dead_letters``: where records go that ``batch.decode``
    can't decode. ``tracker``: the driver of an intake (its url, or an ``IntakeAccess``) that takes the same topics in: what Kafka
    has lost is read from its WAL, which holds it until the stream has."""

    name: str
    checkpoint: str
    interval_seconds: float = 1.0
    rates: PartitionRates = PartitionRates()  # noqa: RUF009 - a value
    backpressure: bool = False
    initial_rate: float = 0.0
    on_vanished: Literal["stop", "record"] = "stop"
    min_partitions: int | None = None
    max_queued_batches: int = 2
    window_batches: int = 0
    max_failures: int = 4
    retry_seconds: float = 1.0
    storage: Mapping[str, Mapping[str, Any]] | None = None
    dead_letters: DeadLetterSettings = DeadLetterSettings()  # noqa: RUF009 - a value
    tracker: IntakeAccess | str | None = None

    @property
    def storage_options(self) -> StorageOptions:
        return {key: dict(own) for key, own in (self.storage or {}).items()}

    def __post_init__(self) -> None:
        try:
            check_name("stream", self.name)
        except ValueError as error:
            raise UsageError(str(error)) from None
        if (
            self.interval_seconds <= 0
            or self.max_queued_batches < 1
            or self.max_failures < 1
            or self.window_batches < 0
        ):
            raise UsageError(
                "a direct stream needs an interval above 0, numbers of batches and failures from 1, and a window from 0"
            )
        if self.dead_letters.url and self.dead_letters.topic:
            raise UsageError("dead_letters: name a url or a topic, not both")
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
        KafkaAccess(safe.options, safe.task_group, timeout_seconds),
        reading,
        key_deserializer,
        value_deserializer,
        Through.of(settings.tracker),
    )
    commits = Commits(safe.group)
    letters = partial(letters_of, letters=settings.dead_letters, storage=settings.storage_options, options=safe.options)
    engine = DirectJobs(spark, how, location_strategy, commits, letters)
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
        self._through = Through.of(settings.tracker)
        self._kept: KeptByIntake | None = None
        self._clock = clock or SystemClock()
        self._jobs: tuple[NamedJob, ...] = ()
        self._closing = contextlib.ExitStack()
        self._stopping = threading.Event()
        self._ending = Ending()
        self._unreachable = ""
        self._runs = False  # started, whether it has ended or not
        self._thread: threading.Thread | None = None
        self._loop: DriverLoop | None = None
        self._scheduler: Scheduler | None = None
        self._admin: KafkaAdmin | None = None
        self._lease_before: Lease | None = None

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
        for sentence in self._safe.changes:
            tell(sentence)
        try:
            self._open()
        except BaseException:
            self._close()
            raise
        self._runs = True
        self._thread = threading.Thread(target=self._run, name="direct-batches", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let the running job finish, and begin no other. Return immediately when called in the job, in a callback of a commit or
        before the start has returned, else when the stream has ended. May be repeated."""
        self._begin_stop()
        own = threading.current_thread() is self._thread or (self._scheduler is not None and self._scheduler.in_job())
        if self._runs and not own:
            self._ending.wait()

    def _begin_stop(self) -> None:
        self._stopping.set()
        if self._scheduler is not None:
            self._scheduler.stop()

    def await_termination(self, timeout_seconds: float | None = None) -> bool:
        """Waits until the stream has ended; False if it has not in time. Raises what failed in the background, once."""
        return self._ending.wait_and_raise(timeout_seconds)

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """Where the next batch begins."""
        return self._asked.ask(ReadProgress()).positions

    @property
    def _asked(self) -> DriverLoop:
        if self._loop is None:
            raise UsageError("the direct stream is not started")
        return self._loop

    # ---- life --------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        settings = self._settings
        storage = open_storage(settings.checkpoint, settings.storage_options)
        probe(storage, settings.name, lambda: secrets.randbits(64))
        self._lease_before = read_lease(storage, settings.name)
        if wait_until_stale(storage, settings.name, self._stopping) is False:
            raise UsageError(
                f"direct stream {settings.name} was stopped while it waited for another process's lease to end"
            )
        self._admin = self._closing.enter_context(
            KafkaAdmin(self._safe.options, timeout_seconds=self._timeout, client_id="forebay-direct")
        )
        find_partitions(self._admin, self._strategy)  # brokers are asked before anybody is fenced
        led = self._closing.enter_context(
            leading(storage, settings.name, settings.max_queued_batches, self._clock, self._fail)
        )
        loop, state = led.loop, led.state
        self._engine.start()
        self._closing.callback(self._engine.stop)
        led.lease.name_application(*self._engine.application)
        begun_ms = self._clock.wall_ms()
        learned = Backpressure(loop, Gains(), settings.interval_seconds, state.learned, begun_ms).completed
        self._scheduler = Scheduler(
            loop,
            self._engine,
            self._jobs,
            clock=self._clock,
            options=BatchOptions(
                batch_interval_seconds=settings.interval_seconds,
                tasks=lambda: 1,
                headers=False,
                epoch=led.epoch,
                window_batches=settings.window_batches,
                allocation=self._plan,
            ),
            rules=AttemptRules(
                max_failures=settings.max_failures,
                retry_delay_seconds=settings.retry_seconds,
                unreadable_retry_seconds=UNREADABLE_RETRY_SECONDS,
                is_direct=True,
            ),
            hooks=BatchHooks(
                completed=learned if settings.backpressure else None, confirm=confirm_dead_letters, lost=self._lost
            ),
        )
        self._loop = loop
        loop.ask(KeepWindow(settings.window_batches))  # decided before any batch begins, or goes to the history
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
        hold = self._hold(self._through) if self._through is not None else None
        known = self._asked.ask(ReadProgress()).positions
        self._tell(begin(self._admin, known, Known(known, self._strategy.offsets, {}), self._safe.reset))
        try:
            self._follow(self._admin, self._clock.wall_ms())
        except UnreachableError as error:
            if not self._asked.ask(ReadProgress()).begun:  # nothing says yet where partitions begin
                raise
            log.warning("no batch is made for now: %s", error)
            self._unreachable = str(error)
        if hold is not None:
            hold.start()

    def _hold(self, through: Through) -> Hold:
        """All that the intake has is held until partitions begin, or it could be gone by then."""
        isolation = self._safe.options.get("isolation.level", COMMITTED)
        self._kept = KeptByIntake(through, isolation, self._timeout)
        self._closing.callback(self._kept.close)
        name = f"direct-{self._settings.name[:CURSOR_LENGTH_MAX]}-{secrets.token_hex(4)}"
        name = self._asked.ask(NameCursor(name, self._clock.wall_ms()))
        user = f"direct stream {self._settings.name} on {socket.gethostname()} pid {os.getpid()} {secrets.token_hex(4)}"
        key = secrets.token_hex(16)
        hold = Hold(through, isolation, name, user, key, lambda: self._asked.ask(ReadWanted()), self._fail)
        self._closing.callback(hold.stop)
        return hold

    def _history(self, storage: Storage, epoch: int) -> history.HistoryWriter:
        return history.HistoryWriter(
            storage,
            self._settings.name,
            epoch,
            segment_bytes=HISTORY_SEGMENT_BYTES,
            now=lambda: self._clock.wall_ms() / 1000,
            new_uid=lambda: secrets.randbits(64),
        )

    def _run(self) -> None:
        assert self._scheduler is not None
        try:
            try:
                await_tasks_of(self._lease_before, self._stopping)
                self._scheduler.start()
                if self._stopping.is_set():  # told before there was a scheduler to tell
                    self._scheduler.stop()
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
            self._ending.fail(error)
        finally:
            self._ending.end()

    def _fail(self, error: BaseException) -> None:
        self._ending.fail(error)
        self._begin_stop()
        if isinstance(error, FencedError):
            # what Spark still does for a job here would write beside the newer stream (INV-4)
            self._engine.cancel()

    # ---- batches -----------------------------------------------------------------------------------------------------

    def _plan(self, time_ms: int) -> AllocateSpans | None:
        """The next batch, from what Kafka has gained; None if there is nothing, or who must be asked is away. Called by the timer
        alone."""
        assert self._admin is not None
        self._commits.send(self._admin)
        try:
            found = self._gained(self._admin, time_ms)
        except UnreachableError as error:
            if str(error) != self._unreachable:  # it comes again with each interval
                log.warning("no batch is made for now: %s", error)
            self._unreachable = str(error)
            return None
        self._unreachable = ""
        return found

    def _gained(self, admin: KafkaAdmin, time_ms: int) -> AllocateSpans | None:
        settings = self._settings
        held, lacks, kept = self._follow(admin, time_ms)
        progress = self._asked.ask(ReadProgress())
        begins, ids, learned = progress.positions, progress.topic_ids, progress.learned
        through = {tp: end for tp, end in ends_through(begins, lacks, kept).items() if tp in begins}
        new = begins.keys() - held.keys() - through.keys()
        try:
            ends = {
                **admin.places(dict.fromkeys(new, "latest")),
                **{tp: held[tp].end for tp in begins.keys() & held.keys()},
                **through,
            }
        except UnknownTopicError as error:  # it is being deleted: the next look at the topics tells
            raise UnreachableError(str(error)) from None
        rate = 0.0
        if settings.backpressure:
            rate = learned.rate if learned is not None else settings.initial_rate
        until = limit_by_rates(begins, ends, settings.rates, rate, settings.interval_seconds)
        found = [msgspec.structs.replace(span, topic_id=ids[span.tp]) for span in spans(begins, until)]
        parts = split_ranges(found, settings.min_partitions)
        return AllocateSpans(tuple(parts), time_ms) if parts else None

    def _follow(
        self, admin: KafkaAdmin, time_ms: int
    ) -> tuple[dict[TopicPartition, Held], dict[TopicPartition, Span], Kept]:
        """New partitions begin; what Kafka no longer holds of those known, nor an intake, ends the stream, or is journalled.
        Gives what Kafka holds of those that go on, what it lacks of them, and what of that the intake has kept."""
        progress = self._asked.ask(ReadProgress())
        known, ids, known_before = progress.positions, progress.topic_ids, progress.begun
        there = find_partitions(admin, self._strategy)
        held = look(admin, ids, there)
        losses = of_positions(known, ids, held)
        lacks, kept = lacking(known, ids, losses), NOTHING
        if self._kept is not None and lacks:
            kept = {tp: self._kept.kept(span) for tp, span in lacks.items()}
            losses = of_positions(known, ids, held, kept)
        self._settle(losses, time_ms)
        # one that is gone and there again begins as a new one; others among them have begun again
        gone = {loss.label for loss in losses if loss.kind == "gone"}
        new = {tp for tp in there - known.keys() if str(tp) not in gone}
        if not known_before or new:
            self._begin(admin, new, known if known_before else None, time_ms)
        return held, lacks, kept

    def _begin(
        self, admin: KafkaAdmin, new: set[TopicPartition], checkpoint: dict[TopicPartition, int] | None, time_ms: int
    ) -> None:
        group = self._safe.group
        known = Known(
            checkpoint=checkpoint,
            given=self._strategy.offsets,
            committed={tp: at.offset for tp, at in admin.committed(group, new).items()} if group else {},
            group=group,
        )
        if checkpoint is None:
            self._check_names(new)
        begun = begin(admin, new, known, self._safe.reset)
        self._tell(begun)
        causes = "; ".join(sorted({position.why for position in begun.values()}))
        offsets = {str(tp): position.offset for tp, position in begun.items()}
        self._asked.ask(BeginSpans(offsets, admin.topic_ids({tp.topic for tp in new}), time_ms, causes))

    def _tell(self, begun: Mapping[TopicPartition, Position]) -> None:
        for tp, position in begun.items():
            log.info("%s begins at offset %d: %s", tp, position.offset, position.why)

    def _check_names(self, there: set[TopicPartition]) -> None:
        """Of a new stream. What it names and Kafka does not have may be a mistake, or come later: it is told. Raises UsageError
        for offsets of partitions that it could not heed even then."""
        for name in absent(self._strategy, there):
            log.warning("Kafka has no %s now: if it comes, it is read from its beginning", name)
        unread = sorted(str(tp) for tp in self._strategy.offsets.keys() - there)
        if unread:
            raise UsageError(
                f"offsets are given for {', '.join(unread)}, which Kafka does not have or the stream does not read"
            )

    # ---- what Kafka lost ---------------------------------------------------------------------------------------------

    def _lost(self, work: BatchWork) -> bool:
        """Whether an attempt at the batch failed since Kafka lost some of it, which is journalled now. A decision of its own
        client: the timer's thread goes on meanwhile."""
        asked = [span for one in (*work.past, work) for span in one.spans]
        partitions = {span.tp: span.topic_id for span in asked}
        try:
            with KafkaAdmin(
                self._safe.options, timeout_seconds=self._timeout, client_id="forebay-direct-losses"
            ) as admin:
                held = look(admin, partitions, admin.partitions({tp.topic for tp in partitions}))
            losses = of_batch(work.batch_id, without(asked, work.lost), held, self._also_lost)
        except UnreachableError as error:
            log.warning("batch %d failed, and nobody can say whether it is still held: %s", work.batch_id, error)
            return False
        self._settle(losses, self._clock.wall_ms())
        return bool(losses)

    def _also_lost(self, lost: list[Span]) -> list[Span]:
        return self._kept.lost(lost) if self._kept is not None else lost

    def _settle(self, losses: Sequence[Loss], time_ms: int) -> None:
        if not losses:
            return
        settings = self._settings
        if settings.on_vanished == "stop":
            command = f"forebay direct accept-loss {settings.checkpoint} {settings.name}"
            raise error_of(
                losses, f'`{command}` shows it all and journals it, on_vanished = "record" does so by itself'
            )
        for loss in losses:
            log.error("%s; the stream goes on without", loss.words)
        accept(self._asked.ask, losses, time_ms, 'by on_vanished = "record"')
