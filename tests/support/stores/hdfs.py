"""A real HDFS for tests: one NameNode and one DataNode on loopback; a test stops, kills and restarts each of them.

``python -m tests.support.stores.hdfs`` fetches its jars (``make test`` does).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from typing_extensions import Self

from forebay.kafka.embedded.jars import Libraries, find_java
from forebay.model.errors import ForebayError, UnreachableError, UsageError
from forebay.process.tether import tethered
from tests.support.processes.namespaces import Host
from tests.support.run.ports import free_port
from tests.support.servers import debian

HADOOP_VERSION = "3.5.0"

HADOOP = Libraries(
    f"hadoop-{HADOOP_VERSION}", f"Apache Hadoop {HADOOP_VERSION}", Path(__file__).with_name("hadoop.jars.lock")
)

NAME_NODE, DATA_NODE = "namenode", "datanode"
_CLASSES = {
    NAME_NODE: "org.apache.hadoop.hdfs.server.namenode.NameNode",
    DATA_NODE: "org.apache.hadoop.hdfs.server.datanode.DataNode",
}
_READY_SECONDS = 180.0
_STOP_SECONDS = 20.0
_TICK_SECONDS = 0.1


class HdfsServer:
    """NameNode and DataNode with their data in ``directory``: same ports and same data after each restart.

    ``properties`` go into hdfs-site.xml over the ones made here. ``java_options``: of each process. ``host``:
    where it runs, instead of loopback.
    """

    #: options of the Java of all nodes that this process starts, for an archive of classes
    class_archive: tuple[str, ...] = ()
    name_nodes: tuple[str, ...] = (NAME_NODE,)

    def __init__(
        self,
        directory: Path,
        properties: Mapping[str, str] | None = None,
        host: Host | None = None,
        java_options: Sequence[str] = (),
    ) -> None:
        self._host = host
        self._address = "127.0.0.1" if host is None else host.address
        self.directory = directory
        self._properties = dict(properties or {})
        self._java_options = tuple(java_options)
        self._data_ports: list[int] = []
        #: name node → its ports for requests and for HTTP
        self._ports: dict[str, tuple[int, int]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def url(self) -> str:
        return f"hdfs://{self._address}:{self._ports[NAME_NODE][0]}"

    def start(self, *nodes: str) -> Self:
        """Starts what of ``nodes`` (default: all) does not run, and waits until it serves.

        Raises UsageError if Java or the jars are missing, UnreachableError if it does not come up.
        """
        self.launch(*nodes)
        self._await("the file system", self.ready)
        return self

    def launch(self, *nodes: str) -> None:
        """As :meth:`start`, without waiting. The folder is formatted first if it is new."""
        if not self._ports:
            self._data_ports = [free_port() for _ in range(3)]
            self._ports = {node: (free_port(), free_port()) for node in self.name_nodes}
            self._write_settings()
            self._format()
        for node in nodes or (*self.name_nodes, DATA_NODE):
            if node not in self._processes:
                self._spawn(node)

    def stop(self, *nodes: str) -> None:
        """Ends ``nodes`` (default: all) in order, and kills what takes too long."""
        self._end(signal.SIGTERM, nodes or (DATA_NODE, *self.name_nodes))

    def kill9(self, *nodes: str) -> None:
        """Ends ``nodes`` (default: all) as a crash would."""
        self._end(signal.SIGKILL, nodes or (DATA_NODE, *self.name_nodes))

    def restart(self, *nodes: str) -> None:
        """Kill -9 and start: same ports, same data."""
        self.kill9(*nodes)
        self.start(*nodes)

    def pause(self, node: str) -> None:
        """SIGSTOP: it accepts connections and answers nothing."""
        self._processes[node].send_signal(signal.SIGSTOP)

    def wake(self, node: str) -> None:
        self._processes[node].send_signal(signal.SIGCONT)

    def send(self, number: signal.Signals) -> None:
        """Sends a signal that ends no process, such as SIGSTOP, to all nodes."""
        for process in self._processes.values():
            process.send_signal(number)

    def admin(self, *arguments: str) -> str:
        """Runs ``hdfs dfsadmin`` (quotas, safe mode), and returns what it says."""
        return self._run_tool("DFSAdmin", *arguments)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.kill9()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill9()

    # ---- inner parts -------------------------------------------------------------------------------------------------

    def _run_tool(self, name: str, *arguments: str) -> str:
        done = subprocess.run(
            [*self._java(128), f"org.apache.hadoop.hdfs.tools.{name}", *arguments],
            capture_output=True, text=True, timeout=_READY_SECONDS, check=False, env=self._environment_of_tools(),
        )  # fmt: skip
        if done.returncode != 0:
            raise ForebayError(f"{name} {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    def _environment_of_tools(self) -> Mapping[str, str]:
        return os.environ

    def _java(self, heap_mib: int) -> list[str]:
        return [
            find_java(), *self.class_archive, f"-Xmx{heap_mib}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss512k",
            # a class path begins as that of the archive does; no jar has a file of the folder's names
            *self._java_options, "--add-opens=java.base/java.lang=ALL-UNNAMED",
            "-cp", f"{HADOOP.fetch().resolve()}/*:{self.directory / 'conf'}",
        ]  # fmt: skip

    def _on_its_host(self, command: list[str]) -> list[str]:
        return command if self._host is None else self._host.command(*command)

    def _spawn(self, node: str) -> None:
        with (self.directory / f"{node}.log").open("ab") as log:
            self._processes[node] = subprocess.Popen(
                tethered(self._on_its_host([*self._java(256), *self._program(node)])),
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self.directory, start_new_session=True,
            )  # fmt: skip

    def _program(self, node: str) -> Sequence[str]:
        """Return the class that ``node`` runs, and its arguments."""
        return (_CLASSES[node],)

    def _format(self) -> None:
        done = subprocess.run(
            [*self._java(128), *self._program(NAME_NODE), "-format", "-nonInteractive", "-force"],
            capture_output=True, text=True, timeout=_READY_SECONDS, check=False, cwd=self.directory,
        )  # fmt: skip
        if done.returncode != 0:
            raise UnreachableError(f"the NameNode can't be formatted: {done.stderr[-2000:]}")

    def _end(self, number: signal.Signals, nodes: tuple[str, ...]) -> None:
        for node in nodes:
            process = self._processes.pop(node, None)
            if process is None:
                continue
            process.send_signal(number)
            process.send_signal(signal.SIGCONT)
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def ready(self) -> bool:
        """Whether all that runs does its work: the name nodes out of safe mode, and this DataNode, not one that was
        killed, in touch with them."""
        running = [node for node in self.name_nodes if node in self._processes]
        if DATA_NODE not in self._processes:
            return all(self._bean(node, "NameNode,name=NameNodeInfo") is not None for node in running)
        with socket.socket() as probe:
            probe.settimeout(1.0)
            listens = probe.connect_ex((self._address, self._data_ports[0])) == 0
        return (listens or not running) and all(map(self._is_ready, running))

    def _is_ready(self, name_node: str) -> bool:
        found = self._bean(name_node, "NameNode,name=NameNodeInfo")
        if found is None:
            return False
        live: dict[str, Any] = json.loads(found["LiveNodes"])
        return not found["Safemode"] and any(node["lastContact"] < 3 for node in live.values())

    def _bean(self, name_node: str, name: str) -> dict[str, Any] | None:
        url = f"http://{self._address}:{self._ports[name_node][1]}/jmx?qry=Hadoop:service={name}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                beans: list[dict[str, Any]] = json.load(answer)["beans"]
        except (OSError, ValueError):
            return None
        return beans[0] if beans else None

    def _await(self, what: str, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while not ready():
            for node, process in self._processes.items():
                if process.poll() is not None:
                    raise UnreachableError(f"the {node} ended with {process.returncode}; {self._log_tail(node)}")
            if time.monotonic() > deadline:
                tails = "\n".join(self._log_tail(node) for node in self._processes)
                raise UnreachableError(f"{what} did not come up within {_READY_SECONDS:g} s; {tails}")
            time.sleep(_TICK_SECONDS)

    def _log_tail(self, node: str) -> str:
        lines = (self.directory / f"{node}.log").read_text(errors="replace").splitlines()[-15:]
        return f"the log of the {node} ends with:\n" + "\n".join(lines)

    def _write_settings(self) -> None:
        data, data_http, data_ipc = self._data_ports
        conf = self.directory / "conf"
        for folder in ("hdfs", "datanode", "static"):  # the jars hold no pages: empty folders are enough
            (conf / "webapps" / folder).mkdir(parents=True)
        _write_xml(
            conf / "core-site.xml",
            {
                "fs.defaultFS": self.url,
                "hadoop.tmp.dir": f"{self.directory}/tmp",
                "hadoop.http.staticuser.user": "root",
            },
        )
        _write_xml(
            conf / "hdfs-site.xml",
            {
                "dfs.replication": "1",
                "dfs.permissions.enabled": "true",
                "dfs.datanode.data.dir": f"file://{self.directory}/data",
                "dfs.namenode.secondary.http-address": "127.0.0.1:0",
                "dfs.datanode.hostname": self._address,
                "dfs.datanode.address": f"{self._address}:{data}",
                "dfs.datanode.http.address": f"{self._address}:{data_http}",
                "dfs.datanode.ipc.address": f"{self._address}:{data_ipc}",
                "dfs.namenode.safemode.extension": "0",
                "dfs.namenode.datanode.registration.ip-hostname-check": "false",
                "dfs.heartbeat.interval": "1",
                "dfs.client.block.write.replace-datanode-on-failure.policy": "NEVER",
                "dfs.datanode.round-robin-volume-choosing-policy.additional-available-space": "0",
                "dfs.datanode.du.reserved": "0",
                "dfs.namenode.fs-limits.min-block-size": "4096",
                **self._name_node_properties(),
                **self._properties,
            },
        )
        (conf / "log4j.properties").write_text(_LOG4J)

    def _name_node_properties(self) -> Mapping[str, str]:
        requests, http = self._ports[NAME_NODE]
        return {
            "dfs.namenode.name.dir": f"file://{self.directory}/name",
            "dfs.namenode.rpc-address": f"{self._address}:{requests}",
            "dfs.namenode.http-address": f"{self._address}:{http}",
        }


_LOG4J = """\
log4j.rootLogger=INFO,E
log4j.appender.E=org.apache.log4j.ConsoleAppender
log4j.appender.E.target=System.err
log4j.appender.E.layout=org.apache.log4j.PatternLayout
log4j.appender.E.layout.ConversionPattern=%d %p %c{1}: %m%n
"""


def _write_xml(path: Path, properties: Mapping[str, str]) -> None:
    lines = [f"<property><name>{name}</name><value>{value}</value></property>" for name, value in properties.items()]
    path.write_text("\n".join(("<configuration>", *lines, "</configuration>", "")))


# ---- fixtures (tests/conftest.py makes them known) -------------------------------------------------------------------


def require_hdfs(missing: Callable[[str], None]) -> None:
    """Calls ``missing`` if Java or the jars are not here; in CI the jars are fetched if need be."""
    try:
        find_java()
        if not HADOOP.present():
            if os.environ.get("CI", "").lower() not in ("1", "true"):
                missing("Hadoop's jars are not here: run `make test`, or python -m tests.support.stores.hdfs")
            HADOOP.fetch()
    except UsageError as error:
        missing(str(error))


if __name__ == "__main__":
    sys.exit(debian.main(lambda: print(HADOOP.fetch())))
