"""The route ``/metrics``."""

from __future__ import annotations

import asyncio

from litestar import HttpMethod, Response, route
from litestar.handlers import HTTPRouteHandler

from forebay.http.application import needs
from forebay.metrics.exposition import MEDIA_TYPE, Metrics

PATH = "/metrics"


def metrics_route(metrics: Metrics) -> HTTPRouteHandler:
    """Return the route that answers with the text of ``metrics``. Prometheus sends a reader's token as a bearer token."""

    @route(
        PATH,
        http_method=[HttpMethod.GET, HttpMethod.HEAD],
        summary="Metrics in Prometheus' text format",
        tags=["people"],
        opt=needs("reader", "operator"),
        media_type=MEDIA_TYPE,
    )
    async def get_metrics() -> Response[bytes]:
        return Response(await asyncio.to_thread(metrics.render), media_type=MEDIA_TYPE)

    return get_metrics
