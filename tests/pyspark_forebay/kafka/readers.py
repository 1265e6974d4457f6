"""Readers as Spark's planner calls them, and what they read."""

from __future__ import annotations

import pickle
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable

from forebay.kafka.embedded.broker import KafkaBroker
from pyspark_forebay.kafka.batch import BatchReader
from pyspark_forebay.kafka.stream import StreamReader

ALL = ReadAllAvailable()


def options(broker: KafkaBroker, topic: str, **more: str) -> dict[str, str]:
    """``more``: with ``T`` for the topic; ``fetch_`` and ``kafka_`` stand for the prefixes."""
    return {
        "kafka.bootstrap.servers": broker.options["bootstrap.servers"],
        "fetchOffset.retryIntervalMs": "100",
        **({} if {"assign", "subscribePattern"} & set(more) else {"subscribe": topic}),
        **{name.replace("_", "."): value.replace("T", topic) for name, value in more.items()},
    }


def ranges(reader: BatchReader | StreamReader, *between: dict[str, Any]) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = {}
    for part in reader.partitions(*between):
        for span in part.value:
            found.setdefault(span.partition, []).append((span.from_offset, span.until_offset))
    return found


def rows(reader: BatchReader | StreamReader, *between: dict[str, Any]) -> list[dict[str, Any]]:
    copy = pickle.loads(pickle.dumps(reader))  # as a task has it
    return [
        row
        for part in reader.partitions(*between)
        for batch in copy.read(pickle.loads(pickle.dumps(part)))
        for row in batch.to_pylist()
    ]


def offsets(reader: BatchReader | StreamReader, *between: dict[str, Any]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row in rows(reader, *between):
        found.setdefault(row["partition"], []).append(row["offset"])
    return found


def streaming(broker: KafkaBroker, topic: str, **more: str) -> StreamReader:
    return StreamReader(options(broker, topic, **more))
