"""``python -m benchmarks.producing SERVERS TOPIC RATE SECONDS``: produce 200-byte records at a steady rate."""

from __future__ import annotations

import sys
import threading
import time

from confluent_kafka import Producer

from benchmarks.setup import PARTITIONS, RECORD_BYTES, values

_STEPS_PER_SECOND = 100


def produce(servers: str, topic: str, rate: int, seconds: int) -> None:
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 1, "acks": "all"})
    each = rate // _STEPS_PER_SECOND
    sample = values(each, RECORD_BYTES)
    begun = time.monotonic()
    never = threading.Event()
    for step in range(seconds * _STEPS_PER_SECOND):
        for number, (key, value) in enumerate(sample):
            producer.produce(topic, value, key, (step + number) % PARTITIONS)
        producer.poll(0)
        never.wait(max(0.0, begun + (step + 1) / _STEPS_PER_SECOND - time.monotonic()))
    if producer.flush(30):
        raise SystemExit("some records were not acknowledged")


if __name__ == "__main__":
    produce(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
