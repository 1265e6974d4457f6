"""Queries over an intake, called as Spark's planner calls them, without Spark: real driver, receiver and Kafka."""

from __future__ import annotations

import contextlib
import json
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.consume.range_reader import forget_consumers
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.messages import MoveCursorRequest, TrackedCursor
from forebay.model.errors import (
    FencedError,
    ForebayError,
    RangeNotHeldError,
    RefusedError,
    UnknownTopicError,
    UsageError,
)
from forebay.model.records import DATAFRAME_SCHEMA
from forebay.model.values import TopicPartition
from pyspark_forebay.intake import client
from pyspark_forebay.intake.batch import IntakeBatchReader
from pyspark_forebay.intake.stream import IntakeStreamReader
from tests.support.kafka.polling import PATIENCE_SECONDS
from tests.support.processes.cluster import Cluster
from tests.support.state.again import produce

pytestmark = [pytest.mark.kafka, pytest.mark.filterwarnings("ignore::ResourceWarning")]

ALL = ReadAllAvailable()
Reader = IntakeBatchReader | IntakeStreamReader


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    forget_consumers()


@pytest.fixture
def cluster(tmp_path: Path, kafka_broker: KafkaBroker, topic: str) -> Iterator[Cluster]:
    """An intake of the topic, which deletes what nothing needs within a second or two."""
    driver = {"cursor_lease": "4s"}
    wal = {"segment_size": "1KB", "cleanup_interval": "200ms"}
    with Cluster(tmp_path, kafka_broker.options, [topic], receivers=1, driver=driver, wal=wal) as cluster:
        cluster.await_completed({(topic, 0): 10, (topic, 1): 5})
        yield cluster


class Ids:
    """One after the other."""

    def __init__(self, prefix: str = "id") -> None:
        self.prefix, self.count = prefix, 0

    def __call__(self) -> str:
        self.count += 1
        return f"{self.prefix}{self.count}"


@contextlib.contextmanager
def query(cluster: Cluster, ids: str = "id", **options: str) -> Iterator[IntakeStreamReader]:
    reader = IntakeStreamReader({"tracker": cluster.driver_url, **options}, new_id=Ids(ids))
    try:
        yield reader
    finally:
        reader.stop()


def batch(cluster: Cluster, **options: str) -> IntakeBatchReader:
    return IntakeBatchReader({"tracker": cluster.driver_url, **options})


def rows(reader: Reader, *between: dict[str, Any]) -> list[dict[str, Any]]:
    copy = pickle.loads(pickle.dumps(reader))  # as a task has it
    return [
        row
        for part in reader.partitions(*between)
        for found in copy.read(pickle.loads(pickle.dumps(part)))
        for row in found.to_pylist()
    ]


def offsets(reader: Reader, *between: dict[str, Any]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row in rows(reader, *between):
        found.setdefault(row["partition"], []).append(row["offset"])
    return {partition: sorted(own) for partition, own in found.items()}


def cursors(cluster: Cluster) -> dict[str, TrackedCursor]:
    return {cursor.cursor: cursor for cursor in cluster.wait(cluster.status, "status").cursors}


def segments(cluster: Cluster) -> int:
    return len(cluster.wal_storage.list("stream/blocks"))


def holds(cluster: Cluster, topic: str, partition: int) -> int:
    """The first offset of the partition that the journal names a block for."""
    ranges = (r for block in cluster.state().blocks.values() for r in block.meta.ranges)
    return min((r.from_offset for r in ranges if (r.topic, r.partition) == (topic, partition)), default=1 << 62)


def await_clean(cluster: Cluster) -> None:
    """Until the WAL holds the one segment alone that is being written."""
    cluster.wait(lambda: segments(cluster) <= 1, "the WAL to be cleaned up")


def test_cursor_keeps_records_in_the_wal_that_kafka_has_deleted(
    cluster: Cluster, kafka_broker: KafkaBroker, topic: str
) -> None:
    """INV-5, INV-8: the query is far behind; Kafka has deleted the records, and only the cursor keeps the WAL's."""
    first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with query(cluster) as reader:
        begun = reader.latestOffset(reader.initialOffset(), ALL)
        assert begun[topic] == begun["#start"][topic] == {"0": 10, "1": 5}
        assert begun["#cursor"] == "query-id1"
        assert cursors(cluster)["query-id1"].state == "at work"
        for number in range(1, 4):  # a block each, and a segment each
            produce(kafka_broker.options, first, 40)
            produce(kafka_broker.options, second, 40)
            cluster.await_completed({(topic, 0): 10 + 40 * number, (topic, 1): 5 + 40 * number})
        with KafkaAdmin(kafka_broker.options) as admin:
            admin.delete_records({first: 120, second: 120})
        cluster.wait(lambda: not cluster.state().batches, "the history to hold all batches")
        end = reader.latestOffset(begun, ALL)
        assert end == {topic: {"0": 130, "1": 125}, "#cursor": "query-id1"}
        assert offsets(reader, begun, end) == {0: list(range(10, 130)), 1: list(range(5, 125))}
        assert rows(reader, begun, end) == rows(reader, begun, end)  # a batch that is run again has the same rows
        held = cursors(cluster)["query-id1"]
        assert held.behind == 240
        reader.commit(end)
        assert cursors(cluster)["query-id1"].behind == 0
        cluster.wait(lambda: holds(cluster, topic, 0) > 10, "the first block to be deleted")
        with pytest.raises(Exception, match=r"/0\[10, \d+\).*it holds offsets 120 to 130"):
            offsets(reader, begun, end)


def test_batch_queries_read_whole_columns_from_wal_and_kafka(
    cluster: Cluster, kafka_broker: KafkaBroker, topic: str
) -> None:
    await_clean(cluster)
    reader = batch(cluster)
    assert offsets(reader) == {0: list(range(10)), 1: list(range(5))}  # of Kafka, by now
    with query(cluster) as holding:
        holding.latestOffset({}, ALL)
        produce(kafka_broker.options, TopicPartition(topic, 0), 20)
        cluster.await_completed({(topic, 0): 30, (topic, 1): 5})
        assert offsets(batch(cluster)) == {0: list(range(30)), 1: list(range(5))}
        ends = json.dumps({topic: {"0": 17, "1": -1}})
        cut = batch(cluster, startingOffsets=json.dumps({topic: {"0": 8, "1": -2}}), endingOffsets=ends)
        assert offsets(cut) == {0: list(range(8, 17)), 1: list(range(5))}
        (row,) = (row for row in rows(cut) if (row["partition"], row["offset"]) == (0, 12))
        assert (row["key"], row["value"], row["topic"]) == (b"k2", b"value 2", topic)
        for part in cut.partitions():
            for found in cut.read(part):
                assert found.schema == DATAFRAME_SCHEMA(False)
        assert offsets(batch(cluster, subscribe=topic, minPartitions="3")) == offsets(batch(cluster))
        assert offsets(batch(cluster, assign=json.dumps({topic: [1]}))) == {1: list(range(5))}
        assert offsets(batch(cluster, subscribePattern="no.*such")) == {}


REFUSED: list[tuple[dict[str, str], type[Exception], str]] = [
    ({"subscribe": "nowhere"}, UnknownTopicError, "the stream does not take in nowhere"),
    ({"startingOffsets": '{"T": {"0": 3}}'}, UsageError, "missing: T/1"),
    (
        {"startingOffsets": '{"T": {"0": 99, "1": 0}}'},
        UsageError,
        "offset 99 of T/0 is too high: the stream has taken in",
    ),
    (
        {"endingOffsets": '{"T": {"0": 1, "1": 1}}', "startingOffsets": '{"T": {"0": 2, "1": 0}}'},
        UsageError,
        "beyond",
    ),
]


def test_invalid_query_is_refused(cluster: Cluster, topic: str) -> None:
    for options, kind, message in REFUSED:
        given = {name: value.replace("T", topic) for name, value in options.items()}
        with pytest.raises(kind, match=message.replace("T", topic)):
            batch(cluster, **given).partitions()


def test_second_query_with_the_same_cursor_is_refused_and_a_restart_continues(
    cluster: Cluster, kafka_broker: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-4."""
    monkeypatch.setattr(client, "IN_USE_SECONDS", 0.5)
    with query(cluster) as reader:
        begun = reader.latestOffset({}, ALL)
        with query(cluster, "other") as copy, pytest.raises(RefusedError, match="cursor query-id1 is in use by"):
            copy.latestOffset(begun, ALL)
    with query(cluster, "again") as reader:  # the first one ended in order
        produce(kafka_broker.options, TopicPartition(topic, 0), 3)
        cluster.await_completed({(topic, 0): 13})
        end = reader.latestOffset(begun, ALL)
        assert offsets(reader, begun, end) == {0: [10, 11, 12]}
        planner = reader._planner
        assert planner is not None and planner._cursor is not None
        planner._cursor._closing.set()  # it is silent from now on, as if it was killed
        monkeypatch.setattr(client, "IN_USE_SECONDS", 60)
        with query(cluster, "third") as successor:
            assert offsets(successor, begun, end) == {0: [10, 11, 12]}
            with pytest.raises(ForebayError, match=r"was opened by .* since"):
                reader.commit(end)
            successor.commit(end)


class Slept:
    """Queries that sleep as a whole, as in a long pause of their process, from the first call of :meth:`sleep` on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._asleep: set[str] = set()
        self._woke = threading.Event()
        keep = client.Intake.send_heartbeat

        def kept(own: client.Intake, request: MoveCursorRequest) -> None:
            if request.key in self._asleep:
                assert self._woke.wait(PATIENCE_SECONDS)
            keep(own, request)

        monkeypatch.setattr(client.Intake, "send_heartbeat", kept)

    def sleep(self, reader: IntakeStreamReader) -> None:
        assert reader._planner is not None and reader._planner._cursor is not None
        self._asleep.add(reader._planner._cursor._key)

    def wake(self) -> None:
        self._woke.set()


def test_query_that_slept_while_another_took_its_cursor_changes_nothing(
    cluster: Cluster, kafka_broker: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-3, INV-4, INV-8: it slept longer than ``driver.cursor_lease``, with a batch planned and not committed."""
    slept = Slept(monkeypatch)
    with query(cluster) as sleeper, query(cluster, "other") as taker:
        begun = sleeper.latestOffset({}, ALL)
        produce(kafka_broker.options, TopicPartition(topic, 0), 3)
        cluster.await_completed({(topic, 0): 13})
        end = sleeper.latestOffset(begun, ALL)
        given_out = rows(sleeper, begun, end)
        assert [row["offset"] for row in given_out] == [10, 11, 12]
        slept.sleep(sleeper)
        assert (
            rows(taker, begun, end) == given_out
        )  # it waits for the lease, and holds what the checkpoint may read again
        taker.commit(end)
        produce(kafka_broker.options, TopicPartition(topic, 0), 2)
        cluster.await_completed({(topic, 0): 15})
        after = taker.latestOffset(end, ALL)
        assert [row["offset"] for row in rows(taker, end, after)] == [13, 14]
        before = cluster.state().cursors
        with pytest.raises(FencedError, match=r"was opened by .* since"):
            sleeper.commit(after)  # before its heartbeat thread knows
        slept.wake()
        with pytest.raises(FencedError, match=r"was opened by .* since"):
            sleeper.commit(end)
        planner = sleeper._planner
        assert planner is not None and planner._cursor is not None
        planner._cursor._thread.join(PATIENCE_SECONDS)  # it knows, and sends no more heartbeats
        for call in (lambda: sleeper.latestOffset(end, ALL), lambda: sleeper.partitions(begun, end)):
            with pytest.raises(FencedError):
                call()
        sleeper.stop()  # ends no cursor
        assert cluster.state().cursors == before
        cluster.wait(lambda: cursors(cluster)["query-id1"].state == "at work", "a heartbeat of the new user")
        assert cursors(cluster)["query-id1"].behind == 2
        assert [row["offset"] for row in rows(taker, end, after)] == [13, 14]
        taker.commit(after)
        assert cursors(cluster)["query-id1"].behind == 0


def test_query_that_slept_until_its_cursor_expired_continues_or_names_the_loss(
    tmp_path: Path, kafka_broker: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-3, INV-4, INV-5: it slept longer than ``driver.cursor_timeout``, and the WAL deleted records meanwhile."""
    slept = Slept(monkeypatch)
    driver = {"cursor_lease": "1s", "cursor_timeout": "5s", "placing_interval": "200ms"}
    wal = {"segment_size": "1KB", "cleanup_interval": "200ms"}
    with Cluster(tmp_path, kafka_broker.options, [topic], receivers=1, driver=driver, wal=wal) as cluster:
        cluster.await_completed({(topic, 0): 10, (topic, 1): 5})
        with query(cluster) as sleeper:
            begun = sleeper.latestOffset({}, ALL)
            produce(kafka_broker.options, TopicPartition(topic, 0), 40)
            cluster.await_completed({(topic, 0): 50})
            end = sleeper.latestOffset(begun, ALL)
            given_out = rows(sleeper, begun, end)
            slept.sleep(sleeper)
            produce(kafka_broker.options, TopicPartition(topic, 1), 40)  # into another segment
            cluster.wait(lambda: cursors(cluster)["query-id1"].state == "expired", "the cursor to expire")
            cluster.wait(lambda: holds(cluster, topic, 0) >= 50, "the WAL to delete the records")
            slept.wake()
            with pytest.raises(RefusedError, match="cursor query-id1 does not exist: expired"):
                sleeper.commit(end)
        with query(cluster, "again") as back:  # its checkpoint may have the batch, or only its beginning
            assert sorted(map(str, rows(back, begun, end))) == sorted(map(str, given_out))  # of Kafka, by now
            cluster.wait(lambda: cursors(cluster)["query-id1"].state == "at work", "a heartbeat of the query")
            with KafkaAdmin(kafka_broker.options) as admin:
                admin.delete_records({TopicPartition(topic, 0): 12})
            with pytest.raises(RangeNotHeldError, match=r"/0\[10, 50\).*holds offsets 12 to 50"):
                rows(back, begun, end)


def test_query_survives_a_driver_killed_around_each_cursor_event(
    cluster: Cluster, kafka_broker: KafkaBroker, topic: str
) -> None:
    """INV-7, INV-8: the driver answers nothing that the journal does not hold."""
    marks = [
        f"journal.{place}:{event}"
        for event in ("CursorOpened", "CursorMoved", "CursorEnded")
        for place in ("before-write", "after-sync")
    ]
    cluster.kill9("driver")
    cluster.restart("driver", failpoints=",".join(f"{mark}=kill" for mark in marks))
    waiting = ThreadedWait(cluster)
    with waiting, query(cluster) as reader:
        begun = reader.latestOffset({}, ALL)
        assert "query-id1" in cluster.state().cursors
        for count in range(2):
            produce(kafka_broker.options, TopicPartition(topic, 1), 5)
            waiting.until(
                lambda count=count: (p := cluster.partition(topic, 1)) is not None and p.position == 10 + 5 * count
            )
            end = reader.latestOffset(begun, ALL)
            assert offsets(reader, begun, end) == {1: list(range(5 + 5 * count, 10 + 5 * count))}
            reader.commit(end)
            assert cluster.state().cursors["query-id1"].vector[f"{topic}/1"] == (1, 10 + 5 * count)
            begun = end
    for _ in range(3):
        if cluster.command("cursors", "drop", "query-id1", "--yes").returncode == 0:
            break
        cluster.wait(lambda: cluster.status() is not None, "the driver")
    assert "query-id1" not in cluster.state().cursors
    assert [mark for mark in marks if not cluster.was_hit(mark)] == []
    await_clean(cluster)


class ThreadedWait:
    """Keeps the cluster's processes up in a thread while the test is in a call."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self._done = cluster, threading.Event()
        self._wanted: Callable[[], Any] = lambda: None
        self._found = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self._cluster.wait(self._look, "the test to end")

    def _look(self) -> bool:
        if self._wanted():
            self._found.set()
        return self._done.is_set()

    def until(self, condition: Callable[..., Any]) -> None:
        self._found.clear()
        self._wanted = condition
        assert self._found.wait(120), self._cluster.describe()
        self._wanted = lambda: None

    def __enter__(self) -> ThreadedWait:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def test_available_records_are_read_in_portions_within_limits(
    cluster: Cluster, kafka_broker: KafkaBroker, topic: str
) -> None:
    with query(cluster, maxOffsetsPerTrigger="6", startingOffsets="earliest") as reader:
        assert reader.getDefaultReadLimit() == ReadMaxRows(6)
        at = reader.latestOffset({}, ReadMaxRows(6))
        assert at["#start"] == {topic: {"0": 0, "1": 0}}
        read = offsets(reader, {}, at)
        assert sum(map(len, read.values())) == 6
        reader.commit(at)
        reader.prepareForTriggerAvailableNow()
        produce(kafka_broker.options, TopicPartition(topic, 0), 9)
        cluster.await_completed({(topic, 0): 19})
        for _ in range(10):
            end = reader.latestOffset(at, ReadMaxRows(6))
            if end == at:
                break
            for partition, own in offsets(reader, at, end).items():
                read.setdefault(partition, []).extend(own)
            reader.commit(end)
            at = end
        assert read == {0: list(range(10)), 1: list(range(5))}
        assert reader.reportLatestOffset() == {topic: {"0": 10, "1": 5}}


def test_records_missing_in_wal_and_kafka_end_the_query_or_are_omitted(
    cluster: Cluster, kafka_broker: KafkaBroker, topic: str
) -> None:
    """INV-5: without Kafka's address there is no tier after the WAL."""
    produce(kafka_broker.options, TopicPartition(topic, 1), 30)  # so that the segment with the first records is sealed
    cluster.await_completed({(topic, 1): 35})
    cluster.wait(lambda: holds(cluster, topic, 0) >= 10, "the first records to be deleted")
    lost = batch(cluster, startingOffsets=json.dumps({topic: {"0": 0, "1": 5}}))
    with KafkaAdmin(kafka_broker.options) as admin:
        admin.delete_records({TopicPartition(topic, 0): 7})
    with pytest.raises(RangeNotHeldError, match=r'/0\[0, 10\).*failOnDataLoss" to "false"'):
        offsets(lost)
    left = batch(cluster, startingOffsets=json.dumps({topic: {"0": 0, "1": 5}}), failOnDataLoss="false")
    assert offsets(left) == {0: [7, 8, 9], 1: list(range(5, 35))}
    assert offsets(batch(cluster)) == {0: [7, 8, 9], 1: list(range(35))}


def test_query_begins_and_ends_at_times_of_records(cluster: Cluster, topic: str, kafka_broker: KafkaBroker) -> None:
    """Records are a millisecond apart. Kafka has what the WAL has deleted, and the WAL what Kafka has deleted."""
    begin = 1_700_000_000_000
    with query(cluster) as reader:
        reader.latestOffset(reader.initialOffset(), ALL)  # holds what comes from now on
        produce(kafka_broker.options, TopicPartition(topic, 0), 40)  # from the same times on again
        cluster.await_completed({(topic, 0): 50})
        between = {"startingTimestamp": str(begin + 3), "endingTimestamp": str(begin + 4)}
        assert offsets(batch(cluster, **between)) == {0: [3], 1: [3]}
        with KafkaAdmin(kafka_broker.options) as admin:
            admin.delete_records({TopicPartition(topic, 0): 40})
        each = {"startingOffsetsByTimestamp": json.dumps({topic: {"0": begin + 15, "1": begin + 2}})}
        assert offsets(batch(cluster, **each)) == {0: list(range(25, 50)), 1: [2, 3, 4]}
        late = {"startingTimestamp": str(begin + 12)}
        with pytest.raises(UsageError, match=rf"{topic}/1 has no record at or after {begin + 12} ms"):
            batch(cluster, **late).partitions()
        with query(cluster, "b", **late, startingOffsetsByTimestampStrategy="latest") as another:
            assert another.latestOffset({}, ALL)["#start"] == {topic: {"0": 22, "1": 5}}


def test_progress_group_shows_progress_and_must_not_be_a_group_of_the_stream(
    cluster: Cluster, kafka_broker: KafkaBroker, topic: str
) -> None:
    group = f"{topic}-progress"
    with query(cluster, progressGroup=group) as reader:
        end = reader.latestOffset({}, ALL)
        reader.commit(end)
        with KafkaAdmin(kafka_broker.options) as admin:
            shown = admin.committed(group, [TopicPartition(topic, 0), TopicPartition(topic, 1)])
        assert {tp.partition: committed.offset for tp, committed in shown.items()} == {0: 10, 1: 5}
    with (
        query(cluster, "b", progressGroup=cluster.group) as reader,
        pytest.raises(UsageError, match="group of the stream itself"),
    ):
        reader.latestOffset({}, ALL)


def test_query_waits_for_an_unavailable_driver_up_to_the_timeout(cluster: Cluster) -> None:
    cluster.kill9("driver")
    reader = batch(cluster, **{"kafkaConsumer.pollTimeoutMs": "300"})
    with pytest.raises(ForebayError, match="did not answer"):
        reader.partitions()
