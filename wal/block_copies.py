"""Giving a copy of a block to a host's agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import msgspec
import urllib3

from forebay.errors import OutOfSpaceError, RefusedError, UnreachableError
from forebay.messages import Refusal
from forebay.values import BlockMeta
from wal.blocks import local_frame


def give_copy(
    pool: urllib3.PoolManager,
    agent_url: str,
    meta: BlockMeta,
    payload: Any,
    *,
    timeout_seconds: float,
    durable: bool = False,
    headers: Mapping[str, str] | None = None,
) -> None:
    """The agent at ``agent_url`` has a whole, checked copy on return; with ``durable`` one that outlives a power cut. Can be
    repeated. ``payload``: one bytes-like object or a sequence of them, sealed where ``meta`` names a key; not copied.

    Raises OutOfSpaceError (the agent has no room), UnreachableError, RefusedError.
    """
    frame = local_frame(meta, payload)
    size = sum(memoryview(part).nbytes for part in frame)
    target = f"{agent_url.rstrip('/')}/v1/blocks/{quote(meta.stream)}/{quote(meta.id)}"
    try:
        response = pool.request(
            "PUT",
            f"{target}?durable=true" if durable else target,
            body=iter(frame),
            headers={**(headers or {}), "content-type": "application/octet-stream", "content-length": str(size)},
            timeout=urllib3.Timeout(connect=min(timeout_seconds, 5.0), read=timeout_seconds),
            retries=False,
            redirect=False,
        )
    except urllib3.exceptions.HTTPError as error:
        raise UnreachableError(f"PUT {target}: {error}") from None
    if response.status == 200:
        return
    try:
        refusal = msgspec.json.decode(response.data, type=Refusal)
    except msgspec.DecodeError:
        refusal = Refusal(code="unknown", message=f"HTTP {response.status}")
    if refusal.code == "no-room":
        raise OutOfSpaceError(f"{target}: {refusal.message}")
    if response.status >= 500:
        raise UnreachableError(f"{target}: {refusal.message}")
    raise RefusedError(f"{target}: {refusal.message}", refusal.code)
