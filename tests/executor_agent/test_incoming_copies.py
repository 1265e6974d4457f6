"""Copies that an agent receives over HTTP: checked, bounded, stored as a whole or not at all, and served like any block."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
import urllib3

from executor_agent.main import Agent
from executor_agent.store import BlockStore
from forebay.messages import Refusal
from forebay.model.errors import OutOfSpaceError, RefusedError, UnreachableError
from forebay.process import failpoints
from forebay.process.clock import ManualClock
from tests.support.state.rows import block, filler
from tests.support.state.stored import Stored
from wal.blocks import cached_path, local_path, read_local
from wal.blocks.local_writing import local_frame
from wal.blocks.sending import give_copy, give_frame

# a server's thread leaves its loop's sockets to the collector
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture
def pool() -> Iterator[urllib3.PoolManager]:
    with urllib3.PoolManager(retries=False) as pool:
        yield pool


def body(number: int = 1, rows: int = 50) -> bytes:
    return b"".join(bytes(memoryview(part)) for part in local_frame(*block({("a", 0): filler(rows)}, sequence=number)))


def put(pool: urllib3.PoolManager, agent: Agent, block_id: str, data: bytes) -> tuple[int, str]:
    answer = pool.request("PUT", f"{agent.url}/v1/blocks/s/{block_id}", body=data)
    return answer.status, "" if answer.status == 200 else msgspec.json.decode(answer.data, type=Refusal).code


def left(stored: Stored) -> list[str]:
    return sorted(
        path.name for path in (stored.blocks_directory / "s").glob("*") if not path.name.startswith("driver-epoch")
    )


def until(condition: Callable[[], bool]) -> None:
    while not condition():
        threading.Event().wait(0.01)


@pytest.mark.parametrize("durable", [False, True])
def test_copy_is_stored_and_served_unchanged(
    agent: Agent, stored: Stored, pool: urllib3.PoolManager, durable: bool
) -> None:
    meta, payload = block({("a", 0): filler(8000, size=800)})
    for _ in range(2):  # repeatable
        give_frame(pool, agent.url, meta, local_frame(meta, payload), timeout_seconds=60, durable=durable, host="h1")
    assert left(stored) == [f"{meta.id}.copy"]
    assert read_local(cached_path(stored.blocks_directory, "s", meta.id)).meta == meta
    part = pool.request("GET", f"{agent.url}/v1/blocks/s/{meta.id}", headers={"range": "bytes=64-"})
    assert part.status == 206
    assert part.data == cached_path(stored.blocks_directory, "s", meta.id).read_bytes()[64:]
    usage = agent.store.usage()
    assert (usage.blocks, usage.copies) == (1, (f"s/{meta.id}",))
    assert agent.store.delete("s", meta.id)
    assert left(stored) == []


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda data: data[:-64], "short"),
        (lambda data: data[:200] + b"x" + data[201:], "metadata or payload"),
        (lambda data: data[:-100] + b"\x01\x02\x03" + data[-97:], "payload"),
        (lambda data: b"x" * 4096, "no frame"),
        (lambda data: data + bytes(64), "long"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_body_that_is_not_the_whole_block_is_refused_and_leaves_nothing(
    agent: Agent, stored: Stored, pool: urllib3.PoolManager, damage: object, message: str
) -> None:
    """INV-5: a damaged copy must not count as a copy of its block."""
    assert callable(damage)
    assert put(pool, agent, "r1-10000000001-1", damage(body())) == (400, "bad-request")
    assert left(stored) == []
    assert agent.store.usage().used_bytes == 0


@pytest.mark.parametrize("durable", [True, False])
def test_a_durable_copy_is_synced_before_it_has_its_name_and_its_name_before_it_counts(
    tmp_path: Path, durable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-1: without a WAL the receiver reports the block when the agent has answered, and a power loss may follow."""
    data, calls = body(), []
    fsync, rename = os.fsync, Path.rename

    def synced(descriptor: int) -> None:
        calls.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}"))))
        fsync(descriptor)

    def renamed(path: Path, target: Path) -> Path:
        calls.append(("rename", path))
        return rename(path, target)

    store = store_of(tmp_path, len(data) * 3)
    copy = store.receive("s", "r1-10000000001-1", len(data))
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "rename", renamed)
    try:
        copy.write(data)
        copy.keep(durable)
    finally:
        copy.close()
    folder = store.directory / "s"
    (temporary,) = [path for what, path in calls if what == "rename"]
    assert temporary.parent == folder and temporary.name.endswith(".tmp")
    named = [("rename", temporary)]
    device = store.directory.stat().st_dev
    above = [("sync", place) for place in reversed(store.directory.parents) if place.stat().st_dev == device]
    wanted = [("sync", temporary), *named, ("sync", folder), ("sync", store.directory), *above] if durable else named
    assert calls == wanted


def test_another_block_under_that_name_is_refused(agent: Agent, stored: Stored, pool: urllib3.PoolManager) -> None:
    assert put(pool, agent, "r1-10000000001-2", body(1)) == (400, "bad-request")
    assert left(stored) == []


@pytest.mark.parametrize("name", ["%2e%2e%2fx", "driver-epoch", "r1-1-1%00", "..", "x"])
def test_names_outside_the_directory_are_refused(
    agent: Agent, stored: Stored, pool: urllib3.PoolManager, name: str
) -> None:
    assert put(pool, agent, name, body())[0] in (400, 404, 405)
    assert left(stored) == []


def test_a_copy_of_another_stream_or_for_another_host_is_refused(
    agent: Agent, stored: Stored, pool: urllib3.PoolManager
) -> None:
    """INV-8: no driver would have the first one deleted. INV-1: the other one would not be where its report says."""
    assert pool.request("PUT", f"{agent.url}/v1/blocks/other/r1-1-1", body=body()).status == 400
    assert not (stored.blocks_directory / "other").exists()
    meta, payload = block({("a", 0): filler(50)})
    with pytest.raises(RefusedError, match="for host 'h2' came to host 'h1'"):
        give_frame(pool, agent.url, meta, local_frame(meta, payload), timeout_seconds=60, durable=True, host="h2")
    assert left(stored) == []


def test_timeout_holds_for_each_part_of_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent may be slow with a large copy, as long as it makes progress."""
    sent: list[bytes] = []

    def request(*_: object, body: Iterator[bytes], **__: object) -> urllib3.HTTPResponse:
        sent.extend(bytes(part) for part in body)
        return urllib3.HTTPResponse(io.BytesIO(b"{}"), status=200, preload_content=False)

    pool = urllib3.PoolManager()
    monkeypatch.setattr(pool, "request", request)
    meta, payload = block({("a", 0): filler(12_000, size=800)})
    give_copy(pool, "http://h2:1", meta, payload, timeout_seconds=1)
    assert b"".join(sent) == b"".join(bytes(memoryview(part)) for part in local_frame(meta, payload))
    assert max(map(len, sent)) <= 1 << 20 < len(b"".join(sent)) // 4


def test_answer_to_a_copy_does_not_decide_how_much_memory_is_allocated() -> None:
    """INV-6."""
    meta, payload = block({("a", 0): filler(2)})
    for length in (b"99999999999999", b"9" * 25):
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def answer(length: bytes = length, listener: socket.socket = listener) -> None:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65_536)
                    connection.sendall(b"HTTP/1.1 500 X\r\ncontent-length: " + length + b"\r\n\r\n{}")
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65_536):  # a reset would drop the answer
                        pass

            thread = threading.Thread(target=answer)
            thread.start()
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            with pytest.raises(UnreachableError):
                give_copy(urllib3.PoolManager(), url, meta, payload, timeout_seconds=60)
            thread.join()


def test_copy_without_a_valid_length_is_refused_unread(agent: Agent) -> None:
    host, _, port = agent.url.removeprefix("http://").partition(":")
    for header in (b"transfer-encoding: chunked", b"content-length: 0", b"content-length: 99999999999999"):
        with socket.create_connection((host, int(port)), 10) as connection:
            connection.sendall(b"PUT /v1/blocks/s/r1-1-1 HTTP/1.1\r\nhost: 127.0.0.1\r\n" + header + b"\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 400"), header


def test_copy_that_makes_no_progress_is_refused(stored: Stored) -> None:
    """INV-6."""
    settings = stored.settings()
    agent_settings = msgspec.structs.replace(settings.agent, idle_timeout=type(settings.agent.idle_timeout)(0.05))
    with Agent(msgspec.structs.replace(settings, agent=agent_settings)) as agent:
        host, _, port = agent.url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), 10) as connection:
            connection.sendall(
                b"PUT /v1/blocks/s/r1-1-1 HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 5000\r\n\r\nabc"
            )
            answer = connection.recv(1000)
        assert answer.startswith(b"HTTP/1.1 400"), answer
        assert left(stored) == []


def test_copy_of_a_sender_that_disconnects_leaves_nothing(agent: Agent, stored: Stored) -> None:
    host, _, port = agent.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), 10) as connection:
        connection.sendall(b"PUT /v1/blocks/s/r1-1-1 HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 5000000\r\n\r\n")
        connection.sendall(b"x" * 2_000_000)
        until(lambda: bool(left(stored)))
    until(lambda: agent.store.usage().used_bytes == 0)  # its room is released after its file is removed
    assert left(stored) == []


# ---- room ------------------------------------------------------------------------------------------------------------


def store_of(tmp_path: Path, quota: int, gives_up: bool = True) -> BlockStore:
    store = BlockStore(
        tmp_path / "blocks", quota_bytes=quota, clock=ManualClock(1_700_000_000_000), may_delete_copies=gives_up
    )
    store.open()
    return store


def give(store: BlockStore, number: int, data: bytes) -> None:
    copy = store.receive("s", f"r1-10000000001-{number}", len(data))
    try:
        copy.write(data)
        copy.keep(durable=False)
    finally:
        copy.close()


def held(store: BlockStore) -> set[str]:
    return {path.name.removeprefix("r1-10000000001-") for path in (store.directory / "s").iterdir()}


def test_oldest_cached_copies_are_deleted_for_new_ones_and_no_local_copy_is(tmp_path: Path) -> None:
    data = body()
    store = store_of(tmp_path, len(data) * 3 + 100)
    (store.directory / "s").mkdir()
    local_path(store.directory, "s", "r1-10000000001-9").write_bytes(data)
    for number in (1, 2):
        give(store, number, body(number))
        os.utime(cached_path(store.directory, "s", f"r1-10000000001-{number}"), (number, number))
    give(store, 3, body(3))
    assert held(store) == {"9.block", "2.copy", "3.copy"}
    give(store, 4, body(4))
    assert held(store) == {"9.block", "3.copy", "4.copy"}
    with pytest.raises(OutOfSpaceError, match="no room"):
        store.receive("s", "r1-10000000001-5", len(data) * 3)
    assert held(store) == {"9.block", "3.copy", "4.copy"}, "no copy is deleted for one that has no room anyway"


def test_lowered_quota_deletes_cached_copies_then_is_reported_to_the_driver(tmp_path: Path) -> None:
    """Only the driver's command deletes what a receiver wrote, because only the driver knows what the WAL holds."""
    data = body()
    store = store_of(tmp_path, len(data) * 9)
    for number in (1, 2):
        give(store, number, body(number))
        os.utime(cached_path(store.directory, "s", f"r1-10000000001-{number}"), (number, number))
    for number in (8, 9):
        local_path(store.directory, "s", f"r1-10000000001-{number}").write_bytes(data)
    lowered = store_of(tmp_path, len(data) * 3)
    assert (lowered.usage().short_bytes, held(lowered)) == (0, {"2.copy", "8.block", "9.block"})
    lowest = store_of(tmp_path, len(data))
    assert (lowest.usage().short_bytes, held(lowest)) == (len(data), {"8.block", "9.block"})
    without_wal = store_of(tmp_path, 1, gives_up=False)
    assert without_wal.usage().short_bytes == 2 * len(data) - 1


def test_without_a_wal_no_copy_is_deleted_for_another(tmp_path: Path) -> None:
    """INV-5: it may be the last copy of its block."""
    store = store_of(tmp_path, len(body()) + 100, gives_up=False)
    give(store, 1, body(1))
    with pytest.raises(OutOfSpaceError):
        store.receive("s", "r1-10000000001-2", len(body()))
    assert held(store) == {"1.copy"}


def test_room_for_a_copy_is_reserved_and_released_if_it_fails(tmp_path: Path) -> None:
    """INV-6: the quota holds while several copies arrive at the same time."""
    size = len(body())
    store = store_of(tmp_path, size * 2 - 1)
    coming = store.receive("s", "r1-10000000001-1", size)
    with pytest.raises(OutOfSpaceError):
        store.receive("s", "r1-10000000001-2", size)
    coming.close()
    give(store, 2, body(2))
    assert held(store) == {"2.copy"}


def test_sender_gets_an_error_when_the_quota_is_full(stored: Stored, pool: urllib3.PoolManager) -> None:
    settings = stored.settings()
    agent_settings = msgspec.structs.replace(settings.agent, quota=type(settings.agent.quota)(1000))
    with Agent(msgspec.structs.replace(settings, agent=agent_settings)) as agent:
        with pytest.raises(OutOfSpaceError, match="no room"):
            give_copy(pool, agent.url, *block({("a", 0): filler(50)}), timeout_seconds=60)
        assert left(stored) == []


@pytest.mark.parametrize(
    ("error", "raised"), [("ENOSPC", OutOfSpaceError), ("EIO", UnreachableError)], ids=["full", "broken"]
)
def test_sender_gets_an_error_when_the_disk_fails_and_nothing_is_left(
    agent: Agent, stored: Stored, pool: urllib3.PoolManager, error: str, raised: type[Exception]
) -> None:
    failpoints.arm(f"agent.before-copy-kept=error:{error}")
    try:
        with pytest.raises(raised, match="cannot write"):
            give_copy(pool, agent.url, *block({("a", 0): filler(50)}), timeout_seconds=60)
    finally:
        failpoints.arm("")
    assert left(stored) == []
    give_copy(pool, agent.url, *block({("a", 0): filler(50)}), timeout_seconds=60)


def test_sender_gets_an_error_when_no_agent_answers(pool: urllib3.PoolManager) -> None:
    with pytest.raises(UnreachableError, match=r"PUT http://127\.0\.0\.1:9/v1/blocks/s/"):
        give_copy(pool, "http://127.0.0.1:9", *block({("a", 0): filler(5)}), timeout_seconds=1)


# ---- killed ----------------------------------------------------------------------------------------------------------


def test_agent_killed_before_the_rename_leaves_no_part_of_a_copy(
    stored: Stored, pool: urllib3.PoolManager, tmp_path: Path
) -> None:
    code = (
        "import sys, msgspec; from executor_agent.main import run; from forebay.settings.reading.load import from_values\n"
        "sys.exit(run(from_values(msgspec.json.decode(sys.argv[1]))))\n"
    )
    raw = {
        "stream": "s",
        "kafka": {"topics": ["t"], "bootstrap.servers": "127.0.0.1:1"},
        "wal": {"url": stored.wal_url},
        "driver": {"journal": f"file://{stored.root}/journal", "url": "http://127.0.0.1:9"},
        "agent": {"blocks": str(stored.blocks_directory), "url": "http://127.0.0.1:0", "host": "h1"},
    }
    meta, payload = block({("a", 0): filler(50)})
    with subprocess.Popen(
        [sys.executable, "-c", code, msgspec.json.encode(raw).decode()],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore", "FOREBAY_FAILPOINTS": "agent.before-copy-kept=kill"},
    ) as process:
        assert process.stderr is not None
        ready = next(line for line in process.stderr if ": serves " in line)
        with pytest.raises(UnreachableError):
            give_copy(pool, ready.partition(" at ")[2].split()[0], meta, payload, timeout_seconds=60)
        assert process.wait(90) == -signal.SIGKILL
    (temporary,) = left(stored)
    assert temporary.startswith(f".{meta.id}.copy.") and temporary.endswith(".tmp")
    os.utime(stored.blocks_directory / "s" / temporary, (0, 0))
    with Agent(stored.settings()) as agent:
        assert left(stored) == []
        give_copy(pool, agent.url, meta, payload, timeout_seconds=60)
    with Agent(stored.settings()) as agent:
        assert agent.store.usage().copies == (f"s/{meta.id}",), "copies survive the agent"
