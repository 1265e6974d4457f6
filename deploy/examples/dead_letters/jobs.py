"""Decodes records into rows of flights. A record that is not a flight becomes a dead letter, and the stream continues.

The records are flights in JSON, as in the flights example.
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
    """Decode one record in a Spark task. None leaves the record out.

    A record becomes a dead letter if this function raises, or if the result does not fit SCHEMA.
    """
    if record.value is None:
        return None  # a tombstone
    decoded = json.loads(record.value)
    if decoded["dep_delay"] is None:
        return None  # cancelled
    return {name: decoded[name] for name in ("carrier", "flight", "dep_delay", "origin")}


def process(batch: Batch) -> None:
    """Write the flights of one batch. Forebay calls this for each batch, in order."""
    flights = batch.decode(flight, SCHEMA)
    flights.write.mode("overwrite").parquet(str(FOLDER / f"batch={batch.id}"))


class Pager(Listener):
    """Logs the events that need a person."""

    def batch_failed(self, event: BatchFailed) -> None:
        logging.error("batch %d, attempt %d: %s", event.batch_id, event.attempt, event.detail)

    def gap_found(self, event: GapFound) -> None:
        logging.error(
            "%s/%d: Kafka lost offsets [%d, %d)", event.topic, event.partition, event.from_offset, event.until_offset
        )
