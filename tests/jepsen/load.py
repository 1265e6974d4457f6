"""The producer of a run: unique values at a steady rate, and a file of what Kafka acknowledged. It uses confluent-kafka alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

_PORTION_SECONDS = 0.05
_FLUSH_SECONDS = 120.0


class Load:
    """Sends ``rate`` records a second, spread over ``places`` (topic, partition), from ``start`` to ``stop``.

    Each record is sent once: a second try could put it into the log twice, and an idempotent producer does not survive an
    unclean election. A record that Kafka did not acknowledge counts in ``refused``: it may be in the log or not.
    """

    def __init__(self, servers: str, places: Sequence[tuple[str, int]], rate: float, file: Path) -> None:
        self._producer = Producer({
            "bootstrap.servers": servers, "acks": "all", "enable.idempotence": False, "message.send.max.retries": 0,
            "message.timeout.ms": 60_000, "queue.buffering.max.messages": 200_000, "socket.timeout.ms": 10_000,
            "linger.ms": 10, "log_level": 0,
        })  # fmt: skip
        self._places = places
        self.rate = rate
        self._file = file.open("w")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self.failure: BaseException | None = None
        self.acked = self.refused = 0
        self.ends: dict[tuple[str, int], int] = {}

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> Mapping[tuple[str, int], int]:
        """Stop, wait until no record is under way, and return the end of what was acknowledged in each partition.

        Raises AssertionError if the producer failed.
        """
        self._stopping.set()
        self._thread.join()
        self._file.close()
        self.check()
        return self.ends

    def check(self) -> None:
        """Raise AssertionError if the producer failed."""
        if self.failure is not None:
            raise AssertionError("the producer failed") from self.failure

    def end(self) -> None:
        """Stop without waiting for what is under way; nothing if it never started or has stopped."""
        self._stopping.set()
        if self._thread.is_alive():
            self._producer.purge()
            self._thread.join()

    def _run(self) -> None:
        try:
            began, sent = time.monotonic(), 0
            while not self._stopping.wait(_PORTION_SECONDS):
                due = int((time.monotonic() - began) * self.rate)
                if due - sent > self.rate:  # after a stall it goes on at the rate, and does not catch up
                    began, sent, due = time.monotonic(), 0, 0
                for _ in range(due - sent):
                    self._send()
                sent = due
                self._producer.poll(0)
            left = self._producer.flush(_FLUSH_SECONDS)
            assert not left, f"{left} records are neither acknowledged nor refused"
        except BaseException as error:
            self.failure = error

    _number = 0

    def _send(self) -> None:
        topic, partition = self._places[self._number % len(self._places)]
        self._number += 1
        try:
            self._producer.produce(topic, f"v{self._number}".encode(), partition=partition, on_delivery=self._delivered)
        except BufferError:
            self._producer.poll(0.1)  # this record is not sent at all

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.refused += 1
            return
        place, offset = (message.topic() or "", message.partition() or 0), message.offset() or 0
        self._file.write(f"{place[0]}\t{place[1]}\t{offset}\t{(message.value() or b'').decode()}\n")
        self.acked += 1
        self.ends[place] = max(self.ends.get(place, 0), offset + 1)
