"""Kafka brokers on hosts of their own. Each is a controller too, so that any one of three may be lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient

from forebay.kafka.embedded.broker import KafkaBroker
from tests.jepsen.story import Story
from tests.support.processes.namespaces import Host
from tests.support.spark.hosts import HostBroker

_ASK_SECONDS = 2.0


def quiet_admin(servers: str) -> AdminClient:
    """Return a client that does not log that a broker is down."""
    return AdminClient({"bootstrap.servers": servers, "log_level": 0})


class Broker(HostBroker):
    """Number ``number`` of a cluster with a controller on each of ``hosts``. ``first``: the broker whose cluster it joins."""

    def __init__(self, directory: Path, hosts: Sequence[Host], number: int, first: KafkaBroker | None) -> None:
        host = hosts[number - 1]
        super().__init__(directory, host, number=number, joins=first, heap_mib=256)
        voters = ",".join(f"{n}@{one.address}:9093" for n, one in enumerate(hosts, start=1))
        listeners = f"PLAINTEXT://{host.address}:9092"
        copies = str(min(3, len(hosts)))
        self._properties |= {
            "process.roles": "broker,controller",
            "listeners": f"{listeners},CONTROLLER://{host.address}:9093",
            "advertised.listeners": listeners,
            "controller.quorum.voters": voters,
            "offsets.topic.replication.factor": copies,
            "offsets.topic.num.partitions": "2",
            "transaction.state.log.replication.factor": copies,
            "broker.session.timeout.ms": "4000",
            "replica.lag.time.max.ms": "4000",
            "controlled.shutdown.enable": "true",
            "auto.leader.rebalance.enable": "true",
            "leader.imbalance.check.interval.seconds": "5",
            "leader.imbalance.per.broker.percentage": "0",
        }

    def send(self, number: signal.Signals) -> None:
        if self.pid is not None:
            os.kill(self.pid, number)

    def start_again(self) -> None:
        if self.pid is None:
            self.launch()

    def ready(self) -> bool:
        """Whether the cluster's other members know it."""
        try:
            return self.number in quiet_admin(self.address).list_topics(timeout=_ASK_SECONDS).brokers
        except Exception:
            return False


class Brokers:
    """All brokers, by the name of their host. ``unclean``: the partitions of unclean elections so far."""

    def __init__(self, directory: Path, hosts: Sequence[Host], story: Story) -> None:
        self._story = story
        self._all: dict[str, Broker] = {}
        first: Broker | None = None
        for number, host in enumerate(hosts, start=1):
            self._all[host.name] = Broker(directory / host.name, hosts, number, first)
            first = first or self._all[host.name]
        self.unclean: set[tuple[str, int]] = set()

    def __getitem__(self, name: str) -> Broker:
        return self._all[name]

    @property
    def names(self) -> list[str]:
        return list(self._all)

    @property
    def servers(self) -> str:
        return ",".join(broker.address for broker in self._all.values())

    def named(self, number: int) -> str:
        """Return the host of a broker."""
        return next(name for name, broker in self._all.items() if broker.number == number)

    def start(self) -> None:
        for broker in self._all.values():
            broker.launch()
        for broker in self._all.values():
            broker.await_ready()

    def kill_all(self) -> None:
        for broker in self._all.values():
            broker.kill9()

    def partition(self, topic: str, number: int) -> Any:
        """Return leader and replicas in sync as the cluster knows them now; None if no broker answers."""
        try:
            metadata = quiet_admin(self.servers).list_topics(topic, timeout=_ASK_SECONDS)
        except Exception:
            return None
        return metadata.topics[topic].partitions.get(number)
