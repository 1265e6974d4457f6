"""Serving of blocks: sent by the kernel with a fixed cost for each reader, and finished when the agent stops."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from executor_agent.main import Agent
from forebay.http import sendfile
from forebay.messages import AgentHeartbeatRequest
from forebay.settings.schema import Settings
from tests.executor_agent.fake_driver import FakeDriver
from tests.support.state.stored import Stored
from wal.blocks import local_path

# a server's thread leaves its loop's sockets to the collector
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

#: much more than the buffers of a loopback connection hold
SIZE = 32 << 20
NAME = "r1-10000000001-1"


@pytest.fixture
def data(stored: Stored) -> bytes:
    """A file under a block's name. It is written after the agent's start, where the agent would set it aside."""
    return os.urandom(1 << 20) * (SIZE >> 20)


def place(stored: Stored, data: bytes) -> Path:
    path = local_path(stored.blocks_directory, "s", NAME)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


def with_agent(settings: Settings, **changes: float) -> Settings:
    made = {name: type(getattr(settings.agent, name))(value) for name, value in changes.items()}
    return msgspec.structs.replace(settings, agent=msgspec.structs.replace(settings.agent, **made))


@pytest.fixture
def agent(stored: Stored, data: bytes) -> Iterator[Agent]:
    with Agent(stored.settings()) as agent:
        place(stored, data)
        yield agent


class Reader:
    """A connection that requested the block and has read only the head of the answer."""

    def __init__(self, agent: Agent, byte_range: str = "") -> None:
        host, _, port = agent.url.removeprefix("http://").partition(":")
        self.connection = socket.create_connection((host, int(port)), 10)
        self.ask(byte_range)

    def ask(self, byte_range: str = "") -> None:
        line = f"range: bytes={byte_range}\r\n" if byte_range else ""
        self.connection.sendall(f"GET /v1/blocks/s/{NAME} HTTP/1.1\r\nhost: 127.0.0.1\r\n{line}\r\n".encode())
        self.read_head()

    def read_head(self) -> None:
        head = bytearray()
        while not head.endswith(b"\r\n\r\n"):
            byte = self.connection.recv(1)
            assert byte, head
            head += byte
        self.head = head.decode()
        self.length = int(self.head.lower().partition("content-length: ")[2].partition("\r\n")[0])

    def rest(self) -> bytes:
        """Return the body, up to its length or to where the connection broke."""
        body = bytearray()
        while len(body) < self.length:
            try:
                part = self.connection.recv(min(1 << 20, self.length - len(body)))
            except ConnectionError:
                break
            if not part:
                break
            body += part
        return bytes(body)

    def close(self) -> None:
        self.connection.close()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def until(condition: Callable[[], bool]) -> None:
    while not condition():
        threading.Event().wait(0.01)


def test_one_connection_gets_one_block_after_another(agent: Agent, data: bytes) -> None:
    """The kernel's bytes come neither before the head of their answer nor after the head of the next one."""
    reader = Reader(agent)
    assert reader.rest() == data
    for start, end in ((5, 1000), (SIZE - 3_000_000, SIZE - 1), (0, 0)):
        reader.ask(f"{start}-{end}")
        assert " 206 " in reader.head.partition("\r\n")[0]
        assert reader.rest() == data[start : end + 1]
    reader.connection.sendall(f"GET /v1/blocks/s/{NAME} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode() * 2)
    for _ in range(2):
        reader.read_head()
        assert reader.rest() == data
    reader.close()


def test_a_file_does_not_overtake_the_head_that_the_connection_has_not_taken_yet(tmp_path: Path) -> None:
    """Simulated: whether a real connection is full at that moment depends on chance."""
    ours, readers = socket.socketpair()
    ours.setblocking(False)
    readers.setblocking(False)
    sent = asyncio.Event()

    class Full:
        """A transport that holds the head back, and reports it when its buffer limit is set to 0."""

        def set_write_buffer_limits(self, high: int | None = None) -> None:
            if high == 0:
                protocol.flow.pause_writing()

        def is_closing(self) -> bool:
            return False

        def get_extra_info(self, _: str) -> socket.socket:
            return ours

    class Cycle:
        disconnected = False
        expected_content_length = 4

        async def send(self, _: object) -> None:
            sent.set()

    protocol = sendfile.Protocol.__new__(sendfile.Protocol)
    senders = sendfile.Senders(30.0)
    protocol.transport = cast("Any", Full())
    protocol.flow = FlowControl(protocol.transport)
    protocol._senders = senders
    (tmp_path / "file").write_bytes(b"body")

    async def play() -> bytes:
        with (tmp_path / "file").open("rb") as file:
            sending = asyncio.create_task(protocol._send_file(Cycle(), file.fileno(), 0, 4))
            while not protocol.flow.write_paused:
                assert not sending.done(), "the body was sent before the head"
                await asyncio.sleep(0)
            assert not select.select([readers], [], [], 0)[0]
            protocol.flow.resume_writing()
            await sending
        assert sent.is_set()
        return readers.recv(10)

    with ours, readers:
        assert asyncio.run(play()) == b"body"
    senders.close()


def test_same_bytes_arrive_without_sendfile(agent: Agent, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """With TLS the bytes pass through this process."""
    monkeypatch.setattr("uvicorn.protocols.http.httptools_impl.is_ssl", lambda _: True)
    monkeypatch.setattr(os, "sendfile", None)
    reader = Reader(agent, "7-")
    assert reader.rest() == data[7:]
    reader.close()


def test_64_readers_cost_no_more_than_a_fixed_buffer_each(agent: Agent, data: bytes) -> None:
    """INV-6: none of them reads on, so all answers are in progress at the same time."""
    warm = Reader(agent)
    warm.rest()
    before = resident_bytes()
    readers = [Reader(agent) for _ in range(64)]
    until(lambda: agent.status().requests == 64)
    grown = resident_bytes() - before
    assert grown < 64 * sendfile.CHUNK_BYTES, f"{grown / 64 / 1024:.0f} KiB each"
    assert readers[-1].rest() == data
    for reader in (*readers, warm):
        reader.close()


def test_a_deleted_block_is_served_to_its_end(agent: Agent, data: bytes) -> None:
    reader = Reader(agent)
    assert agent.store.delete("s", NAME)
    assert reader.rest() == data
    reader.close()


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), None], ids=["EIO", "cut short"])
def test_block_that_cannot_be_read_to_its_end_breaks_the_connection(
    agent: Agent, stored: Stored, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Any
) -> None:
    """INV-5: the reader gets fewer bytes than the header says, and goes on to the next tier."""
    real = os.sendfile

    def failing(connection: int, file: int, offset: int, count: int) -> int:
        if offset >= 1 << 20:
            if error is not None:
                raise error
            return 0
        return real(connection, file, offset, min(count, 1 << 20))

    monkeypatch.setattr(os, "sendfile", failing)
    reader = Reader(agent)
    assert len(reader.rest()) < SIZE
    reader.close()
    until(lambda: f"sending block s/{NAME} ended before its end" in caplog.text)
    assert "Traceback" not in caplog.text


def test_block_that_cannot_be_opened_is_refused(agent: Agent, stored: Stored) -> None:
    path = local_path(stored.blocks_directory, "s", NAME)
    path.unlink()
    path.symlink_to(path.name)  # a loop of links, which the kernel refuses to open
    reader = Reader(agent)
    assert " 503 " in reader.head.partition("\r\n")[0]
    assert b"cannot open block" in reader.rest()
    reader.close()


def test_connection_of_a_reader_that_reads_nothing_is_closed(stored: Stored, data: bytes) -> None:
    """INV-6."""
    with Agent(with_agent(stored.settings(), idle_timeout=0.1)) as agent:
        place(stored, data)
        reader = Reader(agent)
        until(lambda: agent.status().requests == 0)
        assert len(reader.rest()) < SIZE
        reader.close()


def test_connections_beyond_the_limit_are_refused_and_retried(stored: Stored, data: bytes) -> None:
    """INV-6."""
    with Agent(with_agent(stored.settings(), connections_max=4)) as agent:
        place(stored, data)
        readers = [Reader(agent) for _ in range(4)]
        turned_away = Reader(agent)
        assert " 503 " in turned_away.head.partition("\r\n")[0]
        turned_away.close()
        for reader in readers:
            assert reader.rest() == data
            reader.close()

        def let_in() -> bool:
            again = Reader(agent)
            again.close()
            return " 200 " in again.head.partition("\r\n")[0]

        until(let_in)


# ---- the end ---------------------------------------------------------------------------------------------------------


def leaving(agent: Agent) -> threading.Thread:
    thread = threading.Thread(target=agent.__exit__, args=(None, None, None))
    thread.start()
    return thread


def test_ending_agent_reports_it_first_and_finishes_requests_in_flight(stored: Stored, data: bytes) -> None:
    driver = FakeDriver()
    with driver.server:
        agent = Agent(stored.settings(driver.server.url)).__enter__()
        place(stored, data)
        reader = Reader(agent)
        beat: AgentHeartbeatRequest = driver.await_heartbeat(lambda beat: beat.requests == 1)
        assert (beat.state, beat.load >= 0) == ("active", True)
        seen = len(driver.heartbeats)
        end = leaving(agent)
        driver.await_heartbeat(lambda beat: beat.state == "draining", since=seen)
        assert end.is_alive()
        assert reader.rest() == data
        end.join(30)
        assert not end.is_alive()
        assert driver.heartbeats[-1].state == "draining"
        reader.close()


def test_a_reader_that_never_ends_does_not_keep_the_agent_beyond_its_limit(stored: Stored, data: bytes) -> None:
    """INV-6."""
    agent = Agent(with_agent(stored.settings(), drain_timeout=0.1)).__enter__()
    place(stored, data)
    reader = Reader(agent)
    end = leaving(agent)
    end.join(30)
    assert not end.is_alive()
    assert len(reader.rest()) < SIZE
    reader.close()
