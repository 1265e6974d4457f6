"""``batch.decode`` inside Spark tasks: applies the job's function to records, and stores what it can't decode as dead letters.

It runs on executors, so it imports neither the driver's decisions nor its journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from driver.batches.tasks.reading import Count, marked, read_task, records
from forebay.model.bounds import INT32_MAX, NUMBER_MAX, OFFSET_MAX
from forebay.model.errors import JobError, UnreachableError, UnreadableBlockError, UsageError
from forebay.model.numbers import whole_number
from forebay.model.records import DATAFRAME_SCHEMA
from forebay.process.worker_process import freeze_modules
from wal import dead_letters
from wal.dead_letters import Run
from wal.reading import BlockReference, ReadPlan
from wal.storage import StorageOptions, open_storage

#: bytes of keys and values after which a task writes an object of dead letters
_PIECE_BYTES = 16_000_000
_CAUSE_LENGTH_MAX = 1_000
#: prefix of the headers of a dead letter in a topic
HEADER_PREFIX = "forebay."


class DeadLetterPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Where the tasks of one call of ``decode`` store dead letters. Can be pickled.

    Either ``url`` or ``topic`` is set; if neither is, the first dead letter fails its task. ``limit``: maximum number of dead
    letters of the batch, computed from ``allowed`` and ``fraction``. ``call``: the number of the call of ``decode`` in the
    run, from 1. ``options``: librdkafka's; they may contain passwords, so nothing shows them.
    """

    run: Run
    time_ms: int
    output: str
    call: int
    limit: int
    allowed: int
    fraction: float
    url: str = ""
    storage: StorageOptions = {}
    topic: str = ""
    options: Mapping[str, str] = {}

    def __repr__(self) -> str:
        return f"<DeadLetterPlan of batch {self.run.key} to {self.url or self.topic or 'nowhere'}>"


class Decoded(NamedTuple):
    """Decoded rows, in order, and for each record that could not be decoded: its index in the input → the cause."""

    rows: pa.RecordBatch
    causes: dict[int, str]


class Decoder(NamedTuple):
    """Applies the job's function. ``function``: as in ``Batch.decode``, or with ``arrow`` as in ``Batch.decode_arrow``."""

    function: Callable[..., Any]
    schema: pa.Schema
    arrow: bool = False

    @property
    def name(self) -> str:
        function = self.function.func if isinstance(self.function, partial) else self.function
        return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', type(function).__name__)}"

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        """Return the decoded rows of ``batch``. Raises UsageError if the function returns something that is no row or no
        record batch: then the function is wrong, not a record."""
        return self._decode_arrow(batch) if self.arrow else self._decode_rows(batch)

    # ---- record by record ------------------------------------------------------------------------------------------

    def _decode_rows(self, batch: pa.RecordBatch) -> Decoded:
        rows: list[dict[str, Any]] = []
        places: list[int] = []
        causes: dict[int, str] = {}
        for index, record in enumerate(records([batch])):
            try:
                row = self.function(record)
            except (MemoryError, UnreachableError):
                raise  # not the record's fault
            except Exception as error:
                causes[index] = cause_of(error)
                continue
            if row is None:
                continue
            rows.append(self._row(row))
            places.append(index)
        try:
            return Decoded(self._made(rows), causes)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            pass  # some row does not fit the schema; find it below
        fitting = []
        for index, row in zip(places, rows, strict=True):
            try:
                self._made([row])
            except MemoryError:  # Arrow's is an ArrowException too; it is not the record's fault
                raise
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                causes[index] = cause_of(error)
            else:
                fitting.append(row)
        return Decoded(self._made(fitting), causes)

    def _row(self, row: Any) -> dict[str, Any]:
        names = self.schema.names
        if isinstance(row, Mapping):
            unknown = [name for name in row if name not in names]
            if unknown:
                raise UsageError(f"{self.name} returned the column {unknown[0]!r}; the schema has {', '.join(names)}")
            return dict(row)
        if isinstance(row, (tuple, list)) and len(row) == len(names):
            return dict(zip(names, row, strict=True))
        raise UsageError(
            f"{self.name} returned {type(row).__name__}: a row is a dict, a tuple of {len(names)} values, or None to omit the "
            "record"
        )

    def _made(self, rows: list[dict[str, Any]]) -> pa.RecordBatch:
        made = pa.RecordBatch.from_pylist(rows, schema=self.schema)
        for field, column in zip(self.schema, made.columns, strict=True):
            if not field.nullable and column.null_count:
                raise ValueError(f"column {field.name} is null")
        return made

    # ---- whole record batches --------------------------------------------------------------------------------------

    def _decode_arrow(self, batch: pa.RecordBatch) -> Decoded:
        parts = [decoded for decoded in self._halved(batch, 0) if decoded.rows.num_rows or decoded.causes]
        causes = {index: cause for part in parts for index, cause in part.causes.items()}
        if not parts:
            return Decoded(self._made([]), causes)
        table = pa.Table.from_batches([part.rows for part in parts], self.schema).combine_chunks()
        made = table.to_batches()
        return Decoded(made[0] if made else self._made([]), causes)

    def _halved(self, batch: pa.RecordBatch, first: int) -> Iterator[Decoded]:
        """Decode ``batch``. If the function fails, decode its halves, down to the single record that fails."""
        if not batch.num_rows:
            return
        try:
            yield self._taken(batch, first)
            return
        except (MemoryError, UsageError, UnreachableError):
            raise
        except Exception as error:
            if batch.num_rows == 1:
                yield Decoded(self._made([]), {first: cause_of(error)})
                return
        half = batch.num_rows // 2
        yield from self._halved(batch.slice(0, half), first)
        yield from self._halved(batch.slice(half), first + half)

    def _taken(self, batch: pa.RecordBatch, first: int) -> Decoded:
        given = self.function(batch)
        rows, causes = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
        if not isinstance(rows, pa.RecordBatch) or rows.schema.names != self.schema.names:
            what = (
                f"columns {', '.join(rows.schema.names)}" if isinstance(rows, pa.RecordBatch) else type(rows).__name__
            )
            raise UsageError(
                f"{self.name} returned {what}: return a record batch with the columns {', '.join(self.schema.names)}, or a "
                "pair of it and the causes"
            )
        listed = [] if causes is None else causes.to_pylist() if isinstance(causes, pa.Array) else list(causes)
        if causes is not None and len(listed) != batch.num_rows:
            raise UsageError(
                f"{self.name} returned {len(listed)} causes of errors for {batch.num_rows} records: return one for each "
                "record (None if it was decoded), or None instead of the list"
            )
        columns = [rows.column(number).cast(field.type) for number, field in enumerate(self.schema)]
        return Decoded(
            pa.RecordBatch.from_arrays(columns, schema=self.schema),
            {first + index: str(cause)[:_CAUSE_LENGTH_MAX] for index, cause in enumerate(listed) if cause is not None},
        )


def cause_of(error: Exception) -> str:
    """Return the error as the cause of a dead letter."""
    return f"{type(error).__name__}: {error}"[:_CAUSE_LENGTH_MAX]


# ---- one task --------------------------------------------------------------------------------------------------------


def decode_task(
    references: Sequence[BlockReference],
    task: int,
    plan: ReadPlan,
    count: Count,
    decoder: Decoder,
    place: DeadLetterPlan,
) -> Iterator[pa.RecordBatch]:
    """Return the decoded rows of one task, in order. The dead letters are durable before the iteration ends.

    Raises UnreadableBlockError; JobError if there are more dead letters than allowed; StoreError or UnreachableError if the dead
    letters could not be stored.
    """
    in_task = sum(range_.records for reference in references for range_ in reference.ranges)
    parts = (Part(read_task(run, plan, count), incarnations) for run, incarnations in _of_one_incarnation(references))
    yield from decode_parts(parts, task, in_task, decoder, place)


def _of_one_incarnation(
    references: Iterable[BlockReference],
) -> Iterator[tuple[list[BlockReference], dict[tuple[str, int], int]]]:
    """Yield successive blocks that have one incarnation of each of their partitions, and these incarnations."""
    run: list[BlockReference] = []
    incarnations: dict[tuple[str, int], int] = {}
    for reference in references:
        own = {(range_.topic, range_.partition): range_.incarnation for range_ in reference.ranges}
        if any(incarnations.get(partition, number) != number for partition, number in own.items()):
            yield run, incarnations
            run, incarnations = [], {}
        run.append(reference)
        incarnations.update(own)
    if run:
        yield run, incarnations


class Part(NamedTuple):
    """Some rows of a task, with the incarnation of each (topic, partition) in them."""

    rows: Iterable[pa.RecordBatch]
    incarnations: Mapping[tuple[str, int], int]


def decode_parts(
    parts: Iterable[Part], task: int, records_in_task: int, decoder: Decoder, place: DeadLetterPlan
) -> Iterator[pa.RecordBatch]:
    """Decode as :func:`decode_task`, from rows that are already read."""
    letters = _Letters(place, task=task, function=decoder.name, records_in_task=records_in_task)
    for part in parts:
        for batch in part.rows:
            decoded = decoder.decode(batch)
            if decoded.causes:
                letters.add(batch, decoded.causes, part.incarnations)
            if decoded.rows.num_rows:
                yield decoded.rows
    letters.write()


def decode_in_task(
    references: Sequence[BlockReference],
    task: int,
    plan: ReadPlan,
    count: Count,
    decoder: Decoder,
    place: DeadLetterPlan,
) -> Iterator[pa.RecordBatch]:
    """Do :func:`decode_task` in a Spark task. The error of an unreadable block is marked, so that the driver recognises it."""
    freeze_modules()
    try:
        yield from decode_task(references, task, plan, count, decoder, place)
    except UnreadableBlockError as error:
        raise marked(error) from None


class _Letters:
    """Collects the dead letters of a task and stores them in pieces of bounded size."""

    def __init__(self, place: DeadLetterPlan, *, task: int, function: str, records_in_task: int) -> None:
        self._place = place
        self._task = task
        self._function = function
        # with a topic, the other tasks' numbers are unknown, so each task has a share of the limit
        self._limit = place.limit if place.url else max(place.allowed, int(place.fraction * records_in_task))
        self._waiting: list[pa.Table] = []
        self._size = 0
        self._piece = 0
        self._records = 0

    def add(
        self, batch: pa.RecordBatch, causes: Mapping[int, str], incarnations: Mapping[tuple[str, int], int]
    ) -> None:
        indexes = sorted(causes)
        self._records += len(indexes)
        failed: Any = pa.Table.from_batches([batch]).take(pa.array(indexes, pa.int64()))
        topic, partition, offset = (failed.column(name)[0].as_py() for name in ("topic", "partition", "offset"))
        where = f"{topic}/{partition}@{offset}"
        if not self._place.url and not self._place.topic:
            raise JobError(
                f"record {where} can't be decoded: {causes[indexes[0]]}; set dead_letters.url or dead_letters.topic to continue "
                "without such records"
            )
        if self._records > self._limit:
            raise too_many(self._records, self._place, f"the last at {where}: {causes[indexes[0]]}")
        headers = DATAFRAME_SCHEMA(True).field("headers").type
        if "headers" not in failed.schema.names:
            failed = failed.append_column("headers", pa.nulls(len(indexes), headers))
        incarnations_of = zip(failed.column("topic").to_pylist(), failed.column("partition").to_pylist(), strict=True)
        own: dict[str, list[Any]] = {
            "life": [incarnations[tp] for tp in incarnations_of],
            "cause": [causes[index] for index in indexes],
            **{name: [value] * len(indexes) for name, value in self._context().items()},
        }
        for name, values in own.items():
            failed = failed.append_column(name, pa.array(values, dead_letters.SCHEMA.field(name).type))
        failed = failed.cast(dead_letters.SCHEMA)
        self._waiting.append(failed)
        self._size += failed.nbytes
        if self._size >= _PIECE_BYTES:
            self.write()

    def _context(self) -> dict[str, Any]:
        run = self._place.run
        return {
            "function": self._function,
            "attempt": run.attempt,
            "batch_id": run.batch_id,
            "batch_key": run.key,
            "batch_time": self._place.time_ms,
            "output": self._place.output,
        }

    def write(self) -> None:
        if not self._waiting:
            return
        table = pa.concat_tables(self._waiting)
        if self._place.url:
            path = dead_letters.object_path(
                self._place.run, self._place.call, self._task, self._piece, dead_letters.identities(table)
            )
            dead_letters.put(open_storage(self._place.url, self._place.storage), path, table)
        else:
            from forebay.kafka.produce.sender import send  # imports the Kafka client only if it is needed

            send(self._place.options, self._place.topic, as_records(table).to_batches(), same_partitions=False)
        self._waiting, self._size = [], 0
        self._piece += 1


def too_many(records: int, place: DeadLetterPlan, detail: str) -> JobError:
    """The error for more dead letters than allowed."""
    return JobError(
        f"{records} records of batch {place.run.key} can't be decoded, more than dead_letters.max_fraction = "
        f"{place.fraction:g} and dead_letters.records_allowed = {place.allowed} allow: check the decode function; {detail}"
    )


def as_records(table: pa.Table) -> pa.Table:
    """Return dead letters as records for a topic: key, value and timestamp are unchanged, headers contain the rest."""
    names = ("topic", "partition", "life", "offset", "cause", "function", "attempt", "batch_key", "output")
    texts: dict[str, list[str]] = {name: [str(value) for value in table.column(name).to_pylist()] for name in names}
    texts["batch_time"] = [str(value) for value in table.column("batch_time").cast(pa.int64()).to_pylist()]
    headers = [
        [*(own or []), *({"key": HEADER_PREFIX + name, "value": texts[name][row].encode()} for name in texts)]
        for row, own in enumerate(table.column("headers").to_pylist())
    ]
    schema = DATAFRAME_SCHEMA(True)
    made = [table.column(name) for name in schema.names[:-1]]
    return pa.table([*made, pa.array(headers, schema.field("headers").type)], schema=schema)


#: numbers of a dead letter, and their maximum
_NUMBERS = {
    "partition": INT32_MAX, "life": INT32_MAX, "offset": OFFSET_MAX, "attempt": INT32_MAX, "batch_id": NUMBER_MAX,
    "batch_time": NUMBER_MAX,
}  # fmt: skip


def of_records(table: Any) -> pa.Table:
    """Return the dead letters in records that :func:`as_records` made and a topic returned; other records are omitted."""
    times = table.column("timestamp").cast(pa.int64()).to_pylist()  # Python knows no year beyond 9999, Kafka does
    rows = (
        _letter({**row, "timestamp": time})
        for row, time in zip(table.drop_columns(["timestamp"]).to_pylist(), times, strict=True)
    )
    return pa.Table.from_pylist([row for row in rows if row is not None], schema=dead_letters.SCHEMA)


def _letter(record: dict[str, Any]) -> dict[str, Any] | None:
    """Return the row of a dead letter from its record; None if another program wrote the record."""
    headers = record["headers"] or []
    given = {header["key"][len(HEADER_PREFIX) :]: header["value"] for header in headers if _ours(header)}
    try:
        own = {"attempt": "0", "cause": "", "function": "", "output": ""} | {
            n: value.decode() for n, value in given.items()
        }
        own["batch_id"] = own["batch_key"].rpartition("-")[2]
        numbers = {name: whole_number(own[name], maximum) for name, maximum in _NUMBERS.items()}
        texts = {name: own[name] for name in ("topic", "cause", "function", "batch_key", "output")}
    except (KeyError, UnicodeDecodeError):
        return None
    rest = [header for header in headers if not _ours(header)]
    return None if None in numbers.values() else {**record, **texts, **numbers, "headers": rest or None}


def _ours(header: Mapping[str, Any]) -> bool:
    return header["key"].startswith(HEADER_PREFIX) and header["value"] is not None
