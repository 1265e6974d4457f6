"""``option("tracker", …)`` as Spark's users write it, over a real intake."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.values import TopicPartition
from pyspark_forebay.intake.stream import IntakeStreamReader
from tests.pyspark_forebay.test_with_spark import offsets, run
from tests.support.kafka.flow import Flow
from tests.support.kafka.polling import PATIENCE_SECONDS
from tests.support.processes.cluster import Cluster
from tests.support.state.again import produce

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]

KILLS = 4
_ROOT = Path(__file__).parents[3]
_ENVIRONMENT = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYTHONPATH": str(_ROOT)}
TOKEN = "the-token-of-everybody-here"


def test_streaming_and_batch_queries_over_an_intake_with_tokens(
    spark: Any, kafka_broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    """A stop while idle, a trigger for what is there, and no token in plans, offsets or the checkpoint."""
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text(f"{TOKEN}\n")
    with Cluster(tmp_path, kafka_broker.options, [topic], receivers=1, security={"token_file": str(tokens)}) as cluster:
        cluster.await_completed({(topic, 0): 10, (topic, 1): 5})
        options = {"tracker": cluster.driver_url, "tokenFile": str(tokens), "cursor": "copy"}
        frame = spark.read.format("forebay").options(**options).load()
        assert offsets(frame) == {0: list(range(10)), 1: list(range(5))}
        assert frame.where("partition = 1 and offset = 3").first().value == b"value 3"
        chosen = spark.read.format("forebay").options(**options, columns="offset,value").load()
        assert chosen.columns == ["offset", "value"]
        assert sorted(chosen.collect()) == sorted(frame.select("offset", "value").collect())
        assert TOKEN not in frame._jdf.queryExecution().toString()
        stream = spark.readStream.format("forebay").options(**options, columns="offset,partition").load()
        run(stream, tmp_path / "query")
        produce(kafka_broker.options, TopicPartition(topic, 0), 6)
        cluster.await_completed({(topic, 0): 16})
        query = run(stream, tmp_path / "query")
        assert offsets(spark.read.parquet(str(tmp_path / "query" / "out"))) == {0: list(range(10, 16))}
        assert json.loads(query.recentProgress[0].sources[0].latestOffset) == {topic: {"0": 16, "1": 5}}
        written = [path.read_text() for path in (tmp_path / "query" / "checkpoint" / "offsets").glob("[0-9]*")]
        assert all('"#cursor":"copy-' in text.replace(" ", "") for text in written)
        assert not any(TOKEN in text for text in written)


def start(cluster: Cluster, folder: Path, *end: str) -> subprocess.Popen[bytes]:
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "tests.support.spark.intake_process", cluster.driver_url, str(folder), *end]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, cwd=_ROOT, env=_ENVIRONMENT, stdout=log, stderr=log, start_new_session=True)


def batches(folder: Path) -> int:
    return sum(path.name.isdigit() for path in (folder / "checkpoint" / "commits").glob("*"))


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_two_queries_and_the_batch_job_read_each_record_once_after_kills(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-3, INV-5, INV-8: one query and the driver are killed at random; another query is far behind what Kafka still
    has."""
    seed = int(os.environ.get("FOREBAY_SEED", "") or time.time_ns() % 2**31)
    chance = random.Random(seed)
    topic = topic_name()
    kafka_broker.create_topic(topic, 4)
    folder = tmp_path / "query"
    driver = {"cursor_lease": "2s"}
    with (
        Flow(kafka_broker.options, topic, rate=200) as flow,
        Cluster(tmp_path, kafka_broker.options, [topic], receivers=2, driver=driver) as cluster,
    ):
        cluster.await_records(50)
        behind = IntakeStreamReader(
            {"tracker": cluster.driver_url, "startingOffsets": "earliest"}, new_id=lambda: "behind"
        )
        begun = behind.latestOffset({}, ReadAllAvailable())
        try:
            for _ in range(int(os.environ.get("FOREBAY_KILLS", "") or KILLS)):
                query = start(cluster, folder)
                try:
                    before = batches(folder)
                    cluster.wait(
                        lambda query=query, before=before: batches(folder) > before or query.poll() is not None,
                        "a batch of the query",
                    )
                    time.sleep(chance.random() * 2)  # anywhere within a trigger or two
                    if chance.random() < 0.4:
                        cluster.kill9("driver")
                        cluster.restart("driver")
                finally:
                    if query.poll() is None:
                        os.killpg(query.pid, signal.SIGKILL)
                    query.wait()
            flow.stop()
            cluster.await_completed(flow.truth.ends())
            with KafkaAdmin(kafka_broker.options) as admin:
                admin.delete_records({TopicPartition(t, p): end for (t, p), end in flow.truth.ends().items()})
            last = start(cluster, folder, "found")
            try:
                assert last.wait(PATIENCE_SECONDS * 5) == 0, f"seed {seed}\n{(folder / 'log').read_text()[-3000:]}"
            finally:
                if last.poll() is None:
                    os.killpg(last.pid, signal.SIGKILL)
            end = behind.latestOffset(begun, ReadAllAvailable())
            late = [
                (f"{row['topic']}/{row['partition']}", row["offset"])
                for between in ((({}), begun), (begun, end))
                for part in behind.partitions(*between)
                for found in behind.read(part)
                for row in found.select(["topic", "partition", "offset"]).to_pylist()
            ]
            behind.commit(end)
        finally:
            behind.stop()
        cluster.check(flow.truth)
    expected = {f"{t}/{p}": list(range(end)) for (t, p), end in flow.truth.ends().items()}
    found = json.loads((folder / "found").read_text())
    print(f"{len(flow.truth)} records, {batches(folder)} batches of the query, seed {seed}")
    assert {key: sorted(own) for key, own in found.items()} == expected, f"seed {seed}"
    assert sorted(late) == sorted((key, offset) for key, own in expected.items() for offset in own), f"seed {seed}"
