"""Keys and values as columns over a real intake, with a real schema registry: tasks decode the rows of blocks."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.values import TopicPartition
from tests.pyspark_forebay.test_with_spark import run
from tests.support.kafka.registered import Writers
from tests.support.processes.cluster import Cluster
from tests.support.servers.registry_front import RegistryFront

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]

GUID = "00112233-4455-6677-8899-aabbccddeeff"
OLDER = {"type": "record", "name": "Visit", "fields": [{"name": "page", "type": "string"}]}
NEWER = {**OLDER, "fields": [*OLDER["fields"], {"name": "seconds", "type": "double", "default": 0.0}]}
VISITS = [("k0", "/0", 0.0), ("k1", "/1", 1.5), (None, "/2", 2.5), ("k3", None, None)]


def test_blocks_are_decoded_in_batches_and_streams(
    spark: Any, kafka_broker: KafkaBroker, topic_name: Callable[[], str], writers: Writers, tmp_path: Path
) -> None:
    """From local copies and the WAL; by the number before the body, and by the GUID in a header with ``kafka.headers``."""
    topic = topic_name()
    kafka_broker.create_topic(topic, 2)
    subject = f"{topic}-value"
    (key0, key1, key3) = writers.avro(f"{topic}-key", "string", ["k0", "k1", "k3"], field="key")
    (older,) = writers.avro(subject, OLDER, [{"page": "/0"}])
    newer = writers.avro(subject, NEWER, [{"page": f"/{n}", "seconds": n + 0.5} for n in (1, 2)])
    producer = Producer(dict(kafka_broker.options))
    producer.produce(topic, older, key0, 0)
    producer.produce(topic, newer[0], key1, 0)
    header: list[tuple[str, str | bytes | None]] = [("__value_schema_id", b"\1" + bytes.fromhex(GUID.replace("-", "")))]
    producer.produce(topic, newer[1][5:], None, 1, headers=header)
    producer.produce(topic, None, key3, 1)
    assert producer.flush(60) == 0
    sections: dict[str, Any] = {
        "kafka": {"headers": True},
        "wal": {"retention": "1h"},
        "driver": {"cursor_lease": "2s"},
    }
    with (
        RegistryFront(writers.url) as front,
        Cluster(tmp_path / "intake", kafka_broker.options, [topic], receivers=1, **sections) as cluster,
    ):
        front.guids[GUID] = int.from_bytes(newer[0][1:5], "big")
        cluster.await_completed({(topic, 0): 2, (topic, 1): 2})
        formats = {"keyFormat": "avro", "valueFormat": "avro", "schema.registry.url": front.url}
        options = {"tracker": cluster.driver_url, **formats}
        wal, copies, elsewhere = (tmp_path / "intake" / name for name in ("wal", "blocks", "elsewhere"))

        def found(frame: Any) -> list[Any]:
            rows = frame.select("key", "value.page", "value.seconds").orderBy("partition", "offset")
            return [tuple(row) for row in rows.collect()]

        wal.rename(elsewhere)  # the local copies are all that there is
        local = spark.read.format("forebay").options(**options, subscribe=topic).load()
        assert local.schema.simpleString().startswith(
            "struct<key:string,value:struct<page:string,seconds:double>,topic"
        )
        assert found(local) == VISITS
        elsewhere.rename(wal)
        shutil.rmtree(copies)
        with KafkaAdmin(kafka_broker.options) as admin:
            admin.delete_records({TopicPartition(topic, 0): 2, TopicPartition(topic, 1): 2})
        subjects = {"keySubject": f"{topic}-key", "valueSubject": subject, "startingOffsets": "earliest"}
        stream = spark.readStream.format("forebay").options(**options, **subjects).load()
        run(stream, tmp_path)
        assert found(spark.read.parquet(str(tmp_path / "out"))) == VISITS
        with pytest.raises(Exception, match="option keyFormat: the query reads several topics or a pattern"):
            spark.read.format("forebay").options(**options).load()
