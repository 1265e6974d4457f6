"""Outputs written from Spark's DataFrames: the example's four of them, and what a failed task leaves."""

from __future__ import annotations

import importlib
import json
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from driver.batches.job.batch import Batch
from driver.batches.job.work import BatchWork
from driver.outputs import DeltaOutput, ParquetOutput, SqlOutput
from driver.outputs.parquet import MARKER
from driver.spark.engine import SparkEngine
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.errors import UnreadableBlockError
from forebay.model.identifiers import numbered
from tests.support.kafka.polling import committed_values
from tests.support.state.rows import Row, block
from tests.support.state.stored import Stored
from tests.support.stores.hdfs import HdfsServer

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]

FLIGHTS: list[dict[str, Any]] = [
    {"carrier": carrier, "flight": number, "dep_delay": 1.0, "arr_delay": None if number % 7 == 0 else float(number)}
    for number, carrier in enumerate(["AA", "B6", "UA"] * 40)
]


def work(stored: Stored, number: int, replay: int = 0) -> BatchWork:
    """Two tasks, each with half of the flights."""
    half = len(FLIGHTS) // 2
    tasks = []
    for part, flights in enumerate((FLIGHTS[:half], FLIGHTS[half:])):
        rows = [Row(None, json.dumps(f).encode(), f["flight"], 1_700_000_000_000, 0, []) for f in flights]
        tasks.append((stored.add(*block({("flights", part): rows}, sequence=number * 2 + part)),))
    return BatchWork(
        numbered(1, number),
        number,
        1_700_000_000_000,
        False,
        tuple(tasks),
        stream="flights",
        epoch=numbered(1, 1),
        replay=replay,
    )


@pytest.mark.kafka
def test_the_example_fills_four_outputs_with_each_batch_once(
    spark: Any,
    stored: Stored,
    kafka_broker: KafkaBroker,
    topic_name: Callable[[], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twice the same batch, then a replay of it: Parquet, Delta and SQL hold it once, the topic once more."""
    topic = topic_name()
    kafka_broker.create_topic(topic, partitions=1)
    monkeypatch.setenv("FLIGHTS_FOLDER", str(tmp_path / "out"))
    monkeypatch.setenv("FLIGHTS_BROKER", kafka_broker.options["bootstrap.servers"])
    monkeypatch.setenv("FLIGHTS_TOPIC", topic)
    from deploy.examples.outputs import jobs

    jobs = importlib.reload(jobs)
    engine = SparkEngine(stored.settings(), dict, spark)
    engine.start()
    first, second, replayed = work(stored, 1), work(stored, 1), work(stored, 1, replay=1)
    for batch in (first, second, replayed):
        engine.run(batch, jobs.process)
    arrived = sum(f["arr_delay"] is not None for f in FLIGHTS)
    late = Counter(f["carrier"] for f in FLIGHTS if (f["arr_delay"] or 0) > 60)
    rows = [len(FLIGHTS), arrived, 3, sum(late.values())]
    names = ["flights", "arrivals", "carriers", topic]
    assert [(w.output, w.rows) for w in first.written] == [(w.output, w.rows) for w in replayed.written]
    assert [(w.output, w.rows) for w in first.written] == list(zip(names, rows, strict=True))
    assert all(w.rows == 0 and "written already" in w.skipped for w in second.written)

    folder = tmp_path / "out"
    table = pq.read_table(folder / "flights" / f"batch={first.batch_id}").to_pydict()
    assert sorted(table["flight"]) == list(range(len(FLIGHTS))) and set(table["carrier"]) == {"AA", "B6", "UA"}
    table = DeltaTable(str(folder / "arrivals")).to_pyarrow_table().to_pydict()
    assert sorted(table["flight"]) == [f["flight"] for f in FLIGHTS if f["arr_delay"] is not None]
    with closing(sqlite3.connect(folder / "flights.db")) as database:
        found = database.execute("SELECT carrier, flights, late FROM carriers ORDER BY carrier").fetchall()
    assert found == [(carrier, 40, late[carrier]) for carrier in ("AA", "B6", "UA")]
    sent = Counter(json.loads(value)["carrier"] for value in committed_values(kafka_broker, topic, 1))
    assert sent == {carrier: 2 * count for carrier, count in late.items()}
    for output in (jobs.carriers, jobs.late):
        output.close()


def test_a_failed_task_leaves_nothing_and_unreadable_ranges_are_named(
    spark: Any,
    stored: Stored,
    tmp_path: Path,
) -> None:
    """INV-5: the range that no tier could read comes through Spark and the output's library."""
    with closing(sqlite3.connect(tmp_path / "data.db")) as database, database:
        database.execute("CREATE TABLE t (flight INTEGER)")
    outputs: list[Any] = [
        ParquetOutput(f"file://{tmp_path}/parquet"),
        DeltaOutput(f"file://{tmp_path}/delta"),
        SqlOutput(f"sqlite:///{tmp_path}/data.db", "t"),
    ]
    settings = stored.settings()
    nowhere_else = msgspec.structs.replace(settings.kafka, read_blocks=False)  # no broker to wait for
    engine = SparkEngine(msgspec.structs.replace(settings, kafka=nowhere_else), dict, spark)
    engine.start()
    batch = work(stored, 2)
    lost = stored.blocks_directory.rglob("*.block"), (stored.root / "wal").rglob("*.seg")
    contents = {path: path.read_bytes() for paths in lost for path in paths}
    for output in outputs:

        def write(batch: Batch, output: Any = output) -> None:
            output.write(batch, batch.df.selectExpr("offset AS flight"))

        for path in contents:
            path.unlink()
        with pytest.raises(UnreadableBlockError, match=r"flights/[01]\["):
            engine.run(batch, write)
        for path, content in contents.items():
            path.write_bytes(content)
        engine.run(batch, write)
    assert [(w.output, w.rows, w.skipped) for w in batch.written] == [
        (output.name, len(FLIGHTS), "") for output in outputs
    ]
    assert pq.read_table(tmp_path / "parquet" / f"batch={batch.batch_id}").num_rows == len(FLIGHTS)
    assert DeltaTable(str(tmp_path / "delta")).to_pyarrow_table().num_rows == len(FLIGHTS)


@pytest.mark.hdfs
def test_parquet_on_hdfs_appears_whole_and_a_replay_replaces_it(
    spark: Any,
    stored: Stored,
    hdfs_server: HdfsServer,
    tmp_path: Path,
) -> None:
    """By Spark's tasks, and by pyarrow without Java."""
    output = ParquetOutput(f"{hdfs_server.url}/outputs/{tmp_path.name}")
    engine = SparkEngine(stored.settings(), dict, spark)
    engine.start()
    runs = [work(stored, 3), work(stored, 3), work(stored, 3, replay=1), work(stored, 3, replay=1)]
    frames = [lambda b: b.df, lambda b: b.read(), lambda b: b.read(), lambda b: b.df]
    for batch, rows in zip(runs, frames, strict=True):
        engine.run(batch, cast(Any, lambda b, rows=rows: output.write(b, rows(b))))
    assert [bool(w.skipped) for batch in runs for w in batch.written] == [False, True, False, True]
    frame = spark.read.parquet(f"{hdfs_server.url}/outputs/{tmp_path.name}")
    assert sorted(row.offset for row in frame.select("offset").collect()) == list(range(len(FLIGHTS)))
    assert output._folders.folders("_forebay/flights-parquet") == []


def test_partitions_of_a_frame_are_folders_of_its_batch_and_nothing_of_the_attempt_stays(
    spark: Any, stored: Stored, tmp_path: Path
) -> None:
    output = ParquetOutput(f"file://{tmp_path}/parquet", partition_by=("even",))
    engine = SparkEngine(stored.settings(), dict, spark)
    engine.start()
    for replay in (0, 1):
        batch = work(stored, 4, replay)
        engine.run(
            batch,
            cast(Any, lambda b: output.write(b, b.df.selectExpr("offset AS flight", "offset % 2 = 0 AS even"))),
        )
    folder = tmp_path / "parquet" / f"batch={batch.batch_id}"
    names = {path.name for path in folder.iterdir() if not path.name.endswith(".crc")}
    assert names == {"even=true", "even=false", MARKER, "_SUCCESS"}
    flights: list[Any] = pq.read_table(folder)["flight"].to_pylist()
    assert sorted(flights) == list(range(len(FLIGHTS)))
    assert list((tmp_path / "parquet" / "_forebay" / "flights-parquet").iterdir()) == []
