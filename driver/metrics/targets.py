"""The list of all processes that serve ``/metrics``, as Prometheus' HTTP service discovery reads it.

Receivers come and go, and several of one host have different ports. Their heartbeats name their URLs, so Prometheus needs no list
of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from urllib.parse import urlsplit

from litestar import get
from litestar.handlers import HTTPRouteHandler

from driver.tracker.heartbeats import LastAgentHeartbeat, LastHeartbeat
from forebay.http.application import needs
from forebay.messages import TargetGroup


def targets(
    stream: str,
    drivers: Iterable[str],
    agents: Mapping[str, LastAgentHeartbeat],
    receivers: Mapping[str, LastHeartbeat],
) -> tuple[TargetGroup, ...]:
    """Return all targets of the stream. ``drivers``: URLs of all drivers, standbys included.

    A process that has drained is none. A process that was killed stays one, so that its absence is seen.
    """

    def found() -> Iterator[tuple[str, dict[str, str]]]:
        for url in drivers:
            yield url, {"service": "driver"}
        for host, agent in agents.items():
            if agent.heartbeat.state != "draining":
                yield agent.heartbeat.url, {"service": "agent", "__meta_forebay_host": host}
        for receiver_id, receiver in receivers.items():
            if receiver.heartbeat.state != "draining":
                yield receiver.heartbeat.metrics_url, {"service": "receiver", "__meta_forebay_receiver": receiver_id}

    return tuple(
        TargetGroup(
            targets=(urlsplit(url).netloc,),
            labels={"__scheme__": urlsplit(url).scheme, "__meta_forebay_stream": stream, **labels},
        )
        for url, labels in found()
        if url
    )


def targets_route(read: Callable[[], tuple[TargetGroup, ...]]) -> HTTPRouteHandler:
    """Return the route with the list that ``read`` returns. It must not wait."""

    @get(
        "/v1/metrics/targets",
        summary="All processes that serve metrics, for Prometheus' HTTP service discovery",
        tags=["people"],
        opt=needs("reader", "operator"),
    )
    async def get_targets() -> tuple[TargetGroup, ...]:
        return read()

    return get_targets
