"""Embedded brokers for the demo and for tests: librdkafka's mock cluster, and a real Apache Kafka."""

from __future__ import annotations

import base64
import itertools
import os
import re
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from confluent_kafka.admin import AdminClient

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.embedded.jars import fetch_jars, find_java
from forebay.kafka.native.library import library
from forebay.model.errors import ForebayError, UnreachableError, UsageError
from forebay.process.tether import tethered

if TYPE_CHECKING:
    from typing_extensions import Self

#: the mock cluster creates each topic on first use, always with this number of partitions
MOCK_PARTITIONS = 4
#: stored (compressed) bytes that the mock keeps of a partition; older batches are dropped
MOCK_PARTITION_BYTES = 5 * 1024 * 1024

#: how long a new group of the mock waits for further members; 0 would be for ever
_REBALANCE_DELAY_MS = 1
_READY_SECONDS = 120.0
_STOP_SECONDS = 20.0
#: the features of a new cluster (KIP-778), in the form of a snapshot of its metadata: they depend on the release alone
_FEATURES = "bootstrap.checkpoint"
_IDENTITY = "meta.properties"
_tried = itertools.count(os.getpid() * 7919)


class MockBroker:
    """librdkafka's mock cluster, in this process: real TCP and consumer groups. Closing it deletes its data.

    It keeps about ``MOCK_PARTITION_BYTES`` of each partition, and supports neither topic ids nor ``delete_records``.
    Its thread ends, and connections are then refused, if its poll fails: if a signal interrupts it (as ``os.setresuid`` does), or
    if the process lowers its limit of open files below those that it polls.
    """

    def __init__(self, brokers: int = 1) -> None:
        self._brokers = brokers
        self._client: AdminClient | None = None
        self.address = ""

    def open(self) -> MockBroker:
        native = library()
        options: dict[str, Any] = {"test.mock.num.brokers": self._brokers, "log_level": 4}
        self._client = AdminClient(options if native is None else native.options(options))
        if native is not None:  # otherwise the first member of each group waits for three seconds
            cluster = native.kafka.rd_kafka_handle_mock_cluster(native.take_client())
            native.kafka.rd_kafka_mock_group_initial_rebalance_delay_ms(cluster, _REBALANCE_DELAY_MS)
        brokers = self._client.list_topics(timeout=10).brokers.values()
        self.address = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
        return self

    @property
    def options(self) -> dict[str, str]:
        """The options of a client for this broker."""
        return {"bootstrap.servers": self.address}

    def create_topic(self, topic: str, partitions: int = MOCK_PARTITIONS) -> None:
        """Create the topic by requesting it. Raises UsageError for any other number of partitions."""
        if partitions != MOCK_PARTITIONS:
            raise UsageError(
                f"the mock broker creates topics with {MOCK_PARTITIONS} partitions, not {partitions}: use a real broker"
            )
        if self._client is None:
            raise ForebayError("the mock broker is not open")
        self._client.list_topics(topic, timeout=10)

    def close(self) -> None:
        self._client = None

    def __enter__(self) -> MockBroker:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class KafkaBroker:
    """Apache Kafka as one KRaft node on loopback, in a separate process, with its data in ``directory``.

    ``start`` waits until it answers. After a stop or a kill, it starts again on the same ports with the same data. The kernel
    kills it when the thread that launched it ends, also when that process is killed.
    """

    #: further options of the Java of all brokers that this process starts
    java_options: tuple[str, ...] = ()

    def __init__(
        self,
        directory: str | Path,
        *,
        cache: str | Path | None = None,
        properties: Mapping[str, str] | None = None,
        heap_mib: int = 512,
        joins: KafkaBroker | None = None,
        number: int = 1,
        port: int = 0,
    ) -> None:
        """``properties``: override those of server.properties. ``cache``: the folder of the jars. ``joins``: a started broker,
        whose cluster this one joins with a different ``number``. ``port``: where it listens; 0: as before, or any free port."""
        self._joins = joins
        self.number = number
        self._cluster_id: str = joins._cluster_id if joins is not None else _new_id()
        self.directory = Path(directory).resolve()
        self.log_file = self.directory / "kafka.log"
        self._cache = cache
        self._properties = dict(properties or {})
        self._heap_mib = heap_mib
        self._port = port
        self._ports: tuple[int, int] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        if self._ports is None:
            raise ForebayError("the broker has no address before its first start")
        return f"127.0.0.1:{self._ports[0]}"

    @property
    def options(self) -> dict[str, str]:
        """The options of a client for this broker."""
        return {"bootstrap.servers": self.address}

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def create_topic(self, topic: str, partitions: int = 4) -> None:
        with KafkaAdmin(self.options) as admin:
            admin.create_topic(topic, partitions)

    def start(self) -> Self:
        """Start it, and return when it answers. Raises UsageError if Java or the jars are missing; UnreachableError."""
        self.launch()
        self.await_ready()
        return self

    def launch(self) -> None:
        """Start it without waiting. Call :meth:`await_ready` next, from any thread. Raises UsageError."""
        if self._process is not None:
            raise ForebayError("the broker runs already")
        java = find_java()
        classpath = str(self._jars() / "*")
        self.directory.mkdir(parents=True, exist_ok=True)
        properties = self.directory / "server.properties"
        if self._ports is None:
            self._ports = self._choose_ports(properties)
        properties.write_text("".join(f"{key}={value}\n" for key, value in self._server_properties().items()))
        if not (self.directory / "data" / _IDENTITY).exists():
            (self.directory / "log4j2.properties").write_text(_LOG4J)
            self._format(java, classpath, properties)
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                tethered([*self._java(java, classpath), "kafka.Kafka", str(properties)]),
                stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=self.directory, start_new_session=True,
            )  # fmt: skip

    def _jars(self) -> Path:
        return fetch_jars(self._cache)

    def _format(self, java: str, classpath: str, properties: Path) -> None:
        """Format the folder of the data. Kafka's tool does so once for each release, and keeps the file that a copy can use."""
        kept = self._jars().parent / _FEATURES
        if kept.exists():
            self._copy_format(kept)
            return
        tool = "kafka.tools.StorageTool"
        self._run_tool(java, classpath, tool, "format", "-t", self._cluster_id, "-c", str(properties))
        features = self.directory / "data" / _FEATURES
        # without this file, or in a cache that this user can't change, the tool runs each time
        if features.exists() and os.access(kept.parent, os.W_OK):
            _write(kept, features.read_bytes())

    def _copy_format(self, kept: Path) -> None:
        """Write what Kafka's tool writes, without the second of a JVM."""
        data = self.directory / "data"
        data.mkdir(exist_ok=True)
        _write(data / _FEATURES, kept.read_bytes())
        identity = f"version=1\ncluster.id={self._cluster_id}\nnode.id={self.number}\ndirectory.id={_new_id()}\n"
        _write(data / _IDENTITY, identity.encode())  # last: with this file the folder is formatted

    def _choose_ports(self, properties: Path) -> tuple[int, int]:
        before = _ports_before(properties)
        if not self._port:
            return before or _free_ports()
        if not _is_free(self._port):
            raise UsageError(
                f"127.0.0.1:{self._port} is in use, perhaps by a broker that runs already: use that one, or choose another "
                "port with --port"
            )
        return self._port, before[1] if before is not None else _free_ports()[1]

    def _java(self, java: str, classpath: str) -> list[str]:
        heap = f"-Xmx{self._heap_mib}m"
        log4j = f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}"
        return [java, *self.java_options, heap, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", log4j, "-cp", classpath]

    def _server_properties(self) -> dict[str, str]:
        assert self._ports is not None
        broker, controller = self._ports
        listeners = f"PLAINTEXT://127.0.0.1:{broker}"
        if self._joins is not None:
            assert self._joins._ports is not None
            controller = self._joins._ports[1]
        return {
            "process.roles": "broker,controller" if self._joins is None else "broker",
            "node.id": str(self.number),
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": listeners if self._joins is not None else f"{listeners},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{broker}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.directory / "data"),
            "auto.create.topics.enable": "false",
            "num.partitions": "4",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "4",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "4",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "1000",
            "log.retention.ms": "-1",  # no record is deleted by age, unless a topic sets it
            "log.retention.check.interval.ms": "500",
            "log.segment.delete.delay.ms": "500",
            "log.initial.task.delay.ms": "100",
            "log.cleaner.backoff.ms": "200",
            "log.cleaner.dedupe.buffer.size": "8388608",
            "num.network.threads": "2",
            "num.io.threads": "2",
            "controlled.shutdown.enable": "false",
            # after a kill, it can register again only when its earlier session has ended
            "broker.session.timeout.ms": "2000",
            "broker.heartbeat.interval.ms": "500",
            # 0: an idle controller writes no record every half second, which is much of an idle broker's work
            "metadata.max.idle.interval.ms": "0",
            **self._properties,
        }

    def _run_tool(self, java: str, classpath: str, *arguments: str) -> None:
        done = subprocess.run(
            [*self._java(java, classpath), *arguments],
            capture_output=True,
            text=True,
            timeout=_READY_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise ForebayError(f"{arguments[0]} failed: {(done.stderr or done.stdout).strip()[-2000:]}")

    def await_ready(self) -> None:
        """Return when it answers. Raises UnreachableError."""
        assert self._process is not None
        deadline = time.monotonic() + _READY_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                code, self._process = self._process.returncode, None
                raise UnreachableError(f"Kafka ended with exit code {code} before it was ready; {self._log_tail()}")
            if _answers(self.address):
                with KafkaAdmin(self.options) as admin:
                    admin.check(max(1.0, deadline - time.monotonic()))
                return
            try:  # wakes early if it ends, which is the failure above
                self._process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
        self.kill9()
        raise UnreachableError(f"Kafka did not answer within {_READY_SECONDS:g} s; {self._log_tail()}")

    def _log_tail(self) -> str:
        text = self.log_file.read_text(errors="replace") if self.log_file.exists() else ""
        return f"its log is {self.log_file}, which ends with:\n" + "\n".join(text.splitlines()[-15:])

    def stop(self) -> None:
        """Shut it down; kill it if that takes too long. No error if it does not run."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill9(self) -> None:
        """Kill it with SIGKILL: nothing is flushed."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


_LOG4J = """\
appender.console.type=Console
appender.console.name=CONSOLE
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=[%d] %p %m (%c)%n
rootLogger.level=WARN
rootLogger.appenderRef.console.ref=CONSOLE
"""


def _new_id() -> str:
    """Return a random id in Kafka's form: 16 bytes as URL-safe base 64 without padding."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=").replace("-", "A")


def _write(file: Path, content: bytes) -> None:
    """Write the file whole or not at all, also if this process is killed or the power fails."""
    new = file.with_name(f"{file.name}.{os.getpid()}")
    with new.open("wb") as written:
        written.write(content)
        written.flush()
        os.fsync(written.fileno())
    new.replace(file)


def _ports_before(properties: Path) -> tuple[int, int] | None:
    """Return the ports of broker and controller in ``properties``, if both are free."""
    text = properties.read_text() if properties.exists() else ""
    found = re.search(r"^listeners=PLAINTEXT://127\.0\.0\.1:(\d+),CONTROLLER://127\.0\.0\.1:(\d+)$", text, re.MULTILINE)
    if found is None:
        return None
    ports = int(found[1]), int(found[2])
    return ports if all(map(_is_free, ports)) else None


def _is_free(port: int) -> bool:
    """Return whether a server on loopback can listen on ``port`` now."""
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _free_ports() -> tuple[int, int]:
    """Return two free loopback ports, different ones in each call. They are below the range of outgoing connections, so that no
    client gets one during a restart."""
    found: list[int] = []
    low, high = 20_000, _first_ephemeral_port()
    for _ in range(high - low):
        port = low + next(_tried) % (high - low)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == 2:
            return found[0], found[1]
    raise ForebayError("no port on loopback is free")


def _first_ephemeral_port() -> int:
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return 32_768
    return first if first > 21_000 else 32_768


def _answers(address: str) -> bool:
    host, _, port = address.partition(":")
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, int(port))) == 0
