"""The environment of benchmarks: their folder, number and size of runs, one real Kafka, topics filled with records."""

from __future__ import annotations

import itertools
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from confluent_kafka import Producer

from benchmarks.recording import page_of
from benchmarks.sheets import Sheet
from forebay.kafka.embedded.broker import KafkaBroker

PARTITIONS = 4
RECORD_BYTES = 200
#: of a record of this size; the rest is its key
VALUE_BYTES = RECORD_BYTES - 8

_NAMES = itertools.count(1)
_CHUNK, _CHUNK_BYTES = 5_000, 20_000_000


@dataclass
class Setup:
    """The setup of a run. ``scale``: factor for the number of records; 1 for a run that is recorded. ``sheets``: the tables
    with plots that benchmarks kept."""

    directory: Path
    runs: int = 5
    scale: float = 1.0
    sheets: list[Sheet] = field(default_factory=list)
    _broker: KafkaBroker | None = None
    _open: ExitStack = field(default_factory=ExitStack)

    def keep(self, sheet: Sheet) -> None:
        """Keep a table with plots, for ``--record``. Raises LookupError if the docs have no place for it."""
        page_of(sheet)
        self.sheets.append(sheet)

    def records(self, full: int) -> int:
        """Return the number of records for a recorded run of ``full``: a multiple of the partitions, at least 1,000 each."""
        return max(1_000 * PARTITIONS, int(full * self.scale) // PARTITIONS * PARTITIONS)

    @property
    def broker(self) -> KafkaBroker:
        """Return the broker; start it at the first call. Raises UsageError if Java or Kafka's jars are missing."""
        if self._broker is None:
            self._broker = self._open.enter_context(KafkaBroker(self.directory / "kafka", heap_mib=768))
        return self._broker

    def topic(self, records: int, value_bytes: int = RECORD_BYTES, partitions: int = PARTITIONS) -> str:
        """Create a topic with ``records`` records in it, evenly in its partitions, and return its name."""
        name = f"records-{next(_NAMES)}"
        self.broker.create_topic(name, partitions)
        fill(self.broker.options, name, records, value_bytes, partitions)
        return name

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """An empty folder while open; deleted afterwards."""
        path = self.directory / f"run-{next(_NAMES)}"
        path.mkdir(parents=True)
        try:
            yield path
        finally:
            shutil.rmtree(path)

    def __enter__(self) -> Setup:
        self.directory.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()


def values(count: int, value_bytes: int, seed: int = 7) -> list[tuple[bytes, bytes]]:
    """Return ``count`` different (key, value): 1,000 keys of 8 bytes, values of hexadecimal digits; together ``value_bytes``."""
    source = random.Random(seed)
    return [
        (b"key-%04d" % source.randrange(1_000), source.randbytes(value_bytes // 2).hex().encode()[: value_bytes - 8])
        for _ in range(count)
    ]


def fill(
    options: dict[str, str], topic: str, records: int, value_bytes: int, partitions: int = PARTITIONS
) -> None:  # fmt: skip
    """Produce ``records / partitions`` records into each partition, not compressed, so that consumers only read them."""
    producer = Producer({
        **options, "linger.ms": 20, "batch.size": 1_000_000, "message.max.bytes": 2_000_000,
        "compression.type": "none", "acks": "1",
        "queue.buffering.max.messages": 500_000, "queue.buffering.max.kbytes": 200_000,
    })  # fmt: skip
    sample = values(max(1, min(_CHUNK, _CHUNK_BYTES // value_bytes)), value_bytes)
    failures: list[str] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failures.append(str(error))

    left = dict.fromkeys(range(partitions), records // partitions)
    for partition in itertools.cycle(range(partitions)):
        if not any(left.values()):
            break
        rest = [{"key": key, "value": value} for key, value in sample[: left[partition]]]
        left[partition] -= len(rest)
        while rest:
            done = producer.produce_batch(topic, rest, partition)
            rest = rest[done:]
            producer.poll(0.05 if rest else 0)
    if producer.flush(120) or failures:
        raise RuntimeError(f"{topic} could not be filled: {failures[:1]}")


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of all threads of a process."""
    # the clock's number as clock_getcpuclockid(3) makes it; /proc counts in ticks, too coarse for a short run
    return time.clock_gettime(~pid << 3 | 2)
