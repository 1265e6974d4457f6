"""Reading of a task's blocks, inside Spark tasks. Imports neither the driver's decisions nor its journal."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa

from forebay.model.arrow_columns import one_batch
from forebay.model.errors import UnreadableBlockError
from forebay.process.worker_process import freeze_modules
from wal.reading import BlockReference, ReadPlan, TierCounts, read_blocks

#: around the message of an UnreadableBlockError on its way through the JVM, where an exception is only text
_MARKED = "<forebay-unreadable>{}</forebay-unreadable>"
_MARKER = re.compile(_MARKED.format("(.*?)"), re.DOTALL)

Count = Callable[[TierCounts], None]

#: a record batch with at least this number of rows or bytes is passed on without a copy
LARGE_ROWS, LARGE_BYTES = 4_096, 1 << 20
#: of a task's blocks: the number of bytes that follow when they are decompressed
_SIZE = struct.Struct("<Q")


class TaskBlocks(msgspec.Struct, frozen=True, array_like=True):
    """The blocks that one task of a batch reads. ``number``: the task's number in its batch, from 0."""

    number: int
    references: tuple[BlockReference, ...]

    def encode(self) -> bytes:
        """Return the value as bytes, compressed: references differ in little but their checksums, and travel with each task."""
        data = msgspec.msgpack.encode(self)
        return _SIZE.pack(len(data)) + pa.compress(data, codec="zstd", asbytes=True)

    @classmethod
    def decode(cls, data: bytes) -> TaskBlocks:
        (size,) = _SIZE.unpack_from(data)
        plain = pa.decompress(memoryview(data)[_SIZE.size :], size, codec="zstd", asbytes=True)
        return msgspec.msgpack.decode(plain, type=cls)


def tasks_in(batches: Iterable[pa.RecordBatch]) -> Iterator[TaskBlocks]:
    """Return the tasks in the rows of a DataFrame with one binary column."""
    for batch in batches:
        for data in batch.column(0):
            yield TaskBlocks.decode(data.as_py())


class KafkaRecord(NamedTuple):
    """One record of ``batch.rdd``, with the columns of Spark's Kafka source.

    ``key``, ``value``: its bytes, or None. ``topic``, ``partition``, ``offset``: its place in Kafka. ``timestamp``: Kafka's, in
    milliseconds since 1970 UTC (-1: none). ``timestampType``: 0 create time, 1 log append time, -1 none. ``headers``: (key,
    value) pairs; None for a record without headers, and in a stream that does not take headers in.
    """

    key: bytes | None
    value: bytes | None
    topic: str
    partition: int
    offset: int
    timestamp: int
    timestampType: int  # noqa: N815 - the name in Spark's Kafka source
    headers: list[tuple[str, bytes | None]] | None = None


def read_task(references: Sequence[BlockReference], plan: ReadPlan, count: Count) -> Iterator[pa.RecordBatch]:
    """Return the record batches of one task, in order, as ``wal.reading.read_blocks`` reads them. ``count`` is called with the
    tier counts of all blocks.

    Raises UnreadableBlockError.
    """
    for read in read_blocks(references, plan):
        count(read.counts)
        yield from read.batches


def read_in_task(references: Sequence[BlockReference], plan: ReadPlan, count: Count) -> Iterator[pa.RecordBatch]:
    """Do :func:`read_task` in a Spark task, with small batches joined. The error of an unreadable block is marked, so that the
    driver recognises it."""
    freeze_modules()
    try:
        yield from joined(read_task(references, plan, count))
    except UnreadableBlockError as error:
        raise marked(error) from None


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the same rows in the same order, with successive small batches of one schema joined until they are large.

    Each batch that a task passes on costs Spark, Arrow and the job a fixed time.
    At most ``LARGE_BYTES`` and one further small batch wait for the next batch.
    """
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        own_bytes = batch.nbytes
        large = batch.num_rows >= LARGE_ROWS or own_bytes >= LARGE_BYTES
        if waiting and (large or rows >= LARGE_ROWS or size >= LARGE_BYTES or batch.schema != waiting[0].schema):
            yield one_batch(waiting)
            waiting, rows, size = [], 0, 0
        if large:
            yield batch
        else:
            waiting.append(batch)
            rows += batch.num_rows
            size += own_bytes
    if waiting:
        yield one_batch(waiting)


def marked(error: UnreadableBlockError) -> UnreadableBlockError:
    """Return the error with marks around its message, by which :func:`unreadable` finds it in a Java exception. (The marks
    are not in the line that raises it, because a traceback quotes that line.)"""
    return UnreadableBlockError(_MARKED.format(error))


def packed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return each record batch as one row with an Arrow stream in a binary column, which Spark does not change."""
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        yield pa.record_batch([pa.array([sink.getvalue().to_pybytes()], pa.binary())], ["stream"])


def unreadable(error: BaseException) -> UnreadableBlockError | None:
    """Return the UnreadableBlockError that caused ``error``, directly or in a Spark task; None if there is none."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, UnreadableBlockError) and not _MARKER.search(str(cause)):
            return cause
        found = _MARKER.search(str(cause))
        if found:
            return UnreadableBlockError(found[1])
        seen.add(id(cause))
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return None


def records(batches: Iterable[pa.RecordBatch]) -> Iterator[KafkaRecord]:
    """Return the rows of ``batches`` as Python objects, converted column by column."""
    for batch in batches:
        key, value, topic, partition, offset, timestamp, timestamp_type, *headers = batch.columns
        milliseconds = timestamp.cast(pa.timestamp("ms", "UTC")).view(pa.int64())
        columns = [key, value, topic, partition, offset, milliseconds, timestamp_type]
        lists = [column.to_pylist() for column in columns]
        if headers:
            lists.append([pairs and [(h["key"], h["value"]) for h in pairs] for pairs in headers[0].to_pylist()])
        yield from map(KafkaRecord, *lists)
