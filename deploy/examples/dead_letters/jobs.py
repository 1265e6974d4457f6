"""Records become rows of flights; what is no flight is put away with the cause, and the stream goes on.

The records are flights as JSON, as in the flights example.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from driver import Batch, KafkaRecord
from driver.listeners import BatchFailed, GapFound, Listener

SCHEMA = "carrier string, flight bigint, dep_delay double, origin string"
FOLDER = Path("run/flights")


def flight(record: KafkaRecord) -> dict[str, Any] | None:
    """One record in Spark's task. What raises here, or does not fit SCHEMA, is a dead letter; None leaves the record out."""
    if record.value is None:
        return None  # a tombstone
    said = json.loads(record.value)
    if said["dep_delay"] is None:
        return None  # cancelled
    return {name: said[name] for name in ("carrier", "flight", "dep_delay", "origin")}


def process(batch: Batch) -> None:
    flights = batch.decode(flight, SCHEMA)
    flights.write.mode("overwrite").parquet(str(FOLDER / f"batch={batch.id}"))


class Pager(Listener):
    """What a person wants to be woken for."""

    def batch_failed(self, event: BatchFailed) -> None:
        logging.error("batch %d, attempt %d: %s", event.batch_id, event.attempt, event.detail)

    def gap_found(self, event: GapFound) -> None:
        logging.error("%s/%d lacks [%d, %d)", event.topic, event.partition, event.from_offset, event.until_offset)
