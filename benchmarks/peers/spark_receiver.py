"""Spark's JVM receiver with its write-ahead log: ``socketTextStream``, in Spark of the release that Forebay uses.

A thread of the process that drives Spark sends lines of 199 characters and a line feed from memory, so no Kafka client's work
counts here. No job reads the blocks; Spark asks for one row per batch, because a stream needs an output. Time counts from the
connection of the receiver to the end of the batch interval (250 ms) in which it had stored all records; processor time and memory
are those of the JVM.

``python -m benchmarks.peers.spark_receiver FOLDER`` answers each number of records on its input with the seconds, as JSON.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from benchmarks.peers.contender import Run, Usage
from benchmarks.setup import RECORD_BYTES

_BATCH_SECONDS = 0.25
_PATIENCE_SECONDS = 120.0
_LINES = 5_000


class SparkReceiver:
    name = "Spark: JVM receiver with WAL (socket)"
    durability = "WAL written and flushed to the page cache, not synced; values only; no Kafka offsets"

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __enter__(self) -> SparkReceiver:
        self._directory.mkdir(parents=True)
        command = [sys.executable, "-m", "benchmarks.peers.spark_receiver", str(self._directory)]
        environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
        with (self._directory / "spark.log").open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=environment, text=True
            )
        self._jvm_pid = int(self._line())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()  # the end of its input ends it

    def run(self, topic: str, records: int) -> Run:
        """Take in as many lines as ``topic`` has records; they do not come from it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{records}\n")
        self._process.stdin.flush()
        seconds, cpu_seconds = json.loads(self._line())
        return Run(seconds, cpu_seconds, Usage.of(self._jvm_pid).peak_mb)

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"Spark's receiver ended: {(self._directory / 'spark.log').read_text()[-3000:]}")
        return line


# ---- in a process of its own ---------------------------------------------------------------------------------------


class _Counting:
    """A streaming listener, called from the JVM: counts the records of completed batches."""

    def __init__(self, records: int) -> None:
        self._left = records
        self.ended_ms = 0
        self.done = threading.Event()

    def onBatchCompleted(self, completed: Any) -> None:  # noqa: N802 - Spark's name
        info = completed.batchInfo()
        self._left -= info.numRecords()
        if self._left <= 0 and not self.done.is_set():
            self.ended_ms = info.batchTime().milliseconds()
            self.done.set()

    def __getattr__(self, name: str) -> Any:
        """Spark's other events, which do not matter."""
        if name.startswith("on"):
            return lambda *_: None
        raise AttributeError(name)

    class Java:
        implements = ("org.apache.spark.streaming.api.java.PythonStreamingListener",)


def _send(server: socket.socket, records: int, began: list[tuple[float, float]], pid: int) -> socket.socket:
    line = (os.urandom(RECORD_BYTES).hex()[: RECORD_BYTES - 1] + "\n").encode()
    connection, _ = server.accept()
    began.append((time.time(), Usage.of(pid).cpu_seconds))
    for _ in range(records // _LINES):
        connection.sendall(line * _LINES)
    connection.sendall(line * (records % _LINES))
    return connection


def _receive(context: Any, folder: Path, records: int, pid: int) -> tuple[float, float]:
    from pyspark.streaming import StreamingContext

    streaming: Any = StreamingContext(context, cast(int, _BATCH_SECONDS))  # Spark takes fractions too
    streaming.checkpoint(str(folder))
    counting, began = _Counting(records), list[tuple[float, float]]()
    streaming.addStreamingListener(counting)
    with socket.create_server(("127.0.0.1", 0)) as server:
        lines = streaming.socketTextStream(*server.getsockname())
        lines._jdstream.dstream().print(0)
        kept: list[socket.socket] = []
        sending = threading.Thread(target=lambda: kept.append(_send(server, records, began, pid)))
        sending.start()
        streaming.start()
        if not counting.done.wait(_PATIENCE_SECONDS):
            raise RuntimeError(f"not all of {records} lines came within {_PATIENCE_SECONDS:.0f} s")
        ((begun, cpu_before),) = began
        cpu_seconds = Usage.of(pid).cpu_seconds - cpu_before
        streaming.stop(stopSparkContext=False)
        sending.join()
        for connection in kept:
            connection.close()
    return counting.ended_ms / 1000 - begun, cpu_seconds


def main(folder: Path) -> None:
    from pyspark import SparkConf, SparkContext

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the JVM prints each batch
    conf = SparkConf().setMaster("local[2]").setAppName("peer").set("spark.ui.enabled", "false")
    conf.set("spark.streaming.receiver.writeAheadLog.enable", "true").set("spark.driver.host", "127.0.0.1")
    context = SparkContext(conf=conf)
    context.setLogLevel("ERROR")
    gateway: Any = context._gateway
    pid = gateway.proc.pid
    print(pid, file=answers, flush=True)
    for number, line in enumerate(sys.stdin):
        print(json.dumps(_receive(context, folder / f"checkpoint-{number}", int(line), pid)), file=answers, flush=True)
    context.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
