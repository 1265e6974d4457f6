"""The oldest and the newest release of Apache Kafka that Forebay supports, as real brokers (``make test-variety``).

``python -m tests.support.kafka.releases`` fetches both into the cache.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from forebay.kafka.embedded.broker import KafkaBroker
from forebay.kafka.embedded.jars import Libraries, find_java
from forebay.model.errors import UnreachableError
from forebay.process.tether import tethered
from tests.support.run.ports import free_port
from tests.support.servers import debian

if TYPE_CHECKING:
    from typing_extensions import Self

OLDEST_VERSION, NEWEST_VERSION = "2.8.0", "4.4.0"


def _kafka(version: str) -> Libraries:
    lock = Path(__file__).with_name(f"kafka-{version}.jars.lock")
    return Libraries(f"kafka-{version}", f"Apache Kafka {version}", lock)


OLDEST, NEWEST = _kafka(OLDEST_VERSION), _kafka(NEWEST_VERSION)
_START_SECONDS = 60.0


class NewestBroker(KafkaBroker):
    """A broker of the newest release."""

    def _jars(self) -> Path:
        return NEWEST.fetch(self._cache)


class OldestBroker(KafkaBroker):
    """A broker of the oldest release, with its own ZooKeeper, as clusters of that release were run."""

    def __init__(self, directory: Path, **more: Any) -> None:
        super().__init__(directory, **more)
        self._zookeeper_port = free_port()
        self._zookeeper: subprocess.Popen[bytes] | None = None

    def _jars(self) -> Path:
        return OLDEST.fetch(self._cache)

    def start(self) -> Self:
        """Start the broker. Retry while ZooKeeper still has the session of the killed one, which ends a new broker."""
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                return super().start()
            except UnreachableError:
                self.kill9()
                if time.monotonic() > deadline:
                    raise

    def launch(self) -> None:
        if self._zookeeper is None:
            self._start_zookeeper()
        super().launch()

    def _format(self, java: str, classpath: str, properties: Path) -> None:
        """A broker with ZooKeeper formats its folder itself."""

    def _java(self, java: str, classpath: str) -> list[str]:
        return [*super()._java(java, classpath)[:-2], f"-Dlog4j.configuration=file:{self._log4j()}", "-cp", classpath]

    def _log4j(self) -> Path:
        file = self.directory / "log4j.properties"
        file.write_text(
            "log4j.rootLogger=WARN, out\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.out.layout=org.apache.log4j.SimpleLayout\n"
        )
        return file

    def _server_properties(self) -> dict[str, str]:
        unknown = ("process.roles", "node.id", "controller.", "share.", "listener.security.", "log.initial.")
        known = {key: value for key, value in super()._server_properties().items() if not key.startswith(unknown)}
        own = {
            "broker.id": str(self.number),
            "listeners": f"PLAINTEXT://{self.address}",
            "zookeeper.connect": f"127.0.0.1:{self._zookeeper_port}",
            "zookeeper.session.timeout.ms": "2000",
        }
        return {**known, **own}

    def _start_zookeeper(self) -> None:
        folder = self.directory / "zookeeper"
        folder.mkdir(parents=True, exist_ok=True)
        settings = folder / "zoo.cfg"
        settings.write_text(
            f"dataDir={folder}\nclientPort={self._zookeeper_port}\nclientPortAddress=127.0.0.1\n"
            "tickTime=500\nadmin.enableServer=false\nmaxClientCnxns=0\n"
        )
        server = "org.apache.zookeeper.server.ZooKeeperServerMain"
        with (folder / "zookeeper.log").open("ab") as log:
            self._zookeeper = subprocess.Popen(
                tethered([*self._java(find_java(), str(self._jars() / "*")), server, str(settings)]),
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=folder, start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._zookeeper_port), 1.0).close()
                return
            except OSError:
                log_text = (folder / "zookeeper.log").read_text()[-1500:]
                assert self._zookeeper.poll() is None and time.monotonic() < deadline, f"no ZooKeeper: {log_text}"
                time.sleep(0.05)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if self._zookeeper is not None:
            self._zookeeper.kill()
            self._zookeeper.wait()
            self._zookeeper = None


def bring() -> None:
    for libraries in (OLDEST, NEWEST):
        print(libraries.fetch())


if __name__ == "__main__":
    sys.exit(debian.main(bring))
