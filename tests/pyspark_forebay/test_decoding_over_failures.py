"""A registry that stops during a query, a query that is killed, and the columns of a restarted query."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyspark.errors import StreamingQueryException

from forebay.kafka.embedded.broker import KafkaBroker
from tests.conftest import missing
from tests.pyspark_forebay.test_killed import running, wait_for
from tests.pyspark_forebay.test_with_spark import run, source
from tests.support.kafka.polling import PATIENCE_SECONDS
from tests.support.kafka.registered import Writers, send
from tests.support.servers.apicurio import SchemaRegistry, require_apicurio

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]

PAGE = {"name": "page", "type": "string"}
READER = {"type": "record", "name": "Visit", "fields": [PAGE]}
OTHER = {**READER, "fields": [{"name": "seconds", "type": "double"}, PAGE]}
NEWER = {**READER, "fields": [PAGE, {"name": "note", "type": "string", "default": "none"}]}


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[SchemaRegistry]:
    """A registry of the test itself, which keeps its schemas when it is stopped."""
    require_apicurio(missing)
    with SchemaRegistry(tmp_path, kept=True) as server:
        yield server


def committed(folder: Path, topic: str) -> int:
    """Up to which offset of partition 0 the query in ``folder`` has committed."""
    batches = [int(path.name) for path in (folder / "checkpoint" / "commits").glob("*") if path.name.isdigit()]
    if not batches:
        return 0
    written = (folder / "checkpoint" / "offsets" / str(max(batches))).read_text()
    return int(json.loads(written.splitlines()[-1])[topic]["0"])


def found(spark: Any, folder: Path) -> list[tuple[Any, ...]]:
    rows = spark.read.option("mergeSchema", "true").parquet(str(folder / "out")).orderBy("offset")
    return [(row.offset, row.value.page) for row in rows.select("offset", "value").collect()]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_query_continues_without_its_registry_and_misses_and_repeats_nothing(
    spark: Any, kafka_broker: KafkaBroker, topic_name: Callable[[], str], registry: SchemaRegistry, tmp_path: Path
) -> None:
    """One is killed (SIGKILL) while it waits for a schema, another fails; both go on from their checkpoints. By then the
    subject has a newer schema: who starts anew has its columns."""
    topic = topic_name()
    kafka_broker.create_topic(topic, 1)
    writers = Writers(registry.url)
    try:
        other = writers.avro(f"{topic}-value", OTHER, [{"seconds": 1.0, "page": f"/{number}"} for number in range(4)])
        known = writers.avro(f"{topic}-value", READER, [{"page": f"/{number}"} for number in range(4)])
        (strange, again) = writers.avro(f"{topic}-strange", NEWER, [{"page": f"/{n}", "note": "n"} for n in (4, 5)])
    finally:
        writers.close()
    options = {"valueFormat": "avro", "schema.registry.url": registry.url, "startingOffsets": "earliest"}
    frame = source(spark.readStream, kafka_broker, topic, **options, **{"schema.registry.retries": "1"}).load()
    killed, failed = tmp_path / "killed", tmp_path / "failed"
    killed.mkdir()
    send(kafka_broker.options, topic, [known[0], other[1]])
    # one task at a time, so one worker, which knows what it has asked for; and it asks for longer than the test takes
    given = {**options, "minPartitions": "1", "schema.registry.retries": "1000"}
    more = [word for name, value in given.items() for word in ("--option", f"{name}={value}")]
    with running(kafka_broker, topic, killed, more) as process:
        wait_for(lambda: committed(killed, topic) == 2, process, killed)
        registry.stop()
        send(kafka_broker.options, topic, [known[2], other[3]])
        wait_for(lambda: committed(killed, topic) == 4, process, killed)
        with socket.create_server(("127.0.0.1", urlsplit(registry.url).port or 0)) as silent:
            silent.settimeout(PATIENCE_SECONDS)
            send(kafka_broker.options, topic, [strange])
            asked, _ = silent.accept()
            with asked:
                os.killpg(process.pid, signal.SIGKILL)
    assert committed(killed, topic) == 4
    with pytest.raises(
        StreamingQueryException, match=rf"the schema registry {registry.url} did not answer: ConnectError"
    ):
        run(frame, failed)
    with pytest.raises(Exception, match=rf"the schema registry {registry.url} did not answer: ConnectError"):
        source(spark.readStream, kafka_broker, topic, **options, **{"schema.registry.retries": "0"}).load()
    registry.start()
    writers = Writers(registry.url)
    try:
        (newest,) = writers.avro(f"{topic}-value", NEWER, [{"page": "/6", "note": "new"}])
    finally:
        writers.close()
    send(kafka_broker.options, topic, [again, newest])
    pages = [(number, f"/{number}") for number in (0, 1, 2, 3, 4, 5, 6)]
    run(frame, failed)
    assert found(spark, failed) == pages
    anew = source(spark.readStream, kafka_broker, topic, **options).load()
    assert anew.schema["value"].dataType.fieldNames() == ["page", "note"]
    run(anew, killed)
    assert found(spark, killed) == pages
    written = spark.read.option("mergeSchema", "true").parquet(str(killed / "out")).orderBy("offset")
    assert [row.value["note"] for row in written.where("offset >= 4").collect()] == ["n", "n", "new"]
