"""Adds up delays per carrier. Each batch writes its own sums; ``totals`` adds the sums of all batches.

After a crash a job may run again for the same batch. Its output file is named by ``batch.id``, so that a second run replaces
the file of the first.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

#: folder of the results, one file for each batch
RESULTS = Path(os.environ.get("FLIGHTS_RESULTS", "flights-results"))


def process(batch: Any) -> None:
    """Write the sums of one batch. Forebay calls this for each batch, in order."""
    from pyspark.sql import functions as f

    flight = f.from_json(f.col("value").cast("string"), "carrier STRING, arr_delay DOUBLE")
    rows = (
        batch.df.select(flight.alias("flight"))
        .groupBy("flight.carrier")
        .agg(
            f.count(f.lit(1)).alias("flights"),
            f.count("flight.arr_delay").alias("arrived"),
            f.sum("flight.arr_delay").alias("minutes"),
        )
        .collect()
    )
    write(RESULTS, batch.id, {row.carrier: [row.flights, row.arrived, row.minutes or 0.0] for row in rows})


def write(folder: Path, batch_id: int, sums: dict[str, list[float]]) -> None:
    """Write the sums of one batch atomically. The file is durable on return, because Forebay then records the completion."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"batch-{batch_id}.json"
    aside = path.with_suffix(".tmp")
    with aside.open("w") as file:
        json.dump(sums, file)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    directory = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def totals(folder: Path) -> dict[str, tuple[int, int, float]]:
    """Return for each carrier, over all batches: flights, flights that arrived, minutes of delay at arrival."""
    added: dict[str, tuple[int, int, float]] = {}
    for path in sorted(folder.glob("batch-*.json")):
        for carrier, (flights, arrived, minutes) in json.loads(path.read_text()).items():
            before = added.get(carrier, (0, 0, 0.0))
            added[carrier] = (before[0] + int(flights), before[1] + int(arrived), before[2] + minutes)
    return added
