"""The HTTP server of a receiver's metrics. It is loaded only if ``receiver.metrics_url`` is set."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from urllib.parse import urlsplit

from litestar import Litestar

from forebay.http.address import reached_at
from forebay.http.application import application
from forebay.http.server import PortInUse, Server
from forebay.metrics.route import metrics_route
from forebay.process.logs import fields
from forebay.security.access import Guard, announce
from forebay.settings.schema import METRICS_PORTS, Settings
from receiver.metrics import ReceiverMetrics
from receiver.service import ReceiverService

log = logging.getLogger("forebay.receiver")


@contextmanager
def serving(
    settings: Settings, url: str, service: ReceiverService, metrics: ReceiverMetrics, host: str
) -> Iterator[None]:
    """Serve the receiver's metrics at ``url``, or at one of the next ports. ``host``: this host's name.

    Raises UsageError if none of the ports is free.
    """
    guard = Guard(settings)
    app = application("Forebay receiver", version("forebay"), [metrics_route(metrics.metrics)], guard)
    with ExitStack() as opened:
        server = opened.enter_context(first_free(app, url, guard))
        service.metrics_url = reached_at(server.url, host)
        announce(guard, server.url)
        log.info("serves metrics at %s/metrics", server.url, extra=fields(url=server.url))
        yield


@contextmanager
def first_free(app: Litestar, url: str, guard: Guard) -> Iterator[Server]:
    """Serve ``app`` at the first free port from that of ``url`` on; port 0: any. Raises UsageError."""
    parts = urlsplit(url)
    port = parts.port or 0
    ports = range(port, min(port + METRICS_PORTS, 1 << 16)) if port else (0,)
    address = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    with ExitStack() as opened:
        for number in ports:
            server = Server(app, f"{parts.scheme}://{address}:{number}", guard=guard)
            try:
                opened.enter_context(server)
                break
            except PortInUse:
                if number == ports[-1]:
                    raise
        yield server
