"""Counts words by Structured Streaming, without jars: ``spark-submit structured.py SERVERS TOPIC``.

Each trigger prints the words of all lines so far with their counts, until the query is stopped.
"""

from __future__ import annotations

import sys
from typing import Any


def counts(spark: Any, servers: str, topic: str) -> Any:
    """Return a streaming DataFrame with the columns ``word`` and ``count``."""
    from pyspark.sql import functions as f

    lines = (
        spark.readStream.format("forebay")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    words = lines.select(f.explode(f.split(f.col("value").cast("string"), " ")).alias("word"))
    return words.where("word != ''").groupBy("word").count()


def main(servers: str, topic: str) -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName("word-count").getOrCreate()
    counts(spark, servers, topic).writeStream.outputMode("complete").format("console").start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
