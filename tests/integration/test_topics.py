"""Changes of a topic in Kafka: compaction, aborted transactions, recreation, deleted records, a damaged batch (rule 8)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.messages import TrackedPartition
from forebay.model.values import TopicPartition
from tests.support.kafka.flow import Flow, Truth, numbered, produce, read_topic
from tests.support.kafka.polling import await_markers, partitions_of
from tests.support.processes.cluster import Cluster
from tests.support.processes.services import PATIENCE_SECONDS
from tests.support.processes.witness import assert_same_records, incarnations_seen
from tests.support.state.columns import column_values

pytestmark = pytest.mark.kafka


def ends_in_kafka(broker: KafkaBroker, topic: str, partitions: int = 4) -> dict[tuple[str, int], int]:
    with KafkaAdmin(broker.options) as admin:
        marks = admin.watermarks([TopicPartition(topic, number) for number in range(partitions)])
    return {(tp.topic, tp.partition): high for tp, (_, high) in marks.items()}


def faults(cluster: Cluster) -> list[TrackedPartition]:
    status = cluster.status()
    return [p for p in status.partitions if p.fault] if status else []


def await_faults(cluster: Cluster, kind: str, partitions: set[int]) -> list[TrackedPartition]:
    def shown() -> list[TrackedPartition]:
        found = [p for p in faults(cluster) if kind in p.fault]
        return found if {p.partition for p in found} == partitions else []

    return cluster.wait(shown, f"fault ({kind}) of partitions {partitions} in status")


def accept(cluster: Cluster, partitions: set[int]) -> None:
    """Accepts what status shows of ``partitions``, by the command that it shows; a driver that dies meanwhile is asked again."""

    def decided() -> bool:
        status = cluster.status()
        if status is None:
            return False
        open_ones = [p for p in status.partitions if p.fault and p.partition in partitions]
        for p in open_ones:
            arguments = p.fault[p.fault.index("`forebay ") + len("`forebay ") :].partition("`")[0].split()
            if cluster.command(*arguments, "--yes").returncode != 0:
                return False  # a driver that was killed is started again while it is waited for
        return not open_ones

    cluster.wait(decided, f"no fault of {partitions}")


def test_compacted_topic_is_taken_in_with_its_skipped_offsets(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """Missing offsets at the start and in the middle are inside ranges; no gap is recorded and nothing waits for a person."""
    topic = topic_name()
    with KafkaAdmin(kafka_broker.options) as admin:
        admin.create_topic(topic, 2, {
            "cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01",
            "max.compaction.lag.ms": "100", "min.compaction.lag.ms": "0", "delete.retention.ms": "0",
        })  # fmt: skip
    with Cluster(tmp_path, kafka_broker.options, [topic], receivers=1, start=False) as cluster:
        produced = 0

        def write(count: int) -> None:
            """Few keys, so that nearly all of it is compacted away."""
            nonlocal produced
            records = [(b"k%d" % (n % 14), b"%d" % n) for n in range(produced, produced + count)]
            produce(kafka_broker.options, topic, records, Truth(), partitions=[0, 1])
            produced += count

        def has_gaps() -> bool:
            """Segments roll when something is written, and only closed ones are compacted."""
            write(60)
            found = read_topic(kafka_broker.options, ends_in_kafka(kafka_broker, topic, 2)).table()
            return min(column_values(found, "offset")) > 0 and found.num_rows < produced - 50

        cluster.wait(has_gaps, "offsets that compaction removed")
        cluster.start_all()
        ends = ends_in_kafka(kafka_broker, topic, 2)
        cluster.await_completed(ends)
        for _ in range(3):  # compaction goes on while records flow
            write(60)
            cluster.await_completed(ends_in_kafka(kafka_broker, topic, 2))
        report = cluster.check_audit()
        assert sum(incarnation.skipped for incarnation in report.incarnations) > 0
        assert not any(incarnation.gaps for incarnation in report.incarnations)
        seen = cluster.records_seen().to_pylist()
        assert len({(row["partition"], row["offset"]) for row in seen}) == len(seen)
        still_there = read_topic(kafka_broker.options, ends_in_kafka(kafka_broker, topic, 2)).table().to_pylist()
        assert all(row in seen for row in still_there)


def test_aborted_transactions_are_not_taken_in_and_lag_reaches_0(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """The position is the end of the partition, behind the last marker."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    producer = Producer({**kafka_broker.options, "transactional.id": topic})
    producer.init_transactions(PATIENCE_SECONDS)
    with Cluster(tmp_path, kafka_broker.options, [topic], receivers=1) as cluster:
        truth = Truth()
        for number in range(12):
            producer.begin_transaction()
            commit = number % 3 == 0
            for index, (key, value) in enumerate(numbered(80, number * 80)):
                producer.produce(topic, value, key, index % 4, on_delivery=truth.delivered if commit else None)
            producer.flush(PATIENCE_SECONDS)
            if commit:
                producer.commit_transaction(PATIENCE_SECONDS)
            else:
                producer.abort_transaction(PATIENCE_SECONDS)
            if number == 5:
                cluster.await_completed(ends_in_kafka(kafka_broker, topic))
        await_markers(kafka_broker.options, partitions_of(topic))
        ends = ends_in_kafka(kafka_broker, topic)
        assert all(ends[tp] > end for tp, end in truth.ends().items()), "the log ends with aborted records and markers"
        cluster.await_completed(ends)
        report = cluster.check(truth)
        assert [incarnation.until for incarnation in report.incarnations] == [
            ends[topic, number] for number in range(4)
        ]


@pytest.mark.parametrize("on_gap", ["stop", "record"])
def test_recreated_topic_begins_a_new_incarnation(
    on_gap: str, tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """The same offsets mean other records: each is in a batch of its own incarnation. With ``stop`` a person decides first. The
    driver is killed around the events that decide it."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    marks = ["journal.before-sync:FaultRecorded", "journal.after-sync:IncarnationBegun"]
    marks = marks[1:] if on_gap == "record" else marks
    with Cluster(tmp_path, kafka_broker.options, [topic], start=False, kafka={"on_gap": on_gap}) as cluster:
        cluster.start_all(failpoints=",".join(f"{mark}=kill" for mark in marks))
        truth = Truth()
        produce(kafka_broker.options, topic, numbered(400), truth)
        cluster.await_completed(truth.ends())
        with KafkaAdmin(kafka_broker.options) as admin:
            admin.delete_topic(topic)
            cluster.wait(lambda: topic not in admin.topics(), "the topic's end")
            admin.create_topic(topic, 4)
        second = Truth()
        produce(kafka_broker.options, topic, numbered(1000, start=400), second)
        if on_gap == "stop":
            await_faults(cluster, "created again", {0, 1, 2, 3})
            assert cluster.command("status").returncode == 1
            positions = {p.partition: p.position for p in cluster.wait(cluster.status, "status").partitions}
            assert positions == dict.fromkeys(range(4), 100), "stopped where the old topic ended"
            accept(cluster, {0, 1, 2, 3})
        cluster.await_completed(second.ends())
        for mark in marks:
            cluster.await_hit(mark)
        truth.extend(second)
        report = cluster.check(truth)
        assert [incarnation.number for incarnation in report.incarnations] == [1, 2] * 4
        incarnations = {
            incarnation
            for batch in cluster.completed_batches()
            for incarnation in incarnations_seen(cluster.seen / f"{batch}.arrow")
        }
        assert {incarnation for _, _, incarnation, _, _ in incarnations} == {1, 2}


@pytest.mark.parametrize("on_gap", ["stop", "record"])
def test_records_deleted_at_the_position_are_a_gap_with_its_exact_range(
    on_gap: str, tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-2, INV-5: the gap is journalled, never skipped in silence; other partitions go on meanwhile."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    marks = ["journal.after-sync:FaultRecorded", "journal.before-sync:GapRecorded"]
    marks = marks[1:] if on_gap == "record" else marks
    with Cluster(tmp_path, kafka_broker.options, [topic], start=False, kafka={"on_gap": on_gap}) as cluster:
        cluster.start_all(failpoints=",".join(f"{mark}=kill" for mark in marks))
        truth = Truth()
        produce(kafka_broker.options, topic, numbered(400), truth)
        cluster.await_completed(truth.ends())
        for name in ("r1", "r2"):
            assert cluster.terminate(name) == 0
        produce(kafka_broker.options, topic, numbered(400, start=400), truth)
        with KafkaAdmin(kafka_broker.options) as admin:
            admin.delete_records({TopicPartition(topic, 0): 150, TopicPartition(topic, 1): 200})
        for name in ("r1", "r2"):
            cluster.restart(name)
        ends = truth.ends()
        cluster.await_completed({tp: end for tp, end in ends.items() if tp[1] > 1})
        if on_gap == "stop":
            shown = await_faults(cluster, "no longer holds", {0, 1})
            assert [p.position for p in shown] == [100, 100]
            assert "offsets 100 to 150" in shown[0].fault and "offsets 100 to 200" in shown[1].fault
            offsets = cluster.command("--json", "offsets")
            assert offsets.returncode == 1 and [p["position"] for p in json.loads(offsets.stdout)][:2] == [100, 100]
            dry = cluster.command("offsets", "accept-gap", f"{topic}/0", "100", "150")
            assert dry.returncode == 0 and "nothing was changed" in dry.stderr
            wrong = cluster.command("offsets", "accept-gap", f"{topic}/0", "100", "151", "--yes")
            assert wrong.returncode == 1, "a loss can't be accepted before it is shown"
            accept(cluster, {0, 1})
        cluster.await_completed(ends)
        for mark in marks:
            cluster.await_hit(mark)
        report = cluster.check_audit()
        gaps = {
            incarnation.partition: [(g.from_offset, g.until_offset) for g in incarnation.gaps]
            for incarnation in report.incarnations
        }
        assert gaps == {0: [(100, 150)], 1: [(100, 200)], 2: [], 3: []}
        rows = truth.table()
        lost = {0: range(100, 150), 1: range(100, 200)}
        kept = [
            offset not in lost.get(partition, ())
            for partition, offset in zip(column_values(rows, "partition"), column_values(rows, "offset"), strict=True)
        ]
        assert_same_records(cluster.records_seen(), rows.filter(kept))


def test_a_damaged_batch_stops_its_partition_and_is_never_skipped(
    tmp_path: Path, own_kafka_broker: KafkaBroker
) -> None:
    """INV-5. Bytes of a log segment are flipped on the broker's disk: records before them are taken in, none after them, the
    other partitions go on, and status says which offset."""
    broker = own_kafka_broker
    broker.create_topic("damaged")
    truth = Truth()
    produce(broker.options, "damaged", numbered(200), truth)
    before = truth.ends()
    beyond = Truth()
    produce(broker.options, "damaged", [(b"k", b"the damaged batch " * 40)], beyond, partitions=[0])
    produce(broker.options, "damaged", numbered(20, start=300), beyond, partitions=[0])
    broker.stop()
    log = broker.directory / "data" / "damaged-0" / "00000000000000000000.log"
    data = bytearray(log.read_bytes())
    at = data.index(b"the damaged batch") + 200
    data[at] ^= 0xFF
    log.write_bytes(data)
    broker.start()
    with Cluster(tmp_path, broker.options, ["damaged"], receivers=1) as cluster:
        (shown,) = await_faults(cluster, "checksum", {0})
        assert shown.position == before["damaged", 0]
        assert f"offset {shown.position}" in shown.fault
        with Flow(broker.options, "damaged", partitions=[1, 2, 3]) as flow:
            cluster.wait(lambda: flow.records >= 300, "records of the others")
        truth.extend(flow.truth)
        cluster.await_completed(truth.ends())
        assert cluster.command("status").returncode == 1
        cluster.check(truth)
        (still,) = await_faults(cluster, "checksum", {0})
        assert still.position == before["damaged", 0]
