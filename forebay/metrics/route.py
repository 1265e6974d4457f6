"""The route ``/metrics``."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from litestar import HttpMethod, Response, route
from litestar.handlers import HTTPRouteHandler

from forebay.http.application import needs
from forebay.metrics.exposition import MEDIA_TYPE, Metrics
from forebay.model.errors import TurnedAwayError

PATH = "/metrics"
#: maximum number of scrapes that wait
WAITING_MAX = 10


def metrics_route(metrics: Metrics) -> HTTPRouteHandler:
    """Return the route that answers with the text of ``metrics``. Prometheus sends a reader's token as a bearer token.

    The text is made in a thread of the route's own. If a store does not answer, scrapes hold up no other route, and a scrape is
    refused while ``WAITING_MAX`` others wait.
    """
    thread = ThreadPoolExecutor(1, thread_name_prefix="metrics")
    waiting = 0

    @route(
        PATH,
        http_method=[HttpMethod.GET, HttpMethod.HEAD],
        summary="Metrics in Prometheus' text format",
        tags=["people"],
        opt=needs("reader", "operator"),
        media_type=MEDIA_TYPE,
    )
    async def get_metrics() -> Response[bytes]:
        nonlocal waiting
        if waiting >= WAITING_MAX:
            raise TurnedAwayError(f"{WAITING_MAX} scrapes already wait for the store; try again later")
        waiting += 1
        try:
            text = await asyncio.get_running_loop().run_in_executor(thread, metrics.render)
        finally:
            waiting -= 1
        return Response(text, media_type=MEDIA_TYPE)

    return get_metrics
