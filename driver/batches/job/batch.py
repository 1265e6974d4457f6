"""A batch as the user's job gets it: :class:`Batch`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from itertools import chain
from typing import TYPE_CHECKING, Any, Protocol

from driver.batches.job.keyed_state import STATES_MAX, KeyedState, StateOptions
from driver.batches.job.time_windows import milliseconds, window_ends
from driver.batches.tasks.decoding import Decoder
from forebay.model.errors import UsageError
from forebay.model.values import BlockRange

if TYPE_CHECKING:
    import pyarrow as pa

    from driver.batches.tasks.reading import KafkaRecord


from driver.batches.job.work import BatchWork, Written, since_set_back, spans_without


class Rows(Protocol):
    """The rows of one batch, as an engine provides them. The methods are described at :class:`Batch`."""

    def df(self) -> Any: ...

    def rdd(self) -> Any: ...

    def arrow(self) -> Any: ...

    def read(self) -> Iterator[pa.RecordBatch]: ...

    def arrow_schema(self, schema: Any) -> pa.Schema:
        """Return the schema of decoded rows that the user passed, as a pyarrow schema. Raises UsageError."""

    def decode(self, decoder: Decoder) -> Any: ...

    def read_decoded(self, decoder: Decoder) -> Iterator[pa.RecordBatch]: ...

    def state(self, options: StateOptions) -> KeyedState:
        """Open a keyed state. Raises UsageError if this stream can't have one."""

    def over(self, work: BatchWork) -> Rows:
        """Return the rows of ``work``. Its reads are added to this batch's counts."""


# one class, because it is the interface of a job; most of its lines are docstrings
class Batch:
    """The records of one batch interval, given to your job: ``def process(batch): …``.

    Jobs get batches in order: one at a time, or up to ``driver.concurrent_jobs`` at the same time, begun in order. When the
    job returns, the batch is completed and never given again. If the job raises, or the driver is killed before the
    completion is durable, the **same batch runs again**: same ``id``, same rows, same order, same partitions. So a job may
    run more than once for one batch. Make its output replace what an earlier run of the same ``id`` wrote: a file or a row
    named after ``batch.id``, or delete and insert by that id.

    An operator can rewind the stream (``forebay recover --to-batch``). Completed batches then run again in a **replay**, with
    the same ``id``, rows, order and partitions, with ``rerun`` true, and with a ``replay`` number that increases with each
    replay. A job that replaces output by ``id`` replaces what it wrote before, as a corrected job should. A job that keeps
    both outputs, or whose sink skips what it has seen, uses ``key`` instead, which is new for each replay and the same for
    its reruns.

    The rows are available in four ways. All have the columns of Spark's Kafka source: ``key``, ``value`` (binary), ``topic``,
    ``partition``, ``offset``, ``timestamp``, ``timestampType``, and ``headers`` if the stream takes them in. Each has one
    partition per task of the batch. Each use reads the blocks again, so ``cache()`` or ``persist()`` a DataFrame that several
    actions need. For ``df``, the driver reads the blocks of a batch of at most ``spark.small_batch``, once for each ``df``.

    A task reads a block from its own host, else from that host's agent, else from the WAL, else from Kafka if Kafka still has
    exactly these records. If no tier has the block, the action raises ``forebay.model.errors.UnreadableBlockError``, which
    names the offsets. A missing block is never treated as an empty partition.
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
    def ranges(self) -> tuple[BlockRange, ...]:
        """The Kafka offsets of the batch's records, in the order of its rows.

        A partition may occur several times, with ranges that touch. Ranges whose loss was accepted are omitted.
        """
        return self._work.ranges

    @property
    def records(self) -> int:
        """The number of records in the batch."""
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
        """A name of this run of the batch for a sink: ``<timeline>-<replay>-<id>``. Reruns after a failure or a crash have
        the same key; each replay has another."""
        return self._work.key

    @property
    def timeline(self) -> int:
        """The journal's timeline in which this run of the batch began.

        A batch that a rebuilt journal reruns keeps the timeline of its id. A replay has the timeline of the journal that
        began it: no replay outlives its journal, and the next journal may count replays from 1 again.
        """
        return self._work.timeline

    @property
    def stream(self) -> str:
        """The stream's name."""
        return self._work.stream

    @property
    def number(self) -> int:
        """The batch's place in the sequence of its timeline, from 1."""
        return self._work.number

    @property
    def epoch(self) -> int:
        """The journal epoch of the driver that runs the batch. A newer driver has a higher epoch."""
        return self._work.epoch

    @property
    def concurrent(self) -> bool:
        """Whether other batches may be in work at the same time (``driver.concurrent_jobs``); later ones may then end before
        it."""
        return self._work.concurrent_jobs > 1

    def note(self, written: Written) -> None:
        """Show ``written`` with this batch in ``forebay status``. Output helpers call it."""
        self._work.written.append(written)

    @property
    def noted(self) -> tuple[Written, ...]:
        """The results that :meth:`note` recorded in this run of the batch."""
        return tuple(self._work.written)

    def window(self, batches: int) -> Batch:
        """Return the records of this batch and of the batches just before it, ``batches`` in total, in order.

        The result is a Batch with this batch's ``id``, ``time`` and ``key``, and with the rows and ranges of all these
        batches. It is the same on every rerun. It contains fewer batches at the start of a stream, soon after
        ``driver.window_batches`` was raised, and in a replay whose preceding batches are deleted. ``covered`` names them.
        Raises UsageError if ``batches`` is above ``driver.window_batches`` + 1.
        """
        reach = self._work.window_batches
        if not 1 <= batches <= reach + 1:
            raise UsageError(
                f"batch.window({batches}): earlier batches stay readable for windows of 1 to {reach + 1} batches; "
                f"for this window set driver.window_batches = {max(1, batches - 1)}"
            )
        past = self._work.past[-(batches - 1) :] if batches > 1 else ()
        return self._covering((*past, self._work), self.time)

    def windows(self, length: float | str, slide: float | str) -> tuple[Batch, ...]:
        """Return the windows by time that have ended when this batch begins, as Spark's ``DStream.window(length, slide)``.

        ``length``, ``slide``: in seconds, or as ``"10m"``. Windows end at the multiples of ``slide`` since 1970. The window that
        ends at E has the records of the batches whose ``time`` is in [E - length, E). The first batch whose time is E or later
        returns it, as a Batch with this batch's ``id`` and ``key`` and with E as its ``time``; ``covered`` names the batches
        it contains. So exactly one batch returns each window with records, the same on every rerun, and most batches return none.
        Only if the clock is set back by more than ``driver.window``, windows of the repeated time are returned again. After a
        pause, one batch returns several windows: write all of them with one call of an output helper, since it writes a batch
        once, with a column for the window's ``time``. Without a further batch, no window ends. A window may contain fewer batches
        soon after ``driver.window`` was raised, and in a replay if the batches before its first one are deleted. Raises
        UsageError if the batch is completed, or if ``length`` is above ``driver.window``.
        """
        length_ms, slide_ms = milliseconds(length, "length"), milliseconds(slide, "slide")
        work = self._work
        if length_ms > work.window_ms:
            raise UsageError(
                f"batch.windows({length!r}, {slide!r}): earlier batches stay readable for windows of {work.window_ms} ms; for "
                f'this window set driver.window = "{length_ms}ms"'
            )
        ends = window_ends(work.past[-1].time_ms, work.time_ms, length_ms, slide_ms) if work.past else ()
        held = since_set_back(work.earlier()) if ends else ()
        return tuple(
            self._covering(
                [one for one in held if end - length_ms <= one.time_ms < end],
                datetime.fromtimestamp(end / 1000, timezone.utc),
            )
            for end in ends
        )

    def _covering(self, works: Sequence[BatchWork], time: datetime) -> Batch:
        """Return a batch with the rows of ``works``, without the ranges that are lost for one of them or for this batch."""
        lost = self._work.lost.union(*(work.lost for work in works))
        spans, incarnations = spans_without(
            chain.from_iterable(work.spans for work in works),
            chain.from_iterable(work.incarnations for work in works),
            lost,
        )
        over = replace(
            self._work,
            time_ms=round(time.timestamp() * 1000),
            tasks=tuple(task for work in works for task in work.tasks),
            spans=spans,
            incarnations=incarnations,
            lost=lost,
            headers=any(work.headers for work in works),
            topic_ids={incarnation: topic_id for work in works for incarnation, topic_id in work.topic_ids.items()},
            covers=tuple(work.batch_id for work in works),
        )
        return self._over(over, self._rows.over(over))

    def _over(self, work: BatchWork, rows: Rows) -> Batch:
        return Batch(work, rows)

    def _beside(self, leading: Batch, attempt: int) -> Batch:
        """Return this batch for one run of the job that gets it with the batch ``leading`` of another stream."""
        own = replace(self._work, output=leading._work.output, attempt=attempt, decodes=[], opened={}, follows=True)
        return self._over(own, self._rows.over(own))

    def state(
        self,
        name: str,
        schema: Any,
        key: str | Sequence[str],
        *,
        shards: int = 8,
        timeout: float | str | None = None,
        versions: int = 10,
    ) -> KeyedState:
        """Return the state ``name``: rows by key that live from batch to batch, changed exactly once by each batch.

        ``schema``: all columns, the key columns included, as a pyarrow Schema or Spark's; columns may be added and removed
        later. ``key``: names of the key columns. ``shards``: number of parts that tasks read and write in parallel, fixed at the
        first use. ``timeout``: how long a key stays that is not written, in seconds or as ``"1h"``, by the times of batches;
        None: for ever.
        ``versions``: how many versions before the newest one are kept, so that a replay can begin as many batches back.

        The state shows what completed batches have written. What this batch writes counts when it is completed, and a rerun
        does not see it. A state belongs to one output. Raises UsageError if the stream has no WAL, if ``driver.concurrent_jobs``
        is above 1, or if the arguments contradict the state.
        """
        opened = self._work.opened
        if name in opened:
            return opened[name]
        if self.concurrent:
            raise UsageError(f"state {name!r} changes in the order of batches: set driver.concurrent_jobs = 1")
        if self._work.follows:
            raise UsageError(
                f"state {name!r}: a joint batch has only states of the stream that leads: use state() of that stream's batch"
            )
        if len(opened) >= STATES_MAX:
            raise UsageError(f"a batch can use {STATES_MAX} states at most")
        columns = self._rows.arrow_schema(schema)
        state = self._rows.state(
            StateOptions(name=name, columns=columns, key=key, shards=shards, timeout=timeout, versions=versions)
        )
        opened[name] = state
        return state

    @property
    def covered(self) -> tuple[int, ...]:
        """The ids of the batches whose records this batch contains, in order. Outside a window this is only its own id."""
        return self._work.covers or (self.id,)

    @property
    def df(self) -> Any:
        """A ``pyspark.sql.DataFrame`` with exactly the schema of Spark's Kafka source (``timestamp`` is TimestampType).

        ``batch.df.selectExpr("CAST(value AS STRING)", "offset")`` works as it does with ``format("kafka")``.
        """
        return self._rows.df()

    @property
    def rdd(self) -> Any:
        """An RDD of ``driver.batches.tasks.reading.KafkaRecord``: named tuples, ``timestamp`` in milliseconds since 1970 UTC.

        For code that needs each record as a Python object. ``batch.arrow`` is many times faster.
        """
        return self._rows.rdd()

    @property
    def arrow(self) -> Any:
        """An RDD of ``pyarrow.RecordBatch``: columns read in the task, mapped into memory where the block is local.

        The fastest way for Python code: ``batch.arrow.map(lambda rows: rows.num_rows).sum()``. A record batch may
        have records of several Kafka partitions, because small blocks are joined. Those of one partition are in offset order.
        """
        return self._rows.arrow()

    def decode(self, function: Callable[[KafkaRecord], Any], schema: Any) -> Any:
        """Return a DataFrame of the rows that ``function`` makes of the records. Records that it can't decode become dead
        letters.

        ``function`` gets one ``KafkaRecord`` and returns one row: a dict by column (missing columns are
        null), a tuple in the schema's order, or None to omit the record. ``schema``: a pyarrow Schema, or Spark's, as a
        StructType or a DDL string (``"flight string, delay int"``). If ``function`` raises for a record, or the row does not
        fit the schema, the task stores the record with the cause (``[dead_letters]``), and the batch continues without it. If
        more than ``dead_letters.max_fraction`` of the records fail, the batch fails. Without ``[dead_letters]``, the first
        such record fails it.

        ``function`` runs in Spark's tasks, possibly more than once for a record, so it should return the same each time.
        ``decode_arrow`` is faster.
        """
        return self._rows.decode(self._decoder(function, schema, False))

    def decode_arrow(self, function: Callable[[pa.RecordBatch], Any], schema: Any) -> Any:
        """Return a DataFrame as :meth:`decode`; ``function`` gets whole record batches.

        ``function`` gets a record batch as in ``batch.arrow`` and returns a record batch of ``schema``, or a pair of that and
        the causes: for each record it got, a text if the record can't be decoded, else None. If it raises, it is called again
        with the halves of the record batch, down to the single record that fails.
        """
        return self._rows.decode(self._decoder(function, schema, True))

    def read_decoded(
        self, function: Callable[..., Any], schema: Any, *, arrow: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """Return the rows of :meth:`decode`, or with ``arrow`` of :meth:`decode_arrow`, as record batches, made in the
        driver's process without Spark. Dead letters are stored when the iteration reaches the end of each task."""
        return self._rows.read_decoded(self._decoder(function, schema, arrow))

    def _decoder(self, function: Callable[..., Any], schema: Any, arrow: bool) -> Decoder:
        if not callable(function):
            raise UsageError(f"batch.decode needs a function, not {type(function).__name__}")
        return Decoder(function, self._rows.arrow_schema(schema), arrow)

    def read(self) -> Iterator[pa.RecordBatch]:
        """Return the record batches of :attr:`arrow` one after another, read in the driver's process without Spark.

        Blocks are opened when the iteration reaches them: one block at a time, or successive small ones of up to 8 MB,
        decompressed.
        """
        return self._rows.read()
