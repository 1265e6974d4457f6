"""RDDs and direct streams through an intake in Spark's tasks; the intake's driver requires tokens over https."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from direct import Assign, DirectBatch, IntakeAccess, OffsetRange, StreamSettings, create_direct_stream, create_rdd
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.values import TopicPartition
from tests.direct.intake.test_through_intake import completed, cursors, drop
from tests.support.kafka.polling import PATIENCE_SECONDS
from tests.support.processes.cluster import Cluster
from tests.support.servers.certificates import Authority
from tests.support.state.again import produce

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]

TOKEN = "the-token-of-a-query-and-nobody-else"


@pytest.fixture
def access(tmp_path: Path) -> dict[str, str]:
    """What a query has: a token of its own, and a certificate."""
    token_file = tmp_path / "query-token"
    token_file.touch(mode=0o600)
    token_file.write_text(f"query {TOKEN}\n")
    authority = Authority(tmp_path)
    return {"token_file": str(token_file), "ca_file": str(authority.ca_file), **authority.issue("host")}


@pytest.fixture
def cluster(
    tmp_path: Path, kafka_broker: KafkaBroker, tps: list[TopicPartition], access: dict[str, str]
) -> Iterator[Cluster]:
    """An intake of the topic whose services ask for tokens and certificates. Kafka has 30 and 10 records."""
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    others = "".join(f"{role} the-token-of-the-{role}\n" for role in ("receiver", "agent", "task", "operator"))
    tokens.write_text(f"query {TOKEN}\n{others}")
    security = {**access, "token_file": str(tokens)}
    wal = {"segment_size": "1KB", "cleanup_interval": "200ms"}
    with Cluster(
        tmp_path, kafka_broker.options, [tps[0].topic], receivers=1, driver={"cursor_lease": "2s"}, wal=wal, security=security
    ) as cluster:  # fmt: skip
        completed(cluster, tps, 30, 10)
        yield cluster


def shown(*texts: object) -> list[str]:
    """Those of ``texts``, and of the command lines of all processes, that have the token."""
    lines = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(entry.read_bytes().decode(errors="replace"))
        except OSError:
            continue  # it has ended
    return [text for text in (*map(str, texts), *lines) if TOKEN in text]


def test_tasks_read_through_an_intake_with_a_token_that_nothing_shows(
    spark: Any,
    kafka_broker: KafkaBroker,
    tps: list[TopicPartition],
    cluster: Cluster,
    access: dict[str, Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """INV-2, INV-5: what Kafka has lost comes from the WAL, the rest from Kafka, each offset once."""
    one, two = tps
    params = {**kafka_broker.options, "auto.offset.reset": "earliest"}
    intake = IntakeAccess(cluster.driver_url, **access)
    at_work, may = threading.Event(), threading.Event()
    seen: list[tuple[int, list[tuple[int, int]]]] = []
    plans: list[str] = []

    def job(batch: DirectBatch) -> None:
        at_work.set()
        assert may.wait(PATIENCE_SECONDS)
        frame = batch.df
        rows = sorted((row.partition, row.offset) for row in frame.collect())
        plans.append(frame._jdf.queryExecution().toString())
        seen.append((batch.id, rows))
        if len(seen) == 1:
            raise ValueError("once")
        if sum(len(rows) for _, rows in dict(seen).items()) == 38:
            stream.stop()

    settings = StreamSettings(
        "s", (tmp_path / "c").as_uri(), 0.1, tracker=intake, max_queued_batches=1, retry_seconds=0.01
    )
    stream = create_direct_stream(spark, params, Assign(tps, {one: 5, two: 0}), settings, value_deserializer="string")
    stream.foreach_batch(job).start()  # type: ignore[arg-type]
    try:
        assert at_work.wait(PATIENCE_SECONDS)  # from here on its cursor holds what nothing else does
        produce(kafka_broker.options, one, 3)
        completed(cluster, tps, 33, 10)
        drop(kafka_broker, {one: 17, two: 10})
        ranges = [OffsetRange(one.topic, 0, 5, 33), OffsetRange(one.topic, 1, 0, 10)]
        rdd = create_rdd(
            spark,
            params,
            ranges,
            value_deserializer="string",
            tracker=intake,
            min_partitions=3,
            timeout_seconds=PATIENCE_SECONDS,
        )
        records = rdd.collect()
        expected = [(0, offset) for offset in range(5, 33)] + [(1, offset) for offset in range(10)]
        assert [(record.partition, record.offset) for record in records] == expected
        assert [record.value for record in records[:25]] == [f"value {offset}" for offset in range(5, 30)]
        rows = [offset for found in rdd.arrow().collect() for offset in found.column("offset").to_pylist()]
        assert rows == [offset for _, offset in expected]
        beyond = create_rdd(spark, params, [OffsetRange(one.topic, 0, 5, 33, "another-id")], tracker=intake)
        with pytest.raises(Exception, match="the WAL of stream stream does not hold") as lost:
            beyond.collect()
        may.set()
        assert stream.await_termination(PATIENCE_SECONDS)
    finally:
        may.set()
        stream.stop()
    assert seen[0] == seen[1]  # INV-3
    assert sorted(row for rows in dict(seen).values() for row in rows) == expected
    checkpoint = [path.read_bytes().decode(errors="replace") for path in (tmp_path / "c").rglob("*") if path.is_file()]
    assert checkpoint
    logs = [cluster.log(name) for name in cluster.names]
    described = rdd.toDebugString()
    assert described is not None
    debug = described.decode()
    assert (
        shown(*plans, *checkpoint, *logs, debug, repr(rdd._how), repr(stream._endpoint), lost.value, caplog.text) == []
    )
    assert any(TOKEN in text for text in [(tmp_path / "tokens").read_text()])
    (cursor,) = cursors(cluster)
    assert TOKEN not in str(cursor)
