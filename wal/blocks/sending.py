"""Sending a copy of a block to a host's agent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import msgspec
import urllib3

from forebay.http.connections import is_chunked
from forebay.messages import Refusal
from forebay.model.errors import OutOfSpaceError, RefusedError, UnreachableError
from forebay.model.values import BlockMeta
from forebay.model.wire import UNDECODABLE
from wal.blocks.local_writing import local_frame

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: bytes in one write; the connection's time-out applies to each
_CHUNK_BYTES = 1 << 20
#: of an answer; a longer refusal can't be decoded
_ANSWER_BYTES_MAX = 1 << 16


def give_copy(
    pool: urllib3.PoolManager,
    agent_url: str,
    meta: BlockMeta,
    payload: Buffer | Sequence[Buffer],
    *,
    timeout_seconds: float,
    headers: Mapping[str, str] | None = None,
) -> None:
    """Send a copy of a block to the agent at ``agent_url``, which has it whole and verified on return. Can be repeated.

    ``payload``: one bytes-like object or a sequence of them, encrypted if ``meta`` names a key; not copied. Raises as
    :func:`give_frame`.
    """
    give_frame(pool, agent_url, meta, local_frame(meta, payload), timeout_seconds=timeout_seconds, headers=headers)


def give_frame(
    pool: urllib3.PoolManager,
    agent_url: str,
    meta: BlockMeta,
    frame: Sequence[Buffer],
    *,
    timeout_seconds: float,
    durable: bool = False,
    host: str = "",
    headers: Mapping[str, str] | None = None,
) -> None:
    """Send a copy as :func:`give_copy` does, from the bytes that ``wal.blocks.local_writing.local_frame`` returned.

    ``durable``: the agent syncs the copy before it answers. ``host``: the agent refuses if this is not its host; "": any host.

    Raises OutOfSpaceError (the agent has no room), UnreachableError, RefusedError.
    """
    size = sum(memoryview(part).nbytes for part in frame)
    target = f"{agent_url.rstrip('/')}/v1/blocks/{quote(meta.stream)}/{quote(meta.id)}"
    asked = ({"durable": "true"} if durable else {}) | ({"host": host} if host else {})
    try:
        with pool.request(
            "PUT",
            f"{target}?{urlencode(asked)}" if asked else target,
            body=_chunks(frame),
            headers={**(headers or {}), "content-type": "application/octet-stream", "content-length": str(size)},
            timeout=urllib3.Timeout(connect=min(timeout_seconds, 5.0), read=timeout_seconds),
            retries=False,
            redirect=False,
            preload_content=False,
        ) as response:
            answer = b"" if is_chunked(response) else response.read(_ANSWER_BYTES_MAX, decode_content=False)
    except urllib3.exceptions.HTTPError as error:
        raise UnreachableError(f"PUT {target}: {error}") from None
    if response.status == 200:
        return
    try:
        refusal = msgspec.json.decode(answer, type=Refusal)
    except UNDECODABLE:
        refusal = Refusal(code="unknown", message=f"HTTP {response.status}")
    if refusal.code == "no-room":
        raise OutOfSpaceError(f"PUT {target}: {refusal.message}")
    if response.status >= 500:
        raise UnreachableError(f"PUT {target}: {refusal.message}")
    raise RefusedError(f"PUT {target}: {refusal.message}", refusal.code)


def _chunks(frame: Sequence[Buffer]) -> Iterator[Any]:  # urllib3's types lack memoryview
    for part in frame:
        whole = memoryview(part).cast("B")
        for start in range(0, len(whole), _CHUNK_BYTES):
            yield whole[start : start + _CHUNK_BYTES]
