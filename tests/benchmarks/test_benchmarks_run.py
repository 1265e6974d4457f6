"""Each benchmark runs, in a form that takes seconds: nothing is asserted on how fast anything is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.__main__ import BENCHMARKS, chosen, measures
from benchmarks.measured import Threshold, alternate, figure, ratio
from benchmarks.peers import libraries
from benchmarks.peers.queries import RACES
from benchmarks.setup import Setup
from forebay.model.errors import UsageError
from tests.conftest import missing, require_kafka, running_in_ci
from tests.support.processes.namespaces import require_namespaces
from tests.support.servers import nginx
from tests.support.spark.jvm_spark import require_jvm_spark
from tests.support.stores.contract import require_s3

#: name → the lines that it gives
LINES = {
    "machine": [
        "a copy in memory",
        "XXH3-64",
        "SHA-256",
        "CRC-32C",
        "writes through the page cache, synced",
        "direct writes, synced",
    ],
    "receiver": ["records/s", "CPU per record"],
    "object-wal": [
        "WAL on S3, 20 ms away, against local files",
        "the same: CPU per record, receiver",
        "the same: CPU per record, all processes",
    ],
    "memory": ["peak", "last third / middle third"],
    "arrow": ["records/s", "records/s, values unread", "Spark's job over no records"],
    "dataframe": ["records/s"],
    "reports": [
        "64 at the same time / one at a time",
        "the same, each sync 2 ms slower",
        "64 at the same time, with a token / without",
        "64 at the same time, with a token by https / without",
    ],
    "journal": ["time to open"],
    "opening": ["requests, old / young"],
    "cleanup": ["100,000 blocks / 1,000 blocks"],
    "scale": [
        "report latency, median, all waiting / few",
        "report latency, 99th percentile, all waiting / few",
        "the same, median, few waiting / a bare post and fdatasync",
        "the longest report while all wait",
        "taken in",
        "tick → job called with all blocks",
        "the same, processor time of the driver",
        "the longest heartbeat meanwhile",
        "the same, completion and archive",
        "status, all waiting / few",
        "longest heartbeat, a scrape each second / none",
        "a scrape of the metrics",
        "the longest scrape",
        "journal on disk, per block",
    ],
    "day": [
        "memory",
        "journal, at most",
        "a snapshot",
        "status",
        "a batch",
        "of all collections, files and bytes the one that grew most",
        "history, per batch",
    ],
    "verify": ["against a read with checksum", "the same, with the SHA-256 of each block"],
    "digests": [
        "receiver: CPU of the SHA-256 / of encoding a block with it",
        "task: reading from the WAL, compared / not",
        "the same, and an aggregate of values, compared / not",
    ],
    "latency": [
        "interval 1 s, median",
        "interval 1 s, 99th percentile",
        "no interval, 10,000 records/s, median",
        "no interval, 10,000 records/s, 99th percentile",
    ],
    "latency-spark": [
        f"{case}, {what}{against}"
        for case in (
            "Spark, 1,000 records/s",
            "Spark, interval 100 ms",
            "Spark, interval 100 ms, a job that waits 0.5 s",
        )
        for against in ("", ", against Spark's Kafka source")
        for what in ("median", "99th percentile")
    ],
    "blocks": [
        "one reader, 16 MB",
        "one reader, 64 MB",
        "64 readers at the same time, 64 MB",
        "the same: CPU of the server per GB",
        "agent's memory for each of 64 readers",
    ],
    "levels": [
        "a task reads local copies in memory / on disk",
        "a receiver stores blocks, local copies in memory / on disk",
        "a task reads a lost host's blocks from replicas / from S3, 20 ms away",
        "a receiver stores blocks with a replica / without",
    ],
    "locality": ["ranges read on the task's own host, of 3"],
    "source": [
        "batch query, records/s",
        "batch query over the intake, records/s",
        "the same with the columns key and value, records/s",
        "batch.arrow over the intake, records/s",
        "streaming query, records/s",
        "time of a nearly empty trigger",
        "the same of a Python source that does nothing",
    ],
    "decoding": [
        "Avro, records/s",
        "JSON, records/s",
        "Protobuf, records/s",
        "the same, against FromString alone",
    ],
    "state": [
        "a batch changes a state of a million keys / raw join",
        "reading a state of a million keys / raw join of all of them",
    ],
    "flood": [
        "driver: longest heartbeat, flooded / not",
        "driver: memory that the flood takes",
        "agent: longest heartbeat, flooded / not",
        "agent: memory that the flood takes",
    ],
    "small-blocks": [
        "reading many blocks / the same bytes in few, processor time",
        "reading many blocks / the same joined by Arrow, processor time",
        "a query over an intake: many blocks / the same one by one, processor time",
    ],
    "start": [
        "forebay status",
        "receiver until it is ready",
        "agent until it is ready",
        "driver until it leads, local engine",
        "planner of a query, kafka: what it imports beside Spark's",
        "planner of a query, intake: what it imports beside Spark's",
    ],
    "take-over": [
        "killed leader to the standby's next batch, without the lease",
        "restart to the next batch, beyond a Spark session and its first DataFrame job",
        "the same, beyond the session alone",
        "start of a Spark session",
        "its first DataFrame job, in Spark alone",
        *(
            f"{who}: {phase}"
            for who in ("restart", "standby")
            for phase in (
                "first batch / tenth",
                "until it leads",
                "then until the engine runs",
                "then until the first job has ended",
            )
        ),
    ],
    "peers-landing": [
        f"{what} against {peer}"
        for peer in (
            "A bare consume loop in Python",
            "Spark: JVM receiver with WAL (socket)",
            "Flink: Kafka source into files",
            "Kafka Connect: file sink",
        )
        for what in ("rate", "CPU per record", "memory")
    ],
    "peers-queries": [
        f"{what}, {ours} / {peer}" for ours, (peer, _) in RACES.items() for what in ("rate", "CPU per record")
    ],
    "growth-partitions": ["records/s, 1,000 partitions / 1", "memory, 1,000 partitions / 1"],
    "growth-topics": ["records/s, 100 topics / 1"],
    "growth-records": ["peak memory, 1 MB"],
    "growth-receivers": ["records/s, 8 receivers / 1"],
    "growth-blocks": [
        "allocation of the batch with the most blocks",
        "each further block, to the last task's row",
        "a task over 1,000 blocks / the same bytes in 10",
    ],
    "growth-age": ["a batch, last three tenths / second to fourth", "memory, at the end / after a fifth"],
    "growth-s3": [
        "records/s, 80 ms / 0 ms",
        "requests' price per GB, backlog, 80 ms",
        "requests' price per GB, 400 records/s, 80 ms",
    ],
    "growth-driver": ["reports/s, 256 receivers / 64", "allocation per waiting block, most / fewest"],
    "growth-fleet": ["processor time per block, most receivers / fewest"],
}
_STARTS = ("start", "take-over")
_PEERS = ("peers-landing", "peers-queries")
_INTAKES = ("growth-partitions", "growth-topics", "growth-records", "growth-receivers", "growth-s3")
NEEDS_KAFKA = (
    "receiver", "object-wal", "memory", "latency", "latency-spark", "locality", "source", *_PEERS, *_INTAKES, *_STARTS,
)  # fmt: skip
NEEDS_SPARK = ("arrow", "latency-spark", "dataframe", "locality", "source", *_PEERS, "growth-blocks", "take-over")
#: a cluster of its own, two Sparks, or much that does not get less with the records
LONG = (
    "latency-spark",
    "levels",
    "locality",
    "source",
    "opening",
    "arrow",
    "dataframe",
    *_PEERS,
    "growth-blocks",
    "growth-driver",
    *_INTAKES,
    *_STARTS,
)


def test_every_benchmark_is_named_here() -> None:
    assert list(LINES) == list(BENCHMARKS)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    with Setup(tmp_path_factory.mktemp("benchmarks"), runs=1, scale=0.002) as setup:
        yield setup


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[pytest.mark.kafka] * (name in NEEDS_KAFKA)
            + [pytest.mark.spark] * (name in NEEDS_SPARK)
            + [pytest.mark.long] * (name in LONG),
        )
        for name in LINES
    ],
)
def test_benchmark_prints_its_figures(name: str, tiny: Setup) -> None:
    if name in NEEDS_KAFKA:
        require_kafka()
    if name in ("object-wal", "opening", "levels", "growth-s3"):
        require_s3()
    if name in ("source", "peers-queries", "latency-spark"):
        require_jvm_spark(missing)
    if name == "blocks":
        _require_nginx()
    if name == "peers-landing" and not libraries.present() and not running_in_ci():
        missing("Flink and Kafka Connect are not here: run python -m benchmarks.peers.libraries")
    if name == "locality":
        require_namespaces(missing)
    found = list(measures(name)(tiny))
    assert [measured.what for measured in found] == LINES[name]
    assert {measured.benchmark for measured in found} == {name}
    assert all(measured.low <= measured.value <= measured.high for measured in found)
    # a restart with an archive of classes can be faster than Spark alone without one
    assert all(measured.value > 0 for measured in found if "beyond" not in measured.what)


def _require_nginx() -> None:
    """Skips or fails if there is none; in CI it is fetched if need be."""
    if nginx.binary() is None:
        if not running_in_ci():
            missing("there is no nginx here: run python -m tests.support.servers.nginx")
        try:
            nginx.fetch()
        except UsageError as error:
            missing(str(error))


def test_runs_alternate() -> None:
    order: list[str] = []
    alternate(3, lambda: order.append("ours"), lambda: order.append("peer"))
    assert order == ["ours", "peer"] * 3


def test_a_ratio_is_the_median_of_neighbouring_runs_with_its_spread() -> None:
    """A slow minute of the machine meets both sides of a pair, so pairs are compared, not medians."""
    measured = ratio("b", "w", [(1.0, 2.0), (50.0, 100.0), (9.0, 10.0)], "s")
    assert (measured.value, measured.low, measured.high, measured.runs) == (0.5, 0.5, 0.9, 3)


@pytest.mark.parametrize(
    ("threshold", "value", "verdict"),
    [
        (Threshold(0.5, at_least=True), 0.5, "ok"),
        (Threshold(0.5, at_least=True), 0.49, "below"),
        (Threshold(2.0, at_least=False), 2.0, "ok"),
        (Threshold(2.0, at_least=False), 2.01, "above"),
        (None, 7.0, "recorded"),
    ],
)
def test_a_threshold_is_kept_or_missed(threshold: Threshold | None, value: float, verdict: str) -> None:
    measured = figure("b", "w", [value], "s", threshold)
    assert measured.verdict == verdict
    assert measured.missed == (verdict in ("below", "above"))
    assert verdict in measured.line


def test_a_group_is_all_benchmarks_with_its_name() -> None:
    assert chosen(["growth", "day"]) == ["day", *(name for name in BENCHMARKS if name.startswith("growth-"))]
    assert chosen(["growth-age"]) == ["growth-age"]
    assert chosen([]) == list(BENCHMARKS)
