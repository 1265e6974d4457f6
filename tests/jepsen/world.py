"""The hosts of a run: Kafka brokers, a store, two drivers, worker hosts and perhaps Spark's master, each in a network namespace
of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from tests.jepsen import clock
from tests.jepsen.brokers import Brokers, quiet_admin
from tests.jepsen.clock import HostClock
from tests.jepsen.job import JOB
from tests.jepsen.services import Service, Services
from tests.jepsen.spark import Executors, Master, Worker
from tests.jepsen.story import Story
from tests.support.processes.namespaces import Network
from tests.support.processes.services import toml_of
from tests.support.run.pythons import bare_python
from tests.support.run.releases import Release
from tests.support.servers.certificates import Authority
from tests.support.spark import standalone
from tests.support.stores import s3
from tests.support.stores.hdfs import HdfsServer

STREAM = "stream"
#: the topic with clean elections alone, and the one on which unclean ones are made
SAFE, RISKY = "safe", "risky"
DRIVERS, STORE = ("d1", "d2"), "store"
#: Spark's master and its host
MASTER = "master"
OBSERVER = "observer"
_ROLES = ("receiver", "agent", "task", "query", "reader", "operator")
_STORE_BYTES = 1_000_000_000
_START_SECONDS, _LOOK_SECONDS = 120.0, 0.1
#: of a worker: one for each driver, and one for an application whose end the master has not noticed yet
_EXECUTORS = 3
#: keys that earlier releases refuse. The default of two minutes would be half of the wait at the end of a run
_NEWER = {"FOREBAY__SPARK__EXECUTORS_TIMEOUT": "20s"}
_COMMAND = str(Path(sys.executable).with_name("forebay"))


@dataclass(frozen=True)
class Shape:
    """The size of a run. ``store``: ``s3`` or ``hdfs``, of WAL and journal. ``engine``: ``local``, in the driver, or ``spark``,
    on the worker hosts. ``local_bytes``: size of each worker host's disk for local copies."""

    brokers: int = 3
    workers: int = 2
    partitions: int = 4
    store: str = "s3"
    engine: str = "local"
    local_bytes: int = 24_000_000

    @property
    def broker_hosts(self) -> tuple[str, ...]:
        return tuple(f"k{number}" for number in range(1, self.brokers + 1))

    @property
    def worker_hosts(self) -> tuple[str, ...]:
        return tuple(f"w{number}" for number in range(1, self.workers + 1))

    @property
    def hosts(self) -> tuple[str, ...]:
        masters = (MASTER,) if self.engine == "spark" else ()
        return (*self.broker_hosts, STORE, *masters, *DRIVERS, *self.worker_hosts)

    @property
    def services(self) -> tuple[str, ...]:
        """Names of Forebay's processes: each worker host has an agent and a receiver."""
        return (*DRIVERS, *(f"{kind}-{host}" for host in self.worker_hosts for kind in ("agent", "receiver")))

    @property
    def spark_daemons(self) -> tuple[str, ...]:
        """Names of Spark's processes that systemd would start: the master, and a worker on each worker host."""
        return (MASTER, *(f"worker-{host}" for host in self.worker_hosts)) if self.engine == "spark" else ()

    @property
    def executors(self) -> tuple[str, ...]:
        """Names of the executors of each worker host."""
        return tuple(f"executors-{host}" for host in self.worker_hosts) if self.engine == "spark" else ()

    @property
    def upgrades(self) -> tuple[tuple[str, ...], ...]:
        """The services in the order of docs/operations/upgrade.md: drivers, agents, receivers."""
        of_workers = (tuple(f"{kind}-{host}" for host in self.worker_hosts) for kind in ("agent", "receiver"))
        return (DRIVERS, *of_workers)

    @property
    def topics(self) -> dict[str, int]:
        """Topic → number of partitions. Unclean elections need three brokers."""
        return {SAFE: self.partitions, **({RISKY: 2} if self.brokers >= 3 else {})}


class World:
    """``with World(folder, shape, story) as world:`` everything runs. Leaving it kills all, and unmounts the small disks.
    ``release``: the earlier release that the services run at first; None: this code."""

    def __init__(self, folder: Path, shape: Shape, story: Story, release: Release | None = None) -> None:
        self.folder = folder
        self.shape = shape
        self.story = story
        self.services = Services(story)
        self.network = Network(folder, shape.hosts, ["blocks"])
        self.clocks: dict[str, HostClock] = {}
        self.executors: dict[str, Executors] = {}
        self.token_generation = 1
        self._clock_library: Path | None = None
        self._python = ""  # of tasks: without this project, whose modules the driver sends
        self._release = release
        self._stack = ExitStack()

    def __enter__(self) -> World:
        try:
            self._open()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _open(self) -> None:
        if self._release is not None:
            self._release.unpack()
        for name in ("out", "logs", "certificates"):
            (self.folder / name).mkdir(parents=True)
        self._stack.enter_context(self.network)
        self.disks = {host: self._disk(self.folder / "hosts" / host / "blocks", self.shape.local_bytes)
                      for host in self.shape.worker_hosts}  # fmt: skip
        self.disks[STORE] = self._disk(self.folder / "store", _STORE_BYTES)
        self.brokers = Brokers(
            self.folder / "kafka", [self.network[name] for name in self.shape.broker_hosts], self.story
        )
        self._stack.callback(self.brokers.kill_all)
        self.brokers.start()
        self.story.write(f"{self.shape.brokers} brokers run")
        self._create_topics()
        storage, sections = self._start_store()
        self._write(sections, storage)
        self._stack.callback(self.services.kill_all)
        self._clock_library = clock.build(self.folder)
        if self.shape.engine == "spark":
            self._add_spark()
        self._add_services()
        for name in self.services.names:
            self.services[name].start()
            if name == MASTER:  # without it, workers and applications would wait for seconds before they try again
                self._await_master()
        self.story.write(f"{', '.join(self.services.names)} started")

    # ---- parts -------------------------------------------------------------------------------------------------------

    def _disk(self, folder: Path, size: int) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
        self._stack.callback(subprocess.run, ["umount", "-l", str(folder)], check=True)
        return folder

    def _create_topics(self) -> None:
        client = quiet_admin(self.brokers.servers)
        numbers = range(1, self.shape.brokers + 1)
        new = []
        for topic, partitions in self.shape.topics.items():
            risky = topic == RISKY
            # a partition of the risky topic has two replicas, and goes on with one of them
            copies = 2 if risky else len(numbers)
            replicas = [[numbers[(p + i) % len(numbers)] for i in range(copies)] for p in range(partitions)]
            config = {
                "min.insync.replicas": "1" if risky or self.shape.brokers < 3 else "2",
                "unclean.leader.election.enable": "true" if risky else "false",
            }
            new.append(NewTopic(topic, partitions, replica_assignment=replicas, config=config))
        for done in client.create_topics(new).values():
            done.result(_START_SECONDS)

    def _start_store(self) -> tuple[dict[str, str], dict[str, dict[str, Any]]]:
        """Start the store, and return the environment of its clients and the sections of the configuration."""
        host = self.network[STORE]
        if self.shape.store == "hdfs":
            self.store: Any = HdfsServer(self.disks[STORE], host=host)
            self._stack.callback(self.store.kill9)
            self.store.start()
            url, environment = f"{self.store.url}/forebay", {}
            # by default 1 MiB: the NameNode counts blocks whose writing was begun at this size, some of them for 20 minutes
            sections = {"storage.hdfs": {"dfs.blocksize": "65536"}}
        else:
            self.store = s3.S3Server(self.disks[STORE], host)
            self._stack.callback(self.store.kill)
            self.store.start()
            url, environment = f"s3://{s3.BUCKET}", dict(s3.ENVIRONMENT)
            sections = {"storage.s3": {"endpoint_url": self.store.url, "request_timeout": "2s"}}
        self._environment = environment
        return environment, {
            **sections,
            "wal": {"url": f"{url}/wal", "segment_size": "200KB", "retention": "0s"},
            "driver": {"journal": f"{url}/journal"},
        }

    def _write(self, sections: dict[str, dict[str, Any]], storage: Mapping[str, str]) -> None:
        """Write forebay.toml, the job, tokens and certificates."""
        self.authority = Authority(self.folder / "certificates")
        self.issue_certificates()
        self.write_tokens([self.token_lines(self.token_generation)])
        urls = [self.driver_url(name) for name in DRIVERS]
        sections["driver"] |= {
            "url": urls[0], "urls": urls, "engine": self.shape.engine, "batch_interval": "500ms", "lease_duration": "5s",
            "job": f"jobs:{'by_reading' if self.shape.engine == 'local' else 'by_tasks'}", "job_retry_delay": "500ms",
            "snapshot_copy_interval": "5s",
        }  # fmt: skip
        sections |= {
            "kafka": {
                "topics": list(self.shape.topics), "bootstrap.servers": self.brokers.servers, "on_gap": "record",
                "discovery_interval": "5s", "session.timeout.ms": "6000", "heartbeat.interval.ms": "1000",
                "reconnect.backoff.max.ms": "2000",
            },
            "receiver": {"block_interval": "200ms", "memory": "32MB", "block_size": "4MB", "drain_timeout": "60s"},
            "agent": {"blocks": str(self.folder / "blocks"), "url": "https://127.0.0.1:7081", "heartbeat_interval": "1s"},
            "security": {
                "token_file": str(self.folder / "tokens"), "ca_file": str(self.authority.ca_file),
                "cert_file": "from the environment", "key_file": "from the environment",
            },
        }  # fmt: skip
        if self.shape.engine == "spark":
            sections["driver"]["warm_standby"] = "always"
            sections["spark"] = {
                **standalone.application(), "spark.master": standalone.url(self.network[MASTER]),
                "spark.cores.max": str(self.shape.workers), "spark.driver.memory": "512m",
                "spark.sql.shuffle.partitions": "2",
                # the tasks import the job's module, and read each batch: otherwise the driver would read those of this size
                "modules": ["jobs"], "small_batch": "0B",
            }  # fmt: skip
        else:  # pyarrow imports pandas wherever it finds it: a second of every start, for nothing here
            (self.folder / "pandas.py").write_text('raise ImportError("not needed")\n')
        (self.folder / "forebay.toml").write_text(toml_of({"stream": STREAM}, sections))
        (self.folder / "jobs.py").write_text(JOB)

    def _add_spark(self) -> None:
        """Add the master, whose clock stays as those of brokers and the store, and a worker on each worker host."""
        folder, master = self.folder / "spark", self.network[MASTER]
        self.services.add(Master(MASTER, master, self.folder, standalone.master(master, folder, recovers=True)))
        for place in self.shape.worker_hosts:
            daemon = standalone.worker(
                self.network[place], folder, master,
                executors=_EXECUTORS, environment={**self._environment, **self._clock_of(place)},
            )  # fmt: skip
            worker = Worker(f"worker-{place}", self.network[place], self.folder, daemon)
            self.services.add(worker)
            self.executors[f"executors-{place}"] = Executors(worker)
        self._python = bare_python(self.folder / "python")

    def _await_master(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not self.services[MASTER].ready():
            assert time.monotonic() < deadline, f"Spark's master does not answer: {self.services[MASTER].said()}"
            time.sleep(_LOOK_SECONDS)

    def _clock_of(self, host: str) -> Mapping[str, str]:
        """Return the environment of the processes of ``host`` whose wall clock a fault moves: all of Forebay and Spark."""
        if self._clock_library is None:
            return {}
        if host not in self.clocks:
            self.clocks[host] = HostClock(self._clock_library, self.folder / f"{host}.clock")
        return self.clocks[host].environment

    def _add_services(self) -> None:
        for name in self.shape.services:
            kind, _, place = name.partition("-")
            host = self.network[place or name]
            certificate = self.folder / "certificates" / host.name
            own = {
                **self._environment,
                "FOREBAY__SECURITY__CERT_FILE": f"{certificate}.pem", "FOREBAY__SECURITY__KEY_FILE": f"{certificate}.key",
                "FOREBAY__AGENT__HOST": host.name, "FOREBAY__AGENT__URL": f"https://{host.address}:7081",
            }  # fmt: skip
            own |= self._clock_of(host.name)
            if not place:
                own |= {"FOREBAY__DRIVER__URL": self.driver_url(name), "SPARK_LOCAL_IP": host.address}
                own |= {"PYSPARK_PYTHON": self._python} if self._python else {}
                arguments: tuple[str, ...] = ("driver", "--standby")
            else:
                arguments = ("agent",) if kind == "agent" else ("receiver", "--id", place)
            self.services.add(Service(name, host, self.folder, arguments, own, self._release, _NEWER))

    # ---- what faults change ------------------------------------------------------------------------------------------

    @property
    def outdated(self) -> tuple[str, ...]:
        """The services of an earlier release that are to be upgraded next; () if all run this code."""
        kinds = (tuple(n for n in names if self.services[n].origin) for names in self.shape.upgrades)
        return next((names for names in kinds if names), ())

    def driver_url(self, name: str) -> str:
        return f"https://{self.network[name].address}:7080"

    def token_lines(self, generation: int) -> list[str]:
        return [f"{role} token-{generation}-of-each-{role}-in-this-run" for role in _ROLES]

    def write_tokens(self, generations: list[list[str]]) -> None:
        """Write the token file; for each role the first line is the one that clients send."""
        lines = [line for of_each_role in zip(*generations, strict=True) for line in of_each_role]
        temporary = self.folder / "tokens.new"
        temporary.touch(0o600)
        temporary.write_text("\n".join(lines) + "\n")
        temporary.replace(self.folder / "tokens")
        self.reader_token = next(line.split()[1] for line in lines if line.startswith("reader "))

    def issue_certificates(self) -> None:
        """Issue a new certificate for each host of Forebay and for the observer, and rename it to its place, the key first."""
        target = self.folder / "certificates"
        for name in (*DRIVERS, *self.shape.worker_hosts, OBSERVER):
            address = self.network[name].address if name != OBSERVER else "127.0.0.1"
            files = self.authority.issue(f"{name}.new", address, valid_days=60)
            os.replace(files["key_file"], target / f"{name}.key")
            os.replace(files["cert_file"], target / f"{name}.pem")

    def process(self, name: str) -> Target:
        """Return what a fault pauses, kills and starts: a service, one of Spark's daemons, executors, a broker or the store."""
        if name in self.services.names:
            service = self.services[name]
            return Target(service.send, service.kill, service.start, service.ready)
        if name in self.executors:  # their worker starts others
            executors = self.executors[name]
            return Target(executors.send, executors.kill, lambda: None, lambda: True)
        if name == STORE:
            kill = self.store.kill9 if self.shape.store == "hdfs" else self.store.kill
            return Target(self.store.send, kill, self.store.launch, self.store.ready)
        broker = self.brokers[name]
        return Target(broker.send, broker.kill9, broker.start_again, broker.ready)

    # ---- what is asked at the end ------------------------------------------------------------------------------------

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``forebay`` on the first driver's host."""
        host = self.network[DRIVERS[0]]
        certificate = self.folder / "certificates" / host.name
        return subprocess.run(
            host.command(_COMMAND, "--config", str(self.folder / "forebay.toml"), *arguments),
            env={
                **os.environ, **self._environment, "PYTHONPATH": f"{self.folder}{os.pathsep}{Path(__file__).parents[2]}",
                "FOREBAY__SECURITY__CERT_FILE": f"{certificate}.pem", "FOREBAY__SECURITY__KEY_FILE": f"{certificate}.key",
            },
            cwd=self.folder, capture_output=True, text=True, timeout=_START_SECONDS, check=False,
        )  # fmt: skip

    def write_evidence(self) -> None:
        """Write what the checker reads, besides what job, producer and observer have written."""
        audit = self.command("audit", "--json")
        for name, done in (
            ("audit", audit),
            ("batches", self.command("journal", "batches", "--all", "--json")),
            ("journal", self.command("journal", "inspect", "--json")),
        ):
            assert done.stdout, f"forebay {name}: {done.stderr}"
            (self.folder / f"{name}.json").write_text(done.stdout)
        self.story.write_ends(self.folder / "ends.json")
        unclean = sorted(self.brokers.unclean)
        run = {
            "servers": self.brokers.servers, "topics": self.shape.topics, "group": f"forebay.{STREAM}", "unclean": unclean,
            "audit_code": audit.returncode, "task_hosts": self.shape.worker_hosts if self.executors else (),
        }  # fmt: skip
        (self.folder / "run.json").write_text(json.dumps(run))


@dataclass(frozen=True)
class Target:
    """A process that a fault changes. ``ready``: whether it answers, after a start."""

    send: Callable[[signal.Signals], None]
    kill: Callable[[], None]
    start: Callable[[], None]
    ready: Callable[[], bool]
