"""A batch as the user's job sees it, and what an engine is given to run it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Protocol

from driver.batches.decoding import DeadLetterPlan, Decoder
from forebay.kafka.consume.planning import sizes
from forebay.kafka.consume.spans import Span, without
from forebay.model.errors import UsageError
from forebay.model.values import OffsetRange, timeline_of
from wal.reading import BlockReference, TierCounts

if TYPE_CHECKING:
    import pyarrow as pa

    from driver.batches.tasks import KafkaRecord


@dataclass(frozen=True, slots=True)
class Written:
    """What one run of a batch wrote to one output: so many rows, or none because of ``skipped``, in words."""

    output: str
    rows: int
    skipped: str = ""

    def __str__(self) -> str:
        return f"{self.output}: skipped, {self.skipped}" if self.skipped else f"{self.output}: {self.rows} rows"


@dataclass(frozen=True, slots=True)
class BatchWork:
    """One batch as the journal holds it. A rerun has the same blocks in the same tasks and order (INV-3).

    ``tasks``: for each task its blocks, in order. ``lost``: labels of ranges whose loss an operator has accepted;
    nobody tries to read them. ``headers``: whether the stream takes record headers in. ``replay``: the number of the replay
    that runs it again; 0 if none does. ``topic_ids``: as in ``ReadPlan``. ``concurrent_jobs``: batches that may be in work at
    once. ``epoch``: the journal's, of the driver that runs it. ``written``: what output helpers say of this run. ``outputs``:
    those that are done, of several. ``window_batches``: how far a window may reach back; ``past``: the batches before this one
    that it can reach, in order; ``covers``: of a window, its batches before this one. ``output``: the one that is being made;
    ``attempt``: of this driver at the batch, from 1; ``decodes``: what it gave to ``decode``. ``spans``: of a direct stream,
    which has no blocks, what each task reads; ``lives``: of the partition of each.
    """

    batch_id: int
    number: int
    time_ms: int
    rerun: bool
    tasks: tuple[tuple[BlockReference, ...], ...]
    lost: frozenset[str] = frozenset()
    headers: bool = False
    replay: int = 0
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    concurrent_jobs: int = 1
    stream: str = ""
    epoch: int = 0
    written: list[Written] = field(default_factory=list, compare=False)
    outputs: frozenset[str] = frozenset()
    window_batches: int = 0
    past: tuple[BatchWork, ...] = ()
    covers: tuple[int, ...] = ()
    output: str = ""
    attempt: int = 1
    decodes: list[DeadLetterPlan] = field(default_factory=list, compare=False)
    spans: tuple[Span, ...] = ()
    incarnations: tuple[int, ...] = ()

    @property
    def key(self) -> str:
        """As ``Batch.key``."""
        return f"{self.timeline}-{self.replay}-{self.batch_id}"

    @property
    def timeline(self) -> int:
        """As ``Batch.timeline``."""
        return timeline_of(self.epoch) if self.replay and self.epoch else timeline_of(self.batch_id)

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        """What the batch hands out, in the order of its rows: accepted losses are not among them."""
        ranges = chain.from_iterable(reference.ranges for task in self.tasks for reference in task)
        return tuple(range_ for range_ in ranges if range_.label not in self.lost) if self.lost else tuple(ranges)

    @property
    def records(self) -> int:
        """How many it hands out."""
        if self.spans:
            return sizes(self.spans)  # as many as offsets, unless a topic is compacted or transactional
        if self.lost:
            return sum(range_.records for range_ in self.ranges)
        return sum(reference.records for task in self.tasks for reference in task)


def lived_without(
    spans: Iterable[Span], incarnations: Iterable[int], lost: Collection[str]
) -> tuple[tuple[Span, ...], tuple[int, ...]]:
    """What is left of ``spans`` without ``lost`` (as ``forebay.kafka.consume.spans.without``), and the life of each part.
    ``lives``: of each of ``spans``, or none, as an older release journalled them: then all are of the first one."""
    lived = zip(spans, chain(incarnations, repeat(1)), strict=False)
    parts = [(part, incarnation) for span, incarnation in lived for part in without([span], lost)]
    return tuple(part for part, _ in parts), tuple(incarnation for _, incarnation in parts)


class Rows(Protocol):
    """How an engine hands out the rows of one batch."""

    def df(self) -> Any: ...

    def rdd(self) -> Any: ...

    def arrow(self) -> Any: ...

    def read(self) -> Iterator[pa.RecordBatch]: ...

    def arrow_schema(self, schema: Any) -> pa.Schema:
        """What a user gave as the schema of decoded rows. Raises UsageError."""

    def decode(self, decoder: Decoder) -> Any: ...

    def read_decoded(self, decoder: Decoder) -> Iterator[pa.RecordBatch]: ...

    def over(self, work: BatchWork) -> Rows:
        """The rows of ``work``, counted with these."""


class Batch:
    """The records of one batch interval, given to your job: ``def process(batch): …``.

    Jobs get batches in order: one at a time, or ``driver.concurrent_jobs`` of them, begun in order. When the job returns, the
    batch is completed and never given again. When it raises, or the driver dies before the completion is durable, the **same
    batch comes again**: same ``id``, same rows, same order, same partitions. So a job may run more than once for one batch;
    make its output replace what an earlier run of the same ``id`` wrote (a file or a row named after ``batch.id``, or delete
    and insert by that id).

    A person can rewind the stream (``forebay recover --to-batch``): completed batches then run again in a **replay**, with
    the same ``id``, rows, order and partitions, ``rerun`` true and ``replay`` a number that grows with each. A job that
    replaces output by ``id`` replaces what it wrote before, which is what a mended job wants. A job that keeps both, or
    whose sink skips what it has seen, goes by ``key`` instead, which is new for each replay and the same for its reruns.

    The rows can be had in four ways; all have the columns of Spark's Kafka source: ``key``, ``value`` (binary),
    ``topic``, ``partition``, ``offset``, ``timestamp``, ``timestampType``, and ``headers`` if the stream takes them in.
    Each has one partition per task of the batch. Use them as often as you like: each use reads the blocks again, so
    ``cache()`` or ``persist()`` a DataFrame that several actions need.

    A block is read from the task's own host, else from that host's agent, else from the WAL, else from Kafka if that
    still holds the very records. If none has it, the action raises
    ``forebay.model.errors.UnreadableBlockError`` naming the offsets; it is never taken for an empty partition.
    """

    __slots__ = ("_rows", "_work")

    def __init__(self, work: BatchWork, rows: Rows) -> None:
        self._work = work
        self._rows = rows

    def __repr__(self) -> str:
        return f"<Batch {self.id} of {self.time.isoformat()}: {self.records} records, {len(self.ranges)} ranges>"

    @property
    def id(self) -> int:
        """The batch's number: unique for the stream, ascending, the same on every rerun."""
        return self._work.batch_id

    @property
    def time(self) -> datetime:
        """When the batch was cut, UTC; the same on every rerun."""
        return datetime.fromtimestamp(self._work.time_ms / 1000, timezone.utc)

    @property
    def ranges(self) -> tuple[OffsetRange, ...]:
        """The Kafka offsets whose records the batch hands out, in the order of its rows.

        A partition may appear several times, with ranges that touch. Ranges whose loss was accepted are left out.
        """
        return self._work.ranges

    @property
    def records(self) -> int:
        """How many records the batch hands out."""
        return self._work.records

    @property
    def rerun(self) -> bool:
        """Whether an earlier run of this batch may have begun: its output may already be there. True in a replay."""
        return self._work.rerun

    @property
    def replay(self) -> int:
        """The number of the replay in which the batch runs again; 0 if it runs for the first time."""
        return self._work.replay

    @property
    def key(self) -> str:
        """Names one run of the batch for a sink: ``<lineage>-<replay>-<id>``. Reruns after a failure or a crash have the same
        key, each replay another."""
        return self._work.key

    @property
    def timeline(self) -> int:
        """The journal's lineage in which this run of the batch began. A batch keeps the one of its id when a rebuilt journal
        reruns it; a replay has the one of the journal that began it, since no replay outlives its journal, and the next
        journal may count replays anew."""
        return self._work.timeline

    @property
    def stream(self) -> str:
        """The stream's name."""
        return self._work.stream

    @property
    def number(self) -> int:
        """The batch's place in the sequence of its lineage, from 1."""
        return self._work.number

    @property
    def epoch(self) -> int:
        """The journal epoch of the driver that runs the batch: of two drivers the newer one has the higher."""
        return self._work.epoch

    @property
    def concurrent(self) -> bool:
        """Whether other batches may be in work meanwhile (``driver.concurrent_jobs``): then later ones may end before it."""
        return self._work.concurrent_jobs > 1

    def note(self, written: Written) -> None:
        """Shows ``written`` with this batch in ``forebay status``. Output helpers call it."""
        self._work.written.append(written)

    @property
    def noted(self) -> tuple[Written, ...]:
        """What was noted in this run of the batch."""
        return tuple(self._work.written)

    def window(self, batches: int) -> Batch:
        """The records of this batch and of those just before it, ``batches`` together, in order: a Batch with this one's ``id``,
        ``time`` and ``key``, and the rows and ranges of all. The same on every rerun.

        It may hold fewer: at the beginning of a stream, soon after ``driver.window_batches`` grew, and in a replay that begins
        where the batches before it are no longer held; ``covered`` says which it holds. Raises UsageError for more than
        ``driver.window_batches`` + 1.
        """
        reach = self._work.window_batches
        if not 1 <= batches <= reach + 1:
            raise UsageError(
                f"batch.window({batches}): past batches stay readable for windows of 1 to {reach + 1} batches; "
                f"set driver.window_batches = {max(1, batches - 1)} for this one"
            )
        past = self._work.past[-(batches - 1) :] if batches > 1 else ()
        works = (*past, self._work)
        spans, incarnations = lived_without(
            chain.from_iterable(work.spans for work in works),
            chain.from_iterable(work.incarnations for work in works),
            self._work.lost,
        )
        over = replace(
            self._work,
            tasks=tuple(task for work in works for task in work.tasks),
            spans=spans,
            incarnations=incarnations,
            lost=frozenset().union(*(work.lost for work in works)),
            headers=any(work.headers for work in works),
            topic_ids={incarnation: topic_id for work in works for incarnation, topic_id in work.topic_ids.items()},
            past=past,
            covers=tuple(work.batch_id for work in past),
        )
        return self._over(over, self._rows.over(over))

    def _over(self, work: BatchWork, rows: Rows) -> Batch:
        return Batch(work, rows)

    @property
    def covered(self) -> tuple[int, ...]:
        """Ids of the batches whose records it hands out, in order: its own alone, but for a window."""
        return (*self._work.covers, self.id)

    @property
    def df(self) -> Any:
        """A ``pyspark.sql.DataFrame`` with exactly the schema of Spark's Kafka source (``timestamp`` is TimestampType).

        ``batch.df.selectExpr("CAST(value AS STRING)", "offset")`` works as it does with ``format("kafka")``.
        """
        return self._rows.df()

    @property
    def rdd(self) -> Any:
        """An RDD of ``driver.batches.tasks.KafkaRecord``: named tuples, ``timestamp`` in milliseconds since 1970 UTC.

        For code that needs each record as a Python object. ``batch.arrow`` is many times faster.
        """
        return self._rows.rdd()

    @property
    def arrow(self) -> Any:
        """An RDD of ``pyarrow.RecordBatch``: columns read in the task, mapped into memory where the block is local.

        The fastest way for Python code: ``batch.arrow.map(lambda rows: rows.num_rows).sum()``. No record batch holds
        records of two partitions of Kafka, and within one they are in offset order.
        """
        return self._rows.arrow()

    def decode(self, function: Callable[[KafkaRecord], Any], schema: Any) -> Any:
        """A DataFrame of what ``function`` makes of each record; what it raises for goes to the dead letters.

        ``function`` gets one ``driver.batches.tasks.KafkaRecord`` and gives one row: a dict by column (columns left out are
        null), a tuple in the schema's order, or None to leave the record out. ``schema``: a pyarrow Schema, or Spark's, as a
        StructType or in words (``"flight string, delay int"``). A record for which it raises, or whose row does not fit the
        schema, is put away by the task with the cause (``[dead_letters]``), and the batch goes on without it; beyond
        ``dead_letters.max_fraction`` the batch fails. Without ``[dead_letters]`` the first such record fails it.

        It runs in Spark's tasks, possibly more than once for a record, so it should give the same each time.
        ``decode_arrow`` is faster.
        """
        return self._rows.decode(self._decoder(function, schema, False))

    def decode_arrow(self, function: Callable[[pa.RecordBatch], Any], schema: Any) -> Any:
        """As :meth:`decode`, for whole record batches.

        ``function`` gets a record batch as ``batch.arrow`` has it and gives a record batch of ``schema``, or a pair of that
        and the causes: one for each record it got, a text where the record can't be decoded, None elsewhere. If it raises, it is
        called again with the halves of what it got, down to the record that is to blame.
        """
        return self._rows.decode(self._decoder(function, schema, True))

    def read_decoded(
        self, function: Callable[..., Any], schema: Any, *, arrow: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """The rows of :meth:`decode`, or with ``arrow`` of :meth:`decode_arrow`, as record batches, made here in the driver's
        process without Spark. Dead letters are put away as the iteration comes to the end of each task."""
        return self._rows.read_decoded(self._decoder(function, schema, arrow))

    def _decoder(self, function: Callable[..., Any], schema: Any, arrow: bool) -> Decoder:
        if not callable(function):
            raise UsageError(f"batch.decode needs a function, not {type(function).__name__}")
        return Decoder(function, self._rows.arrow_schema(schema), arrow)

    def read(self) -> Iterator[pa.RecordBatch]:
        """The same record batches, one after another, read here in the driver's process without Spark.

        Blocks are opened as the iteration reaches them, so memory holds one block at a time.
        """
        return self._rows.read()


Job = Callable[[Batch], None]


@dataclass(frozen=True, slots=True)
class NamedJob:
    """One output of each batch. The journal knows it by ``name``: an output whose name is new has not been made yet."""

    name: str
    function: Job


class Engine(Protocol):
    """Runs jobs. ``run`` may be called from several threads, each with another batch; ``start`` and ``stop`` may be repeated."""

    @property
    def parallelism(self) -> int:
        """How many tasks can run at once, at least 1; known after ``start``."""

    @property
    def application(self) -> tuple[str, str]:
        """Where other processes do the job's work: id of the application and its master; ("", "") if nowhere. Known after
        ``start``."""

    def start(self) -> None: ...

    def run(self, work: BatchWork, job: Job) -> TierCounts:
        """Calls ``job`` with the batch and returns, when it has, how its ranges were read.

        Raises what the job raises, and UnreadableBlockError if that is what made it fail. A failed job's tasks are
        cancelled, and the next ``run`` of the batch begins only when none of them is left, so that no late task of an old
        attempt writes over a new one's output.
        """

    def cancel(self) -> None:
        """Ends, from any thread, what the running jobs have others do for them (Spark's tasks); the jobs then fail."""

    def stop(self) -> None: ...
