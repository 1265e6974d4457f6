"""All workers of a run get one Kafka, which ends with the process that started it."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typing_extensions import Self

from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.errors import ForebayError, UnreachableError
from forebay.process.tether import tethered
from tests.support.booted import await_end
from tests.support.run_servers import RunBroker, RunServers, run_broker
from tests.support.wheel import ROOT

_OWNER = """
import sys, threading
from pathlib import Path
from tests.suite.test_run_servers import Sleeping
from tests.support.run_servers import RunServers, run_broker
servers = RunServers(Sleeping)
run_broker(servers.address, Path(sys.argv[1]))
print(Sleeping.made[0].pid, flush=True)
threading.Event().wait()
"""


class Sleeping(KafkaBroker):
    """A process in the place of Kafka."""

    made: list[Sleeping]

    def __init_subclass__(cls) -> None:
        cls.made = []

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.made.append(self)

    def start(self) -> Self:
        self._ports = (9_000 + len(self.made), 1)
        self._process = subprocess.Popen(tethered(["sleep", "600"]))
        return self


Sleeping.made = []


def test_all_workers_get_one_broker_that_ends_with_the_run(tmp_path: Path) -> None:
    class Made(Sleeping):
        pass

    servers = RunServers(Made)
    with ThreadPoolExecutor(4) as workers:
        found = set(workers.map(lambda n: run_broker(servers.address, tmp_path).address, range(8)))
    (broker,) = Made.made
    assert found == {"127.0.0.1:9001"} and broker.pid is not None
    servers.close()
    assert broker.pid is None and not servers._thread.is_alive()


def test_broker_that_fails_to_start_is_started_again_for_the_next_worker(tmp_path: Path) -> None:
    class Failing(Sleeping):
        def start(self) -> Self:
            if len(self.made) == 1:
                raise UnreachableError("no port is free")
            return super().start()

    servers = RunServers(Failing)
    with pytest.raises(ForebayError, match="no port is free"):
        run_broker(servers.address, tmp_path)
    assert run_broker(servers.address, tmp_path).address == "127.0.0.1:9002"
    servers.close()


def test_run_without_kafka_starts_none() -> None:
    class Made(Sleeping):
        pass

    RunServers(Made).close()
    assert Made.made == []


def test_worker_cannot_end_the_broker_of_the_run(tmp_path: Path) -> None:
    broker = RunBroker(tmp_path, "127.0.0.1:1")
    for act in (broker.start, broker.launch, broker.stop, broker.kill9):
        with pytest.raises(ForebayError, match="other processes use this broker too"):
            act()


def test_broker_ends_when_the_first_process_of_the_run_is_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        tethered([sys.executable, "-c", _OWNER, str(tmp_path)]), stdout=subprocess.PIPE, cwd=ROOT
    ) as owner:
        assert owner.stdout is not None
        broker = int(owner.stdout.readline())
        assert Path(f"/proc/{broker}").exists()
        owner.kill()
    await_end([broker])
