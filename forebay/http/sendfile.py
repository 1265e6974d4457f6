"""Answers that are files, which the kernel sends from its page cache (sendfile), without a copy in this process.

uvicorn lacks such answers, so :class:`Protocol` adds ASGI's extension for them, ``http.response.zerocopysend``. With TLS the
bytes must pass through this process: the extension is not offered, and a file is read and sent in chunks.
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

#: bytes of one chunk, if the kernel can't send the file itself
CHUNK_BYTES = 1 << 20
#: number of threads that wait for disks and sockets, for all connections of a server
THREADS = 4
#: a thread sends at most this many bytes, or waits this long for the reader, before it serves another connection
TURN_BYTES = 8 << 20
TURN_WAIT_MS = 10


class FileResponse(Response[None]):
    """Bytes ``[start, end)`` of the open file ``descriptor``, which it closes. ``name``: the file's name in the log.

    A file that is deleted meanwhile is sent to its end. If it is too short or can't be read, the connection ends.
    """

    def __init__(
        self, name: str, descriptor: int, *, start: int, end: int, status: int, headers: Mapping[str, str]
    ) -> None:
        super().__init__(None, status_code=status, headers={**headers, "content-length": str(end - start)})
        self._name = name
        self._place = (descriptor, start, end)

    def to_asgi_response(self, *_: Any, **__: Any) -> ASGIResponse:
        assert self.status_code is not None
        return _SendingFile(self._name, self._place, status=self.status_code, headers=self.headers)


class _SendingFile(ASGIResponse):
    __slots__ = ("_name", "_place")
    _should_set_content_length = False

    def __init__(self, name: str, place: tuple[int, int, int], *, status: int, headers: Mapping[str, str]) -> None:
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
            log.error("sending %s ended before its end: %s", self._name, error)
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
    """The threads of one server that send files. ``idle_seconds``: maximum time in which a reader accepts no byte."""

    def __init__(self, idle_seconds: float) -> None:
        self.idle_seconds = idle_seconds
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="sendfile")

    def close(self) -> None:
        self._threads.shutdown(wait=True)

    async def send(self, connection: int, file: int, offset: int, count: int) -> None:
        """Send bytes of ``file`` to ``connection``. Neither descriptor is used after the return. Raises EOFError if the file has
        fewer bytes, TimeoutError, OSError."""
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
    """Return the bytes that were sent in one turn of a thread."""
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
    """uvicorn's protocol with the extension and a timeout for idle readers. It drops a request's body after the answer."""

    def __init__(self, *args: Any, senders: Senders, **options: Any) -> None:
        super().__init__(*args, **options)
        self._senders = senders

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if self.scheme == "http":
            cycle.scope.setdefault("extensions", {})[EXTENSION] = {}

        async def sending(scope: Any, receive: Any, _: Any) -> None:
            # the connection keeps its scope until the next request, and the framework stores the request's body there
            own = {**scope, "state": dict(scope["state"])}
            try:
                await app(own, receive, lambda message: self._send(cycle, message))
            except asyncio.CancelledError:  # the server's grace period has ended
                log.warning("an answer to %s %s was not sent in time", scope["method"], scope["path"])
                self.transport.abort()
                self._is_lost(cycle)
            finally:
                cycle.body = bytearray()  # the part that the application did not read

        super()._start_asgi_task(cycle, sending)

    async def _send(self, cycle: Any, message: Any) -> None:
        if self.flow.write_paused and not cycle.disconnected:
            await self._drained()
        if message["type"] == EXTENSION:
            await self._send_file(cycle, message["file"], message["offset"], message["count"])
        elif not self._is_lost(cycle):  # uvicorn marks only the newest of several requests in a connection
            await cycle.send(message)

    async def _drained(self) -> None:
        try:
            await asyncio.wait_for(self.flow.drain(), self._senders.idle_seconds)
        except asyncio.TimeoutError:
            log.info("a reader accepted no data for %g s", self._senders.idle_seconds)
            self.transport.abort()

    async def _send_file(self, cycle: Any, file: int, offset: int, count: int) -> None:
        if not self.transport.is_closing():
            self.transport.set_write_buffer_limits(0)  # bytes of the socket itself must not overtake the headers
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
                log.info("a reader closed the connection, or accepted no data for %g s", self._senders.idle_seconds)
                return
            raise
        finally:
            os.close(connection)
        if self._is_lost(cycle):
            return
        self.transport.set_write_buffer_limits()
        cycle.expected_content_length -= count
        await cycle.send({"type": "http.response.body", "body": b"", "more_body": False})

    def shutdown(self) -> None:
        """End an idle connection now. With TLS, a close would wait until the client answers, which reads only with its next
        request."""
        super().shutdown()
        if self.transport.is_closing() and not self.transport.get_write_buffer_size():
            self.transport.abort()

    def _is_lost(self, cycle: Any) -> bool:
        """Return whether the connection is closing; uvicorn then expects no more of the answer."""
        cycle.disconnected |= self.transport.is_closing()
        return bool(cycle.disconnected)
