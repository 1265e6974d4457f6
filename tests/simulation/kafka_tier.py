"""A task that reads a block from Kafka: the decisions of ``forebay.kafka.consume.block_ranges``, with a modelled cluster."""

from __future__ import annotations

from collections.abc import Sequence

from forebay.kafka.consume.block_ranges import RangeProgress, Wanted, check_topics
from forebay.model.records import RangeRows
from tests.simulation.kafka import Kafka, Log
from tests.simulation.source import columns


class KafkaTier:
    """``ask``, then ``fetch``. Between the two anything may happen to the topic. Both raise RangeNotHeldError."""

    def __init__(self, kafka: Kafka, wanted: Sequence[Wanted]) -> None:
        self._kafka = kafka
        self._wanted = wanted
        self._readings: list[RangeProgress] = []

    def ask(self) -> None:
        """What Kafka returns about the topics and the logs."""
        held = [item for item in self._wanted if item.range.records]
        self._check_topics(held)
        for item in held:
            log = self._kafka.log(item.range.tp)
            self._readings.append(RangeProgress.begin(item.range, log.low, log.high))

    def fetch(self) -> list[RangeRows]:
        """Return the records of each range that has any."""
        for reading in self._readings:
            log = self._kafka.log(reading.range.tp)
            while not reading.done:
                self._fetch(reading, log)
            self._check(reading)
        return [RangeRows(reading.range.tp, reading.batches) for reading in self._readings]

    def _fetch(self, reading: RangeProgress, log: Log) -> None:
        found = log.readable(reading.position, 1)
        until = reading.range.until_offset
        if found and found[0] < until:
            reading.append(columns(reading.range.tp, 0, found, [log.entries[found[0]].value]).batch)
        reading.position = found[0] + 1 if found else until

    def _check_topics(self, held: Sequence[Wanted]) -> None:
        check_topics(held, {item.range.topic: self._kafka.topic_id(item.range.topic) for item in held})

    def _check(self, reading: RangeProgress) -> None:
        reading.check()
