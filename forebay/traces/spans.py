"""Spans with ids that follow from what they describe, so that processes add to one trace without passing its id.

A block's trace and a batch's trace are named by the id of the block or batch. Spans are made when they have ended, with their
times. The only module that imports OpenTelemetry, which is an extra; it is imported only if traces are on.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

log = logging.getLogger(__name__)

Attributes = Mapping[str, Any]  # of texts, numbers, truth values and lists of texts

#: maximum number of links of a span
LINKS_MAX = 128
#: maximum time for which a process that stops waits until the collector has taken the last spans
CLOSE_SECONDS = 2.0


class _Ids(IdGenerator):
    """Gives the ids that were set for the next span, else random ones."""

    def __init__(self) -> None:
        self._random = RandomIdGenerator()
        self.root: tuple[int, int] | None = None

    def generate_trace_id(self) -> int:
        return self.root[0] if self.root is not None else self._random.generate_trace_id()

    def generate_span_id(self) -> int:
        return self.root[1] if self.root is not None else self._random.generate_span_id()


def root_ids(kind: str, stream: str, name: str) -> tuple[int, int]:
    """Return trace id and span id of the root span of a block or batch."""
    digest = hashlib.sha256(f"{kind}\0{stream}\0{name}".encode()).digest()
    return int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:24], "big")


class Spans:
    """Makes spans of one process. Thread-safe.

    ``processor`` takes the ended spans; it must not block. ``share``: share of the traces that are kept, chosen by their id, so
    that all processes keep the same ones.
    """

    def __init__(self, service: str, stream: str, *, release: str, processor: SpanProcessor, share: float) -> None:
        self.stream = stream
        self._ids = _Ids()
        self._lock = threading.Lock()
        self._provider = TracerProvider(
            sampler=TraceIdRatioBased(share),
            resource=Resource.create({"service.name": service, "service.version": release, "forebay.stream": stream}),
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("forebay", release)

    def root(
        self,
        kind: str,
        name: str,
        *,
        begun_ns: int,
        ended_ns: int,
        attributes: Attributes,
        linked: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Add the root span of a block or batch. ``kind``: block or batch. ``linked``: kinds and names of other roots; the first
        ``LINKS_MAX`` are kept."""
        links = [Link(self._context_of(*one)) for one in linked[:LINKS_MAX]]
        with self._lock:
            self._ids.root = root_ids(kind, self.stream, name)
            try:
                span = self._tracer.start_span(
                    kind, Context(), attributes=dict(attributes), links=links, start_time=begun_ns
                )
            finally:
                self._ids.root = None
        span.end(max(begun_ns, ended_ns))

    def child(
        self,
        kind: str,
        name: str,
        step: str,
        *,
        begun_ns: int,
        ended_ns: int,
        attributes: Attributes | None = None,
        error: str = "",
    ) -> None:
        """Add the span of a ``step`` to the root of a block or batch, which may be of another process or not ended yet."""
        parent: Any = set_span_in_context(NonRecordingSpan(self._context_of(kind, name)), Context())
        with self._lock:
            span = self._tracer.start_span(step, parent, attributes=dict(attributes or {}), start_time=begun_ns)
        if error:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(max(begun_ns, ended_ns))

    def close(self) -> None:
        """Send the spans that wait, and end. Spans that the collector has not taken after ``CLOSE_SECONDS`` are lost."""
        closing = threading.Thread(target=self._provider.shutdown, name="traces-close", daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)
        if closing.is_alive():
            log.warning("the collector of traces does not answer: the last spans may be lost")

    def _context_of(self, kind: str, name: str) -> SpanContext:
        trace_id, span_id = root_ids(kind, self.stream, name)
        return SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
