"""The agent's HTTP routes: read blocks by range, store copies, status."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from litestar import Litestar, Request, Response, get, post, put
from litestar.params import FromQuery, JSONBody

from executor_agent.copies import read_copies
from executor_agent.metrics import AgentMetrics
from executor_agent.store import BlockStore
from forebay import messages as m
from forebay.http.application import application, caller, needs
from forebay.http.sendfile import CHUNK_BYTES, FileResponse
from forebay.metrics.route import metrics_route
from forebay.model.errors import RefusedError, UsageError
from forebay.model.numbers import whole_number
from forebay.security.access import OPEN, Guard
from wal.segments.frame import MAX_FRAME

_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


class AgentStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of GET /v1/status. ``silent_driver``: why the driver cannot be reached, "" while it can. ``damaged``: the first
    of the ``damaged_blocks`` blocks that have a damaged copy on this host. ``undeleted``: the first of the ``undeleted_blocks``
    blocks that the driver orders to delete and that cannot be deleted, with the reason of the first one."""

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
    undeleted: tuple[str, ...] = ()
    undeleted_blocks: int = 0
    undeleted_cause: str = ""


def agent_application(
    store: BlockStore,
    status: Callable[[], AgentStatus],
    *,
    release: str,
    idle_seconds: float,
    guard: Guard = OPEN,
    stream: str | None = None,
    host: str | None = None,
    metrics: AgentMetrics | None = None,
) -> Litestar:
    """Return the application that serves ``store``.

    ``idle_seconds``: maximum time in which no byte of a request body arrives. ``stream``: the only stream whose copies are
    accepted, because only that stream's driver has them deleted; None for any. ``host``: this host; copies meant for another
    host are refused. None for any. ``metrics``: counts what is served, and is served itself; None: neither.
    """
    own_stream, own_host = stream, host

    @get(
        "/v1/blocks/{stream:str}/{block_id:str}",
        summary="Read a block, or one Range of it",
        tags=["tasks"],
        opt=needs("task", "query", "operator"),
    )
    async def block(request: Request[Any, Any, Any]) -> Response[Any]:
        stream, block_id = request.path_params["stream"], request.path_params["block_id"]
        name = f"block {stream}/{block_id}"
        try:
            descriptor, size = await asyncio.to_thread(_opened, store, stream, block_id)
        except FileNotFoundError:
            if metrics is not None:
                metrics.served("absent")
            raise RefusedError(f"{name} is not on this host", "not-found") from None
        wanted = request.headers.get("range")
        part = parse_range(wanted, size)
        if part is None:
            os.close(descriptor)
            refusal = m.Refusal(
                code="bad-request", message=f"range {wanted} is outside the block, which has {size} bytes"
            )
            return Response(refusal, status_code=416, headers={"content-range": f"bytes */{size}"})
        start, end = part
        if metrics is not None:
            metrics.served("range" if is_range(wanted) else "whole", end - start)
        headers = {"accept-ranges": "bytes"}
        if is_range(wanted):
            headers["content-range"] = f"bytes {start}-{end - 1}/{size}"
        return FileResponse(
            name, descriptor, start=start, end=end, status=206 if is_range(wanted) else 200, headers=headers
        )

    @post(
        "/v1/blocks/{stream:str}",
        status_code=200,
        summary="Read several small blocks: their bytes, one after the other; the sizes are in forebay-copy-sizes",
        tags=["tasks"],
        opt=needs("task", "query", "operator"),
    )
    async def several(request: Request[Any, Any, Any], data: JSONBody[m.CopiesRequest]) -> Response[bytes]:
        sizes, body = await asyncio.to_thread(read_copies, store, request.path_params["stream"], data.ids)
        if metrics is not None:
            for size in sizes:
                if size != m.LEFT_OUT:
                    metrics.served("whole" if size else "absent", size)
        headers = {m.COPY_SIZES: m.copy_sizes_text(sizes)}
        return Response(body, headers=headers, media_type="application/octet-stream")

    @put(
        "/v1/blocks/{stream:str}/{block_id:str}",
        status_code=200,
        summary="Store a copy of a block, in the form in which it is read; durable: sync it first; host: the intended one",
        tags=["tasks", "receivers"],
        opt=needs("receiver", "task"),
        request_max_body_size=None,  # keep() checks the length and reserves the room before it reads the body
    )
    async def keep(
        request: Request[Any, Any, Any], durable: FromQuery[bool] = False, host: FromQuery[str] = ""
    ) -> m.Done:
        stream, block_id = request.path_params["stream"], request.path_params["block_id"]
        # without a WAL a copy may be the last one, so a task must not replace it
        if not (store.may_delete_copies and caller.get().has({"task"})):
            caller.get().require("receiver", block_id.rsplit("-", 2)[0])
        if own_stream not in (None, stream):
            raise UsageError(f"this agent stores copies of stream {own_stream} only, not of {stream!r}")
        if host and own_host not in (None, host):
            raise RefusedError(
                f"a copy for host {host!r} came to host {own_host!r}; check that agent.url of {host!r} leads to it"
            )
        said = request.headers.get("content-length", "")
        size = whole_number(said, MAX_FRAME)
        if not size:
            raise UsageError(f"content-length {said!r}: it must be the length of the copy, 1 to {MAX_FRAME} bytes")
        copy = await asyncio.to_thread(store.receive, stream, block_id, size)
        try:
            async for chunk in _chunks(request, idle_seconds):
                await asyncio.to_thread(copy.write, chunk)
            await asyncio.to_thread(copy.keep, durable)
        finally:
            await asyncio.to_thread(copy.close)
        if metrics is not None:
            metrics.kept(int(size))
        return m.Done()

    @get("/v1/health", summary="200 while the agent serves requests", tags=["people"], opt=needs())
    async def health() -> m.Done:
        return m.Done()

    @get(
        "/v1/status",
        summary="The block directory, receivers, and contact with the driver",
        tags=["people"],
        opt=needs("reader", "operator"),
    )
    async def get_status() -> AgentStatus:
        return await asyncio.to_thread(status)

    more = [] if metrics is None else [metrics_route(metrics.metrics)]
    return application("Forebay executor agent", release, [block, several, keep, health, get_status, *more], guard)


def is_range(header: str | None) -> bool:
    """Return whether ``header`` asks for one range. Otherwise the whole block is the answer (RFC 9110, 14.2)."""
    match = _RANGE.fullmatch(header.strip()) if header is not None else None
    if match is None or not (match[1] or match[2]):
        return False
    return not (match[1] and match[2]) or int(match[1]) <= int(match[2])


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return the bytes ``[start, end)`` of ``size`` that a Range header asks for; None if there are none of them (HTTP 416)."""
    if header is None or not is_range(header):
        return 0, size
    first, _, last = header.strip().removeprefix("bytes=").partition("-")
    if not first:
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(int(last) + 1, size) if last else size
    return (start, end) if start < end else None


def _opened(store: BlockStore, stream: str, block_id: str) -> tuple[int, int]:
    """Open the block and return a descriptor and its size in bytes."""
    descriptor = store.read(stream, block_id)
    return descriptor, os.fstat(descriptor).st_size


async def _chunks(request: Request[Any, Any, Any], idle_seconds: float) -> AsyncIterator[bytearray]:
    """Yield the body in parts of about ``CHUNK_BYTES``. Raises UsageError if nothing arrives for ``idle_seconds``."""
    parts = request.stream()
    gathered = bytearray()
    while True:
        try:
            part = await asyncio.wait_for(anext(parts, None), idle_seconds)
        except asyncio.TimeoutError:
            raise UsageError(
                f"no byte arrived for {idle_seconds:g} s (agent.idle_timeout), and the copy is incomplete"
            ) from None
        gathered += part or b""
        if len(gathered) >= CHUNK_BYTES or (gathered and part is None):
            yield gathered
            gathered = bytearray()
        if part is None:
            return
