"""Blocks of a killed receiver are adopted from the WAL after Kafka has dropped their records (rule 8)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from driver.journal.state import ADOPTER
from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.messages import TrackedPartition
from forebay.model.values import TopicPartition
from tests.support.kafka.flow import Truth, numbered, produce
from tests.support.processes.cluster import Cluster
from tests.support.processes.witness import assert_same_records

pytestmark = pytest.mark.kafka

STEPS = ("search", "claim", "write", "report", "release")
#: of a receiver that stops after its first block: all that is produced is in it
ONE_BLOCK = {"FOREBAY__RECEIVER__BLOCK_INTERVAL": "4s"}


def leave_an_orphan(cluster: Cluster, topic: str, broker: KafkaBroker, *, receiver: str = "r1", action: str) -> Truth:
    """400 records completed, then 400 more that are durable in the WAL and not reported when ``receiver`` is ended there."""
    for name in ("driver", "agent"):
        cluster.start(name)
    cluster.start(receiver, keep=False)
    truth = Truth()
    produce(broker.options, topic, numbered(400), truth)
    cluster.await_completed(truth.ends())
    assert cluster.terminate(receiver) == 0
    cluster.start(receiver, failpoints=f"receiver.before-report={action}", environment=ONE_BLOCK, keep=False)
    cluster.wait(lambda: len(cluster.owners()) == 4, f"{receiver} to own all")
    produce(broker.options, topic, numbered(400, start=400), truth)
    cluster.await_hit("receiver.before-report")
    return truth


def drop(broker: KafkaBroker, topic: str, ends: dict[tuple[str, int], int]) -> None:
    """Retention passes all of it."""
    with KafkaAdmin(broker.options) as admin:
        admin.delete_records({TopicPartition(topic, partition): end for (_, partition), end in ends.items()})


def waiting_for(cluster: Cluster, receiver: str) -> list[TrackedPartition]:
    status = cluster.status()
    return [p for p in (status.partitions if status else ()) if f"--fence {receiver}" in p.fault]


def adopted(cluster: Cluster) -> int:
    """Segments that the adopter wrote."""
    return len(cluster.wal_storage.list(f"stream/blocks/{ADOPTER}"))


@pytest.mark.parametrize("on_gap", ["stop", "record"])
def test_a_block_that_was_never_reported_is_adopted_when_kafka_has_dropped_its_records(
    on_gap: str, tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """The receiver is killed between its sync and its report, everything is down while retention passes the records, and (with
    ``record``) the driver is killed at every step of the adoption. All batches run, and no gap is recorded."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    kafka = {"on_gap": on_gap}
    with Cluster(tmp_path, kafka_broker.options, [topic], receivers=1, start=False, kafka=kafka) as cluster:
        truth = leave_an_orphan(cluster, topic, kafka_broker, action="kill")
        cluster.await_end("r1")
        cluster.kill9("driver")
        drop(kafka_broker, topic, truth.ends())
        marks = [f"adoption.before-{step}" for step in STEPS] if on_gap == "record" else []
        cluster.restart("driver", failpoints=",".join(f"{mark}=kill" for mark in marks))
        cluster.start("r1")
        cluster.await_completed(truth.ends())
        for mark in marks:
            cluster.await_hit(mark)
        assert adopted(cluster)
        more = Truth()
        produce(kafka_broker.options, topic, numbered(400, start=800), more)
        cluster.await_completed(more.ends())
        truth.extend(more)
        report = cluster.check(truth)
        assert not any(incarnation.gaps for incarnation in report.incarnations)


def test_gap_waits_for_a_paused_receiver_and_its_block_is_adopted_when_it_resumes(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """It stopped with its frames unsynced, another one took its partitions over, retention passed: with ``record`` nothing is
    recorded as lost before it has said that it holds nothing. Its block is durable by then."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    kafka = {"on_gap": "record", "session.timeout.ms": "1500"}
    with Cluster(tmp_path, kafka_broker.options, [topic], start=False, kafka=kafka) as cluster:
        for name in ("driver", "agent"):
            cluster.start(name)
        cluster.start("r1", failpoints="receiver.after-local-write=stop", environment=ONE_BLOCK)
        cluster.wait(lambda: len(cluster.owners()) == 4, "r1 to own all")
        truth = Truth()
        produce(kafka_broker.options, topic, numbered(400), truth)
        cluster.await_hit("receiver.after-local-write")
        drop(kafka_broker, topic, truth.ends())
        cluster.start("r2")
        cluster.wait(lambda: waiting_for(cluster, "r1"), "partitions that wait for r1")
        assert all(p.position == 0 for p in waiting_for(cluster, "r1"))
        assert cluster.command("status").returncode == 1
        cluster.wake("r1")
        cluster.await_completed(truth.ends())
        report = cluster.check(truth)
        assert not any(incarnation.gaps for incarnation in report.incarnations)
        assert adopted(cluster)


def test_receiver_of_a_lost_host_is_fenced_and_its_records_become_the_gap(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-4: by ``accept-gap --fence``. When the receiver wakes all the same it ends with 4, and changes nothing."""
    topic = topic_name()
    kafka_broker.create_topic(topic, 1)
    kafka = {"session.timeout.ms": "1500"}
    with Cluster(tmp_path, kafka_broker.options, [topic], start=False, kafka=kafka) as cluster:
        for name in ("driver", "agent"):
            cluster.start(name)
        cluster.start("r1", failpoints="receiver.after-local-write=stop", environment=ONE_BLOCK, keep=False)
        cluster.wait(lambda: len(cluster.owners()) == 1, "r1 to own it")
        lost = Truth()
        produce(kafka_broker.options, topic, numbered(100), lost, partitions=[0])
        cluster.await_hit("receiver.after-local-write")
        drop(kafka_broker, topic, lost.ends())
        cluster.start("r2")
        cluster.wait(lambda: (p := cluster.partition(topic, 0)) and "--fence r1" in p.fault, "a partition that waits")
        refused = cluster.command("offsets", "accept-gap", f"{topic}/0", "0", "100", "--yes")
        assert refused.returncode == 1 and "stop or restart it" in refused.stderr
        dry = cluster.command("offsets", "accept-gap", f"{topic}/0", "0", "100", "--fence", "r1")
        assert dry.returncode == 0 and "nothing was changed" in dry.stderr
        wrong = cluster.command("offsets", "accept-gap", f"{topic}/0", "0", "100", "--fence", "r2", "--yes")
        assert wrong.returncode == 1 and "does not wait for receiver 'r2'" in wrong.stderr
        done = cluster.command("offsets", "accept-gap", f"{topic}/0", "0", "100", "--fence", "r1", "--yes")
        assert done.returncode == 0, done.stderr
        cluster.wake("r1")
        assert cluster.await_end("r1") == 4
        truth = Truth()
        produce(kafka_broker.options, topic, numbered(100, start=100), truth, partitions=[0])
        cluster.await_completed(truth.ends())
        report = cluster.check_audit()
        assert [(g.from_offset, g.until_offset) for incarnation in report.incarnations for g in incarnation.gaps] == [
            (0, 100)
        ]
        assert_same_records(cluster.records_seen(), truth.table())


def test_block_of_the_old_incarnation_is_adopted_before_a_recreated_topic_begins_a_new_one(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """Kafka will never hold these records again: they come in under the old incarnation, once."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    with Cluster(
        tmp_path, kafka_broker.options, [topic], receivers=1, start=False, kafka={"on_gap": "record"}
    ) as cluster:
        truth = leave_an_orphan(cluster, topic, kafka_broker, action="kill")
        cluster.await_end("r1")
        with KafkaAdmin(kafka_broker.options) as admin:
            admin.delete_topic(topic)
            cluster.wait(lambda: topic not in admin.topics(), "the topic's end")
            admin.create_topic(topic, 4)
        second = Truth()
        produce(kafka_broker.options, topic, numbered(600, start=800), second)
        cluster.start("r1")
        cluster.wait(
            lambda: (s := cluster.status()) and all(p.incarnation == 2 and p.completed == 150 for p in s.partitions),
            "the new incarnations' completion",
        )
        truth.extend(second)
        report = cluster.check(truth)
        assert [(incarnation.number, incarnation.until) for incarnation in report.incarnations] == [
            (1, 200),
            (2, 150),
        ] * 4
        assert adopted(cluster)
