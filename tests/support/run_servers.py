"""The server that all processes of a run share: Kafka.

The first process of the run starts it at the first request of a worker, and ends it after the run. If that process is killed, the
kernel ends the server. The end of a worker does not affect the server. Each run has its own address, so it never uses the server
of an earlier run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import NoReturn

import pytest
from xdist.workermanage import WorkerController

from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.errors import ForebayError
from tests.support.shares import WORKERS_MAX

_ADDRESS = "run_servers"


class RunServers:
    """The plug-in of the first process of a run with workers. ``broker``: makes the Kafka of the run, in a folder."""

    def __init__(self, broker: Callable[[Path], KafkaBroker] = KafkaBroker) -> None:
        self._make = broker
        self._listener = Listener(family="AF_UNIX", backlog=WORKERS_MAX)
        self.address = str(self._listener.address)
        # the kernel ends the broker with the thread that started it
        self._thread = threading.Thread(target=self._serve, name="servers of the run", daemon=True)
        self._thread.start()

    def pytest_configure_node(self, node: WorkerController) -> None:
        node.workerinput[_ADDRESS] = self.address

    def pytest_unconfigure(self) -> None:
        self.close()

    def close(self) -> None:
        """End the broker, if one was started. Returns when it has ended."""
        with Client(self.address) as last:
            last.send(None)
        self._thread.join()

    def _serve(self) -> None:
        broker: KafkaBroker | None = None
        with self._listener:
            while True:
                with self._listener.accept() as asking:
                    folder: str | None = asking.recv()
                    if folder is None:
                        break
                    try:
                        broker = broker or self._make(Path(folder)).start()
                        asking.send(("", broker.address))
                    except ForebayError as error:
                        asking.send((str(error), ""))
        if broker is not None:
            broker.kill9()  # nothing needs its data


class RunBroker(KafkaBroker):
    """The run's Kafka as a worker sees it, which can neither start nor end it."""

    def __init__(self, folder: Path, address: str) -> None:
        super().__init__(folder)
        self._address = address

    @property
    def address(self) -> str:
        return self._address

    def launch(self) -> NoReturn:
        raise ForebayError("other processes use this broker too: take own_kafka_broker")

    def stop(self) -> NoReturn:
        self.launch()

    def kill9(self) -> NoReturn:
        self.launch()


def address_in(config: pytest.Config) -> str | None:
    """Return the address of the run's :class:`RunServers` in a worker, None in a run without workers."""
    found: str | None = getattr(config, "workerinput", {}).get(_ADDRESS)
    return found


def run_broker(address: str, folder: Path) -> RunBroker:
    """Return the run's Kafka, which starts in ``folder`` if this is the first request. Raises ForebayError if it can't start."""
    with Client(address) as asked:
        asked.send(str(folder))
        error, found = asked.recv()
    if error:
        raise ForebayError(error)
    return RunBroker(folder, found)
