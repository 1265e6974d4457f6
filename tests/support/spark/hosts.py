"""A small cluster in network namespaces: Kafka, Forebay's driver with Spark's master, and worker hosts.

Each worker host runs a Spark worker, an agent and the receivers that the driver places there, and has a block directory that no
other host sees.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, get_args

from forebay.http.client import Client
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.process.tether import tethered
from forebay.security.access import Access
from forebay.security.roles import Role
from forebay.settings.reading.load import load
from tests.support.processes.cluster import AHEAD, Cluster
from tests.support.processes.namespaces import Host, Network
from tests.support.processes.services import _Service
from tests.support.run.pythons import bare_python
from tests.support.spark import standalone
from tests.support.spark.standalone import Daemon

DRIVER, KAFKA = "driver", "kafka"
_KAFKA_PORT, _DRIVER_PORT, _AGENT_PORT = 9092, 7080, 7081
#: a first task on a busy machine takes longer than Spark's 3 s of waiting for locality
_LOCALITY_WAIT = "20s"


class HostBroker(KafkaBroker):
    """Apache Kafka on a host of its own."""

    def __init__(self, directory: Path, host: Host, **more: Any) -> None:
        """``more``: as for :class:`KafkaBroker`."""
        listeners = f"PLAINTEXT://{host.address}:{_KAFKA_PORT}"
        super().__init__(
            directory,
            properties={
                "listeners": f"{listeners},CONTROLLER://127.0.0.1:9093",
                "advertised.listeners": listeners,
                "controller.quorum.voters": "1@127.0.0.1:9093",
            },
            **more,
        )
        self._host = host

    @property
    def address(self) -> str:
        return f"{self._host.address}:{_KAFKA_PORT}"

    def _java(self, java: str, classpath: str) -> list[str]:
        return self._host.command(*super()._java(java, classpath))


class SparkHosts(Cluster):
    """As :class:`Cluster`, with ``driver`` and agents by the names of their hosts."""

    forks = False

    def __init__(
        self,
        folder: Path,
        network: Network,
        workers: Sequence[str],
        options: Mapping[str, str],
        topics: Sequence[str],
        *,
        job: str = "jobs:by_dataframe",
        **settings: Mapping[str, Any],
    ) -> None:
        self.network = network
        self.workers = tuple(workers)
        driver = network[DRIVER].address
        own: dict[str, dict[str, Any]] = {
            "wal": {"segment_size": "200KB"},
            "driver": {
                "url": f"http://{driver}:{_DRIVER_PORT}", "receiver_timeout": "8s", "placing_interval": "200ms",
                "batch_interval": "500ms", "tasks_per_batch": len(workers), **AHEAD,
            },
            "receiver": {"mode": "managed", "count": len(workers), "block_interval": "100ms"},
            "spark": {
                "spark.master": standalone.url(network[DRIVER]), "spark.driver.host": driver,
                "spark.driver.bindAddress": driver, "spark.cores.max": str(len(workers)),
                "spark.locality.wait": _LOCALITY_WAIT, **standalone.application(),
            },
        }  # fmt: skip
        own["security"] = {"token_file": str(folder / "tokens")}
        merged = {name: {**own.get(name, {}), **settings.get(name, {})} for name in {*own, *settings}}
        super().__init__(
            folder,
            options,
            topics,
            receivers=0,
            engine="spark",
            job=job,
            stream="stream",
            start=False,
            **merged,
        )
        self.driver_url = f"http://{driver}:{_DRIVER_PORT}"
        self._services = {DRIVER: _Service(DRIVER, ("driver",))}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> SparkHosts:
        super().__enter__()
        tokens = self.folder / "tokens"
        tokens.touch(0o600)
        tokens.write_text("".join(f"{role} the-token-of-each-{role}\n" for role in get_args(Role)))
        access = Access.of(load(self.config), "operator")
        self._client = Client(self.driver_url, timeout_seconds=3.0, access=access)
        master, spark = self.network[DRIVER], self.folder / "spark"
        self._start_spark(DRIVER, standalone.master(master, spark))
        for name in self.workers:
            self._start_spark(name, standalone.worker(self.network[name], spark, master))
        # all modules of the project that tasks need are sent to them
        self.start(DRIVER, environment={"PYSPARK_PYTHON": bare_python(self.folder / "python")})
        for name in self.workers:
            self.start_agent(name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        for host in self.network:
            if host.name != KAFKA:
                host.kill()
        for process in self._daemons:
            process.wait()

    def _start_spark(self, host: str, daemon: Daemon) -> None:
        with self.log_file(f"spark-{host}").open("ab") as log:
            self._daemons.append(subprocess.Popen(
                tethered(daemon.command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder,
                env=daemon.environment, start_new_session=True,
            ))  # fmt: skip

    def await_executors(self) -> None:
        """Until each worker host has an executor that the driver's Spark knows: a batch before that prefers no host for its
        blocks."""

        def known(host: str) -> bool:
            logs = (self.folder / "spark" / host).glob("app-*/*/stderr")
            return any("Registered BlockManager" in log.read_text() for log in logs)

        self.wait(lambda: all(map(known, self.workers)), "an executor on each host", seconds=250.0)

    def start_agent(self, host: str) -> None:
        """Starts the agent of a worker host."""
        self._services[host] = _Service(host, ("agent",))
        own = {"HOST": host, "URL": f"http://{host}:{_AGENT_PORT}"}
        self.start(host, environment={f"FOREBAY__AGENT__{key}": value for key, value in own.items()})

    def _on_its_host(self, service: _Service, command: Sequence[str]) -> Sequence[str]:
        return self.network[service.name].command(*command)

    def lose(self, name: str) -> None:
        """Remove a worker host for good, with its processes and data."""
        service = self._services[name]
        service.wanted = False
        self.network.cut_off(name)
        self.network[name].kill()
        if service.process is not None:
            assert service.process.wait() == -signal.SIGKILL
            service.process = None
