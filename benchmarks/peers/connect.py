"""Kafka Connect's file sink: a standalone worker, one task, Connect's defaults.

The sink writes each record's value as a line, without keys, offsets and timestamps, and does not sync the file. Time counts
from the file's first byte to its last.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import TracebackType

import msgspec
import urllib3

from benchmarks.peers.contender import Run, Usage
from benchmarks.peers.jvm import HEAP
from benchmarks.peers.landing import until
from benchmarks.peers.libraries import CONNECT
from benchmarks.setup import VALUE_BYTES
from forebay.kafka.embedded.jars import find_java
from forebay.process.tether import tethered
from tests.support.run.ports import free_port

_STRINGS = "org.apache.kafka.connect.storage.StringConverter"


class Connect:
    name = "Kafka Connect: file sink"
    durability = "written to the page cache, not synced; offsets committed each minute; values only"

    def __init__(self, directory: Path, servers: str) -> None:
        self._directory = directory
        self._servers = servers
        self._runs = 0

    def __enter__(self) -> Connect:
        self._directory.mkdir(parents=True)
        self._url = f"http://127.0.0.1:{free_port()}"
        properties = self._directory / "worker.properties"
        libraries = CONNECT.fetch()
        properties.write_text(
            f"bootstrap.servers={self._servers}\nlisteners={self._url}\nkey.converter={_STRINGS}\nvalue.converter={_STRINGS}\n"
            f"offset.storage.file.filename={self._directory}/offsets\nplugin.path={libraries}\nplugin.discovery=service_load\n"
        )
        command = [find_java(), HEAP, "-cp", f"{libraries}/*", "org.apache.kafka.connect.cli.ConnectStandalone"]
        with (self._directory / "connect.log").open("wb") as log:
            self._process = subprocess.Popen(
                tethered([*command, str(properties)]), stdout=log, stderr=subprocess.STDOUT
            )
        self._pool = urllib3.PoolManager(retries=False)
        until(self._answers, "Kafka Connect's REST interface")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.clear()
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError(f"Kafka Connect ended: {(self._directory / 'connect.log').read_text()[-3000:]}")
        try:
            return self._pool.request("GET", f"{self._url}/connectors", timeout=5).status == 200
        except urllib3.exceptions.HTTPError:
            return False

    def run(self, topic: str, records: int) -> Run:
        self._runs += 1
        name = f"sink-{self._runs}"
        landed = self._directory / name
        landed.touch()
        connector = {
            "name": name,
            "config": {
                "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector", "tasks.max": "1",
                "topics": topic, "file": str(landed), "consumer.override.auto.offset.reset": "earliest",
            },
        }  # fmt: skip
        headers = {"content-type": "application/json"}
        made = self._pool.request(
            "POST", f"{self._url}/connectors", body=msgspec.json.encode(connector), headers=headers
        )
        if made.status != 201:
            raise RuntimeError(f"Kafka Connect refuses the sink: {made.data!r}")
        begun = until(lambda: landed.stat().st_size > 0, "the first byte of Kafka Connect")
        before = Usage.of(self._process.pid)
        wanted = records * (VALUE_BYTES + 1)
        ended = until(lambda: landed.stat().st_size >= wanted, f"{wanted} bytes by Kafka Connect")
        after = Usage.of(self._process.pid)
        self._pool.request("DELETE", f"{self._url}/connectors/{name}")
        if landed.stat().st_size != wanted:
            raise RuntimeError(f"Kafka Connect wrote {landed.stat().st_size} bytes instead of {wanted}")
        return Run(ended - begun, after.cpu_seconds - before.cpu_seconds, after.peak_mb)
