"""Spark's tasks with Kafka as their last tier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from driver.batches.job.batch import Batch
from driver.spark.engine import SparkEngine
from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.errors import UnreadableBlockError
from tests.support.state.again import Taken
from tests.support.state.stored import Stored


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_spark_tasks_read_from_kafka_and_show_no_secrets(
    stored: Stored, kafka_broker: KafkaBroker, topic_name: Callable[[], str], spark: Any
) -> None:
    """Neither in plans, in the status store nor in the traceback of a task that failed."""
    taken = Taken(stored, kafka_broker, topic_name())
    taken.lose_every_copy()
    settings = taken.settings()
    options = {**settings.kafka.options, "sasl.password": "s3cret"}  # unused by a listener in plain text
    settings = msgspec.structs.replace(settings, kafka=msgspec.structs.replace(settings.kafka, options=options))
    shown: list[str] = []

    def job(batch: Batch) -> None:
        assert batch.rdd.count() == batch.df.count() == 80
        shown.append(batch.df._jdf.queryExecution().toString())

    engine = SparkEngine(settings, dict, spark)
    engine.start()
    counts = engine.run(taken.work(), job)
    assert counts.ranges == {"kafka": 4}
    with KafkaAdmin(taken.options) as admin:
        admin.delete_records({taken.partitions[0]: 10})
    with pytest.raises(UnreadableBlockError) as caught:
        engine.run(taken.work(), lambda batch: batch.df.collect())
    shown += [str(caught.value), str(caught.value.__cause__)]
    status = spark.sparkContext._jsc.sc().statusStore()
    shown += [status.jobsList(None).mkString(), status.environmentInfo().toString()]
    assert "kafka: " in shown[1]
    for text in shown:
        assert "s3cret" not in text
