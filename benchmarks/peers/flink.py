"""Flink's Kafka source into files with checkpoints: a mini cluster in one JVM, two slots, a checkpoint each second.

The job writes each record's value and a line feed (Flink's ``raw`` format), its cheapest way into files; keys, offsets and
timestamps are not written. The topic's end bounds the source, so the job ends with a last checkpoint that commits the files.
Time counts from the first byte in the files to the end of the job.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.peers.contender import Run, Usage
from benchmarks.peers.jvm import Jvm
from benchmarks.peers.landing import landed_bytes, until
from benchmarks.peers.libraries import FLINK
from benchmarks.setup import VALUE_BYTES

_CONFIGURATION = {
    "execution.checkpointing.interval": "1 s",
    "execution.checkpointing.storage": "filesystem",
    "parallelism.default": "2",
}


class Flink:
    name = "Flink: Kafka source into files"
    durability = "files committed by a checkpoint each second; their bytes synced at checkpoints; values only"

    def __init__(self, directory: Path, servers: str) -> None:
        self._directory = directory
        self._servers = servers
        self._runs = 0

    def __enter__(self) -> Flink:
        self._directory.mkdir(parents=True)
        self._jvm = Jvm(FLINK.fetch(), self._directory / "flink.log").__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._jvm.__exit__(kind, error, trace)

    def run(self, topic: str, records: int) -> Run:
        self._runs += 1
        landed = self._directory / f"landed-{self._runs}"
        environment = self._environment()
        environment.executeSql(
            "CREATE TABLE topic (`value` BYTES) WITH ('connector'='kafka', 'format'='raw', "
            f"'topic'='{topic}', 'properties.bootstrap.servers'='{self._servers}', "
            f"'properties.group.id'='flink-{self._runs}', "
            "'scan.startup.mode'='earliest-offset', 'scan.bounded.mode'='latest-offset')"
        )
        environment.executeSql(
            f"CREATE TABLE files (`value` BYTES) WITH ('connector'='filesystem', 'format'='raw', 'path'='file://{landed}')"
        )
        begun: list[tuple[float, Usage]] = []

        def watch() -> None:
            begun.append((until(lambda: landed_bytes(landed) > 0, "Flink's first byte"), Usage.of(self._jvm.pid)))

        watching = threading.Thread(target=watch)
        watching.start()
        getattr(environment.executeSql("INSERT INTO files SELECT `value` FROM topic"), "await")()
        ended, after = time.monotonic(), Usage.of(self._jvm.pid)
        watching.join()
        wanted = records * (VALUE_BYTES + 1)
        if landed_bytes(landed) != wanted:
            raise RuntimeError(f"Flink's files have {landed_bytes(landed)} bytes instead of {wanted}")
        ((first, before),) = begun
        return Run(ended - first, after.cpu_seconds - before.cpu_seconds, after.peak_mb)

    def _environment(self) -> Any:
        """Return a table environment, an object of Java's."""
        configuration = self._jvm.api.org.apache.flink.configuration.Configuration()
        checkpoints = {"execution.checkpointing.dir": f"file://{self._directory}/checkpoints"}
        for key, value in {**_CONFIGURATION, **checkpoints}.items():
            configuration.setString(key, value)
        table = self._jvm.api.org.apache.flink.table.api
        settings = table.EnvironmentSettings.newInstance().inStreamingMode().withConfiguration(configuration).build()
        return table.TableEnvironment.create(settings)
