"""The race of queries: ``format("forebay")`` against Spark's own Kafka source, as batch and as streams, over the same topic.

2,000,000 records of 200 bytes, 4 partitions. Each source runs in its own Spark (``local[2]``, as in the benchmark ``source``),
and the queries take turns, after one round that is not counted. A batch query counts records and sums the lengths of keys and
values; the one with named columns sets the option ``columns`` to these two. A stream drops the rows; it reads 250,000 offsets per
trigger, with triggers back to back or one each second, and its rate excludes the first trigger. Processor time and memory are of
Spark's JVM and its Python processes together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from benchmarks.measured import Measured, Threshold, ratio
from benchmarks.peers.contender import Run, Usage
from benchmarks.setup import Setup
from benchmarks.sheets import Bars, Sheet, spread
from benchmarks.taken_in import taken_in
from tests.support.spark.jvm_spark import FAST_PYTHON, SparkProcess, make

RECORDS = 2_000_000
PARTS = 8
#: query of Forebay → the peer's query, and the least ratio of their rates
RACES = {
    "Forebay: batch": ("Spark's Kafka source: batch", 2.5),
    "Forebay: batch over the intake": ("Spark's Kafka source: batch", None),
    "Forebay: batch over the intake, columns named": ("Spark's Kafka source: batch", 6.0),
    "Forebay: stream, back to back": ("Spark's Kafka source: stream, back to back", 1.5),
    "Forebay: stream, each second": ("Spark's Kafka source: stream, each second", None),
}


def measure(setup: Setup) -> Iterator[Measured]:
    make()
    records = setup.records(RECORDS)
    topic = setup.topic(records)
    with setup.folder() as folder, ExitStack() as open_:
        intake = open_.enter_context(taken_in(folder / "intake", setup.broker.options, topic, records))
        forebay = open_.enter_context(SparkProcess("forebay", folder / "forebay", FAST_PYTHON))
        kafka = open_.enter_context(SparkProcess("kafka", folder / "kafka"))
        queries = _Queries(folder, setup.broker.address, topic, records)
        runs: dict[str, Callable[[], Run]] = {
            "Spark's Kafka source: batch": lambda: queries.batch(kafka),
            "Forebay: batch": lambda: queries.batch(forebay),
            "Forebay: batch over the intake": lambda: queries.batch(forebay, tracker=intake.url),
            "Forebay: batch over the intake, columns named": lambda: queries.batch(
                forebay, tracker=intake.url, columns="key,value"
            ),
            "Spark's Kafka source: stream, back to back": lambda: queries.stream(kafka, "all"),
            "Forebay: stream, back to back": lambda: queries.stream(forebay, "all"),
            "Spark's Kafka source: stream, each second": lambda: queries.stream(kafka, "second"),
            "Forebay: stream, each second": lambda: queries.stream(forebay, "second"),
        }
        rounds = [{name: run() for name, run in runs.items()} for _ in range(setup.runs + 1)][1:]
    setup.keep(_sheet(rounds, records))
    for ours, (peer, least) in RACES.items():
        rates = [(records / found[ours].seconds, records / found[peer].seconds) for found in rounds]
        threshold = None if least is None else Threshold(least, at_least=True)
        yield ratio("peers-queries", f"rate, {ours} / {peer}", rates, "records/s", threshold)
        cpu = [(_micros(found[ours], records), _micros(found[peer], records)) for found in rounds]
        yield ratio("peers-queries", f"CPU per record, {ours} / {peer}", cpu, "µs")


class _Queries:
    def __init__(self, folder: Path, servers: str, topic: str, records: int) -> None:
        self._folder = folder
        self._options = {"kafka.bootstrap.servers": servers, "startingOffsets": "earliest", "subscribe": topic}
        self._records = records
        self._streams = 0

    def batch(self, side: SparkProcess, **more: str) -> Run:
        before = Usage.of(side.pid)
        answer = side.ask({"kind": "tally", "options": {**self._options, **more}})
        after = Usage.of(side.pid)
        if answer.get("records") != self._records:
            raise RuntimeError(f"a batch query of {self._records} records answers {answer}")
        return Run(answer["seconds"], after.cpu_seconds - before.cpu_seconds, after.peak_mb)

    def stream(self, side: SparkProcess, trigger: str) -> Run:
        """Return the run, its seconds as if each trigger had taken the mean of all but the first."""
        self._streams += 1
        options = {**self._options, "maxOffsetsPerTrigger": str(self._records // PARTS)}
        before = Usage.of(side.pid)
        answer = side.ask({
            "kind": "drain", "options": options, "trigger": trigger,
            "checkpoint": str(self._folder / f"checkpoint-{self._streams}"),
        })  # fmt: skip
        after = Usage.of(side.pid)
        triggers = answer.get("triggers", [])
        if sum(rows for _, rows in triggers) != self._records:
            raise RuntimeError(f"a stream of {self._records} records answers {answer}")
        ms, rows = (sum(found) for found in zip(*triggers[1:], strict=True))
        return Run(ms / rows * self._records / 1000, after.cpu_seconds - before.cpu_seconds, after.peak_mb)


def _micros(run: Run, records: int) -> float:
    return run.cpu_seconds / records * 1e6


def _sheet(rounds: list[dict[str, Run]], records: int) -> Sheet:
    rows: list[tuple[str, ...]] = []
    rated: list[tuple[str, tuple[float, ...]]] = []
    spent: list[tuple[str, tuple[float, ...]]] = []
    for name in rounds[0]:
        peer = RACES.get(name, (name, None))[0]
        ratios = tuple(found[peer].seconds / found[name].seconds for found in rounds)
        rates = [records / found[name].seconds for found in rounds]
        micros = tuple(_micros(found[name], records) for found in rounds)
        memory = [found[name].peak_mb for found in rounds]
        rows.append((name, spread(ratios), spread(rates), spread(micros), spread(memory)))
        rated.append((name, ratios))
        spent.append((name, micros))
    head = ("query", "rate, the same query of Spark's source = 1", "records/s", "CPU per record, µs", "peak memory, MB")
    plots = (Bars("records per second, Spark's source = 1", tuple(rated)), Bars("CPU per record, µs", tuple(spent)))
    return Sheet("peers-queries", "Querying Kafka from Spark", head, tuple(rows), plots)
