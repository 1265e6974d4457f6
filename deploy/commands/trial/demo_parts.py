"""The parts of ``forebay demo``: a broker process, the loader of the data set, and the project that the services run."""

from __future__ import annotations

import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.commands.trial.demo_check import PARTITIONS, TOPIC, Expected
from deploy.examples.flights import jobs
from forebay.model.errors import ForebayError, UnreachableError
from forebay.process.tether import tethered
from forebay.settings.schema import Settings

RECEIVERS = 2

#: (share of all records, child that is killed when this share is taken in)
KILLS = ((0.2, "receiver-1"), (0.5, "driver"))

#: records loaded per second, slow enough that data still flows when killed services have started again
LOAD_RATE = 10_000
#: maximum distance of the loader from the group in a partition; the mock broker deletes records after 5 MB
AHEAD_RECORDS = 15_000
LOOK_SECONDS = 0.5
LIMIT_SECONDS = 600.0

_CONFIGURATION = """\
# Written by `forebay demo`: the configuration of all its services.
stream = "flights"

[kafka]
topics = ["{topic}"]
"bootstrap.servers" = "{broker}"
"session.timeout.ms" = 6000           # after this time the group assigns a killed receiver's partitions again
"heartbeat.interval.ms" = 1500

[wal]
url = "file://{folder}/wal"

[receiver]
count = {receivers}
host = "demo"

[driver]
url = "http://127.0.0.1:{driver_port}"
journal = "file://{folder}/journal"
batch_interval = "1s"
job = "jobs:process"

[agent]
url = "http://127.0.0.1:{agent_port}"
blocks = "{folder}/blocks"
host = "demo"

[spark]
"spark.master" = "local[2]"
"spark.sql.shuffle.partitions" = 2
"spark.ui.enabled" = false
"spark.ui.showConsoleProgress" = false
"spark.driver.memory" = "1g"
"""


@contextmanager
def broker_process(kind: str, folder: Path) -> Iterator[str]:
    """Run a broker in its own process while open; yields its address. Raises UnreachableError if it does not start."""
    command = [sys.executable, "-m", "forebay_start", "broker", "--kind", kind, "--topic", f"{TOPIC}:{PARTITIONS}"]
    command += ["--data", str(folder / "kafka"), "--port", "0"]
    with (folder / "logs" / "broker.log").open("ab") as log:
        process = subprocess.Popen(
            # it gets SIGTERM when this process dies, so that it stops a Kafka broker that it runs
            tethered(command, signal.SIGTERM),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().decode().strip()
        if not address:
            log_text = (folder / "logs" / "broker.log").read_text(errors="replace").strip().removeprefix("forebay: ")
            raise UnreachableError(f"the broker did not start: {log_text[-2000:]}")
        yield address
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


class Loader:
    """Loads the data set in its own thread, at LOAD_RATE and at most AHEAD_RECORDS ahead of the group."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._stopping = threading.Event()
        self._began = 0.0
        self._thread = threading.Thread(target=self._run, name="loader", daemon=True)
        self.expected = Expected()
        self.loaded = 0
        self.ends: dict[int, int] = {}
        self.done = False
        self.failure: Exception | None = None

    @property
    def started(self) -> bool:
        return self._thread.ident is not None

    def start(self) -> None:
        self._began = time.monotonic()
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        from forebay.kafka.embedded.loader import Pace, flights, load

        try:
            done = load(
                self._settings.kafka.options,
                TOPIC,
                self.expected.counting(flights()),
                pace=Pace(self._settings.group, AHEAD_RECORDS),
                progress=self._progressed,
            )
        except Exception as error:  # raised again by the watching thread
            self.failure = error
            return
        self.ends = dict(done.ends)
        self.done = True

    def _progressed(self, count: int) -> None:
        self.loaded = count
        ahead_seconds = self._began + count / LOAD_RATE - time.monotonic()
        if self._stopping.wait(max(0.0, ahead_seconds)):
            raise ForebayError("loading was stopped")


def write_project(folder: Path, broker: str) -> Path:
    """Write the configuration and the job into ``folder``, and return the path of the configuration."""
    driver_port, agent_port = free_ports(2)
    shutil.copy(jobs.__file__, folder / "jobs.py")
    path = folder / "forebay.toml"
    path.write_text(
        _CONFIGURATION.format(
            topic=TOPIC,
            broker=broker,
            folder=folder,
            receivers=RECEIVERS,
            driver_port=driver_port,
            agent_port=agent_port,
        )
    )
    return path


def free_ports(count: int) -> list[int]:
    """Return free loopback ports below the range of outgoing connections, so that no client takes one during a restart."""
    found: list[int] = []
    for port in random.sample(range(20_000, 32_000), 1000):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise ForebayError("no free port on loopback")
