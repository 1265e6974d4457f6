"""Writes one stream into four outputs, each batch exactly once in each. Needs ``pip install 'forebay[delta,sql]'``.

The records are flights in JSON, as in the flights example. Environment variables name the places of the outputs.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from driver import Batch
from driver.outputs import DeltaOutput, KafkaOutput, ParquetOutput, SqlOutput

FOLDER = Path(os.environ.get("FLIGHTS_FOLDER", "run/outputs"))
BROKER = os.environ.get("FLIGHTS_BROKER", "127.0.0.1:9092")
TOPIC = os.environ.get("FLIGHTS_TOPIC", "late-flights")

FIELDS = "carrier STRING, flight BIGINT, dep_delay DOUBLE, arr_delay DOUBLE"


def make_database(path: Path) -> str:
    """Create the table that the SQL output writes to, and return the URL of its database."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(
            "CREATE TABLE IF NOT EXISTS carriers (carrier TEXT, flights INTEGER, late INTEGER, batch TEXT)"
        )
        database.execute("CREATE INDEX IF NOT EXISTS carriers_batch ON carriers (batch)")
    return f"sqlite:///{path.absolute()}"


# Created once, in the driver's process: each output keeps its connection between batches.
everything = ParquetOutput(f"file://{FOLDER.absolute()}/flights", name="flights", partition_by=("carrier",))
arrivals = DeltaOutput(f"file://{FOLDER.absolute()}/arrivals", name="arrivals", batch_column="batch")
carriers = SqlOutput(make_database(FOLDER / "flights.db"), "carriers", batch_column="batch")
late = KafkaOutput({"bootstrap.servers": BROKER}, TOPIC)


def process(batch: Batch) -> None:
    """Write one batch into the outputs, one after another. A rerun skips outputs that already hold the batch."""
    flights = decoded(batch.df).persist()  # four outputs read it
    try:
        everything.write(batch, flights)
        arrivals.write(batch, flights.where("arr_delay IS NOT NULL").select("carrier", "flight", "arr_delay"))
        carriers.write(
            batch,
            flights.groupBy("carrier").agg(
                _sql("count(*)").alias("flights"), _sql("count_if(arr_delay > 60)").alias("late")
            ),
        )
        late.write(batch, flights.where("arr_delay > 60").selectExpr("carrier AS key", "to_json(struct(*)) AS value"))
    finally:
        flights.unpersist()


def decoded(records: Any) -> Any:
    """Return the columns of flights, from a DataFrame with the columns of Spark's Kafka source."""
    from pyspark.sql import functions as f

    flight = f.from_json(f.col("value").cast("string"), FIELDS)
    return records.select(flight.alias("flight")).select("flight.*")


def _sql(expression: str) -> Any:
    from pyspark.sql import functions as f

    return f.expr(expression)
