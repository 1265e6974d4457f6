"""The agent's HTTP routes: blocks by range, copies that it is given, and how it stands."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from litestar import Litestar, Request, Response, get, put
from litestar.params import FromQuery

from executor_agent.store import BlockStore
from forebay import messages as m
from forebay.http.application import application, caller, needs
from forebay.http.sendfile import CHUNK_BYTES, FileResponse
from forebay.model.errors import RefusedError, UsageError
from forebay.security.access import OPEN, Guard
from wal.segments.frame import MAX_FRAME

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class AgentStatus(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v1/status. ``silent_driver``: why the driver can't be reached, "" while it can. ``damaged``: blocks of which a damaged
    copy was set aside, the first ones of ``damaged_blocks``."""

    stream: str
    host: str
    release: str
    blocks: int
    used_bytes: int
    free_bytes: int
    driver_epoch: int
    deleted: int
    refused_commands: int
    silent_driver: str
    requests: int = 0
    receivers: tuple[m.ReceiverProcess, ...] = ()
    damaged: tuple[str, ...] = ()
    damaged_blocks: int = 0


def agent_application(
    store: BlockStore,
    status: Callable[[], AgentStatus],
    release: str,
    idle_seconds: float,
    guard: Guard = OPEN,
    stream: str | None = None,
    host: str | None = None,
) -> Litestar:
    """``idle_seconds``: how long a copy that comes may make no progress. ``stream``: whose copies alone it takes, since nobody
    has those of another deleted. ``host``: its own; a copy that is meant for another is refused. None: any."""
    own_stream, own_host = stream, host

    @get(
        "/v1/blocks/{stream:str}/{block_id:str}",
        summary="The bytes of a block; takes one Range",
        tags=["tasks"],
        opt=needs("task", "query", "operator"),
    )
    async def block(request: Request[Any, Any, Any]) -> Response[Any]:
        stream, block_id = request.path_params["stream"], request.path_params["block_id"]
        name = f"block {stream}/{block_id}"
        try:
            descriptor, size = await asyncio.to_thread(_opened, store, stream, block_id)
        except FileNotFoundError:
            raise RefusedError(f"{name} is not here", "not-found") from None
        wanted = request.headers.get("range")
        part = parse_range(wanted, size)
        if part is None:
            os.close(descriptor)
            refusal = m.Refusal(code="bad-request", message=f"{wanted}: the block has {size} bytes")
            return Response(refusal, status_code=416, headers={"content-range": f"bytes */{size}"})
        start, end = part
        headers = {"accept-ranges": "bytes"}
        if is_range(wanted):
            headers["content-range"] = f"bytes {start}-{end - 1}/{size}"
        return FileResponse(name, descriptor, start, end, 206 if is_range(wanted) else 200, headers)

    @put(
        "/v1/blocks/{stream:str}/{block_id:str}",
        status_code=200,
        summary="A copy of a block, as agents serve it, is kept here; durable=true: synced first; host: for which it is",
        tags=["tasks", "receivers"],
        opt=needs("receiver", "task"),
        request_max_body_size=None,  # its length is said, and room for it is found, before any of it is read
    )
    async def keep(
        request: Request[Any, Any, Any], durable: FromQuery[bool] = False, host: FromQuery[str] = ""
    ) -> m.Done:
        stream, block_id = request.path_params["stream"], request.path_params["block_id"]
        # without a WAL a copy may be the last one: a task must not put another in its place
        if not (store.gives_up_copies and caller.get().has({"task"})):
            caller.get().require("receiver", block_id.rsplit("-", 2)[0])
        if own_stream not in (None, stream):
            raise UsageError(f"this agent takes copies of stream {own_stream} alone, not of {stream!r}")
        if host and own_host not in (None, host):
            raise RefusedError(
                f"a copy for host {host!r} came to host {own_host!r}: is agent.url set as others reach it?"
            )
        size = request.headers.get("content-length", "")
        if not size.isdecimal() or not 0 < int(size) <= MAX_FRAME:
            raise UsageError(f"content-length {size!r}: a copy's length is said before it, up to {MAX_FRAME} bytes")
        copy = await asyncio.to_thread(store.give, stream, block_id, int(size))
        try:
            async for chunk in _chunks(request, idle_seconds):
                await asyncio.to_thread(copy.write, chunk)
            await asyncio.to_thread(copy.keep, durable)
        finally:
            await asyncio.to_thread(copy.close)
        return m.Done()

    @get("/v1/health", summary="200 while it serves", tags=["people"], opt=needs())
    async def health() -> m.Done:
        return m.Done()

    @get(
        "/v1/status",
        summary="The store and the last word of the driver",
        tags=["people"],
        opt=needs("reader", "operator"),
    )
    async def get_status() -> AgentStatus:
        return await asyncio.to_thread(status)

    return application("Forebay executor agent", release, [block, keep, health, get_status], guard)


def is_range(header: str | None) -> bool:
    """Whether ``header`` asks for one range; anything else is answered with the whole (RFC 9110, 14.2)."""
    match = _RANGE.fullmatch(header.strip()) if header is not None else None
    if match is None or not (match[1] or match[2]):
        return False
    return not (match[1] and match[2]) or int(match[1]) <= int(match[2])


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """The bytes ``[start, end)`` of ``size`` that a Range header asks for; None if it has none of them (HTTP 416)."""
    if header is None or not is_range(header):
        return 0, size
    first, _, last = header.strip().removeprefix("bytes=").partition("-")
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(int(last) + 1, size) if last else size
    return (start, end) if start < end else None


def _opened(store: BlockStore, stream: str, block_id: str) -> tuple[int, int]:
    """A descriptor of the block's file, and its bytes."""
    descriptor = store.read(stream, block_id)
    return descriptor, os.fstat(descriptor).st_size


async def _chunks(request: Request[Any, Any, Any], idle_seconds: float) -> AsyncIterator[bytearray]:
    """The body, about ``CHUNK_BYTES`` at a time. Raises UsageError if nothing comes for ``idle_seconds``."""
    parts = request.stream()
    gathered = bytearray()
    while True:
        try:
            part = await asyncio.wait_for(anext(parts, None), idle_seconds)
        except asyncio.TimeoutError:
            raise UsageError(f"nothing came for {idle_seconds:g} s, and the copy is not whole") from None
        gathered += part or b""
        if len(gathered) >= CHUNK_BYTES or (gathered and part is None):
            yield gathered
            gathered = bytearray()
        if part is None:
            return
