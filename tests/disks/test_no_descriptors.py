"""Real processes that may open no further file or connection for a while (EMFILE).

Each names the reason, continues when it may open files again, and loses nothing (INV-2, INV-3). A driver ends only if it must
begin a segment of its journal.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from forebay.settings.reading.load import load
from tests.support.faulty.limits import no_more_descriptors
from tests.support.kafka.flow import Flow
from tests.support.processes.cluster import Cluster

pytestmark = pytest.mark.kafka

REASON = "Too many open files"


@contextmanager
def stream(
    folder: Path, broker: KafkaBroker, topic: str, restarted: Sequence[str] = (), **settings: Any
) -> Iterator[Cluster]:
    """Run a stream under load. At the end everything that was produced must be in exactly one batch, and no process may have
    ended except those of ``restarted``, once each."""
    broker.create_topic(topic)
    with (
        Flow(broker.options, topic, rate=300) as flow,
        Cluster(folder, broker.options, [topic], receivers=1, **settings) as cluster,
    ):
        cluster.await_records(50)
        yield cluster
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        cluster.check(flow.truth)
        assert all(cluster.starts(name) == 1 + (name in restarted) for name in cluster.names), cluster.describe()


def go_on(cluster: Cluster) -> None:
    """Wait until records that were taken in from now on are completed."""
    status = cluster.wait(cluster.status, "status")
    cluster.await_records(status.records_completed + 150)


def await_reason(cluster: Cluster, name: str, *beginnings: str) -> None:
    """Wait until the log of ``name`` has a line with each of ``beginnings`` and the reason."""

    def logged() -> bool:
        lines = [line for line in cluster.log(name).splitlines() if REASON in line]
        return all(any(beginning in line for line in lines) for beginning in beginnings)

    cluster.wait(logged, f"{name} to log {beginnings} with the reason")


@contextmanager
def connection(url: str) -> Iterator[None]:
    """Connect to a service: the kernel accepts the connection, the service does as soon as it has a descriptor for it."""
    parts = urlsplit(url)
    with closing(socket.create_connection((parts.hostname or "", parts.port or 0))):
        yield


def test_receiver_without_descriptors_keeps_blocks_in_memory_until_it_can_open_a_segment(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    with stream(tmp_path, kafka_broker, topic_name(), receiver={"store_timeout": "240s"}) as cluster:
        with no_more_descriptors(cluster.process("r1").pid):
            await_reason(cluster, "r1", "cannot write a local copy")
            cluster.wait(
                lambda: (r := cluster.receiver("r1")) and "can't be created" in r.detail and REASON in r.detail,
                "the reason in the receiver's status",
            )
        go_on(cluster)


def test_driver_without_descriptors_waits_with_the_batch_and_with_clean_up(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    with stream(tmp_path, kafka_broker, topic_name(), driver={"unreadable_retry": "200ms"}) as cluster:
        with no_more_descriptors(cluster.process("driver").pid), connection(cluster.driver_url):
            await_reason(
                cluster,
                "driver",
                "cannot accept connections",
                "cannot renew the lease",
                "can't be read",
                "clean-up failed",
            )
        go_on(cluster)


def test_agent_without_descriptors_serves_and_deletes_no_copies_until_it_has_some(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    with stream(tmp_path, kafka_broker, topic_name()) as cluster:
        with no_more_descriptors(cluster.process("agent").pid), connection(str(load(cluster.config).agent.url)):
            await_reason(cluster, "agent", "cannot accept connections", "heartbeat to the driver failed")
        go_on(cluster)
        cluster.wait(lambda: "the driver answers" in cluster.log("agent").rpartition(REASON)[2], "heartbeats again")


def test_driver_that_cannot_begin_a_segment_of_its_journal_ends_with_the_reason(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """Its state is ahead of the journal, so only a new opening may continue (INV-7)."""
    with stream(
        tmp_path, kafka_broker, topic_name(), restarted=["driver"], driver={"journal_segment_size": "2KB"}
    ) as cluster:
        with no_more_descriptors(cluster.process("driver").pid):
            assert cluster.await_end("driver") == 1
        await_reason(cluster, "driver", "can't be created")
        cluster.restart("driver")
        go_on(cluster)


@pytest.mark.long
def test_all_processes_without_descriptors_connect_to_kafka_and_to_each_other_when_they_have_some(
    tmp_path: Path, own_kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """The broker restarts meanwhile, so each connection to it ends."""
    with stream(tmp_path, own_kafka_broker, topic_name(), receiver={"store_timeout": "240s"}) as cluster:
        with ExitStack() as limits:
            for name in ("driver", "agent", "r1"):
                limits.enter_context(no_more_descriptors(cluster.process(name).pid))
            own_kafka_broker.kill9()
            own_kafka_broker.start()
            for name in ("driver", "r1"):
                await_reason(cluster, name, "Failed to create socket")
        go_on(cluster)
