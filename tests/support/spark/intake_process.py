"""A streaming query over an intake in a separate process that tests kill: ``python -m … TRACKER FOLDER [END]``.

It reads all records taken in into Parquet files under FOLDER/out, a few offsets per trigger, until it is killed. With END, it
reads the existing records with larger triggers, and writes the content of the files to FOLDER/END: ``topic/partition`` →
offsets, as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.support.spark import planners


def main(tracker: str, folder: Path, end: str = "") -> None:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2,4]")  # a task whose worker was killed is tried again
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .getOrCreate()
    )
    frame = (
        spark.readStream.format("forebay").option("tracker", tracker).option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "5000" if end else "300").load()
    )  # fmt: skip
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    planners.started(
        lambda: (writer.trigger(availableNow=True) if end else writer).start(str(folder / "out")).awaitTermination()
    )
    found: dict[str, list[int]] = {}
    for row in spark.read.parquet(str(folder / "out")).select("topic", "partition", "offset").collect():
        found.setdefault(f"{row.topic}/{row.partition}", []).append(row.offset)
    made = folder / f"{end}.part"
    made.write_text(json.dumps(found))
    made.rename(folder / end)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
