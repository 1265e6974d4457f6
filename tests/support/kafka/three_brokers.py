"""Three real brokers in one cluster, which a test kills, stops and starts again while it reads from them. One or all of them are
controllers too."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.values import TopicPartition
from tests.support.kafka.polling import PATIENCE_SECONDS
from tests.support.kafka.requests import active_controller
from tests.support.run.ports import free_port

#: a broker counts as gone after this: short, but not for a broker that a loaded machine keeps waiting
_SESSION_MS = 5_000
_LOOK_SECONDS = 0.05


class ControllerToo(KafkaBroker):
    """A broker that is also one of several controllers. ``ports``: of broker and controller, for each number."""

    def __init__(self, directory: Path, ports: Mapping[int, tuple[int, int]], **more: Any) -> None:
        super().__init__(directory, **more)
        self._quorum = ports

    def _choose_ports(self, properties: Path) -> tuple[int, int]:
        return self._quorum[self.number]

    def _server_properties(self) -> dict[str, str]:
        broker, controller = self._quorum[self.number]
        voters = ",".join(f"{number}@127.0.0.1:{own}" for number, (_, own) in self._quorum.items())
        return {
            **super()._server_properties(),
            "process.roles": "broker,controller",
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}",
        }


class ThreeBrokers:
    """Numbers 1 to 3. Number 1 is the controller, and is never ended, unless ``controllers`` is 3: then any one may end."""

    def __init__(self, directory: Path, controllers: int = 1) -> None:
        properties = {
            "broker.session.timeout.ms": str(_SESSION_MS),
            "offsets.topic.replication.factor": "3",
            "offsets.topic.num.partitions": "2",
            "transaction.state.log.replication.factor": "3",
            "transaction.state.log.num.partitions": "1",
            "controlled.shutdown.enable": "true",
            "auto.leader.rebalance.enable": "false",
        }
        self._brokers: dict[int, KafkaBroker] = {}
        ports = {number: (free_port(), free_port()) for number in (1, 2, 3)}
        for number in ports:
            common: dict[str, Any] = {
                "properties": properties,
                "heap_mib": 256,
                "number": number,
                "joins": self._brokers.get(1),
            }
            folder = directory / str(number)
            self._brokers[number] = (
                KafkaBroker(folder, **common) if controllers == 1 else ControllerToo(folder, ports, **common)
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
        """Start all brokers for the first time. A single controller answers before the others start."""
        together = [number for number, broker in self._brokers.items() if isinstance(broker, ControllerToo)]
        if not together:
            self.start(1)
            together = [2, 3]
        for number in together:
            self._brokers[number].launch()
        with ThreadPoolExecutor(3) as threads:
            list(threads.map(self._await_ready, together))
        # so that the coordinator of transactions is a broker that ends
        self.create_topic("__transaction_state", [[3, 2, 1]], **{"cleanup.policy": "compact"})

    def _await_ready(self, number: int) -> None:
        self._brokers[number].await_ready()
        self._await(lambda metadata: number in metadata.brokers)

    def await_controller(self, other_than: int = -1) -> int:
        """Return the active controller, once one of the others leads."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        looked = threading.Event()
        while True:
            for number, broker in self._brokers.items():
                with contextlib.suppress(OSError):  # it is down, or silent: another one knows
                    found = -1 if number == other_than else active_controller(broker.address)
                    if found not in (-1, other_than):
                        return found
            assert time.monotonic() < deadline, f"no controller other than {other_than} leads"
            looked.wait(_LOOK_SECONDS)

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
        """The cluster's metadata by a single controller's broker, which knows first, and by clients without a memory."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        looked = threading.Event()
        single = not isinstance(self._brokers[1], ControllerToo)
        while True:
            client = AdminClient({**(self._brokers[1].options if single else self.options)})
            metadata = client.list_topics(timeout=PATIENCE_SECONDS)
            if holds(metadata):
                return metadata
            assert time.monotonic() < deadline, (metadata.brokers, metadata.topics)
            looked.wait(_LOOK_SECONDS)


@contextlib.contextmanager
def three_brokers(directory: Path, controllers: int = 1) -> Iterator[ThreeBrokers]:
    cluster = ThreeBrokers(directory, controllers)
    try:
        cluster.start_all()
        yield cluster
    finally:
        for number in (3, 2, 1):
            cluster.kill9(number)
