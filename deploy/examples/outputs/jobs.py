"""One stream into four outputs, each of which holds every batch once: ``pip install 'forebay[delta,sql]'``.

The records are flights as JSON, as in the flights example. Where the outputs are is read from the environment.
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
    """Makes the table that one of the outputs writes to; its url."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(
            "CREATE TABLE IF NOT EXISTS carriers (carrier TEXT, flights INTEGER, late INTEGER, batch TEXT)"
        )
        database.execute("CREATE INDEX IF NOT EXISTS carriers_batch ON carriers (batch)")
    return f"sqlite:///{path.absolute()}"


# Made once, in the driver's process: each keeps its connection from batch to batch.
everything = ParquetOutput(f"file://{FOLDER.absolute()}/flights", name="flights", partition_by=("carrier",))
arrivals = DeltaOutput(f"file://{FOLDER.absolute()}/arrivals", name="arrivals", batch_column="batch")
carriers = SqlOutput(make_database(FOLDER / "flights.db"), "carriers", batch_column="batch")
late = KafkaOutput({"bootstrap.servers": BROKER}, TOPIC)


def process(batch: Batch) -> None:
    """Several outputs, one after another: a rerun skips those that the batch is in already."""
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
    """The columns of a flight, of a DataFrame with the Kafka source's."""
    from pyspark.sql import functions as f

    flight = f.from_json(f.col("value").cast("string"), FIELDS)
    return records.select(flight.alias("flight")).select("flight.*")


def _sql(expression: str) -> Any:
    from pyspark.sql import functions as f

    return f.expr(expression)
