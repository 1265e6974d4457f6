"""An agent that serves a block, against nginx (Debian's ``nginx``, sendfile on) that serves the same file from the page cache.

Both servers run in their own processes. The reader, in this process, is a loop around ``recv_into`` over one kept connection, or
a selector over 64 connections. CPU is that of the server's processes while 64 readers read. Memory is the growth of the agent's
resident memory while 64 answers wait for readers that take nothing.
"""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from benchmarks.measured import Measured, Threshold, alternate, figure, ratio
from benchmarks.setup import Setup
from executor_agent.api import AgentStatus
from forebay.http.client import Client
from forebay.http.sendfile import CHUNK_BYTES
from forebay.process.tether import tethered
from tests.support.servers.nginx import static_server
from wal.blocks import local_path

STREAM = "bench"
#: block id → its megabytes
BLOCKS = {"r1-1-1": 16, "r1-1-2": 64}
READERS = 64
#: what is read in one run by one reader, and by each of many
RUN_MB, EACH_MB = 2048, 64
_BUFFER_BYTES = 1 << 20
_AGENT = (
    "import sys, msgspec; from executor_agent.main import run; from forebay.settings.reading.load import from_values\n"
    "sys.exit(run(from_values(msgspec.json.decode(sys.argv[1]))))\n"
)


def measure(setup: Setup) -> Iterator[Measured]:
    wanted = Threshold(0.6, at_least=True)
    with setup.folder() as folder, running_agent(folder) as (agent, pid):
        for block_id, megabytes in BLOCKS.items():
            path = local_path(folder / "blocks", STREAM, block_id)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.urandom(1 << 20) * megabytes)
        with static_server(folder / "nginx", folder / "blocks" / STREAM) as (nginx, nginx_pid):
            ours = {block_id: f"{agent}/v1/blocks/{STREAM}/{block_id}" for block_id in BLOCKS}
            peer = {block_id: f"{nginx}/{block_id}.block" for block_id in BLOCKS}
            for block_id, megabytes in BLOCKS.items():
                times = max(1, int(RUN_MB * setup.scale / megabytes))
                reads = [partial(_rate, served[block_id], times) for served in (ours, peer)]
                pairs = alternate(setup.runs, *reads)
                yield ratio("blocks", f"one reader, {megabytes} MB", pairs, "MB/s", wanted)
            many = alternate(
                setup.runs,
                lambda: _many(ours["r1-1-2"], (pid,), setup.scale),
                lambda: _many(peer["r1-1-2"], _children(nginx_pid), setup.scale),
            )
            rates = [(one.rate, other.rate) for one, other in many]
            yield ratio("blocks", f"{READERS} readers at the same time, 64 MB", rates, "MB/s", wanted)
            cpu = [(max(one.cpu, 0.01), max(other.cpu, 0.01)) for one, other in many]
            yield ratio("blocks", "the same: CPU of the server per GB", cpu, "s")
        memory = [_memory_kb(agent, ours["r1-1-2"], pid) for _ in range(setup.runs)]
    limit = Threshold(CHUNK_BYTES / 1024, at_least=False)
    yield figure("blocks", f"agent's memory for each of {READERS} readers", memory, "kB", limit)


@contextmanager
def running_agent(folder: Path) -> Iterator[tuple[str, int]]:
    """Run an agent while open. Yields its URL and process id."""
    settings = {
        "stream": STREAM,
        "kafka": {"topics": ["t"], "bootstrap.servers": "127.0.0.1:1"},
        "wal": {"url": f"file://{folder}/wal"},
        "driver": {"journal": f"file://{folder}/journal", "url": "http://127.0.0.1:9"},
        "agent": {"blocks": f"{folder}/blocks", "url": "http://127.0.0.1:0", "host": "h1"},
    }
    command = (sys.executable, "-c", _AGENT, msgspec.json.encode(settings).decode())
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    with subprocess.Popen(tethered(command), stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        try:
            ready = next(line for line in process.stderr if ": serves " in line)
            yield ready.partition(" at ")[2].split()[0], process.pid
        finally:
            process.terminate()
            process.communicate()


class _Reader:
    """One connection. ``left``: bytes of the answer still to be received."""

    def __init__(self, url: str, buffer: bytearray) -> None:
        host, _, self._path = url.removeprefix("http://").partition("/")
        name, _, port = host.partition(":")
        self._buffer = buffer
        self.connection = _connected(name, int(port))
        self.left = 0

    def ask(self) -> None:
        self.connection.sendall(f"GET /{self._path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
        head = b""
        while b"\r\n\r\n" not in head:
            head += self.connection.recv(_BUFFER_BYTES)
        head, _, body = head.partition(b"\r\n\r\n")
        assert b" 200 " in head, head
        self.left = int(head.lower().partition(b"content-length: ")[2].split()[0]) - len(body)

    def take(self) -> None:
        taken = self.connection.recv_into(self._buffer, min(self.left, _BUFFER_BYTES))
        assert taken, "the answer ended early"
        self.left -= taken


def _connected(host: str, port: int) -> socket.socket:
    """Connect to a server, and wait until it listens."""
    until = time.monotonic() + 20
    while True:
        try:
            return socket.create_connection((host, port), 30)
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


def _rate(url: str, times: int) -> float:
    """Return the MB/s of one reader that reads the block ``times`` times, after one read that is not counted."""
    reader = _Reader(url, bytearray(_BUFFER_BYTES))
    read = 0
    for number in range(times + 1):
        if number == 1:
            begun = time.perf_counter()
        reader.ask()
        read += reader.left if number else 0
        while reader.left:
            reader.take()
    seconds = time.perf_counter() - begun
    reader.connection.close()
    return read / 1e6 / seconds


class _Many(msgspec.Struct, frozen=True):
    """The result for many readers. ``rate``: MB/s of all together. ``cpu``: CPU seconds of the server per GB."""

    rate: float
    cpu: float


def _many(url: str, servers: Sequence[int], scale: float) -> _Many:
    buffer = bytearray(_BUFFER_BYTES)
    readers = [_Reader(url, buffer) for _ in range(max(2, int(READERS * min(1.0, scale * 4))))]
    cpu, begun = _cpu_seconds(servers), time.perf_counter()
    with selectors.DefaultSelector() as selector:
        for reader in readers:
            reader.ask()
            selector.register(reader.connection, selectors.EVENT_READ, reader)
        total = sum(reader.left for reader in readers)
        while selector.get_map():
            for key, _ in selector.select(30):
                key.data.take()
                if not key.data.left:
                    selector.unregister(key.fileobj)
    seconds = time.perf_counter() - begun
    used = _cpu_seconds(servers) - cpu
    for reader in readers:
        reader.connection.close()
    return _Many(total / 1e6 / seconds, used / (total / 1e9))


def _memory_kb(agent: str, url: str, pid: int) -> float:
    client = Client(agent)
    before = _resident_kb(pid)
    readers = [_Reader(url, bytearray(1)) for _ in range(READERS)]
    for reader in readers:
        reader.ask()
    while client.get("/v1/status", AgentStatus).requests <= READERS:  # and the one that asks
        time.sleep(0.01)
    grown = _resident_kb(pid) - before
    for reader in readers:
        reader.connection.close()
    while client.get("/v1/status", AgentStatus).requests > 1:
        time.sleep(0.01)
    client.close()
    return max(1.0, grown / READERS)


def _resident_kb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1024


def _cpu_seconds(pids: Sequence[int]) -> float:
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _children(pid: int) -> list[int]:
    """Return the processes that ``pid`` started: nginx's workers."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
