"""Paused processes that resume after another has replaced them change nothing (INV-4)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from tests.support.kafka.flow import Flow
from tests.support.processes.cluster import Cluster

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize("failpoint", ["receiver.before-report", "wal.before-sync", "receiver.before-commit"])
def test_receiver_paused_beyond_its_session_changes_nothing(
    failpoint: str, tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """It stops itself with a report unsent, a frame unsynced or a commit unsent, and wakes when r2 has gone on past it. It waits
    long for answers, so that the late report was never seen before."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    kafka = {"session.timeout.ms": "1500"}
    with (
        Flow(kafka_broker.options, topic) as flow,
        Cluster(
            tmp_path, kafka_broker.options, [topic], start=False, kafka=kafka, receiver={"report_timeout": "30s"}
        ) as cluster,
    ):
        for name in ("driver", "agent", "r2"):
            cluster.start(name)
        cluster.start("r1", failpoints=f"{failpoint}=stop@5")
        cluster.await_hit(failpoint)
        cluster.wait(lambda: set(cluster.owners().values()) == {"r2"} and len(cluster.owners()) == 4, "r2 to own all")
        slept_at = {(p.topic, p.partition): p.position for p in cluster.wait(cluster.status, "status").partitions}
        cluster.wait(
            lambda: (s := cluster.status()) and all(p.position > slept_at[p.topic, p.partition] for p in s.partitions),
            "r2 to go on past the zombie",
        )
        cluster.wake("r1")
        cluster.wait(lambda: "r1" in cluster.owners().values(), "r1 to own partitions again")
        target = flow.records + 300
        cluster.wait(lambda: flow.records >= target, "more records")
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        if failpoint != "receiver.before-commit":
            cluster.wait(
                lambda: (r1 := cluster.receiver("r1")) and r1.counters.get("blocks_refused"),
                "the zombie's report to be refused: it comes too late",
            )
        cluster.check(flow.truth)
        assert cluster.starts("r1") == 1


def test_a_receiver_whose_id_was_taken_ends_fenced(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """Two processes under one id: the newer registration ends the older's claims, and the older exits with 4."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    with (
        Flow(kafka_broker.options, topic) as flow,
        Cluster(tmp_path, kafka_broker.options, [topic], receivers=1) as cluster,
    ):
        cluster.await_records(100)
        cluster.start_rival("r1-again", "r1")
        assert cluster.await_end("r1") == 4
        target = flow.records + 300
        cluster.wait(lambda: flow.records >= target, "more records")
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        cluster.check(flow.truth)


def test_a_driver_that_was_taken_over_while_it_slept_changes_nothing_and_exits_fenced(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """It sleeps in mid-job with reports waiting, another one takes over, and it wakes: its completion, its answers and its
    journal count for nothing, and it exits with 4."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    with Flow(kafka_broker.options, topic) as flow, Cluster(tmp_path, kafka_broker.options, [topic]) as cluster:
        cluster.await_records(100)
        cluster.hold_a_job()
        cluster.pause("driver")
        for name in ("r1", "r2"):
            cluster.wait(lambda name=name: "out of reach" in cluster.log(name), f"{name} to wait for an answer")
        cluster.start_rival("rival", "driver", "--take-over", url=cluster.another_url())
        (tmp_path / "hold").unlink()
        for name in ("r1", "r2", "agent"):  # an operator who moves a driver changes its url in the other services
            cluster.kill9(name)
            cluster.start(name, environment={"FOREBAY__DRIVER__URL": cluster.driver_url})
        cluster.await_records(flow.records)
        cluster.wake("driver")
        assert cluster.await_end("driver") == 4
        target = flow.records + 300
        cluster.wait(lambda: flow.records >= target, "more records")
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        cluster.check(flow.truth)


def test_a_second_driver_refuses_while_the_first_ones_lease_is_fresh(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    topic = topic_name()
    kafka_broker.create_topic(topic)
    driver = {"lease_duration": "6s"}  # it may be renewed late
    with (
        Flow(kafka_broker.options, topic) as flow,
        Cluster(tmp_path, kafka_broker.options, [topic], receivers=1, driver=driver) as cluster,
    ):
        cluster.await_records(100)
        refused = cluster.command("driver")
        assert refused.returncode == 5
        assert "leads stream" in refused.stderr and "--take-over" in refused.stderr
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        cluster.check(flow.truth)
        assert cluster.starts("driver") == 1
