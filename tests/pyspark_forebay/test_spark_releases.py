"""What ``format("forebay")`` does with the installed release of PySpark, in each cell of ``make test-matrix``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyspark
import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from tests.support.spark import planners

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.long,  # in `make test`, tests beside this one do the same with one release
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

RELEASE = tuple(map(int, pyspark.__version__.split(".")[:2]))
#: the first releases that write, and that stream
WRITES, STREAMS = (4, 1), (4, 2)


def test_release_reads_writes_and_streams_or_names_the_release_that_does(
    spark: Any, kafka_broker: KafkaBroker, topic: str, tmp_path: Path
) -> None:
    servers = kafka_broker.options["bootstrap.servers"]

    def reading(reader: Any) -> Any:
        reader = reader.format("forebay").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
        return reader.option("startingOffsets", "earliest").load()

    def write() -> None:
        rows = spark.createDataFrame([("written",)], "value string").write.format("forebay").mode("append")
        planners.started(rows.option("kafka.bootstrap.servers", servers).option("topic", topic).save)

    def stream() -> None:
        def run() -> None:
            writer = reading(spark.readStream).writeStream.format("parquet").trigger(availableNow=True)
            writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start(
                str(tmp_path / "out")
            ).awaitTermination()

        planners.started(run)

    assert reading(spark.read).count() == 15
    if RELEASE >= WRITES:
        write()
    else:
        with pytest.raises(Exception, match=r"writing needs PySpark 4\.1 or newer, not 4\.0"):
            write()
    written = 15 + (RELEASE >= WRITES)
    assert reading(spark.read).count() == written
    if RELEASE >= STREAMS:
        stream()
        assert spark.read.parquet(str(tmp_path / "out")).count() == written
    else:
        with pytest.raises(Exception, match=r"streaming queries need PySpark 4\.2 or newer, not 4\.[01]"):
            stream()
