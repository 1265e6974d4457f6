"""Cases in which Spark's own Kafka source and this project's source get the same requests on the same topics.

A case is options of a batch query, or events around a streaming query from one checkpoint; differences have a reason. ``T-`` in
options and in names of topics stands for a prefix of the test.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.values import TopicPartition
from tests.support.kafka.polling import PATIENCE_SECONDS, await_markers

BEGIN_MS = 1_700_000_000_000
LONG_MAX = 2**63 - 1
COMPACTED = {
    "cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "100",
    "min.compaction.lag.ms": "0", "delete.retention.ms": "0",
}  # fmt: skip


@dataclass(frozen=True)
class Topics:
    """Topics of one prefix on a broker, changed as the cases say."""

    broker: KafkaBroker
    admin: KafkaAdmin
    prefix: str

    def named(self, text: str) -> str:
        return text.replace("T-", f"{self.prefix}-")

    def create(self, topic: str, partitions: int = 1, **options: str) -> None:
        self.admin.create_topic(
            self.named(topic), partitions, {name.replace("_", "."): own for name, own in options.items()}
        )

    def delete(self, topic: str) -> None:
        self.admin.delete_topic(self.named(topic))

    def widen(self, topic: str, partitions: int) -> None:
        client = AdminClient({**self.broker.options})
        for future in client.create_partitions([NewPartitions(self.named(topic), partitions)]).values():
            future.result(PATIENCE_SECONDS)

    def write(self, topic: str, counts: Sequence[int], producer: Producer | None = None) -> None:
        """So many records into each partition: keys, values and headers of their own, some null; a millisecond apart."""
        client = producer or Producer({**self.broker.options, "linger.ms": 5})
        for partition, count in enumerate(counts):
            for number in range(count):
                client.produce(
                    self.named(topic),
                    None if number % 5 == 3 else b"value %d" % number,
                    None if number % 4 == 2 else b"key %d" % number,
                    partition,
                    headers=[] if number % 3 else [("n", b"%d" % number), ("n", b""), ("null", None)],
                    timestamp=BEGIN_MS + number,
                )
        if producer is None:
            assert client.flush(PATIENCE_SECONDS) == 0

    def transact(self, topic: str, ends: Sequence[str]) -> list[Producer]:
        """A transaction of five records for each of ``ends``: "commit", "abort" or, as the last, "open"; the producers of open
        ones."""
        opened = []
        for number, end in enumerate(ends):
            name = f"{self.named(topic)}-{number}"
            producer = Producer({**self.broker.options, "transactional.id": name, "transaction.timeout.ms": "900000"})
            producer.init_transactions(PATIENCE_SECONDS)
            producer.begin_transaction()
            self.write(topic, [5], producer)
            assert producer.flush(PATIENCE_SECONDS) == 0
            if end == "open":
                opened.append(producer)
                continue
            if end == "commit":
                producer.commit_transaction(PATIENCE_SECONDS)
            else:
                producer.abort_transaction(PATIENCE_SECONDS)
            await_markers(self.broker.options, [TopicPartition(self.named(topic), 0)])
        return opened

    def drop(self, topic: str, before: Sequence[int]) -> None:
        """Deletes the records below these offsets."""
        at = {TopicPartition(self.named(topic), partition): offset for partition, offset in enumerate(before) if offset}
        self.admin.delete_records(at)

    def recreate(self, topic: str, partitions: int, counts: Sequence[int]) -> None:
        self.delete(topic)
        self.create(topic, partitions)
        self.write(topic, counts)


def lay_out(topics: Topics) -> list[Producer]:
    """The topics that batch queries read; the producers of transactions that must stay open meanwhile."""
    topics.create("T-plain", 2)
    topics.write("T-plain", [10, 5])
    topics.create("T-plain-2", 1)
    topics.write("T-plain-2", [3])
    topics.create("T-empty", 2)
    topics.create("T-appended", 1, message_timestamp_type="LogAppendTime")
    topics.write("T-appended", [4])
    topics.create("T-aged", 2)
    topics.write("T-aged", [10, 5])
    topics.drop("T-aged", [4, 5])
    topics.create("__T-hidden", 1)
    topics.write("__T-hidden", [2])
    topics.create("T-transactions", 1)
    return topics.transact("T-transactions", ["commit", "abort", "commit", "abort", "open"])


@dataclass(frozen=True)
class Batch:
    """A batch query. ``short``: it is asked in each run of the tests, not in long ones alone."""

    name: str
    options: Mapping[str, str]
    short: bool = False


@dataclass(frozen=True)
class Change:
    """Something happens to the topics."""

    act: Callable[[Topics], object]


@dataclass(frozen=True)
class Query:
    """The streaming query is started, reads what there is, and ends. ``shape``: see ``tests.support.spark.queries``."""

    options: Mapping[str, str]
    trigger: str = "available"
    shape: str = ""


@dataclass(frozen=True)
class Stream:
    name: str
    steps: Sequence[Change | Query]
    short: bool = False


@dataclass(frozen=True)
class Difference:
    """``spark`` and ``ours``: what each does, as the test sees it: "refused" and why, or what it gives. ``reason``: a line of
    docs/STREAMING.md."""

    spark: str
    ours: str
    reason: str


def at(topic: str = "T-plain", **offsets: int) -> str:
    return json.dumps({topic: {name[1:]: offset for name, offset in offsets.items()}})


PLAIN = {"subscribe": "T-plain"}
_STARTS: dict[str, dict[str, str]] = {
    "the default start": {},
    "earliest": {"startingOffsets": "earliest"},
    "EARLIEST in capitals": {"STARTINGOFFSETS": "Earliest"},
    "offsets": {"startingOffsets": at(p0=3, p1=-2)},
    "a time for all": {"startingTimestamp": str(BEGIN_MS + 4)},
    "a time for each": {"startingOffsetsByTimestamp": at(p0=BEGIN_MS + 8, p1=0)},
    "a time without a record": {"startingTimestamp": str(BEGIN_MS + 7)},
    "a time without a record, latest": {
        "startingTimestamp": str(BEGIN_MS + 7), "startingOffsetsByTimestampStrategy": "latest",
    },
    "a time over offsets": {"startingTimestamp": str(BEGIN_MS + 2), "startingOffsets": at(p0=9, p1=4)},
    "a time for all over one for each": {
        "startingTimestamp": str(BEGIN_MS + 1), "startingOffsetsByTimestamp": at(p0=BEGIN_MS + 8, p1=BEGIN_MS + 3),
    },
}  # fmt: skip
_ENDS: dict[str, dict[str, str]] = {
    "the default end": {},
    "latest": {"endingOffsets": "latest"},
    "ending offsets": {"endingOffsets": at(p0=6, p1=-1)},
    "an ending time for all": {"endingTimestamp": str(BEGIN_MS + 5)},
    "an ending time for each": {"endingOffsetsByTimestamp": at(p0=BEGIN_MS + 9, p1=BEGIN_MS + 99)},
}
_SHORT_ENDS = {
    "the default start": ("ending offsets",),
    "offsets": ("the default end", "an ending time for each"),
    "a time for all": ("an ending time for all",),
    "a time without a record": ("the default end",),
    "a time without a record, latest": ("the default end",),
}


def _short(start: str, end: str) -> bool:
    return end in _SHORT_ENDS.get(start, ())


#: maximum time in which Java's client asks for topics that do not exist
SHORT_PATIENCE = {"kafka.default.api.timeout.ms": "3000", "kafka.request.timeout.ms": "3000"}
_REFUSED: dict[str, dict[str, str]] = {
    "nothing to read": {},
    "two ways to read": {**PLAIN, "subscribePattern": "T.*"},
    "no topic in subscribe": {"subscribe": " , "},
    "an empty pattern": {"subscribePattern": ""},
    "assign that is no JSON": {"assign": "T-plain"},
    "a topic that is not there": {"subscribe": "T-none", **SHORT_PATIENCE},
    "latest as a start": {**PLAIN, "startingOffsets": "latest"},
    "-1 as a start": {**PLAIN, "startingOffsets": at(p0=-1, p1=0)},
    "earliest as an end": {**PLAIN, "endingOffsets": "earliest"},
    "-2 as an end": {**PLAIN, "endingOffsets": at(p0=-2, p1=0)},
    "a start that is no JSON": {**PLAIN, "startingOffsets": "sometime"},
    "a start below -2": {**PLAIN, "startingOffsets": at(p0=-3, p1=0)},
    "a start of some partitions": {**PLAIN, "startingOffsets": at(p0=1)},
    "a start of too many partitions": {**PLAIN, "startingOffsets": at(p0=1, p1=1, p2=1)},
    "a time that is no number": {**PLAIN, "startingTimestamp": "noon"},
    "a strategy that is none": {**PLAIN, "startingOffsetsByTimestampStrategy": "never"},
    "no task at least": {**PLAIN, "minPartitions": "0"},
    "no record in a task": {**PLAIN, "maxRecordsPerPartition": "0"},
    "minPartitions that is no number": {**PLAIN, "minPartitions": "two"},
    "auto.offset.reset": {**PLAIN, "kafka.auto.offset.reset": "earliest"},
    "key.deserializer": {**PLAIN, "kafka.key.deserializer": "org.apache.kafka.common.serialization.StringDeserializer"},
    "value.deserializer": {**PLAIN, "kafka.value.deserializer": "org.apache.kafka.common.serialization.StringDeserializer"},
    "enable.auto.commit": {**PLAIN, "kafka.enable.auto.commit": "true"},
    "interceptor.classes": {**PLAIN, "kafka.interceptor.classes": "some.Class"},
    "failOnDataLoss that is neither": {**PLAIN, "failOnDataLoss": "perhaps"},
    "includeHeaders that is neither": {**PLAIN, "includeHeaders": "perhaps"},
    "an end beyond a long": {**PLAIN, "endingOffsets": at(p0=LONG_MAX + 1, p1=5)},
    "a time beyond a long": {**PLAIN, "startingTimestamp": str(LONG_MAX + 1)},
    "a negative time": {**PLAIN, "startingTimestamp": "-1"},
    "a negative time of a partition": {**PLAIN, "startingOffsetsByTimestamp": at(p0=-2, p1=0)},
    "more tasks than an int": {**PLAIN, "minPartitions": str(2**31)},
    "a start behind its end": {**PLAIN, "startingOffsets": at(p0=9, p1=0), "endingOffsets": at(p0=4, p1=5)},
}  # fmt: skip
_SHORT_REFUSED = (
    "nothing to read", "two ways to read", "latest as a start", "-2 as an end", "a start of some partitions",
    "auto.offset.reset", "a start behind its end", "no task at least",
)  # fmt: skip
QUICK = {"kafkaConsumer.pollTimeoutMs": "2000"}
_AGED = {"subscribe": "T-aged", **QUICK}
_MORE: dict[str, tuple[bool, dict[str, str]]] = {
    "assign": (True, {"assign": '{"T-plain": [1], "T-plain-2": [0]}'}),
    "assign of a partition that is not there": (False, {"assign": '{"T-plain": [0, 7]}', **SHORT_PATIENCE}),
    "a pattern": (True, {"subscribePattern": "T-plain.*", "includeHeaders": "true"}),
    "a pattern of no topic": (True, {"subscribePattern": "T-none.*"}),
    "a pattern of a part of names": (False, {"subscribePattern": "plain"}),
    "a pattern of a whole name": (False, {"subscribePattern": "^T-plain$"}),
    "a pattern of Kafka's own topics too": (False, {"subscribePattern": "__(consumer_offsets|T-hidden)"}),
    "topics with spaces": (False, {"subscribe": "T-plain-2 , T-plain"}),
    "a topic twice": (False, {"subscribe": "T-plain-2,T-plain-2"}),
    "headers": (False, {**PLAIN, "includeHeaders": "true"}),
    "headers in capitals": (False, {**PLAIN, "INCLUDEHEADERS": "TRUE"}),
    "a topic without records": (True, {"subscribe": "T-empty"}),
    "times of the log": (True, {"subscribe": "T-appended", "includeHeaders": "true"}),
    "three tasks": (True, {**PLAIN, "minPartitions": "3"}),
    "nine tasks": (False, {**PLAIN, "minPartitions": "9"}),
    "seven tasks": (False, {**PLAIN, "minPartitions": "7"}),
    "fewer tasks than partitions": (False, {**PLAIN, "minPartitions": "1"}),
    "more tasks than records": (False, {**PLAIN, "minPartitions": "40"}),
    "four records in a task": (True, {**PLAIN, "maxRecordsPerPartition": "4"}),
    "both limits of tasks": (False, {**PLAIN, "maxRecordsPerPartition": "4", "minPartitions": "9"}),
    "committed transactions": (
        True, {"subscribe": "T-transactions", "kafka.isolation.level": "read_committed"},
    ),
    "committed transactions by parts": (
        False, {"subscribe": "T-transactions", "kafka.isolation.level": "read_committed", "minPartitions": "9"},
    ),
    "all of transactions": (True, {"subscribe": "T-transactions"}),
    "an end within an aborted transaction": (
        False,
        {"subscribe": "T-transactions", "kafka.isolation.level": "read_committed", "endingOffsets": at("T-transactions", p0=8)},
    ),
    "aged out, from the earliest": (True, _AGED),
    "aged out below the start": (True, {**_AGED, "startingOffsets": at("T-aged", p0=2, p1=5)}),
    "aged out below the start, going on": (
        True, {**_AGED, "startingOffsets": at("T-aged", p0=2, p1=0), "failOnDataLoss": "false"},
    ),
    "wholly aged out, going on": (
        False,
        {**_AGED, "startingOffsets": at("T-aged", p0=1, p1=1), "endingOffsets": at("T-aged", p0=3, p1=4),
         "failOnDataLoss": "false"},
    ),
    "an end beyond the log's": (True, {**PLAIN, **QUICK, "endingOffsets": at(p0=20, p1=5)}),
    "an end beyond the log's, going on": (
        True, {**PLAIN, **QUICK, "endingOffsets": at(p0=20, p1=5), "failOnDataLoss": "false"},
    ),
    "a start beyond the log's end": (False, {**PLAIN, **QUICK, "startingOffsets": at(p0=20, p1=5)}),
    "a start beyond the log's end, going on": (
        False, {**PLAIN, **QUICK, "startingOffsets": at(p0=20, p1=5), "failOnDataLoss": "false"},
    ),
    "an end at the greatest long": (True, {**PLAIN, **QUICK, "endingOffsets": at(p0=LONG_MAX, p1=5)}),
    "an end at the greatest long, going on": (
        True, {**PLAIN, **QUICK, "endingOffsets": at(p0=LONG_MAX, p1=5), "failOnDataLoss": "false"},
    ),
    "an end at the greatest long, by parts": (
        False, {**PLAIN, **QUICK, "endingOffsets": at(p0=LONG_MAX, p1=5), "failOnDataLoss": "false", "minPartitions": "4"},
    ),
    "a range at the end of long": (
        False,
        {**PLAIN, **QUICK, "startingOffsets": at(p0=LONG_MAX - 2, p1=0), "endingOffsets": at(p0=LONG_MAX, p1=5),
         "failOnDataLoss": "false"},
    ),
    "a time at the greatest long": (False, {**PLAIN, "startingTimestamp": str(LONG_MAX)}),
    "an ending time at the greatest long": (False, {**PLAIN, "endingTimestamp": str(LONG_MAX)}),
    "records of a task up to the greatest long": (False, {**PLAIN, "maxRecordsPerPartition": str(LONG_MAX)}),
    "options of streaming queries": (False, {**PLAIN, "maxOffsetsPerTrigger": "3", "minOffsetsPerTrigger": "3"}),
    "an unknown option": (False, {**PLAIN, "noSuchOption": "3"}),
    "a group of one's own": (False, {**PLAIN, "kafka.group.id": "T-group"}),
    "a prefix of groups": (False, {**PLAIN, "groupIdPrefix": "T-group"}),
    "an internal topic": (False, {"subscribe": "__consumer_offsets"}),
    "a compacted topic": (False, {"subscribe": "T-compacted"}),
    "a compacted topic by parts": (False, {"subscribe": "T-compacted", "minPartitions": "5"}),
}  # fmt: skip

BATCHES: list[Batch] = [
    *(
        Batch(f"{start} to {end}", {**PLAIN, **begins, **ends}, _short(start, end))
        for start, begins in _STARTS.items()
        for end, ends in _ENDS.items()
    ),
    *(Batch(f"refused: {name}", options, name in _SHORT_REFUSED) for name, options in _REFUSED.items()),
    *(Batch(name, options, short) for name, (short, options) in _MORE.items()),
]

Side = Literal["spark", "ours"]

#: why a query is refused → by which words Spark's source says so, and ours; the first that fits counts
KINDS: dict[str, dict[Side, str]] = {
    "what to read": {
        "spark": r"of the following options (must|can) be specified|No topics to subscribe|Pattern to subscribe is empty"
        r"|No topicpartitions to assign",
        "ours": r"one of the options subscribe, subscribePattern, assign|names no (topics|partitions)|the pattern is empty",
    },
    "not in such a query": {
        "spark": r"can't be (latest|earliest) for batch queries|ending (offset|timestamp) not valid in streaming queries",
        "ours": r"UsageError: option .* (can't be (latest|earliest) for batch queries|not valid in streaming queries)",
    },
    "an option of Kafka's": {
        "spark": r"Kafka option '.*' is not supported",
        "ours": r"option kafka\..* is not supported",
    },
    "limits": {"spark": r"is higher than the maxOffsetsPerTrigger", "ours": r"is higher than maxOffsetsPerTrigger"},
    "other partitions": {
        "spark": r"Partitions specified for Kafka start offsets don't match|you must specify all TopicPartitions",
        "ours": r"UsageError: option startingOffsets must name every partition that is read",
    },
    "no record of that time": {"spark": r"No offset matched from request", "ours": r"UsageError: no offset matched"},
    "begins behind its end": {
        "spark": r"AssertionError: assertion failed: Beginning offset \d+ is after the ending offset",
        "ours": r"UsageError: starting offset \d+ of .* is beyond its ending offset",
    },
    "a value": {
        "spark": r"must be positive|Expected e\.g\. \{|Expected a single long value|For input string"
        r"|No value found for|offset -3 does not equal -2|offset -9223372036854775808 does not equal -1",
        "ours": r"UsageError: option .*: (allowed (is|are) )",
    },
    "no such topic": {"spark": r"UnknownTopicOrPartitionException", "ours": r"UnknownTopicError"},
    "out of range": {
        "spark": r"OffsetOutOfRangeException",
        "ours": r"RangeNotHeldError: .*(Broker: Offset out of range|Kafka's log ends at offset \d+)",
    },
    "data loss": {
        "spark": r"Some data may have been lost",
        "ours": r"RangeNotHeldError: .*Some data may have been lost",
    },
}


def kind_of(message: str, side: Side) -> str:
    """One of ``KINDS``."""
    found = next((kind for kind, signs in KINDS.items() if re.search(signs[side], message)), None)
    assert found is not None, f"refused for none of the known reasons: {message}"
    return found


#: name of a case → how its answers differ, for which reason
DIFFERENCES: dict[str, Difference] = {
    "four records in a task": Difference(
        "15 rows in 2 tasks", "15 rows in 5 tasks", "`maxRecordsPerPartition` also applies to batch queries"
    ),
    "both limits of tasks": Difference(
        "15 rows in 8 tasks", "15 rows in 9 tasks", "Together with `minPartitions` there are at least that many tasks"
    ),
    "created again with more records": Difference(
        "4 rows, 6 rows", "4 rows, refused: data loss", "Forebay recognizes by its id that a topic was created again"
    ),
    "a limit of 0": Difference(
        "0 rows", "refused: a value", "`maxOffsetsPerTrigger` of 0, with which a query reads nothing, is refused"
    ),
    "created again with fewer records": Difference(
        "10 rows, refused: data loss, 0 rows",
        "10 rows, refused: data loss, 3 rows",
        "Forebay recognizes by its id that a topic was created again",
    ),
}
