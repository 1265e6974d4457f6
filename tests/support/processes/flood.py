"""A flood of requests without a token, from a separate process: ``python -m tests.support.processes.flood URL CONNECTIONS``.

It keeps ``CONNECTIONS`` silent connections open, and opens each again when it ends. A few further connections send an endless
URL, header or series of headers, requests with a wrong token, and thousands of requests in one piece. It writes a line when it
has opened twice ``CONNECTIONS`` connections, and ends with its standard input, at the latest after a minute. Only for loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from forebay import messages as m
from forebay.http.accepting import allow_descriptors
from forebay.http.client import Client
from forebay.process.tether import tethered
from forebay.security.access import Access, is_loopback
from tests.support.processes.service_process import HANG_SECONDS, TOKEN

SECONDS_MAX = 60.0
#: connections of each kind that sends something
SENDING = 6

_HEAD = b"GET /v1/health HTTP/1.1\r\nhost: 127.0.0.1\r\n"
_WRONG = _HEAD.replace(b"health", b"status") + b"authorization: Bearer not-a-token-of-this-service\r\n\r\n"
#: what is sent first, and then again and again
KINDS = (
    (b"GET /", b"a" * 65_536),
    (_HEAD + b"a: ", b"a" * 65_536),
    (_HEAD, b"a: %s\r\n" % (b"a" * 1_000) * 64),
    (_WRONG, _WRONG),
    (b"", (_HEAD + b"\r\n") * 2_000),
)


class Flood:
    def __init__(self, host: str, port: int, connections: int) -> None:
        self._address = (host, port)
        self._connections = connections
        self._opened = 0

    async def run(self) -> None:
        silent = [self._again(b"", b"") for _ in range(self._connections)]
        sending = [self._again(first, again) for first, again in KINDS for _ in range(SENDING)]
        tasks = [asyncio.create_task(coroutine) for coroutine in (*silent, *sending)]
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.to_thread(sys.stdin.read), SECONDS_MAX)
        for task in tasks:
            task.cancel()

    async def _again(self, first: bytes, again: bytes) -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection(*self._address)
            except OSError:
                await asyncio.sleep(0.05)
                continue
            self._opened += 1
            if self._opened == 2 * self._connections:
                print("it flows", flush=True)
            with contextlib.suppress(OSError):
                writer.write(first)
                while again:
                    writer.write(again)
                    await asyncio.wait_for(writer.drain(), 5.0)
                    with contextlib.suppress(asyncio.TimeoutError):
                        if await asyncio.wait_for(reader.read(65_536), 0.05) == b"":
                            break
                while not again and await reader.read(65_536):
                    pass
            writer.transport.abort()
            await asyncio.sleep(0.01)


@contextmanager
def flood(url: str, connections: int) -> Iterator[None]:
    """Entered when it flows."""
    with subprocess.Popen(
        tethered([sys.executable, "-m", "tests.support.processes.flood", url, str(connections)]),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        try:
            assert process.stdout.readline(), "the flood ended before it flowed"
            yield
        finally:
            process.kill()


_HEARTBEAT = m.AgentHeartbeatRequest(
    host="h2", url="http://127.0.0.1:1", instance_id="i", acknowledged=0, blocks=0, used_bytes=0, free_bytes=1 << 40
)


def with_token(url: str) -> Client:
    """With no connection yet."""
    return Client(url, HANG_SECONDS, Access(token=TOKEN))


def beat(client: Client, kind: str) -> float:
    """Seconds until a heartbeat was answered by a driver, or the status by an agent, which takes no heartbeat. Raises
    ForebayError."""
    began = time.monotonic()
    if kind == "driver":
        client.post("/v1/agents/heartbeat", _HEARTBEAT, m.AgentHeartbeatAnswer)
    else:
        client.request("GET", "/v1/status")
    return time.monotonic() - began


if __name__ == "__main__":
    parts = urlsplit(sys.argv[1])
    assert is_loopback(parts.hostname or ""), "a flood is for this machine alone"
    allow_descriptors(int(sys.argv[2]))
    asyncio.run(Flood(parts.hostname or "", parts.port or 0, int(sys.argv[2])).run())
