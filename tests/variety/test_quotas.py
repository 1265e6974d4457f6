"""Kafka's quotas of clients: a throttled receiver stays in its group, its lag is shown as it is, and nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer

from forebay.kafka.consume.range_reader import Reading, read_range
from forebay.kafka.consume.spans import OffsetRange
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.kafka.options.access import KafkaAccess
from tests.support.kafka.flow import Flow, Truth, numbered, produce
from tests.support.kafka.polling import PATIENCE_SECONDS, partitions_of
from tests.support.kafka.requests import set_client_quotas
from tests.support.processes.cluster import Cluster
from tests.support.state.columns import column_values

#: librdkafka's own: the broker delays heartbeats, by up to a second each
_USUAL_SESSION = {"session.timeout.ms": "45000", "heartbeat.interval.ms": "3000"}

pytestmark = [pytest.mark.long, pytest.mark.variety, pytest.mark.kafka]


def await_throttled(broker: KafkaBroker, topic: str) -> None:
    """Read until the broker throttles this reader too."""
    throttled = threading.Event()
    options = {**broker.options, "group.id": "throttled", "auto.offset.reset": "earliest", "client.id": "throttled"}
    consumer = Consumer({**options, "throttle_cb": lambda event: throttled.set()})
    try:
        consumer.subscribe([topic])
        for _ in range(int(PATIENCE_SECONDS / 0.1)):
            consumer.consume(10_000, 0.1)
            if throttled.is_set():
                return
    finally:
        consumer.close()
    raise AssertionError("the broker throttled nothing")


@pytest.mark.parametrize(
    "quotas", [{"consumer_byte_rate": 4_000.0}, {"request_percentage": 0.2}], ids=["bytes", "requests"]
)
def test_throttled_receivers_stay_members_show_their_lag_and_lose_nothing(
    quotas: Mapping[str, float], tmp_path: Path, own_kafka_broker: KafkaBroker
) -> None:
    """INV-1, INV-2, INV-7. The quota of requests also delays heartbeats of the group, and the driver's questions for ends."""
    broker = own_kafka_broker
    broker.create_topic("flowing")
    with (
        Flow(broker.options, "flowing", rate=500) as flow,
        Cluster(tmp_path, broker.options, ["flowing"], kafka=_USUAL_SESSION) as cluster,
    ):
        cluster.await_records(500)
        claims = claims_of(cluster)
        set_client_quotas(broker.address, quotas)
        await_throttled(broker, "flowing")
        wanted = flow.records + 10_000
        cluster.wait(lambda: flow.records > wanted, "records behind the quota")
        flow.stop()
        ends = flow.truth.ends()

        def shown() -> bool:
            status = cluster.status()
            if status is None or any((p.topic, p.partition) not in ends for p in status.partitions):
                return False
            if any(p.high_watermark != ends[p.topic, p.partition] for p in status.partitions):
                return False
            return all(p.lag == ends[p.topic, p.partition] - p.position for p in status.partitions)

        cluster.wait(shown, "the true lag of each partition")
        lag = sum(p.lag or 0 for p in status.partitions) if (status := cluster.status()) is not None else 0
        if "consumer_byte_rate" in quotas:
            assert lag > 1_000
        assert claims_of(cluster) == claims
        set_client_quotas(broker.address, dict.fromkeys(quotas))
        cluster.await_completed(ends)
        assert claims_of(cluster) == claims
        cluster.check(flow.truth)
        cluster.drain()
    print(f"{flow.records} records, {lag} of them behind the quota when the flow ended")


def claims_of(cluster: Cluster) -> dict[tuple[str, int], tuple[str, int]]:
    """Return the receiver of each partition and the token of its claim, which a member that leaves its group loses."""

    def claims() -> dict[tuple[str, int], tuple[str, int]]:
        status = cluster.status()
        found = status.partitions if status is not None else ()
        return {(p.topic, p.partition): (p.receiver_id, p.token) for p in found if p.receiver_id}

    def shared() -> dict[tuple[str, int], tuple[str, int]] | None:
        found = claims()
        return found if len(found) == 4 and len({receiver for receiver, _ in found.values()}) == 2 else None

    return cluster.wait(shared, "two partitions for each receiver")


def test_throttled_task_reads_its_range_exactly(own_kafka_broker: KafkaBroker) -> None:
    """INV-3: a broker that makes a client wait is not one that has no data."""
    broker = own_kafka_broker
    broker.create_topic("ranges", 1)
    truth = Truth()
    produce(broker.options, "ranges", numbered(2_000, padding=100), truth, partitions=(0,))
    set_client_quotas(broker.address, {"consumer_byte_rate": 20_000.0})
    await_throttled(broker, "ranges")
    (tp,) = partitions_of("ranges", 1)
    access = KafkaAccess(dict(broker.options), "g", 20.0)
    read = [
        offset
        for rows in read_range(access, OffsetRange(tp.topic, tp.partition, 3, 1_997), Reading())
        for offset in column_values(rows, "offset")
    ]
    assert read == list(range(3, 1_997))
