"""Rows of Arrow batches as records for producers. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from forebay.model.errors import UsageError

#: topic, key, value, partition (None: by the key, as in Java's client) and headers of one record
Record = tuple[str, "bytes | None", "bytes | None", "int | None", "list[tuple[str, bytes | None]] | None"]


def check_topics(batch: pa.RecordBatch, topic: str | None) -> None:
    """Raise UsageError for a row without a topic. ``topic``: that of all rows; None if each row names one."""
    if topic is None and batch.column("topic").null_count:
        raise UsageError("null topic present in the data: use the option topic to set one for all rows")


def records_of(batch: pa.RecordBatch, topic: str | None) -> Iterator[Record]:
    """Return each row as a record: ``value``, and ``key``, ``headers`` and ``partition`` if the batch has these columns.

    ``topic``: that of all records; None for the row's column ``topic``. Raises UsageError as :func:`check_topics`, and for a null
    header.
    """
    check_topics(batch, topic)
    names = batch.schema.names
    nothing: list[Any] = [None] * batch.num_rows
    columns = (
        batch.column(name).to_pylist() if name in names else nothing
        for name in ("key", "value", "partition", "headers")
    )
    topics = batch.column("topic").to_pylist() if topic is None else [topic] * batch.num_rows
    for name, key, value, partition, headers in zip(topics, *columns, strict=True):
        yield name, key, value, partition, headers and [_header(header) for header in headers]


def _header(given: dict[str, Any] | None) -> tuple[str, bytes | None]:
    if given is None or given["key"] is None:
        raise UsageError("null header, or header without a key, present in the data: Kafka takes neither")
    return given["key"], given["value"]
