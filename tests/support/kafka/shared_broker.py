"""One Apache Kafka for all processes of a test run, since an idle one takes processor time too.

The first process of the run keeps it, and the others ask for its address by a socket. The first question starts it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import NoReturn

import pytest
from confluent_kafka.admin import AdminClient

from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.errors import ForebayError
from tests.support.run.shares import WORKERS_MAX

#: the variable with the path of the socket
VARIABLE = "TESTS_BROKER"
_CLOSE = b""
#: of the folder, before the id of the process that keeps it
_PREFIX = "forebay-broker-"
_MEMORY = "/dev/shm"
#: several times what the topics of a run take
_MEMORY_BYTES = 8 << 30
_PATIENCE_SECONDS = 30.0
#: names by the fixture ``topic_name``, and names by a random UUID
_OF_ONE_TEST = re.compile(r"-\d+-\d+|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class FoundBroker(KafkaBroker):
    """The broker of another process: a test makes topics in it, but can't start or stop it."""

    def __init__(self, address: str) -> None:
        super().__init__(tempfile.gettempdir())
        self._address = address

    @property
    def address(self) -> str:
        return self._address

    def _refuse(self) -> NoReturn:
        raise ForebayError("all processes of the run use this broker: take own_kafka_broker to start, stop or kill one")

    launch = stop = kill9 = _refuse


def find() -> KafkaBroker | None:
    """Return the broker of the run; None if no other process keeps one. Raises ForebayError if it could not be started."""
    if VARIABLE not in os.environ:
        return None
    with Client(os.environ[VARIABLE], family="AF_UNIX") as asking:
        asking.send_bytes(b"where")
        address, _, error = asking.recv_bytes().decode().partition("\n")
    if error:
        raise ForebayError(error)
    return FoundBroker(address)


class Keeper:
    """The plug-in of the first process. ``start`` makes the broker, in a folder."""

    def __init__(self, start: Callable[[Path], KafkaBroker]) -> None:
        self._start = start
        self._folder = tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-", dir=_parent())
        self.path = str(Path(self._folder.name) / "socket")
        self._listener = Listener(self.path, family="AF_UNIX", backlog=WORKERS_MAX)
        self._broker: KafkaBroker | None = None
        self._of_many: list[str] = []
        # the kernel kills the broker when the thread that started it ends
        self._thread = threading.Thread(target=self._serve, name="tests-broker", daemon=True)
        self._thread.start()
        os.environ[VARIABLE] = self.path

    def _serve(self) -> None:
        while True:
            with self._listener.accept() as asking:
                try:
                    if asking.recv_bytes() == _CLOSE:
                        return
                    asking.send_bytes(self._answer().encode())
                except (EOFError, OSError):  # who asked was killed
                    continue

    def _answer(self) -> str:
        try:
            if self._broker is None:
                self._broker = self._start(Path(self._folder.name) / "kafka")
        except ForebayError as error:
            return f"\n{error}"
        return self._broker.address

    @pytest.hookimpl(trylast=True)  # the other processes have ended then
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Ends the broker. Consumer groups that two tests may have used at the same time fail the run."""
        try:
            if self._broker is not None:
                self._of_many = of_many(groups_of(self._broker))
                if self._of_many:
                    session.exitstatus = pytest.ExitCode.TESTS_FAILED
        finally:
            self.close()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._of_many:
            terminalreporter.section("consumer groups that are not of one test")
            terminalreporter.line(f"name them by the fixture topic_name: {', '.join(self._of_many)}")

    def close(self) -> None:
        os.environ.pop(VARIABLE, None)
        with Client(self.path, family="AF_UNIX") as asking:
            asking.send_bytes(_CLOSE)
        self._thread.join()
        if self._broker is not None:
            self._broker.kill9()  # nothing needs its data
        self._listener.close()
        self._folder.cleanup()


def _parent() -> str | None:
    """Return the folder in memory, or None without one that has room. On a disk, most of the work for a run's thousands of
    partitions is the creation of their files."""
    with contextlib.suppress(OSError):
        _remove_of_killed_runs(Path(_MEMORY))
        if shutil.disk_usage(_MEMORY).free >= _MEMORY_BYTES:
            return _MEMORY
    return None


def _remove_of_killed_runs(parent: Path) -> None:
    """A run that is killed leaves its folder, which would take memory until the machine restarts."""
    for folder in parent.glob(f"{_PREFIX}*"):
        if not Path("/proc", folder.name.removeprefix(_PREFIX).partition("-")[0]).exists():
            shutil.rmtree(folder, ignore_errors=True)


def of_many(groups: Iterable[str]) -> list[str]:
    """Return those of ``groups`` that have neither the number of a process nor a UUID in their name."""
    return sorted(group for group in groups if not _OF_ONE_TEST.search(group))


def groups_of(broker: KafkaBroker) -> list[str]:
    client = AdminClient({**broker.options})  # kept until the answer is here: without its client, the answer is empty
    listed = client.list_consumer_groups(request_timeout=_PATIENCE_SECONDS).result()
    return [group.group_id for group in listed.valid]
