"""HDFS as a store, on a real NameNode and DataNode: what test_storage_contract.py beside it does not test for every store."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from hdfs_native import AsyncClient, AsyncFileWriter

from forebay.model.errors import OutOfSpaceError, StoreError
from tests.support.processes.child import exit_code_of_child
from tests.support.stores.hdfs import DATA_NODE, NAME_NODE, HdfsServer
from wal.segments.frame import Frame, FrameKind
from wal.segments.scan import scan_segment
from wal.segments.writer import LogWriter, SegmentIdentity, SegmentLimits
from wal.storage import hdfs, hdfs_connection
from wal.storage.hdfs import HdfsFolders, HdfsStorage

pytestmark = pytest.mark.hdfs

#: for tests of what fails
IMPATIENT = {"request_timeout": "1s", "retry_timeout": "2s"}
LATER_SECONDS = 1 << 42
_ROOT = str(Path(__file__).parents[3])
_numbers = itertools.count(1)


@pytest.fixture
def url(hdfs_server: HdfsServer) -> str:
    return f"{hdfs_server.url}/storage/{next(_numbers)}"


@pytest.fixture
def storage(url: str) -> HdfsStorage:
    return HdfsStorage(url)


@pytest.fixture
def whole_again(hdfs_server: HdfsServer) -> Iterator[None]:
    """Make both nodes serve again after the test."""
    yield
    for node in (NAME_NODE, DATA_NODE):
        hdfs_server.wake(node)
    hdfs_server.start()


def hidden(storage: HdfsStorage) -> list[str]:
    return [found.path for found in storage._walk("") if found.hidden]


# ---- durability -------------------------------------------------------------------------------------------


def test_what_was_written_is_there_after_kill_9_of_both_nodes(
    hdfs_server: HdfsServer, storage: HdfsStorage, whole_again: None
) -> None:
    """INV-1. The nodes die before they could flush anything by themselves."""
    data = os.urandom(300_000)
    storage.put_new("a/new", data)
    storage.replace("a/lease", b"first")
    storage.replace("a/lease", b"second")
    storage.delete("a/new-but-deleted")
    hdfs_server.kill9()
    hdfs_server.start()
    assert storage.read("a/new") == data
    assert storage.read("a/lease") == b"second"
    assert storage.list("") == ["a/lease", "a/new"]


def test_an_object_is_synced_and_closed_before_it_gets_its_name(
    storage: HdfsStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-1: a file that is only closed may be in the DataNode's page cache alone."""
    calls: list[str] = []
    for owner, name in ((AsyncFileWriter, "hsync"), (AsyncFileWriter, "close"), (AsyncClient, "rename")):
        monkeypatch.setattr(owner, name, _recording(calls, name, getattr(owner, name)))
    storage.put_new("a", b"x")
    assert [name for name, _ in itertools.groupby(calls)] == ["hsync", "close", "rename"]


def _recording(calls: list[str], name: str, real: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    async def call(*arguments: Any) -> Any:
        calls.append(name)
        return await real(*arguments)

    return call


def test_one_of_eight_racers_for_a_name_wins(url: str) -> None:
    """INV-4: the rename decides, not the creation of a file."""
    for round_number in range(10):
        won: list[int] = []
        ready = threading.Barrier(8)

        def race(
            number: int, path: str = f"epochs/{round_number}", won: list[int] = won, ready: threading.Barrier = ready
        ) -> None:
            storage = HdfsStorage(url, {"racer": str(number)})  # a client of its own each
            ready.wait()
            try:
                storage.put_new(path, b"%d" % number)
            except FileExistsError:
                return
            won.append(number)

        threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1, won
        assert HdfsStorage(url).read(f"epochs/{round_number}") == b"%d" % won[0]
    assert hidden(HdfsStorage(url)) == []


_KILLED_WRITER = """
import os, signal, sys
from wal.storage import hdfs

step, url = sys.argv[1:]
owner = hdfs.AsyncFileWriter if step in ("write", "hsync", "close") else hdfs.AsyncClient
real = getattr(owner, step)

async def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

async def do_and_die(*arguments):
    await real(*arguments)
    os.kill(os.getpid(), signal.SIGKILL)

setattr(owner, step, do_and_die if step in ("write", "hsync") else die)
hdfs.HdfsStorage(url).put_new("s/name", b"half" * 1000)
"""


@pytest.mark.parametrize("step", ["write", "hsync", "close", "rename"])
def test_killed_writer_leaves_no_partial_object_and_no_lease_to_wait_for(
    url: str, storage: HdfsStorage, step: str
) -> None:
    done = subprocess.run([sys.executable, "-c", _KILLED_WRITER, step, url], cwd=_ROOT, check=False, timeout=300)
    assert done.returncode == -signal.SIGKILL
    assert storage.list("") == []
    assert not storage.exists("s/name")
    (left,) = hidden(storage)
    storage.put_new("s/name", b"whole")
    assert storage.read("s/name") == b"whole"
    assert storage.left_over("", before_seconds=1) == []
    assert storage.left_over("", LATER_SECONDS) == [left]
    storage.remove_left_over(left)
    storage.remove_left_over(left)
    assert hidden(storage) == []
    assert storage.list("") == ["s/name"]
    with pytest.raises(ValueError, match="no temporary file"):
        storage.remove_left_over("s/name")


def test_a_log_on_hdfs_is_read_back_frame_by_frame(storage: HdfsStorage) -> None:
    writer = LogWriter(
        storage,
        lambda sequence: f"s/blocks/r/0000000100000001/{sequence:08}.seg",
        identity=SegmentIdentity("s", "r", (1 << 32) + 1, 1),
        limits=SegmentLimits(size_bytes=1 << 20, age_seconds=60.0),
        now=lambda: 1.0,
        new_uid=lambda: 7,
    )
    for number in range(3):
        writer.append(FrameKind.BLOCK, b"", b"%d" % number)
        (pending,) = writer.sync()
        handle = pending.handle
        assert handle is not None
        assert storage.read(handle.path, handle.offset, handle.length).endswith(b"%d" % number)
    payloads = []
    for path in storage.list(""):
        payloads += [bytes(found.payload) for found in scan_segment(storage, path) if isinstance(found, Frame)]
    assert payloads == [b"", b"0", b"", b"1", b"", b"2"]  # each after its segment's header


# ---- what fails ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("node", [NAME_NODE, DATA_NODE])
def test_a_write_and_a_read_outlive_a_restart_of_a_node(
    hdfs_server: HdfsServer, storage: HdfsStorage, whole_again: None, node: str
) -> None:
    storage.put_new("before", b"x" * 1000)
    hdfs_server.kill9(node)
    results: list[object] = []
    threads = [
        threading.Thread(target=lambda: results.append(storage.put_new("during", b"y" * 1000))),
        threading.Thread(target=lambda: results.append(storage.read("before"))),
        threading.Thread(target=lambda: results.append(storage.replace("lease", b"z"))),
    ]
    for thread in threads:
        thread.start()
    hdfs_server.start()
    for thread in threads:
        thread.join()
    assert len(results) == 3
    assert storage.read("during") == b"y" * 1000
    assert storage.read("lease") == b"z"


def test_a_node_that_hangs_is_an_error_of_the_store_in_bounded_time(
    hdfs_server: HdfsServer, url: str, whole_again: None
) -> None:
    """INV-6."""
    impatient = HdfsStorage(url, IMPATIENT)
    impatient.put_new("a", b"x")
    for node in (NAME_NODE, DATA_NODE):
        hdfs_server.pause(node)
        with pytest.raises(StoreError, match="can't be written: no answer within"):
            impatient.put_new("b", b"x")
        with pytest.raises(StoreError):
            impatient.read("a")
        hdfs_server.wake(node)
    assert HdfsStorage(url).read("a") == b"x"


def test_the_active_name_node_of_a_service_is_found_behind_one_that_ended_and_one_that_hangs(
    hdfs_server: HdfsServer, url: str
) -> None:
    """INV-6. Fail-overs of real NameNodes are in test_hdfs_failover.py."""
    _, _, folder = url.removeprefix("hdfs://").partition("/")
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        addresses = {"gone": "127.0.0.1:9", "hangs": f"127.0.0.1:{hangs.getsockname()[1]}"}
        addresses["active"] = hdfs_server.url.removeprefix("hdfs://")
        options = {f"dfs.namenode.rpc-address.service.{name}": address for name, address in addresses.items()}
        options |= {"dfs.ha.namenodes.service": ",".join(addresses), "request_timeout": "3s"}
        storage = HdfsStorage(f"hdfs://service/{folder}", options)
        storage.put_new("a", b"x")
        once = storage.tried_for(0.0)
        once.put_new("b", b"y")
    assert {path: HdfsStorage(url).read(path) for path in once.list("")} == {"a": b"x", "b": b"y"}


def test_error_names_the_unreachable_name_node() -> None:
    gone = HdfsStorage("hdfs://127.0.0.1:9/x", IMPATIENT)
    with pytest.raises(
        StoreError, match=r"^hdfs://127.0.0.1:9: the size of /x/a can't be read: Connection refused"
    ) as caught:
        gone.exists("a")
    assert "\n" not in str(caught.value)


class _LostAnswers:
    """The answer to the first rename is lost: ``landed``: whether the rename was done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, landed: bool) -> None:
        self.renames = 0
        real = AsyncClient.rename

        async def rename(*arguments: Any) -> None:
            self.renames += 1
            if self.renames > 1 or landed:
                await real(*arguments)
            if self.renames == 1:
                raise ConnectionResetError("injected")

        monkeypatch.setattr(AsyncClient, "rename", rename)


@pytest.mark.parametrize("landed", [True, False])
def test_a_rename_whose_answer_was_lost_is_resolved_by_reading_back(
    storage: HdfsStorage, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    lost = _LostAnswers(monkeypatch, landed)
    storage.put_new("a", b"ours")
    assert lost.renames == 2
    assert storage.read("a") == b"ours"
    monkeypatch.undo()
    storage.put_new("a", b"ours")  # equal bytes are the caller's own, also in a later call
    with pytest.raises(FileExistsError):
        storage.put_new("a", b"other")
    for path in storage.left_over("", LATER_SECONDS):
        storage.remove_left_over(path)


def test_name_taken_by_another_writer_is_refused_after_a_lost_answer(
    storage: HdfsStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-4."""
    storage.put_new("a", b"theirs")
    _LostAnswers(monkeypatch, landed=False)
    with pytest.raises(FileExistsError):
        storage.put_new("a", b"ours")
    assert storage.read("a") == b"theirs"


@pytest.mark.parametrize("error", [FileExistsError("injected"), FileNotFoundError("injected"), ConnectionResetError()])
def test_failure_of_the_temporary_file_is_not_reported_for_the_final_name(
    storage: HdfsStorage, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    real = AsyncClient.create
    errors = [error]

    async def create(*arguments: Any) -> Any:
        if errors:
            raise errors.pop()
        return await real(*arguments)

    monkeypatch.setattr(AsyncClient, "create", create)
    storage.put_new("a", b"x")
    assert storage.read("a") == b"x"


@pytest.mark.parametrize("cut_off_seconds", [0.0, 0.003, 0.03])
def test_close_cut_off_at_any_moment_loses_nothing(
    storage: HdfsStorage, monkeypatch: pytest.MonkeyPatch, cut_off_seconds: float
) -> None:
    monkeypatch.setattr(hdfs, "_CLOSE_SECONDS_MIN", cut_off_seconds)
    monkeypatch.setattr(hdfs, "_CLOSE_PER_SYNC", 0)
    monkeypatch.setattr(hdfs, "_CLOSE_SECONDS_MAX", 0.2)
    data = os.urandom(100_000)
    storage.put_new("a", data)
    assert storage.read("a") == data


def test_a_closed_file_of_another_length_is_not_believed(storage: HdfsStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may have taken the lease and ended the file earlier."""

    class Status:
        length = 1

    async def status(*_: Any) -> Status:
        return Status()

    real, asked = AsyncFileWriter.close, []

    async def close(writer: Any) -> None:
        asked.append(writer)
        if len(asked) == 1:
            raise asyncio.TimeoutError
        if len(asked) == 2:
            raise RuntimeError('RPCError("org.apache.hadoop.hdfs.server.namenode.LeaseExpiredException", "injected")')
        await real(writer)

    monkeypatch.setattr(AsyncFileWriter, "close", close)
    monkeypatch.setattr(AsyncClient, "get_file_info", status)
    with pytest.raises(StoreError, match="LeaseExpired"):
        storage.put_new("a", b"xyz")
    monkeypatch.undo()
    assert not storage.exists("a")


def test_file_is_not_put_into_a_folder_that_another_process_moved_away(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-4: before the put, and between its first byte and its end."""
    folders = HdfsFolders(url, IMPATIENT)
    folders.make_folder("work/a")
    folders.put("work/a/part", b"x")
    folders.move_folder("work/a", "work/b")
    with pytest.raises(FileNotFoundError):
        folders.put("work/a/part", b"x")
    with pytest.raises(FileNotFoundError):
        folders.move_folder("work/a", "work/c")
    folders.make_folder("work/c")
    with pytest.raises(FileExistsError):
        folders.move_folder("work/b", "work/c")
    real = AsyncFileWriter.close

    async def close(writer: AsyncFileWriter) -> None:
        other = AsyncClient(url)
        await other.delete(f"{HdfsStorage(url)._root}/work/c", True)
        await real(writer)

    monkeypatch.setattr(AsyncFileWriter, "close", close)
    with pytest.raises((FileNotFoundError, StoreError)):
        folders.put("work/c/part", b"x")
    monkeypatch.undo()
    assert folders.folders("work") == ["b"]
    assert folders.read("work/b/part") == b"x"


def test_quotas_are_lack_of_space_and_end_when_they_are_raised(
    hdfs_server: HdfsServer, url: str, storage: HdfsStorage
) -> None:
    storage.put_new("a", b"x")
    folder = url.removeprefix(hdfs_server.url)
    hdfs_server.admin("-setSpaceQuota", "3m", folder)
    storage.put_new("small", b"x" * 1000)  # charged with 1 MiB while it is written, not with 128
    with pytest.raises(OutOfSpaceError, match=f"{folder}/big can't be written: .*quota") as caught:
        storage.put_new("big", b"x" * (4 << 20))
    assert "\n" not in str(caught.value) and "\tat " not in str(caught.value)
    hdfs_server.admin("-clrSpaceQuota", folder)
    hdfs_server.admin("-setQuota", "3", folder)
    with pytest.raises(OutOfSpaceError):
        storage.put_new("big", b"x")
    with pytest.raises(OutOfSpaceError):
        storage.replace("big", b"x")
    hdfs_server.admin("-clrQuota", folder)
    storage.put_new("big", b"x" * (4 << 20))
    assert storage.list("") == ["a", "big", "small"]
    assert hidden(storage) == []


def test_safe_mode_is_waited_for_and_reading_goes_on(hdfs_server: HdfsServer, storage: HdfsStorage, url: str) -> None:
    storage.put_new("a", b"x")
    hdfs_server.admin("-safemode", "enter")
    try:
        assert storage.read("a") == b"x"
        with pytest.raises(StoreError, match="SafeModeException") as caught:
            HdfsStorage(url, {"retry_timeout": "2s"}).put_new("b", b"x")
        assert not isinstance(caught.value, OutOfSpaceError)
    finally:
        hdfs_server.admin("-safemode", "leave")
    storage.put_new("b", b"x")


def test_unreadable_folder_is_not_listed_as_empty(
    url: str, storage: HdfsStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-5."""
    storage.put_new("s/inner/a", b"x")
    _set_permission(url, "/s/inner", 0o700)
    monkeypatch.setenv("HADOOP_USER_NAME", "nobody-in-particular")
    other = HdfsStorage(url, {"user": "of its own client", **IMPATIENT})
    for prefix in ("", "s", "s/inner"):
        with pytest.raises(StoreError, match="can't be listed: AccessControlException: Permission denied"):
            other.list(prefix)
    with pytest.raises(StoreError, match="Permission denied"):
        other.read("s/inner/a")
    with pytest.raises(StoreError, match="Permission denied"):
        other.exists("s/inner/a")


def _set_permission(url: str, path: str, permission: int) -> None:
    """With a client that is kept: closing a client waits for its threads, which may wait for the interpreter."""
    _, _, place = url.removeprefix("hdfs://").partition("/")
    connection = hdfs_connection.connection(url.removesuffix(f"/{place}"), {})
    connection.run(lambda client: client.set_permission(f"/{place}{path}", permission), 30.0)


def test_file_with_a_folders_name_is_not_a_taken_name(storage: HdfsStorage) -> None:
    storage.put_new("s/a", b"x")
    with pytest.raises(StoreError, match="not a directory"):
        storage.put_new("s/a/b", b"")
    assert storage.list("s/a") == []
    with pytest.raises(FileNotFoundError):
        storage.read("s/a/b")


# ---- one process, its children, its settings -------------------------------------------------------------------------


def test_a_forked_child_has_a_client_of_its_own(url: str) -> None:
    """An inherited client hangs: its threads do not exist in the child, and its connections are the parent's."""
    storage = HdfsStorage(url)
    one_attempt = HdfsStorage(url, {"request_timeout": "10s", "retry_timeout": "0ms"})
    storage.put_new("a", b"x")

    def work() -> int:
        same = one_attempt.read("a") == b"x"
        storage.replace("b", b"y")
        return 0 if same and storage.read("b") == b"y" else 1

    assert one_attempt.read("a") == b"x"
    assert exit_code_of_child(work) == 0
    assert one_attempt.read("a") == b"x"
    with hdfs_connection._connecting:  # by a thread that the child does not have
        assert exit_code_of_child(work) == 0
    assert storage.read("b") == b"y"


def test_requests_and_bytes_are_counted(storage: HdfsStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[str] = []
    plain = storage._write_temporary

    def write(*given: Any, **options: Any) -> str:
        tries.append("refused")  # HDFS may be slow for a moment; the file is then written again
        path = plain(*given, **options)
        tries[-1] = "written"
        return path

    monkeypatch.setattr(storage, "_write_temporary", write)
    storage.put_new("a", b"x" * 10)
    storage.read("a", 2, 5)
    storage.exists("b")
    storage.list("")
    storage.delete("a")
    assert tries.count("written") == 1
    sent = {"put": len(tries), "bytes_out": 10 * len(tries)}
    assert storage.requests == {**sent, "get": 1, "head": 1, "list": 1, "delete": 1, "bytes_in": 5}
