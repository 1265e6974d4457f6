"""Streaming queries, and events around them, that Spark's own Kafka source and this project's source get."""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.spark.compared import BEGIN_MS, LONG_MAX, QUICK, SHORT_PATIENCE, Change, Query, Stream, at

_ALL = {"subscribe": "T-s", "startingOffsets": "earliest"}
_NEW = Change(lambda topics: topics.create("T-s", 2))


def _write(*counts: int, topic: str = "T-s") -> Change:
    return Change(lambda topics: topics.write(topic, counts))


def _drop(*before: int, topic: str = "T-s") -> Change:
    return Change(lambda topics: topics.drop(topic, before))


def _going_on(options: Mapping[str, str]) -> dict[str, str]:
    return {**options, "failOnDataLoss": "false"}


_NAMED = {"assign": '{"T-s": [1, 2], "T-s2": [0]}', "startingOffsets": "earliest"}
_PATTERN = {"subscribePattern": "T-s.*", "startingOffsets": "earliest"}
STREAMS: list[Stream] = [
    Stream(
        "limits of a trigger, a stop, and more records",
        [
            _NEW,
            _write(10, 3),
            Query({**_ALL, "maxOffsetsPerTrigger": "4"}),
            _write(2, 9),
            Query({**_ALL, "maxOffsetsPerTrigger": "5", "includeHeaders": "true"}),
            Query(_ALL),
        ],
        short=True,
    ),
    Stream(
        "latest, idle, then records",
        [_NEW, _write(4, 1), Query({"subscribe": "T-s"}), _write(3, 0), Query(_ALL)],
        short=True,
    ),
    Stream(
        "records that were aged out meanwhile",
        [
            _NEW,
            _write(4, 2),
            Query(_ALL),
            _write(6, 1),
            _drop(7),
            Query({**_ALL, **QUICK}),
            Query(_going_on({**_ALL, **QUICK})),
        ],
        short=True,
    ),
    Stream(
        "all was aged out meanwhile",
        [_NEW, _write(4, 2), Query(_ALL), _write(6, 1), _drop(10, 3), Query(_going_on({**_ALL, **QUICK}))],
    ),
    Stream(
        "a pattern, a topic more, and one gone",
        [
            _NEW,
            _write(4, 2),
            Query(_PATTERN),
            Change(lambda topics: topics.create("T-s2", 1)),
            _write(3, topic="T-s2"),
            Query(_PATTERN),
            Change(lambda topics: topics.delete("T-s")),
            _write(2, topic="T-s2"),
            Query(_PATTERN),
            Query(_going_on(_PATTERN)),
        ],
        short=True,
    ),
    Stream(
        "a topic of the pattern that does not begin at 0",
        [
            _NEW,
            _write(1, 1),
            Query(_PATTERN),
            Change(lambda topics: topics.create("T-s2", 1)),
            _write(5, topic="T-s2"),
            _drop(2, topic="T-s2"),
            Query(_PATTERN),
            Query(_going_on(_PATTERN)),
        ],
    ),
    Stream(
        "a partition more",
        [_NEW, _write(2, 2), Query(_ALL), Change(lambda topics: topics.widen("T-s", 3)), _write(1, 0, 4), Query(_ALL)],
        short=True,
    ),
    Stream(
        "created again with fewer records",
        [
            _NEW,
            _write(6, 4),
            Query(_ALL),
            Change(lambda topics: topics.recreate("T-s", 2, [2, 1])),
            Query({**_ALL, **QUICK}),
            Query(_going_on({**_ALL, **QUICK})),
        ],
        short=True,
    ),
    Stream(
        "created again with more records",
        [
            _NEW,
            _write(2, 2),
            Query(_ALL),
            Change(lambda topics: topics.recreate("T-s", 2, [5, 5])),
            Query({**_ALL, **QUICK}),
        ],
    ),
    Stream(
        "the topic was deleted",
        [
            _NEW,
            _write(2, 2),
            Query(_ALL),
            Change(lambda topics: topics.delete("T-s")),
            Query({**_ALL, **SHORT_PATIENCE}),
        ],
    ),
    Stream(
        "a start behind the log's end", [_NEW, _write(2, 2), Query({**_ALL, "startingOffsets": at("T-s", p0=9, p1=0)})]
    ),
    Stream("offsets for some partitions", [_NEW, Query({**_ALL, "startingOffsets": at("T-s", p0=0)})], short=True),
    Stream("an end is refused", [_NEW, Query({**_ALL, "endingOffsets": "latest"})], short=True),
    Stream("ending times are refused", [_NEW, Query({**_ALL, "endingOffsetsByTimestamp": at("T-s", p0=5, p1=5)})]),
    Stream("an ending time for all does nothing", [_NEW, Query({**_ALL, "endingTimestamp": "5"})]),
    Stream("a time", [_NEW, _write(5, 3), Query({"subscribe": "T-s", "startingTimestamp": str(BEGIN_MS + 2)})]),
    Stream(
        "a time without a record",
        [_NEW, _write(5, 3), Query({"subscribe": "T-s", "startingTimestamp": str(BEGIN_MS + 4)})],
    ),
    Stream(
        "a time without a record, latest",
        [
            _NEW,
            _write(5, 3),
            Query(
                {
                    "subscribe": "T-s",
                    "startingTimestamp": str(BEGIN_MS + 4),
                    "startingOffsetsByTimestampStrategy": "latest",
                }
            ),
            _write(1, 1),
            Query(_ALL),
        ],
    ),
    Stream(
        "transactions",
        [
            Change(lambda topics: topics.create("T-s", 1)),
            Change(lambda topics: topics.transact("T-s", ["commit", "abort", "commit"])),
            Query({**_ALL, "kafka.isolation.level": "read_committed", "maxOffsetsPerTrigger": "4"}),
            _write(2),
            Query({**_ALL, "kafka.isolation.level": "read_committed"}),
        ],
        short=True,
    ),
    Stream("once", [_NEW, _write(5, 3), Query({**_ALL, "maxOffsetsPerTrigger": "2"}, "once"), Query(_ALL, "once")]),
    Stream(
        "too few for a trigger",
        [
            _NEW,
            _write(5, 3),
            Query({**_ALL, "minOffsetsPerTrigger": "6"}, "all"),
            _write(1, 1),
            Query({**_ALL, "minOffsetsPerTrigger": "6"}, "all"),
            _write(2, 2),
            Query({**_ALL, "minOffsetsPerTrigger": "6"}, "all"),
        ],
    ),
    Stream(
        "both limits of a trigger",
        [_NEW, _write(9, 3), Query({**_ALL, "minOffsetsPerTrigger": "3", "maxOffsetsPerTrigger": "5"}, "all")],
    ),
    Stream("more limits than sense", [_NEW, Query({**_ALL, "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"})]),
    Stream(
        "no task is too small", [_NEW, _write(7, 3), Query({**_ALL, "minPartitions": "5", "maxOffsetsPerTrigger": "6"})]
    ),
    Stream("a limit of 0", [_NEW, _write(2, 2), Query({**_ALL, "maxOffsetsPerTrigger": "0"})]),
    Stream(
        "a topic less in subscribe",
        [
            _NEW,
            _write(2, 2),
            Change(lambda topics: topics.create("T-s2", 1)),
            _write(3, topic="T-s2"),
            Query({**_ALL, "subscribe": "T-s,T-s2"}),
            _write(1, 1),
            Query(_ALL),
            Query(_going_on(_ALL)),
        ],
    ),
    Stream(
        "windows closed by a watermark, and late records",
        [
            _NEW,
            _write(12, 9),
            Query({**_ALL, "maxOffsetsPerTrigger": "8"}, shape="windows"),
            _write(6, 30),
            Query(_ALL, shape="windows"),
        ],
        short=True,
    ),
    Stream(
        "a stream joined with itself",
        [_NEW, _write(5, 3), Query(_ALL, shape="pairs"), _write(1, 4), Query(_ALL, shape="pairs")],
        short=True,
    ),
    Stream(
        "partitions that are named, and one that comes later",
        [
            _NEW,
            Change(lambda topics: topics.create("T-s2", 2)),
            _write(3, 2),
            _write(1, 4, topic="T-s2"),
            Query({**_NAMED, "maxOffsetsPerTrigger": "5"}),
            Change(lambda topics: topics.widen("T-s", 3)),
            _write(2, 1, 4),
            Query(_NAMED),
        ],
        short=True,
    ),
    Stream(
        "limits of the greatest long",
        [
            _NEW,
            _write(3, 2),
            Query({**_ALL, "maxOffsetsPerTrigger": str(LONG_MAX), "maxRecordsPerPartition": str(LONG_MAX)}),
            _write(1, 1),
            Query({**_ALL, "minOffsetsPerTrigger": str(LONG_MAX), "maxTriggerDelay": "1ms"}, "all"),
        ],
    ),
    Stream("a limit beyond a long", [_NEW, Query({**_ALL, "maxOffsetsPerTrigger": str(LONG_MAX + 1)})]),
    Stream(
        "a start at the greatest long",
        [_NEW, _write(2, 2), Query({**_ALL, "startingOffsets": at("T-s", p0=LONG_MAX, p1=0)})],
        short=True,
    ),
    Stream(
        "a start at the greatest long, going on",
        [
            _NEW,
            _write(2, 2),
            Query(_going_on({**_ALL, **QUICK, "startingOffsets": at("T-s", p0=LONG_MAX, p1=0)})),
            _write(3, 3),
            Query(_going_on({**_ALL, **QUICK})),
        ],
    ),
]
