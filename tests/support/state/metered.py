"""The routes of metrics over services that have none of their own parts."""

from __future__ import annotations

from litestar.handlers import HTTPRouteHandler

from driver.metrics.targets import targets_route
from executor_agent.metrics import AgentMetrics, AgentView
from executor_agent.store import Usage
from forebay.metrics.exposition import Metrics
from forebay.metrics.route import metrics_route
from forebay.process.clock import SystemClock


def driver_routes() -> list[HTTPRouteHandler]:
    """The routes of a driver without a stream."""
    metrics = Metrics((), labels={"stream": "s"}, release="test", clock=SystemClock())
    return [metrics_route(metrics), targets_route(tuple)]


def agent_metrics() -> AgentMetrics:
    """The metrics of an agent with an empty folder."""
    view = AgentView(
        usage=Usage(blocks=0, used_bytes=0, free_bytes=0),
        deleted=0,
        refused=0,
        undeleted_blocks=0,
        driver_reachable=False,
        receivers=(),
        http_requests=0,
    )
    return AgentMetrics(stream="s", host="h1", release="test", quota_bytes=1, clock=SystemClock(), view=lambda: view)
