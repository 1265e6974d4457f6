"""The peer of the receiver: consumes a topic by ``Consumer.consume(10000)`` and drops the messages.

``python -m benchmarks.bare_consumer SERVERS TOPIC RECORDS`` prints as JSON the seconds and the CPU seconds of the process
from the assignment of its partitions to the last record, and its peak memory. Options are librdkafka's defaults, except two
that a receiver also sets: with their defaults, the loop waits up to a second whenever its queue was full.
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid

from confluent_kafka import Consumer

from benchmarks.peers.contender import Usage


def consume(servers: str, topic: str, records: int) -> dict[str, float]:
    begun = [0.0, 0.0]

    def assigned(*_: object) -> None:
        begun[:] = time.monotonic(), time.process_time()

    consumer = Consumer({
        "bootstrap.servers": servers, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest",
        "enable.auto.commit": False, "queued.min.messages": 1_000_000, "fetch.queue.backoff.ms": 10,
    })  # fmt: skip
    consumer.subscribe([topic], on_assign=assigned)
    left = records
    while left > 0:
        left -= len(consumer.consume(10_000, 1.0))
    figures = {
        "seconds": time.monotonic() - begun[0],
        "cpu_seconds": time.process_time() - begun[1],
        "peak_mb": Usage.of(os.getpid()).peak_mb,
    }
    consumer.close()
    return figures


if __name__ == "__main__":
    print(json.dumps(consume(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
