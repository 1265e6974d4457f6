"""What brokers say about themselves and about a client's rights, with a real Kafka that has an authorizer."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from deploy.commands.setup.doctor.brokers import findings_of
from deploy.commands.setup.doctor.findings import Finding
from forebay.kafka.client.inspection import Broker, Cluster, Rights, inspect_cluster, release_of
from forebay.kafka.embedded.broker import MockBroker
from forebay.kafka.options.rights import Right
from tests.support.kafka.secured_broker import USER, SecuredBroker

TIMEOUT_SECONDS = 5.0


@pytest.fixture(scope="module")
def guarded(secured_broker: SecuredBroker) -> SecuredBroker:
    secured_broker.create_topic("seen", 1)
    secured_broker.create_topic("unseen", 1)
    secured_broker.allow(USER, [Right("topic", "seen", ("Describe", "Read")), Right("group", "half", ("Describe",))])
    return secured_broker


def by_name(findings: Iterator[Finding]) -> dict[str, Finding]:
    return {f"{one.name} {one.detail.partition(':')[0]}" if "rights" in one.name else one.name: one for one in findings}


@pytest.mark.kafka
def test_missing_rights_are_named_with_the_command_that_grants_them(guarded: SecuredBroker) -> None:
    now_ms = time.time_ns() // 1_000_000
    producer = Producer(guarded.options)
    producer.produce("seen", b"a", timestamp=now_ms)
    assert producer.flush(30.0) == 0
    cluster = inspect_cluster(guarded.sasl_options, ["seen", "unseen"], ["half", "none"], TIMEOUT_SECONDS)
    (broker,) = cluster.brokers
    assert (broker.address, broker.controller, broker.error) == (guarded.sasl, True, "")
    assert release_of(broker.versions) == "4.1"
    assert cluster.newest_ms == {"seen/0": now_ms}
    found = by_name(findings_of(cluster, now_ms))
    assert found["rights on topic DESCRIBE, READ allowed on seen"].outcome == "fine"
    assert found["rights on topic unseen"].outcome == "wrong"
    assert found["rights on topic unseen"].step == (
        "kafka-acls.sh --add --allow-principal User:NAME --operation Describe --operation Read --topic unseen"
    )
    assert found["rights on group half"].detail == "half: READ not allowed", cluster.groups
    assert found["rights on group half"].step.endswith("--operation Read --group half")
    assert found["rights on group none"].outcome == "wrong"
    assert found["record times"].outcome == "fine"
    assert found["broker 1"].outcome == "fine"


@pytest.mark.kafka
def test_a_broker_that_advertises_an_unreachable_address_is_named(guarded: SecuredBroker) -> None:
    """A client reaches its bootstrap server, but no receiver could read from the partitions' leader."""
    cluster = inspect_cluster({"bootstrap.servers": guarded.away}, ["seen"], [], 2.0)
    (broker,) = cluster.brokers
    assert broker.address == "127.0.0.1:1" and broker.error
    found = by_name(findings_of(cluster, 0))["broker 1"]
    assert found.outcome == "unreachable" and "advertised.listeners" in found.step


def test_a_cluster_without_controller_says_nothing_about_rights() -> None:
    with MockBroker() as mock:
        mock.create_topic("t")
        cluster = inspect_cluster(mock.options, ["t"], ["g"], TIMEOUT_SECONDS)
    assert [broker.error for broker in cluster.brokers] == [""]
    assert {"Fetch", "Metadata"} <= cluster.brokers[0].versions.keys(), "librdkafka's log has another text"
    found = by_name(findings_of(cluster, 0))
    assert found["rights on topic t"].outcome == found["rights on group g"].outcome == "unknown"
    assert found["broker 1"].outcome == "fine"


@pytest.mark.parametrize(
    ("fetch", "release"),
    [
        ((0, 8), "2.0"), ((0, 11), "2.3"), ((0, 12), "2.7"), ((0, 13), "3.1"), ((0, 15), "3.5"), ((0, 16), "3.7"),
        ((0, 17), "3.9"), ((4, 17), "4.0"), ((4, 18), "4.1"), ((4, 30), "4.1"), ((0, 5), ""),
    ],
)  # fmt: skip
def test_the_release_is_known_by_the_versions_of_fetch(fetch: tuple[int, int], release: str) -> None:
    assert release_of({"Fetch": fetch}) == release
    assert release_of({}) == ""


def test_faults_of_a_cluster_are_findings_with_a_step() -> None:
    old = Broker(1, "b1:9092", True, {"Fetch": (0, 11), "Metadata": (0, 9)})
    cluster = Cluster(
        (old,), {"t": Rights(frozenset({"DESCRIBE", "READ"}))}, {}, {"t/0": 20_000, "t/1": 1},
        under_replicated=tuple(f"t/{n}" for n in range(7)), leaderless=("t/1",),
    )  # fmt: skip
    found = by_name(findings_of(cluster, 10_000))
    assert found["broker 1"].outcome == "note" and "no topic ids" in found["broker 1"].detail
    assert found["leaders"].outcome == "wrong"
    assert found["replicas"].detail.endswith("t/3, t/4 and 2 more")
    assert found["record times"].outcome == "wrong"
    assert found["record times"].detail == "the newest record of t/0 is 10.0 s ahead of this machine's clock"
    for finding in found.values():
        assert finding.outcome == "fine" or finding.step
