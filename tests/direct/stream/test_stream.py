"""Direct streams with the driver's scheduler and journal, a real Kafka, and jobs in this process."""

from __future__ import annotations

import json
import logging
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions  # type: ignore[attr-defined]
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from deploy.main import main
from direct.parameters import warn_once
from direct.stream.commits import DirectCommits
from direct.stream.metrics import StreamMetrics
from direct.stream.settings import StreamSettings
from direct.stream.strategies import Assign, Subscribe, SubscribePattern, check
from driver.batches.job.batch import Batch
from driver.batches.job.work import BatchWork
from driver.journal.leadership.lease import Lease
from driver.journal.leadership.processes import process_start
from driver.listeners.events import BatchCompleted, BatchStarted, BatchSubmitted, Happened, Listener
from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.consume.planning import PartitionRates
from forebay.kafka.consume.spans import OffsetRange
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.errors import JobError, RangeNotHeldError, UnknownTopicError, UsageError
from forebay.model.values import TopicPartition
from forebay.process.clock import SystemClock
from tests.support.kafka.polling import PATIENCE_SECONDS, Commit
from tests.support.processes.direct_runs import Runs
from tests.support.processes.up import until
from tests.support.state.again import produce

pytestmark = pytest.mark.kafka


def test_each_offset_is_in_one_batch_across_a_restart(runs: Runs, tps: list[TopicPartition]) -> None:
    """INV-2, INV-3: including records that arrived while the stream was down; neither policy nor given offsets move it."""
    one, two = tps
    stream = runs.start(Subscribe([one.topic]))
    runs.await_records(40)
    produce(runs.options, one, 5)
    runs.await_records(45)
    assert stream.offsets == {one: 35, two: 10}
    runs.stop(stream)
    produce(runs.options, two, 7)
    runs.start(Subscribe([one.topic], {two: 0}), params={"auto.offset.reset": "latest"})
    runs.await_records(52)
    assert (runs.once(one), runs.once(two)) == ((0, 35), (0, 17))
    assert all(span.topic_id for work in runs.works for span in work.spans)
    ids = [work.batch_id for work in runs.works]
    assert ids == sorted(set(ids))


def test_failed_batch_runs_again_with_the_same_ranges_and_id(runs: Runs, tps: list[TopicPartition]) -> None:
    """INV-3: in this process and in the next one, whatever Kafka has gained meanwhile."""
    seen: list[BatchWork] = []

    def failing(work: Batch) -> None:
        seen.append(work)  # type: ignore[arg-type]
        produce(runs.options, tps[0], 1)
        raise ValueError("no")

    stream = runs.start(Subscribe([tps[0].topic]), failing, max_failures=2)
    with pytest.raises(
        JobError, match=r"failed 2 times on batch .* runs again when the stream, with the same checkpoint,"
    ):
        stream.await_termination(PATIENCE_SECONDS)
    runs.start(Subscribe([tps[0].topic]))
    runs.await_records(42)
    assert [(work.batch_id, work.spans) for work in (*seen, runs.works[0])] == [(seen[0].batch_id, seen[0].spans)] * 3
    assert runs.works[0].rerun
    assert runs.once(tps[0]) == (0, 32)


def test_partitions_begin_by_the_documented_priority_and_the_log_says_where(
    runs: Runs, tps: list[TopicPartition], kafka_broker: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = tps
    waited = threading.Event()
    with KafkaAdmin(runs.options) as admin:
        while admin.publish(f"g-{one.topic}", {one: Commit(28), two: Commit(9)}):
            waited.wait(0.1)
    warn_once.cache_clear()  # another test of this process may have logged the same
    params = {"group.id": f"g-{one.topic}", "check.crcs": "false"}
    with caplog.at_level(logging.INFO, "direct.stream"):
        runs.start(Assign(tps, {one: 25}), params=params)
    runs.await_records(6)
    assert (runs.once(one), runs.once(two)) == ((25, 30), (9, 10))
    assert f"{one} begins at offset 25: given" in caplog.text
    assert f"{two} begins at offset 9: committed by group g-{one.topic}" in caplog.text
    runs.stop(runs.streams[-1])
    with caplog.at_level(logging.INFO, "direct.stream"):
        runs.stop(runs.start(Assign(tps, {one: 3}), params=params))
    assert caplog.text.count("'check.crcs' is true, not false") == 1
    assert f"{one} begins at offset 30: of the checkpoint, which takes precedence over the given one" in caplog.text
    assert f"{two} begins at offset 10: of the checkpoint\n" in caplog.text


def test_missing_partition_is_logged_and_its_offsets_are_refused(
    runs: Runs, tps: list[TopicPartition], caplog: pytest.LogCaptureFixture
) -> None:
    one, nowhere = tps[0], TopicPartition(tps[0].topic, 77)
    with pytest.raises(UsageError, match=f"given for {nowhere}, which Kafka does not have or the stream does not read"):
        runs.start(Subscribe([one.topic], {nowhere: 5}))
    runs.stop(runs.start(Assign([one, nowhere])))
    assert f"Kafka has no partition {nowhere}; it is read from its beginning when it is created" in caplog.text


def test_new_topics_of_a_pattern_begin_at_their_beginning(
    runs: Runs, tps: list[TopicPartition], kafka_broker: KafkaBroker
) -> None:
    """With any policy: they were created while the stream followed the pattern, even if no topic matched before."""
    later = TopicPartition(f"{tps[0].topic}.later", 0)
    runs.start(SubscribePattern(rf"{tps[0].topic}\..*"), params={"auto.offset.reset": "latest"})
    kafka_broker.create_topic(later.topic, 1)
    produce(runs.options, later, 4)
    runs.await_records(4)
    assert runs.once(later) == (0, 4)


def test_added_partition_begins_at_its_beginning(runs: Runs, tps: list[TopicPartition]) -> None:
    """With any policy."""
    new = TopicPartition(tps[0].topic, 2)
    stream = runs.start(Subscribe([new.topic]), params={"auto.offset.reset": "latest"})
    assert stream.offsets == {tps[0]: 30, tps[1]: 10}
    admin = AdminClient(dict(runs.options))
    admin.create_partitions([NewPartitions(new.topic, 3)])[new.topic].result(PATIENCE_SECONDS)
    produce(runs.options, new, 4)
    runs.await_records(4)
    assert runs.once(new) == (0, 4)


def test_open_transaction_counts_for_readers_of_uncommitted_records(runs: Runs, tps: list[TopicPartition]) -> None:
    one = tps[0]
    producer = Producer({**runs.options, "transactional.id": one.topic})
    producer.init_transactions(PATIENCE_SECONDS)
    producer.begin_transaction()
    for _ in range(3):
        producer.produce(one.topic, b"open", partition=0)
    assert producer.flush(PATIENCE_SECONDS) == 0
    stream = runs.start(Assign([one]))
    runs.await_records(30)
    runs.stop(stream)
    runs.start(Assign([one]), params={"isolation.level": "read_uncommitted"})
    runs.await_records(33)
    assert runs.once(one) == (0, 33)
    producer.abort_transaction(PATIENCE_SECONDS)


def test_new_stream_waits_for_the_lease_of_a_hanging_process_and_names_it(
    runs: Runs, tps: list[TopicPartition], caplog: pytest.LogCaptureFixture
) -> None:
    """INV-4: its Spark tasks may write beside the new stream; it is fenced in any case."""
    runs.stop(runs.start(Assign([tps[0]])))
    hung = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        hung.send_signal(signal.SIGSTOP)
        while "T" not in Path(f"/proc/{hung.pid}/stat").read_text().rpartition(")")[2].split()[0]:
            threading.Event().wait(0.01)
        lease = Lease(
            1, "before", socket.gethostname(), hung.pid, process_start(hung.pid), 1, 0.2, "", "app-1", "spark://m"
        )
        (runs.checkpoint / "s" / "lease").write_bytes(msgspec.json.encode(lease))
        with caplog.at_level(logging.WARNING, "driver.journal.leadership.lease"):
            runs.start(Assign([tps[0]]))
            runs.await_records(30)
        assert "may still run, in Spark's application app-1" in caplog.text
    finally:
        hung.kill()
        hung.wait()


def test_rates_limit_each_batch_until_the_lag_is_processed(runs: Runs, tps: list[TopicPartition]) -> None:
    runs.start(Subscribe([tps[0].topic]), rates=PartitionRates(100.0))
    runs.await_records(40)
    assert {end - begin for begin, end in runs.spans(tps[0])} == {5}
    assert runs.once(tps[0]) == (0, 30)


def test_backpressure_divides_the_initial_rate_by_lag(runs: Runs, tps: list[TopicPartition]) -> None:
    runs.start(Subscribe([tps[0].topic]), backpressure=True, initial_rate=160.0)
    runs.await_records(8)
    assert [(span.tp, span.from_offset, span.until_offset) for span in runs.works[0].spans] == [
        (tps[0], 0, 6),
        (tps[1], 0, 2),
    ]


def offsets_at(tp: TopicPartition, begin: int, end: int) -> tuple[str, int, int, int]:
    return tp.topic, tp.partition, begin, end


@pytest.mark.parametrize("on_vanished", ["stop", "record"])
def test_deleted_topic_ends_the_stream_or_is_journalled(
    runs: Runs, tps: list[TopicPartition], kafka_broker: KafkaBroker, on_vanished: str
) -> None:
    other = TopicPartition(f"{tps[0].topic}-other", 0)
    kafka_broker.create_topic(other.topic, 1)
    stream = runs.start(Subscribe([tps[0].topic, other.topic]), on_vanished=on_vanished)
    runs.await_records(40)
    with KafkaAdmin(runs.options) as admin:
        admin.delete_topic(tps[0].topic)
    if on_vanished == "stop":
        with pytest.raises(
            UnknownTopicError, match=f"partition {tps[0]}.* no longer exists; partition {tps[1]}.* no longer exists"
        ):
            stream.await_termination(PATIENCE_SECONDS)
        return
    produce(runs.options, other, 3)
    runs.await_records(43)
    waited = threading.Event()
    while stream.offsets != {other: 3}:
        waited.wait(0.05)


def test_topic_created_again_ends_the_stream(runs: Runs, tps: list[TopicPartition], kafka_broker: KafkaBroker) -> None:
    """INV-5: its offsets mean other records."""
    stream = runs.start(Subscribe([tps[0].topic]))
    runs.await_records(40)
    runs.stop(stream)
    waited = threading.Event()
    with KafkaAdmin(runs.options) as admin:
        admin.delete_topic(tps[0].topic)
        while tps[0].topic in admin.topics():
            waited.wait(0.05)
        admin.create_topic(tps[0].topic, 2)
    with pytest.raises(RangeNotHeldError, match="was created again"):
        # while no broker tells the new id, it begins and waits
        runs.start(Subscribe([tps[0].topic])).await_termination(PATIENCE_SECONDS)


def test_highest_offsets_are_committed_with_the_next_batch_and_at_the_stop(
    runs: Runs, tps: list[TopicPartition]
) -> None:
    group = f"c-{tps[0].topic}"
    reported: list[tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, str]]] = []
    called = threading.Event()

    def callback(offsets: Mapping[TopicPartition, int], errors: Mapping[TopicPartition, str]) -> None:
        reported.append((offsets, errors))
        called.set()

    stream = runs.start(Subscribe([tps[0].topic]), params={"group.id": group})
    waited = threading.Event()
    for _ in range(200):  # a broker that was not asked for a group before has no coordinator at first
        runs.commits.add([OffsetRange(*offsets_at(tps[0], 0, 30)), OffsetRange(*offsets_at(tps[0], 0, 20))], callback)
        assert called.wait(PATIENCE_SECONDS)
        called.clear()
        assert reported[-1][0] == {tps[0]: 30}
        if not reported[-1][1]:
            break
        waited.wait(0.05)
    runs.commits.add([OffsetRange(*offsets_at(tps[1], 0, 7))])
    runs.stop(stream)
    with KafkaAdmin(runs.options) as admin:
        found = {tp: at.offset for tp, at in admin.committed(group, tps).items()}
    assert found == {tps[0]: 30, tps[1]: 7}


def test_offsets_of_a_newer_batch_are_committed_although_they_are_lower() -> None:
    """The topic was created again between the two batches."""
    tp, sent = TopicPartition("t", 0), []

    class Kafka:
        def publish(self, group: str, points: Mapping[TopicPartition, Any]) -> dict[TopicPartition, str]:
            sent.append({tp: (point.offset, point.leader_epoch) for tp, point in points.items()})
            return {}

    commits = DirectCommits("g")
    commits.add([OffsetRange("t", 0, 0, 50, "b", leader_epoch=1)], number=2)
    commits.add([OffsetRange("t", 0, 0, 100, "a", leader_epoch=5), OffsetRange("t", 1, 0, 9, "a")], number=1)
    commits.send(cast(Any, Kafka()))
    assert sent == [{tp: (50, 1), TopicPartition("t", 1): (9, -1)}]


def test_callback_gets_errors_of_a_commit_by_partition(tps: list[TopicPartition]) -> None:
    reported: list[Mapping[TopicPartition, str]] = []
    commits = DirectCommits("g")
    commits.add([OffsetRange(*offsets_at(tps[0], 0, 3))], lambda offsets, errors: reported.append(errors))
    with KafkaAdmin({"bootstrap.servers": "127.0.0.1:1"}, timeout_seconds=0.2) as unreachable:
        commits.send(unreachable)
        commits.add([], lambda offsets, errors: reported.append(errors))
        commits.send(unreachable)
    assert "did not answer" in reported[0][tps[0]]
    assert reported[1] == {}  # without ranges nothing is sent, and the callback is called in any case
    with pytest.raises(UsageError, match=r"set group\.id in kafka_params"):
        DirectCommits("").add([])


def test_invalid_streams_are_refused(runs: Runs) -> None:
    for make, message in (
        (lambda: StreamSettings("../s", "file:///c"), "stream '../s': a name has"),
        (lambda: StreamSettings("s", "file:///c", on_vanished="x"), "allowed are stop and record"),  # type: ignore[arg-type]
        (lambda: StreamSettings("s", "file:///c", interval_seconds=0), "interval_seconds must be above 0"),
        (lambda: check(Subscribe([])), "the topics: the list is empty"),
        (lambda: check(Subscribe("flights")), "the topics are 'flights': allowed are texts, in a list"),
        (lambda: check(Assign(["t/0"])), r"the partitions are \['t/0'\]: allowed are TopicPartition"),  # type: ignore[list-item]
        (lambda: check(Subscribe(["t"], {"t/0": 5})), "the keys of offsets are"),  # type: ignore[dict-item]
        (lambda: check(SubscribePattern("t(")), "not a regular expression"),
    ):
        with pytest.raises(UsageError, match=message):
            make()


def test_statistics_and_offsets_of_batches_reach_listeners_the_stream_and_the_history(
    runs: Runs, tps: list[TopicPartition], capsys: pytest.CaptureFixture[str]
) -> None:
    """A failed attempt counts in the total delay. After a restart, the checkpoint still has the statistics."""
    one, two = tps
    received: list[Happened] = []

    class Kept(Listener):
        def batch_submitted(self, event: BatchSubmitted) -> None:
            received.append(event)

        def batch_started(self, event: BatchStarted) -> None:
            received.append(event)

        def batch_completed(self, event: BatchCompleted) -> None:
            received.append(event)
            runs.streams[-1].stop()  # returns immediately in a listener
            completed.set()

    completed = threading.Event()

    def fails_once(work: Batch) -> None:
        runs.job(work)
        if len(runs.works) == 1:
            raise ValueError("once")

    stream = runs.make(Subscribe([one.topic])).foreach_batch(fails_once).add_listener(Kept())
    stream.start()
    assert completed.wait(PATIENCE_SECONDS)
    submitted, first, second, done = received
    assert (
        isinstance(submitted, BatchSubmitted) and isinstance(first, BatchStarted) and isinstance(done, BatchCompleted)
    )
    assert submitted.ranges == first.ranges == done.ranges
    assert isinstance(second, BatchStarted) and (first.attempt, second.attempt) == (1, 2)
    assert [(r.partition, r.from_offset, r.until_offset, r.records) for r in done.ranges] == [
        (0, 0, 30, 30),
        (1, 0, 10, 10),
    ]
    assert (done.records, done.bytes, done.end_to_end_ms, done.attempts) == (40, None, None, 2)
    assert done.scheduling_delay_ms is not None and done.processing_ms is not None and done.total_delay_ms is not None
    assert done.total_delay_ms >= done.scheduling_delay_ms + done.processing_ms + 10, (
        "the pause after the failed attempt"
    )
    assert stream.await_termination(PATIENCE_SECONDS)
    again = runs.start(Subscribe([two.topic]))
    produce(runs.options, two, 3)
    runs.await_records(83)
    assert main(["direct", "batches", runs.checkpoint.as_uri(), "s", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)[0]
    assert (shown["scheduling_delay_ms"], shown["processing_ms"], shown["total_delay_ms"], shown["attempts"]) == (
        done.scheduling_delay_ms, done.processing_ms, done.total_delay_ms, 2
    )  # fmt: skip
    for options, number in ((["--failed"], [1]), (["--since", "2100-01-01T00:00:00Z"], [])):
        assert main(["direct", "batches", runs.checkpoint.as_uri(), "s", "--json", *options]) == 0
        assert [batch["number"] for batch in json.loads(capsys.readouterr().out) if batch["attempts"]] == number
    newest = again.batches[0]
    assert (newest.batch_id, newest.records) == (runs.works[-1].batch_id, 3)


def test_metrics_of_a_stream_join_a_registry_of_the_program(runs: Runs, tps: list[TopicPartition]) -> None:
    """They have the names of an intake's metrics. Before the start and after the end, only what was counted is there."""
    one, _ = tps

    def fails_once(work: Batch) -> None:
        runs.job(work)
        if len(runs.works) == 1:
            raise ValueError("once")

    stream = runs.make(Subscribe([one.topic])).foreach_batch(fails_once)
    registry = CollectorRegistry(auto_describe=True)
    registry.register(stream.metrics)
    registry.register(StreamMetrics("another", interval_seconds=1.0, clock=SystemClock()))

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"stream": "s", **labels})

    assert value("forebay_batch_interval_seconds") is not None
    assert value("forebay_completed_batches_total") is None
    stream.start()
    runs.await_records(80)  # the second attempt has the same 40
    assert until(lambda: value("forebay_completed_records_total") or None) == 40
    assert value("forebay_completed_batches_total") == value("forebay_batch_processing_seconds_count") == 1
    assert value("forebay_batch_failures_total", kind="job") == 1
    assert value("forebay_queued_records") == value("forebay_batches", state="running") == 0
    place = {"topic": one.topic, "partition": "0"}
    assert value("forebay_partition_position", **place) == value("forebay_partition_completed", **place) == 30
    assert (value("forebay_partition_end", **place), value("forebay_partition_lag_records", **place)) == (30, 0)
    written = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(stream.metrics.text().decode())
        for sample in family.samples
    }
    assert written["forebay_partition_lag_records", ("partition", "0"), ("stream", "s"), ("topic", one.topic)] == 0
    runs.stop(stream)
    assert until(
        lambda: value("forebay_completed_records_total") is None or None
    )  # one text answers all scrapes of half a second
    assert value("forebay_batch_processing_seconds_count") == 1
