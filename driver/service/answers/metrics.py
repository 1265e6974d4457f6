"""The metrics of a driver: its own from the start on, and those of the stream once it leads."""

from __future__ import annotations

import socket
from collections.abc import Callable

from litestar.handlers import HTTPRouteHandler

from driver.metrics import definitions
from driver.metrics.counting import Counting
from driver.metrics.scrape import Led, Observed, Process, Scrape, ScrapeOptions
from driver.metrics.targets import targets, targets_route
from driver.service.composition import Parts
from driver.service.options import Given
from driver.service.stores import Stores
from forebay.http.address import reached_at
from forebay.messages import TargetGroup
from forebay.metrics.exposition import Metrics
from forebay.metrics.route import metrics_route
from forebay.model.errors import NotTakenError


class DriverMetrics:
    """``state``: the driver's state, as the status shows it. ``led``: None until the driver leads. ``http_requests``: returns
    how many requests the driver is answering. ``url``: where the driver listens."""

    def __init__(self, given: Given, *, state: Callable[[], str]) -> None:
        settings = given.settings
        self._settings = settings
        self.led: Led | None = None
        self.http_requests: Callable[[], int] = lambda: 0
        self.url = ""
        scrape = Scrape(
            Process(
                state=state,
                http_requests=lambda: self.http_requests(),
                listeners=lambda: given.listeners.status,
                led=lambda: self.led,
            ),
            given.clock,
            ScrapeOptions(
                receiver_timeout=settings.driver.receiver_timeout,
                batch_interval=settings.driver.batch_interval,
                partitions_max=settings.driver.metrics_partitions,
                has_wal=settings.has_wal,
            ),
        )
        metrics = Metrics(
            definitions.COUNTED,
            labels={"stream": settings.stream},
            release=given.options.release,
            clock=given.clock,
            read=scrape.read,
        )
        self.counting = Counting(metrics, given.clock)
        self._metrics = metrics

    def lead(self, parts: Parts, stores: Stores, observed: Observed) -> None:
        """Show the stream from now on."""
        self.led = Led(
            observed=observed,
            tracker=parts.tracker,
            loop=parts.loop,
            scheduler=parts.scheduler,
            store_requests=lambda: stores.requests,
            longest_wait=self.counting.longest.seconds,
        )

    def routes(self, not_leading: Callable[[], Exception]) -> list[HTTPRouteHandler]:
        """Return the routes ``/metrics`` and ``/v1/metrics/targets``. ``not_leading``: why the driver does not lead."""

        def read() -> tuple[TargetGroup, ...]:
            if self.led is not None:
                return self._targets(self.led)
            refusal = not_leading()
            if isinstance(refusal, NotTakenError):  # a standby: its list from when it led must not stay
                return ()
            raise refusal

        return [metrics_route(self._metrics), targets_route(read)]

    def _targets(self, led: Led) -> tuple[TargetGroup, ...]:
        drivers = self._settings.driver.urls or (reached_at(self.url, socket.gethostname()),)
        heartbeats = led.tracker
        return targets(
            self._settings.stream, drivers, dict(heartbeats.agent_heartbeats), dict(heartbeats.receiver_heartbeats)
        )
