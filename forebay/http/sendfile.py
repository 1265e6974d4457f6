"""Files as answers without a copy in this process: the kernel sends them from its page cache (sendfile).

uvicorn has no such answer, so its protocol is given ASGI's extension for it, ``http.response.zerocopysend``. Where bytes must
pass through this process (TLS) the extension is not offered, and a file is read and sent chunk by chunk.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from litestar import Response
from litestar.response.base import ASGIResponse
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

log = logging.getLogger(__name__)

EXTENSION = "http.response.zerocopysend"

#: read and sent at once where the kernel can't send the file itself
CHUNK_BYTES = 1 << 20
#: threads that wait for disks and sockets, for all connections of a server together
THREADS = 4
#: a turn of such a thread ends after so many bytes, or when the reader took nothing for so long: then it is another one's
TURN_BYTES = 8 << 20
TURN_WAIT_MS = 10


class FileResponse(Response[None]):
    """Bytes ``[start, end)`` of the open file ``descriptor``, which it closes. ``name``: in words, for the log. A file that was
    deleted meanwhile is served to its end; where one is too short, or can't be read, the connection breaks off."""

    def __init__(
        self, name: str, descriptor: int, start: int, end: int, status: int, headers: Mapping[str, str]
    ) -> None:
        super().__init__(None, status_code=status, headers={**headers, "content-length": str(end - start)})
        self._name = name
        self._place = (descriptor, start, end)

    def to_asgi_response(self, *_: Any, **__: Any) -> ASGIResponse:
        assert self.status_code is not None
        return _SendingFile(self._name, self._place, self.status_code, self.headers)


class _SendingFile(ASGIResponse):
    __slots__ = ("_name", "_place")
    _should_set_content_length = False

    def __init__(self, name: str, place: tuple[int, int, int], status: int, headers: Mapping[str, str]) -> None:
        super().__init__(status_code=status, headers=dict(headers), media_type="application/octet-stream")
        self._name = name
        self._place = place

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        descriptor, start, end = self._place
        try:
            await self.start_response(send)
            if EXTENSION in scope.get("extensions", {}):
                await send({"type": EXTENSION, "file": descriptor, "offset": start, "count": end - start})
            else:
                await self._send_chunks(send, descriptor, start, end)
        except (OSError, EOFError) as error:
            log.error("%s could not be sent to its end: %s", self._name, error)
        finally:
            os.close(descriptor)

    @staticmethod
    async def _send_chunks(send: Any, descriptor: int, start: int, end: int) -> None:
        while start < end:
            chunk = await asyncio.to_thread(os.pread, descriptor, min(CHUNK_BYTES, end - start), start)
            if not chunk:
                raise EOFError("the file ends early")
            start += len(chunk)
            await send({"type": "http.response.body", "body": chunk, "more_body": start < end})


class Senders:
    """The threads that send files, and for how long a reader may take nothing before it is given up. For one server."""

    def __init__(self, idle_seconds: float) -> None:
        self.idle_seconds = idle_seconds
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="sendfile")

    def close(self) -> None:
        self._threads.shutdown(wait=True)

    async def send(self, connection: int, file: int, offset: int, count: int) -> None:
        """Raises EOFError if the file has fewer bytes, TimeoutError, OSError. Neither descriptor is used after it returned."""
        loop = asyncio.get_running_loop()
        while count:
            turn = loop.run_in_executor(self._threads, _turn, connection, file, offset, min(count, TURN_BYTES))
            try:
                sent = await asyncio.shield(turn)
            except asyncio.CancelledError:
                await asyncio.wait([turn])
                raise
            offset += sent
            count -= sent
            if not sent:
                await asyncio.wait_for(_writable(loop, connection), self.idle_seconds)


def _turn(connection: int, file: int, offset: int, count: int) -> int:
    """Bytes that went off in one turn of a thread."""
    waiting = select.poll()
    waiting.register(connection, select.POLLOUT)
    left = count
    while left:
        try:
            sent = os.sendfile(connection, file, offset, left)
        except BlockingIOError:
            if not waiting.poll(TURN_WAIT_MS):
                break
            continue
        if not sent:
            raise EOFError("the file ends early")
        offset += sent
        left -= sent
    return count - left


async def _writable(loop: asyncio.AbstractEventLoop, connection: int) -> None:
    ready = loop.create_future()

    def is_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_writer(connection, is_ready)
    try:
        await ready
    finally:
        loop.remove_writer(connection)


class Protocol(HttpToolsProtocol):
    """uvicorn's protocol with the extension, with an end to waiting for a reader that takes nothing, and without the body of a
    request that was answered."""

    def __init__(self, *args: Any, senders: Senders, **options: Any) -> None:
        super().__init__(*args, **options)
        self._senders = senders

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if self.scheme == "http":
            cycle.scope.setdefault("extensions", {})[EXTENSION] = {}

        async def sending(scope: Any, receive: Any, _: Any) -> None:
            # the connection keeps its scope until the next request, and a framework puts the request's body there
            own = {**scope, "state": dict(scope["state"])}
            try:
                await app(own, receive, lambda message: self._send(cycle, message))
            except asyncio.CancelledError:  # the server ends, and has waited as long as it may
                log.warning("an answer to %s %s was not finished in time", scope["method"], scope["path"])
                self.transport.abort()
                self._is_lost(cycle)
            finally:
                cycle.body = bytearray()  # what the application did not read

        super()._start_asgi_task(cycle, sending)

    async def _send(self, cycle: Any, message: Any) -> None:
        if self.flow.write_paused and not cycle.disconnected:
            await self._drained()
        if message["type"] == EXTENSION:
            await self._send_file(cycle, message["file"], message["offset"], message["count"])
        else:
            await cycle.send(message)

    async def _drained(self) -> None:
        try:
            await asyncio.wait_for(self.flow.drain(), self._senders.idle_seconds)
        except asyncio.TimeoutError:
            log.info("a reader took nothing for %g s", self._senders.idle_seconds)
            self.transport.abort()

    async def _send_file(self, cycle: Any, file: int, offset: int, count: int) -> None:
        if not self.transport.is_closing():
            self.transport.set_write_buffer_limits(0)  # what goes by the socket itself must not overtake the headers
            if self.flow.write_paused:
                await self._drained()
        if self._is_lost(cycle):
            return
        connection = os.dup(self.transport.get_extra_info("socket").fileno())
        try:
            await self._senders.send(connection, file, offset, count)
        except BaseException as error:
            self.transport.abort()
            self._is_lost(cycle)
            if isinstance(error, (ConnectionError, asyncio.TimeoutError)):
                log.info("a reader is gone, or took nothing for %g s", self._senders.idle_seconds)
                return
            raise
        finally:
            os.close(connection)
        if self._is_lost(cycle):
            return
        self.transport.set_write_buffer_limits()
        cycle.expected_content_length -= count
        await cycle.send({"type": "http.response.body", "body": b"", "more_body": False})

    def _is_lost(self, cycle: Any) -> bool:
        """Whether the connection is closing; uvicorn then expects no more of the answer."""
        cycle.disconnected |= self.transport.is_closing()
        return bool(cycle.disconnected)
