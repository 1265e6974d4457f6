"""Two listeners: one logs the progress of each batch as JSON, one pushes it to Prometheus' pushgateway.

A direct stream takes the same listeners: ``stream.add_listener(ProgressLog()).add_listener(PushGateway())``.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, pushadd_to_gateway

from driver import Batch
from driver.listeners import BatchCompleted, BatchFailed, LagMeasured, Listener, StreamStarted, StreamStopped

FOLDER = Path("run/flights")
PUSH_SECONDS_MAX = 5.0

log = logging.getLogger("progress")


def process(batch: Batch) -> None:
    """Write the records of one batch. Forebay calls this for each batch, in order."""
    batch.df.write.mode("overwrite").parquet(str(FOLDER / f"batch={batch.id}"))


class ProgressLog(Listener):
    """Logs one line for each batch, like ``lastProgress`` of a streaming query, and one when the stream ends."""

    def batch_completed(self, event: BatchCompleted) -> None:
        seconds = (event.processing_ms or 0) / 1000
        progress = {
            "batchId": event.number,
            "numInputRows": event.records,
            "processedRowsPerSecond": round(event.records / seconds, 1) if seconds else None,
            "durationMs": {"schedulingDelay": event.scheduling_delay_ms, "processing": event.processing_ms},
            "offsets": {f"{r.topic}/{r.partition}": [r.from_offset, r.until_offset] for r in event.ranges},
        }
        log.info("%s", json.dumps(progress))

    def stream_stopped(self, event: StreamStopped) -> None:
        log.log(logging.ERROR if event.detail else logging.INFO, "stream %s stopped %s", event.stream, event.detail)


class PushGateway(Listener):
    """Pushes counts and the newest statistics to the pushgateway at ``PUSHGATEWAY``, as the job "forebay" with the label stream.

    If the gateway does not answer, the event's values are pushed with a later event, because they are totals or the newest
    ones; ``forebay status`` shows the failures of the listener.
    """

    def __init__(self) -> None:
        self._gateway = os.environ.get("PUSHGATEWAY", "http://127.0.0.1:9091")
        self._stream = ""
        self._registry = CollectorRegistry()
        self._records = Counter("pushed_records", "Records in completed batches.", registry=self._registry)
        self._failures = Counter("pushed_batch_failures", "Failed attempts at batches.", registry=self._registry)
        self._delay = Gauge("pushed_total_delay_seconds", "Total delay of the last batch.", registry=self._registry)
        self._lag = Gauge("pushed_lag_records", "Records of Kafka in no completed batch.", registry=self._registry)

    def stream_started(self, event: StreamStarted) -> None:
        self._stream = event.stream
        self._push()

    def batch_completed(self, event: BatchCompleted) -> None:
        self._records.inc(event.records)
        if event.total_delay_ms is not None:
            self._delay.set(event.total_delay_ms / 1000)
        self._push()

    def batch_failed(self, event: BatchFailed) -> None:
        self._failures.inc()
        self._push()

    def lag_measured(self, event: LagMeasured) -> None:
        if event.not_processed is not None:
            self._lag.set(event.not_processed)
            self._push()

    def _push(self) -> None:
        key = {"stream": self._stream} if self._stream else None
        pushadd_to_gateway(self._gateway, "forebay", self._registry, key, timeout=PUSH_SECONDS_MAX)
