"""HDFS with two NameNodes as a store: one that fails in the middle of writing is replaced, and nothing is lost."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forebay.model.errors import StoreError
from tests.conftest import missing
from tests.support.stores.hdfs import NAME_NODE, require_hdfs
from tests.support.stores.hdfs_pair import SECOND_NAME_NODE, SERVICE, HdfsPair
from wal.storage import hdfs_connection
from wal.storage.hdfs import HdfsStorage

_WRITERS = 3
_PATIENCE_SECONDS = 120.0


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsPair]:
    require_hdfs(missing)
    with HdfsPair(tmp_path_factory.mktemp("hdfs-pair")) as pair:
        yield pair


class Writers:
    """Threads that each write new objects, replace one, and read both back, until they are stopped."""

    def __init__(self, storage: HdfsStorage) -> None:
        self.written: dict[str, bytes] = {}
        self.errors: list[Exception] = []
        self._storage = storage
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self._counts = [0] * _WRITERS
        self._threads = [threading.Thread(target=self._write, args=(number,)) for number in range(_WRITERS)]
        for thread in self._threads:
            thread.start()

    def await_more(self, count: int = 3) -> None:
        """Wait until each writer has written that many more objects."""
        with self._changed:
            targets = [done + count for done in self._counts]

            def reached() -> bool:
                return bool(self.errors) or all(map(int.__ge__, self._counts, targets))

            assert self._changed.wait_for(reached, _PATIENCE_SECONDS), f"{self._counts} written, not {targets}"
        assert not self.errors, self.errors

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _write(self, number: int) -> None:
        try:
            for count in itertools.count():
                if self._stopping.is_set():
                    return
                data = os.urandom(1000 * (number + 1))
                path, lease = f"log/{number}/{count:06}", f"lease/{number}"
                self._storage.put_new(path, data)
                self._storage.replace(lease, data)
                assert self._storage.read(lease) == self._storage.read(path) == data
                with self._changed:
                    self.written |= {path: data, lease: data}
                    self._counts[number] += 1
                    self._changed.notify_all()
        except Exception as error:
            with self._changed:
                self.errors.append(error)
                self._changed.notify_all()


@pytest.mark.hdfs
@pytest.mark.long
def test_name_node_that_crashes_or_hangs_in_the_middle_of_writing_costs_nothing(pair: HdfsPair) -> None:
    """INV-1, INV-4, INV-6. A NameNode that hangs accepts connections and answers nothing, as one whose host lost its power."""
    storage = HdfsStorage(f"{pair.url}/failover", {**pair.options, "request_timeout": "2s", "retry_timeout": "100s"})
    writers = Writers(storage)
    try:
        writers.await_more()
        pair.kill9(NAME_NODE)
        impatient = HdfsStorage(storage.url, {**pair.options, "retry_timeout": "0ms"})
        with pytest.raises(
            StoreError, match=rf"^hdfs://{SERVICE}: /failover/x can't be written: (Standby|Connection refused)"
        ):
            impatient.put_new("x", b"while none is active")
        pair.activate(SECOND_NAME_NODE)
        pair.start(NAME_NODE)
        writers.await_more()
        pair.pause(SECOND_NAME_NODE)
        pair.activate(NAME_NODE)
        writers.await_more()
        pair.kill9(SECOND_NAME_NODE)
        writers.await_more()
    finally:
        writers.stop()
        pair.kill9(SECOND_NAME_NODE)
    assert not writers.errors, writers.errors
    assert {path: storage.read(path) for path in storage.list("")} == writers.written


# ---- which NameNode is asked -----------------------------------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The settings of each client that is opened."""
    found: list[dict[str, str]] = []

    class Client:
        def __init__(self, authority: str, settings: dict[str, str]) -> None:
            found.append(settings)

    monkeypatch.setattr(hdfs_connection, "AsyncClient", Client)
    return found


def _time_out(connection: hdfs_connection.HdfsConnection) -> None:
    async def hang(_: Any) -> None:
        await asyncio.Event().wait()

    with pytest.raises(asyncio.TimeoutError):
        connection.run(hang, 0.0)


def _answer(connection: hdfs_connection.HdfsConnection) -> object:
    async def client(client: Any) -> object:
        return client

    return connection.run(client, 10.0)


def test_requests_after_a_time_out_begin_with_the_next_name_node(
    opened: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The names are those of Hadoop's files if the options have none. Observers are not asked: their answers may be old."""
    names = "<name>dfs.ha.namenodes.here</name><value>a, b,c</value>"
    (tmp_path / "hdfs-site.xml").write_text(f"<configuration><property>{names}</property></configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    connection = hdfs_connection.HdfsConnection("hdfs://here", {"x": "y", "dfs.client.failover.max.attempts": "15"})
    first = _answer(connection)
    for _ in range(2):
        _time_out(connection)
    assert _answer(connection) is not first
    _time_out(connection)
    assert _answer(connection) is first, "clients are kept"
    expected = {"dfs.client.failover.max.attempts": "0", "x": "y"}
    provider = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
    named = {"dfs.client.failover.proxy.provider.here": provider}
    assert opened == [{**expected, **named, "dfs.ha.namenodes.here": name} for name in "abc"]


STANDBY = RuntimeError(
    'RPCError("org.apache.hadoop.ipc.StandbyException", "Operation category WRITE is not supported")'
)


@pytest.mark.parametrize(
    ("error", "others_asked"),
    [
        (STANDBY, True),
        (OSError("Connection refused (os error 111)"), True),
        (OSError("Connection reset by peer (os error 104)"), False),  # it may have carried the request out
        (FileExistsError("/a"), False),
        (RuntimeError('RPCError("org.apache.hadoop.security.AccessControlException", "Permission denied")'), False),
    ],
)
def test_request_goes_to_another_name_node_only_if_the_first_has_not_taken_it(
    opened: list[dict[str, str]], error: Exception, others_asked: bool
) -> None:
    connection = hdfs_connection.HdfsConnection("hdfs://here", {"dfs.ha.namenodes.here": "a,b"})
    asked: list[object] = []

    async def refuse(client: object) -> None:
        asked.append(client)
        if len(asked) == 1 or client is asked[0]:
            raise error

    if others_asked:
        connection.run(refuse, 10.0)
        assert len(asked) == len(set(map(id, asked))) == 2
        assert _answer(connection) is asked[1], "it is asked first from now on"
    else:
        with pytest.raises(type(error)):
            connection.run(refuse, 10.0)
        assert len(asked) == 1


def test_error_of_a_service_without_an_active_name_node_is_that_of_the_last(opened: list[dict[str, str]]) -> None:
    connection = hdfs_connection.HdfsConnection("hdfs://here", {"dfs.ha.namenodes.here": "a,b,c"})
    asked: list[object] = []

    async def refuse(client: object) -> None:
        asked.append(client)
        raise STANDBY

    with pytest.raises(RuntimeError, match="StandbyException"):
        connection.run(refuse, 10.0)
    assert len(set(map(id, asked))) == 3


@pytest.mark.parametrize(("authority", "attempts"), [("hdfs://name-node:8020", "0"), ("hdfs://unknown", "1")])
def test_a_single_name_node_is_asked_again_after_a_time_out(
    opened: list[dict[str, str]], authority: str, attempts: str
) -> None:
    connection = hdfs_connection.HdfsConnection(authority, {})
    first = _answer(connection)
    _time_out(connection)
    assert _answer(connection) is first
    assert opened == [{"dfs.client.failover.max.attempts": attempts}]
