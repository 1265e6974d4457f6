"""A store that does not answer holds up neither the other routes nor more than a bounded number of requests."""

from __future__ import annotations

import threading
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

import pytest

from driver.http.api import tracker_application
from driver.http.observation.routes import WAITING_MAX
from forebay import messages as m
from forebay.client import Client
from forebay.http.client import Client as HttpClient
from forebay.http.server import Server
from forebay.metrics.exposition import Metrics
from forebay.metrics.route import metrics_route
from forebay.model.errors import UnreachableError
from forebay.process.clock import ManualClock
from tests.support.state.observed import no_stream


@pytest.mark.parametrize("route", ["journal", "batch", "records", "metrics"])
def test_hanging_store_holds_up_no_other_route(route: str) -> None:
    """INV-6."""
    answering = threading.Event()
    begun = threading.Semaphore(0)

    def hang(*_: Any) -> Any:
        begun.release()
        assert answering.wait(60)
        raise UnreachableError("the store does not answer")

    def nothing(*_: Any) -> Future[Any]:
        return Future()

    observer: Any = no_stream()
    setattr(observer, route, hang)
    observer.settings = lambda: m.SettingsAnswer()
    metrics = Metrics((), labels={}, release="test", clock=ManualClock(), read=hang)
    app = tracker_application(
        nothing,
        status=nothing,
        ready=lambda: None,
        release="test",
        observer=observer,
        more=[metrics_route(metrics)],
    )
    with Server(app, "http://127.0.0.1:0") as server, ThreadPoolExecutor(WAITING_MAX + 5) as pool:
        client, scraper = Client(server.url, timeout_seconds=60), HttpClient(server.url, timeout_seconds=60)
        ask: Any = {
            "journal": client.journal,
            "batch": lambda: client.batch(1),
            "records": lambda: client.records("r1-1-1"),
            "metrics": lambda: scraper.request("GET", "/metrics"),
        }[route]
        asked = [pool.submit(ask) for _ in range(WAITING_MAX + 5)]
        assert begun.acquire(timeout=30)
        hanging = set(asked)
        while len(hanging) > WAITING_MAX:
            refused, hanging = wait(hanging, timeout=30, return_when=FIRST_COMPLETED)
            assert refused and all(
                "already wait for the store; try again later" in str(one.exception()) for one in refused
            )
        assert client.settings().settings == ()  # answered meanwhile
        answering.set()
        assert all("does not answer" in str(one.exception(60)) for one in hanging)
        client.close()
        scraper.close()
