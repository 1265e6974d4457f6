"""The job of compose.yaml: prints how many records each batch has. Put your own function here."""

from __future__ import annotations

from typing import Any


def process(batch: Any) -> None:
    """Print the number of records per topic and partition."""
    for row in batch.df.groupBy("topic", "partition").count().orderBy("topic", "partition").collect():
        print(f"batch {batch.id}: {row.topic}/{row.partition}: {row['count']} records", flush=True)
