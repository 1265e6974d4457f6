"""``format("forebay")`` reading 2,000,000 records of 200 bytes from Kafka itself, against Spark's own Kafka source.

Each in a Spark of its own (``local[2]``), since Spark's source needs the release of its jars (``tests.support.jvm_spark``); the
same queries on the same topic, in turns, after one of each that is not counted. A batch query counts records and sums the lengths
of keys and values; a streaming query reads the topic to its end, 250,000 offsets a trigger, into nothing: its rate without its
first trigger. Triggers that are nearly empty are those of a query that a producer gives a record of each partition fifty times a
second.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from confluent_kafka import Producer

from benchmarks.measured import Measured, Threshold, alternate, ratio
from benchmarks.setup import PARTITIONS, Setup, values
from tests.support.jvm_spark import SparkProcess, make

RECORDS = 2_000_000
PARTS = 8
TRIGGERS = 25
#: triggers that are not counted: a query's first ones start processes
_FIRST = 5


def measure(setup: Setup) -> Iterator[Measured]:
    make()
    records = setup.records(RECORDS)
    topic, small = setup.topic(records), setup.topic(PARTITIONS)
    options = {"kafka.bootstrap.servers": setup.broker.address, "startingOffsets": "earliest"}
    with setup.folder() as folder, ExitStack() as open_:
        sides = [open_.enter_context(SparkProcess(source, folder / source)) for source in ("forebay", "kafka")]
        asked = _Asked(folder, options)

        def pairs(of: Any) -> list[tuple[float, float]]:
            for side in sides:
                of(side)
            return alternate(setup.runs, lambda: of(sides[0]), lambda: of(sides[1]))

        batch = pairs(lambda side: records / asked.tally(side, topic))
        yield ratio("source", "batch query, records/s", batch, "records/s", Threshold(1.0, at_least=True))
        streamed = pairs(lambda side: asked.rate(side, topic, records // PARTS))
        yield ratio("source", "streaming query, records/s", streamed, "records/s", Threshold(1.0, at_least=True))
        with _trickling(setup, small):
            empty = pairs(lambda side: asked.trigger_ms(side, small))
        yield ratio("source", "time of a nearly empty trigger", empty, "ms", Threshold(1.3, at_least=False))


class _Asked:
    def __init__(self, folder: Path, options: dict[str, str]) -> None:
        self._folder = folder
        self._options = options
        self._numbers = 0

    def _ask(self, side: SparkProcess, kind: str, topic: str, options: dict[str, str], **more: Any) -> dict[str, Any]:
        self._numbers += 1
        given = {**self._options, "subscribe": topic, **options}
        checkpoint = str(self._folder / f"checkpoint-{self._numbers}")
        answer = side.ask({"kind": kind, "options": given, "checkpoint": checkpoint, **more})
        if "refused" in answer:
            raise RuntimeError(answer["refused"])
        return answer

    def tally(self, side: SparkProcess, topic: str) -> float:
        return float(self._ask(side, "tally", topic, {})["seconds"])

    def rate(self, side: SparkProcess, topic: str, part: int) -> float:
        triggers = self._ask(side, "drain", topic, {"maxOffsetsPerTrigger": str(part)})["triggers"][1:]
        return float(sum(rows for _, rows in triggers) / sum(ms for ms, _ in triggers) * 1000)

    def trigger_ms(self, side: SparkProcess, topic: str) -> float:
        triggers = self._ask(side, "trickle", topic, {}, count=TRIGGERS + _FIRST)["triggers"]
        return float(median(ms for ms, _ in triggers[_FIRST:]))


@contextmanager
def _trickling(setup: Setup, topic: str) -> Iterator[None]:
    """A record into each partition of ``topic``, fifty times a second."""
    ended = threading.Event()
    ((key, value),) = values(1, 200)

    def produce() -> None:
        producer = Producer({**setup.broker.options, "linger.ms": 0})
        while not ended.wait(0.02):
            for partition in range(PARTITIONS):
                producer.produce(topic, value, key, partition)
            producer.poll(0)
        producer.flush(10)

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
