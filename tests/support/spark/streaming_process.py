"""A streaming query in a separate process that tests kill.

``python -m … SERVERS TOPIC FOLDER [--into TOPIC] [--end] [--connect] [--option NAME=VALUE …]`` reads the topic, a few offsets
per trigger, into Parquet files under FOLDER/out, or into another topic in transactions, until it is killed. With ``--end`` it
reads the existing records, and writes the content of the files to FOLDER/found: partition → offsets, as JSON. With
``--connect`` its session is one of Spark Connect, whose server it starts; SPARK_TESTING in the environment gives that server a
free port.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.spark import planners


def session(connect: bool) -> Any:
    from pyspark.sql import SparkSession

    master = "local[2,4]"  # a task whose worker was killed is tried again
    return (
        (SparkSession.builder.remote(master) if connect else SparkSession.builder.master(master))
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )


def main(
    servers: str, topic: str, folder: Path, into: str | None, end: bool, connect: bool, options: Mapping[str, str]
) -> None:
    spark = session(connect)
    frame = (
        spark.readStream.format("forebay").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
        .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "200")
        .option("minPartitions", "4" if into is None else "2")
        .options(**options).load()
    )  # fmt: skip
    if into is None:
        writer = frame.writeStream.format("parquet").option("path", str(folder / "out"))
    else:
        rows = frame.selectExpr("concat(partition, ' ', offset) as value")
        writer = rows.writeStream.format("forebay").option("kafka.bootstrap.servers", servers).option("topic", into)
        writer = writer.option("transactional", "true").option("groupIdPrefix", into)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    planners.started(lambda: (writer.trigger(availableNow=True) if end else writer).start().awaitTermination())
    if into is None:
        found: dict[int, list[int]] = {}
        for row in spark.read.parquet(str(folder / "out")).select("partition", "offset").collect():
            found.setdefault(row.partition, []).append(row.offset)
        made = folder / "found.part"
        made.write_text(json.dumps(found))
        made.rename(folder / "found")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("servers")
    parser.add_argument("topic")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--into")
    parser.add_argument("--end", action="store_true")
    parser.add_argument("--connect", action="store_true")
    parser.add_argument("--option", action="append", default=[], help="of the source, over those above")
    given = parser.parse_args()
    own = dict(option.split("=", 1) for option in given.option)
    main(given.servers, given.topic, given.folder, given.into, given.end, given.connect, own)
