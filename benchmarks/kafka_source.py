"""``format("forebay")`` reading 2,000,000 records of 200 bytes from Kafka, against Spark's own Kafka source.

Each source runs in its own Spark (``local[2]``), because Spark's source needs the release of its jars
(``tests.support.spark.jvm_spark``). That of ``forebay`` talks to its Python workers over Unix sockets, as docs/STREAMING.md
recommends; Spark's source uses no Python. Both run the same queries on the same topic alternately, after one of each that is
not counted. A batch query counts records and sums the lengths of keys and values: from Kafka and, with ``option("tracker",
…)``, over an intake that has taken in the same topic and has its blocks on this host; there also with ``option("columns",
"key,value")``, the columns that the query uses. Spark's source has no such option: it makes whole rows for the same query.
``batch.arrow`` does the same over those blocks, as one batch of a job, in tasks of a further Spark.

A streaming query reads the topic to its end, 250,000 offsets per trigger, and drops the rows; its rate excludes the first
trigger. Almost empty triggers belong to a query whose topic gets one record per partition fifty times a second. Alternately with
them runs a Python source that does nothing (``tests.support.spark.idle_source``), which shows Spark's own share.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Producer

from benchmarks.measured import Measured, Threshold, alternate, ratio
from benchmarks.setup import PARTITIONS, Setup, values
from benchmarks.taken_in import TakenIn, taken_in
from driver.batches.job.batch import Batch
from driver.spark.engine import SparkEngine
from tests.support.spark.jvm_spark import FAST_PYTHON, SparkProcess, make

RECORDS = 2_000_000
PARTS = 8
TRIGGERS, TRIGGERS_SMALL = 20, 2
#: triggers that are not counted: a query's first ones start processes
_FIRST = 5

#: seconds that it took, records, bytes of keys and values
_Tally: TypeAlias = tuple[float, int, int]
_Tallied: TypeAlias = Callable[[], _Tally]


def measure(setup: Setup) -> Iterator[Measured]:
    make()
    records = setup.records(RECORDS)
    topic, small = setup.topic(records), setup.topic(PARTITIONS)
    options = {"kafka.bootstrap.servers": setup.broker.address, "startingOffsets": "earliest"}
    with setup.folder() as folder, ExitStack() as open_:
        intake = open_.enter_context(taken_in(folder / "intake", setup.broker.options, topic, records))
        forebay = open_.enter_context(SparkProcess("forebay", folder / "forebay", FAST_PYTHON))
        kafka = open_.enter_context(SparkProcess("kafka", folder / "kafka"))
        asked = _Asked(folder, options, TRIGGERS if setup.scale >= 1 else TRIGGERS_SMALL)
        job = open_.enter_context(_in_job(intake))
        batch: dict[tuple[str, float | None], _Tallied] = {
            ("batch query, records/s", 2.5): lambda: asked.tally(forebay, topic),
            ("batch query over the intake, records/s", None): lambda: asked.tally(
                forebay, topic, {"tracker": intake.url}
            ),
            ("the same with the columns key and value, records/s", 6.0): lambda: asked.tally(
                forebay, topic, {"tracker": intake.url, "columns": "key,value"}
            ),
            ("batch.arrow over the intake, records/s", 20.0): job,
        }
        yield from _batch_queries(setup.runs, batch, lambda: asked.tally(kafka, topic))

        def pairs(of: Callable[[SparkProcess], float]) -> list[tuple[float, float]]:
            of(forebay)
            of(kafka)
            return alternate(setup.runs, lambda: of(forebay), lambda: of(kafka))

        streamed = pairs(lambda side: asked.rate(side, topic, records // PARTS))
        yield ratio("source", "streaming query, records/s", streamed, "records/s", Threshold(1.5, at_least=True))
        with _trickling(setup, small):
            asked.trigger_ms(forebay, small)
            asked.trigger_ms(forebay, small, "idle")
            asked.trigger_ms(kafka, small)
            empty = [
                (
                    asked.trigger_ms(forebay, small),
                    asked.trigger_ms(forebay, small, "idle"),
                    asked.trigger_ms(kafka, small),
                )
                for _ in range(setup.runs)
            ]
        yield ratio(
            "source", "time of a nearly empty trigger", [(ours, peer) for ours, _, peer in empty], "ms",
            Threshold(1.3, at_least=False),
        )  # fmt: skip
        yield ratio(
            "source", "the same of a Python source that does nothing", [(idle, peer) for _, idle, peer in empty], "ms"
        )


def _batch_queries(runs: int, ours: dict[tuple[str, float | None], _Tallied], peer: _Tallied) -> Iterator[Measured]:
    """Return the figures of ``ours``, by name and wanted ratio, against the one run of ``peer`` in each round."""
    wanted = peer()[1:]
    for (what, _), tallied in ours.items():
        if tallied()[1:] != wanted:
            raise RuntimeError(f"{what}: it finds other records than Spark's Kafka source")
    rounds = [[wanted[0] / tallied()[0] for tallied in (*ours.values(), peer)] for _ in range(runs)]
    for place, (what, least) in enumerate(ours):
        found = [(rates[place], rates[-1]) for rates in rounds]
        threshold = None if least is None else Threshold(least, at_least=True)
        yield ratio("source", what, found, "records/s", threshold)


@contextmanager
def _in_job(intake: TakenIn) -> Iterator[_Tallied]:
    """Return the tally of one batch of all blocks, by Python tasks of a job."""
    engine = SparkEngine(intake.settings, dict)
    engine.start()

    def tally() -> _Tally:
        found: list[tuple[int, int]] = []

        def job(batch: Batch) -> None:
            found.extend(batch.arrow.mapPartitions(_sums).collect())

        begun = time.monotonic()
        engine.run(intake.work, job)
        seconds = time.monotonic() - begun
        return seconds, sum(records for records, _ in found), sum(size for _, size in found)

    try:
        yield tally
    finally:
        engine.stop()


def _sums(batches: Iterable[pa.RecordBatch]) -> list[tuple[int, int]]:
    """Return the number of records, and the bytes of keys and values, of one task."""
    records = size = 0
    for batch in batches:
        records += batch.num_rows
        for name in ("key", "value"):
            column: Any = batch.column(name)
            lengths: Any = pc.binary_length(column)
            size += pc.sum(lengths).as_py() or 0
    return [(records, size)]


class _Asked:
    def __init__(self, folder: Path, options: dict[str, str], triggers: int) -> None:
        self._folder = folder
        self._options = options
        self._triggers = triggers
        self._numbers = 0

    def _ask(self, side: SparkProcess, kind: str, topic: str, options: dict[str, str], **more: Any) -> dict[str, Any]:
        self._numbers += 1
        given = {**self._options, "subscribe": topic, **options}
        checkpoint = str(self._folder / f"checkpoint-{self._numbers}")
        answer = side.ask({"kind": kind, "options": given, "checkpoint": checkpoint, **more})
        if "refused" in answer:
            raise RuntimeError(answer["refused"])
        return answer

    def tally(self, side: SparkProcess, topic: str, options: dict[str, str] | None = None) -> _Tally:
        found = self._ask(side, "tally", topic, options or {})
        return float(found["seconds"]), int(found["records"]), int(found["bytes"])

    def rate(self, side: SparkProcess, topic: str, part: int) -> float:
        triggers = self._ask(side, "drain", topic, {"maxOffsetsPerTrigger": str(part)})["triggers"][1:]
        return float(sum(rows for _, rows in triggers) / sum(ms for ms, _ in triggers) * 1000)

    def trigger_ms(self, side: SparkProcess, topic: str, source: str | None = None) -> float:
        more = {} if source is None else {"source": source}
        triggers = self._ask(side, "trickle", topic, {}, count=self._triggers + _FIRST, **more)["triggers"]
        return float(median(ms for ms, _ in triggers[_FIRST:]))


@contextmanager
def _trickling(setup: Setup, topic: str) -> Iterator[None]:
    """Send one record into each partition of ``topic`` fifty times a second, while open."""
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
