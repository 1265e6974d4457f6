"""The agent tier: downloading a block from the agents of its hosts, and sending this host's agent a copy of what the WAL had."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
import urllib3
from tenacity import Retrying, retry_if_exception, stop_after_attempt

from forebay.http.connections import connections, is_chunked
from forebay.messages import COPY_SIZES, LEFT_OUT, CopiesRequest, copy_sizes
from forebay.model.errors import AccessError, CorruptionError, ForebayError, UnreachableError
from forebay.model.numbers import whole_number
from forebay.process.clock import SystemClock
from forebay.security.access import Access
from wal.blocks import StoredBlock, read_stored
from wal.reading import per_process
from wal.reading.outcome import TierFailure
from wal.reading.reference import BlockReference, Fetched, ReadPlan
from wal.segments.frame import aligned

#: requests for one block to its agent; each after the first continues where the connection broke
AGENT_REQUESTS_MAX = 3
#: how long a process does not ask an agent again after a time-out: a lost host costs one time-out, not one for each of its blocks
AGENT_REST_SECONDS = 10.0
_CONNECT_SECONDS = 2.0
#: read at a time
_CHUNK_BYTES = 1 << 17

_clock = SystemClock()


def read_from_agent(reference: BlockReference, plan: ReadPlan, host: str) -> StoredBlock | None:
    """Return the copy of the agent on ``host``, its frame verified; None if its URL is unknown and the block is in the WAL.

    Raises FileNotFoundError, CorruptionError, AccessError, UnreachableError.
    """
    url = plan.agent_urls.get(host)
    if url is None and not reference.in_wal:  # without a WAL few hosts have the block: name each that can't be asked
        raise UnreachableError(f"host {host} keeps a copy, but its agent has sent no heartbeat lately")
    if url is None:
        return None
    target = f"{url.rstrip('/')}/v1/blocks/{quote(reference.stream)}/{quote(reference.id)}"
    download = _Download(
        target,
        length_max=aligned(reference.handle.length),
        timeout_seconds=plan.agent_timeout_seconds,
        access=plan.access,
    )
    with _asking(url, plan.agent_timeout_seconds):
        body = download.fetch()
    return read_stored(body, target)


@contextmanager
def _asking(url: str, timeout_seconds: float) -> Iterator[None]:
    """Raise UnreachableError if the agent does not answer the request inside within ``timeout_seconds``, or lately did not answer
    another request within the same time. A busy agent may still answer requests that wait longer."""
    silent_until: dict[tuple[str, float], float] = per_process.once("silent agents", dict)
    if silent_until.get((url, timeout_seconds), 0.0) > _clock.monotonic():
        raise UnreachableError(f"{url} did not answer a request less than {AGENT_REST_SECONDS:g} s ago")
    try:
        yield
    except urllib3.exceptions.HTTPError as error:
        silent_until[url, timeout_seconds] = _clock.monotonic() + AGENT_REST_SECONDS
        raise UnreachableError(str(error)) from error


def read_several_from_agent(references: Sequence[BlockReference], plan: ReadPlan, host: str) -> Iterator[Fetched]:
    """Yield what the agent on ``host``, whose URL is known, has of each block of one stream, by one request if it can answer
    such a request."""
    url = plan.agent_urls[host].rstrip("/")
    target = f"{url}/v1/blocks/{quote(references[0].stream)}"
    try:
        with _asking(plan.agent_urls[host], plan.agent_timeout_seconds):
            copies = Retrying(
                retry=retry_if_exception(_may_resume), stop=stop_after_attempt(AGENT_REQUESTS_MAX), reraise=True
            )(_several, target, references, plan)
    except (ForebayError, OSError) as error:
        yield from ((reference, error) for reference in references)
        return
    for reference, copy in zip(references, copies, strict=True):
        try:
            if copy is None:
                yield reference, read_from_agent(reference, plan, host)
            elif not copy.size:
                yield reference, FileNotFoundError(f"{target}/{reference.id}")
            else:
                yield reference, read_stored(copy, f"{target}/{reference.id}")
        except (ForebayError, OSError) as error:
            yield reference, error


def _several(target: str, references: Sequence[BlockReference], plan: ReadPlan) -> Sequence[pa.Buffer | None]:
    """Return each block's copy, not verified. One without bytes is not at the agent; None: ask for it alone."""
    body = msgspec.json.encode(CopiesRequest(ids=tuple(reference.id for reference in references)))
    with _pool(target, plan.access).request(
        "POST",
        target,
        body=body,
        headers={"content-type": "application/json", **plan.access.headers()},
        timeout=_timeout(plan.agent_timeout_seconds),
        redirect=False,
        preload_content=False,
    ) as response:
        if response.status in (404, 405):  # it is of an older release
            return [None] * len(references)
        _check_answered(response, target, plan.access)
        sizes = copy_sizes(response.headers.get(COPY_SIZES, ""))
        expected = [aligned(reference.handle.length) for reference in references]
        if (
            response.status != 200
            or is_chunked(response)
            or len(sizes) != len(references)
            or any(size > most for size, most in zip(sizes, expected, strict=True))
        ):
            raise CorruptionError(target, 0, f"the agent answered HTTP {response.status} without the requested blocks")
        data = pa.py_buffer(response.read(sum(size for size in sizes if size > 0), decode_content=False))
    copies: list[pa.Buffer | None] = []
    at = 0
    for size in sizes:
        if at + size > data.size:
            raise CorruptionError(target, at, "the answer ended early")
        copies.append(None if size == LEFT_OUT else data.slice(at, size))
        at += max(size, 0)
    return copies


def _check_answered(response: urllib3.BaseHTTPResponse, url: str, access: Access) -> None:
    """Raise AccessError or UnreachableError if the agent refuses the request or fails."""
    if response.status in (401, 403):
        raise AccessError(
            f"{url}: HTTP {response.status}: the agent does not accept this process's token for role "
            f"{access.role}; add the token's line to the token file of the agent's host"
        )
    if response.status >= 500:
        raise UnreachableError(f"{url}: HTTP {response.status}")  # it is overloaded, or its disk fails


def _timeout(seconds: float) -> urllib3.Timeout:
    return urllib3.Timeout(connect=min(seconds, _CONNECT_SECONDS), read=seconds)


def store_back(stored: StoredBlock, plan: ReadPlan, host: str) -> list[TierFailure]:
    """Send the agent on ``host`` a copy of a block that had to be read from the WAL. A failure is returned, not raised, because
    it only makes the next read slower."""
    url = plan.agent_urls.get(host)
    if url is None:
        return []
    refused_until: dict[str, float] = per_process.once("agents that took no copy", dict)  # by URL
    if refused_until.get(url, 0.0) > _clock.monotonic():
        return []
    from wal.blocks.sending import give_copy

    try:
        give_copy(
            _pool(url, plan.access),
            url,
            stored.meta,
            stored.payload,
            timeout_seconds=plan.agent_timeout_seconds,
            headers=plan.access.headers(),
        )
    except ForebayError as error:
        refused_until[url] = _clock.monotonic() + AGENT_REST_SECONDS
        return [TierFailure("agent", "not stored back", str(error))]
    return []


def _pool(url: str, access: Access) -> urllib3.PoolManager:
    files = (access.ca_file, access.cert_file, access.key_file)
    pool: urllib3.PoolManager = per_process.once(
        f"agents {url.partition(':')[0]} {files}", lambda: connections(url, access)
    )
    return pool


def _may_resume(error: BaseException) -> bool:
    """Return whether another request is worthwhile: the connection broke, or the agent restarts. After a time-out it is not:
    the next request might take as long again."""
    return isinstance(error, urllib3.exceptions.HTTPError) and not isinstance(error, urllib3.exceptions.TimeoutError)


class _Download:
    """Downloads the whole body of ``url``. If the connection breaks, the next request continues at the byte where it broke."""

    def __init__(self, url: str, *, length_max: int, timeout_seconds: float, access: Access) -> None:
        self._url = url
        self._length_max = length_max
        self._access = access
        self._timeout = _timeout(timeout_seconds)
        self._body: Any = None  # a pa.Buffer, whose types lack the buffer protocol
        self._received = 0

    def fetch(self) -> pa.Buffer:
        """Return the body.

        Raises FileNotFoundError, AccessError, UnreachableError, CorruptionError, urllib3's HTTPError.
        """
        Retrying(retry=retry_if_exception(_may_resume), stop=stop_after_attempt(AGENT_REQUESTS_MAX), reraise=True)(
            self._request, _pool(self._url, self._access)
        )
        if self._received != self._body.size:
            raise self._damaged("the answer ended early")
        body: pa.Buffer = self._body
        return body

    def _request(self, pool: urllib3.PoolManager) -> None:
        with pool.request(
            "GET",
            self._url,
            headers={"range": f"bytes={self._received}-", **self._access.headers()},
            timeout=self._timeout,
            redirect=False,
            preload_content=False,
        ) as response:
            if response.status == 404:
                raise FileNotFoundError(self._url)
            _check_answered(response, self._url, self._access)
            length = self._whole_length(response)
            if self._body is None:
                self._body = pa.allocate_buffer(length)
            target = memoryview(self._body).cast("B")
            for chunk in response.stream(_CHUNK_BYTES, decode_content=False):
                if self._received + len(chunk) > len(target):
                    raise self._damaged("the agent sent more than the block's length")
                target[self._received : self._received + len(chunk)] = chunk
                self._received += len(chunk)

    def _whole_length(self, response: urllib3.BaseHTTPResponse) -> int:
        """Return the length of the whole block from an answer, which must begin where the last one ended."""
        unit, _, rest = response.headers.get("content-range", "").partition(" ")
        span, _, total = rest.partition("/")
        start = span.partition("-")[0]
        if response.status != 206 or is_chunked(response) or unit != "bytes" or start != str(self._received):
            raise self._damaged(f"the agent answered HTTP {response.status} without the requested bytes")
        length = whole_number(total, self._length_max)
        if length is None or (self._body is not None and length != self._body.size):
            raise self._damaged(f"the agent states the length {total[:20]!r}, which is not the block's length")
        return length

    def _damaged(self, reason: str) -> CorruptionError:
        return CorruptionError(self._url, self._received, reason)
