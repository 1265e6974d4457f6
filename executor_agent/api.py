"""The agent's HTTP routes: blocks by range, and how it stands."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
from litestar import Litestar, Request, Response, get
from litestar.response import Stream

from executor_agent.store import BlockStore
from forebay import messages as m
from forebay.errors import RefusedError
from forebay.http import application

#: bytes read and sent at once
CHUNK_BYTES = 1 << 20

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class AgentStatus(msgspec.Struct, frozen=True, kw_only=True):
    """GET /v1/status. ``silent_driver``: why the driver can't be reached, "" while it can."""

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
    receivers: tuple[m.ReceiverProcess, ...] = ()


def agent_application(store: BlockStore, status: Callable[[], AgentStatus], release: str) -> Litestar:
    @get("/v1/blocks/{stream:str}/{block_id:str}", summary="The bytes of a block; takes one Range", tags=["tasks"])
    async def block(request: Request[Any, Any, Any]) -> Response[Any]:
        stream, block_id = request.path_params["stream"], request.path_params["block_id"]
        path = store.path(stream, block_id)
        try:
            size = (await asyncio.to_thread(path.stat)).st_size
        except FileNotFoundError:
            raise RefusedError(f"block {stream}/{block_id} is not here", "not-found") from None
        wanted = request.headers.get("range")
        part = parse_range(wanted, size)
        if part is None:
            refusal = m.Refusal(code="bad-request", message=f"{wanted}: the block has {size} bytes")
            return Response(refusal, status_code=416, headers={"content-range": f"bytes */{size}"})
        start, end = part
        headers = {"accept-ranges": "bytes", "content-length": str(end - start)}
        if is_range(wanted):
            headers["content-range"] = f"bytes {start}-{end - 1}/{size}"
        return Stream(
            _chunks(path, start, end),
            status_code=206 if is_range(wanted) else 200,
            headers=headers,
            media_type="application/octet-stream",
        )

    @get("/v1/health", summary="200 while it serves", tags=["people"])
    async def health() -> m.Done:
        return m.Done()

    @get("/v1/status", summary="The store and the last word of the driver", tags=["people"])
    async def get_status() -> AgentStatus:
        return await asyncio.to_thread(status)

    return application("Forebay executor agent", release, [block, health, get_status])


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


async def _chunks(path: Path, start: int, end: int) -> AsyncIterator[bytes]:
    """Bytes ``[start, end)`` of ``path``, read off the event loop; a file deleted meanwhile is served to its end."""
    descriptor = await asyncio.to_thread(os.open, path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while start < end:
            chunk = await asyncio.to_thread(os.pread, descriptor, min(CHUNK_BYTES, end - start), start)
            if not chunk:
                return  # cut short since it was measured: the reader sees fewer bytes than promised
            start += len(chunk)
            yield chunk
    finally:
        os.close(descriptor)
