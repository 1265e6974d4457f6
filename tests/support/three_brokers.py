"""Three real brokers in one cluster, which a test kills, stops and starts again while it reads from them."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.values import TopicPartition
from tests.support.kafka import PATIENCE_SECONDS

#: a broker counts as gone after this: short, but not for a broker that a loaded machine keeps waiting
_SESSION_MS = 5_000
_LOOK_SECONDS = 0.05


class ThreeBrokers:
    """Numbers 1 to 3. Number 1 is the controller, and is never ended."""

    def __init__(self, directory: Path) -> None:
        properties = {
            "broker.session.timeout.ms": str(_SESSION_MS),
            "offsets.topic.replication.factor": "3",
            "offsets.topic.num.partitions": "2",
            "transaction.state.log.replication.factor": "3",
            "transaction.state.log.num.partitions": "1",
            "controlled.shutdown.enable": "true",
            "auto.leader.rebalance.enable": "false",
        }
        first = KafkaBroker(directory / "1", properties=properties, heap_mib=256)
        self._brokers = {1: first}
        for number in (2, 3):
            self._brokers[number] = KafkaBroker(
                directory / str(number), properties=properties, heap_mib=256, joins=first, number=number
            )

    @property
    def options(self) -> dict[str, str]:
        return {"bootstrap.servers": ",".join(broker.address for broker in self._brokers.values())}

    def create_topic(self, topic: str, replicas: Sequence[Sequence[int]], **config: str) -> None:
        """``replicas``: the brokers of each partition; the first one leads."""
        new = NewTopic(topic, len(replicas), replica_assignment=[list(own) for own in replicas], config=config)
        client = AdminClient({**self.options})
        client.create_topics([new])[topic].result(PATIENCE_SECONDS)
        for number, own in enumerate(replicas):
            self.await_(TopicPartition(topic, number), lambda shown, own=own: shown.leader == own[0])

    def kill9(self, number: int) -> None:
        self._brokers[number].kill9()

    def stop(self, number: int) -> None:
        """In order: its partitions are led by others before it ends."""
        self._brokers[number].stop()

    def silence(self, number: int) -> None:
        """Its connections stay, and nothing comes of them, as when a host is lost; until :meth:`wake`, or its end."""
        self._signal(number, signal.SIGSTOP)

    def wake(self, number: int) -> None:
        self._signal(number, signal.SIGCONT)

    def _signal(self, number: int, what: signal.Signals) -> None:
        pid = self._brokers[number].pid
        assert pid is not None
        os.kill(pid, what)

    def start(self, number: int) -> None:
        """Returns when the others know of it. No error if it runs."""
        if self._brokers[number].pid is None:
            self._brokers[number].launch()
            self._await_ready(number)

    def start_all(self) -> None:
        """Start all brokers for the first time: the first one, then the second and the third together."""
        self.start(1)
        for number in (2, 3):
            self._brokers[number].launch()
        with ThreadPoolExecutor(2) as both:
            list(both.map(self._await_ready, (2, 3)))
        # so that the coordinator of transactions is a broker that ends
        self.create_topic("__transaction_state", [[3, 2, 1]], **{"cleanup.policy": "compact"})

    def _await_ready(self, number: int) -> None:
        self._brokers[number].await_ready()
        self._await(lambda metadata: number in metadata.brokers)

    def leader(self, tp: TopicPartition) -> int:
        """Return the id of the partition's leader; -1 if it has none."""
        return int(self.await_(tp, lambda shown: True).leader)

    def await_leader(self, tp: TopicPartition, other_than: int) -> None:
        self.await_(tp, lambda shown: shown.leader not in (-1, other_than))

    def await_in_sync(self, tp: TopicPartition, number: int) -> None:
        self.await_(tp, lambda shown: number in shown.isrs)

    def await_(self, tp: TopicPartition, holds: Callable[..., bool]) -> Any:
        """What is shown of the partition, once it ``holds``."""

        def shown(metadata: Any) -> Any:
            return metadata.topics[tp.topic].partitions.get(tp.partition) if tp.topic in metadata.topics else None

        return shown(self._await(lambda metadata: shown(metadata) is not None and holds(shown(metadata))))

    def _await(self, holds: Callable[[Any], bool]) -> Any:
        """The cluster's metadata by the controller's broker, which knows first, and by clients without a memory."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        looked = threading.Event()
        while True:
            client = AdminClient({**self._brokers[1].options})
            metadata = client.list_topics(timeout=PATIENCE_SECONDS)
            if holds(metadata):
                return metadata
            assert time.monotonic() < deadline, (metadata.brokers, metadata.topics)
            looked.wait(_LOOK_SECONDS)


@contextlib.contextmanager
def three_brokers(directory: Path) -> Iterator[ThreeBrokers]:
    cluster = ThreeBrokers(directory)
    try:
        cluster.start_all()
        yield cluster
    finally:
        for number in (3, 2, 1):
            cluster.kill9(number)
