"""A stream whose blocks are copied to another host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from forebay.kafka.embedded.broker import KafkaBroker
from tests.support.kafka.flow import Flow
from tests.support.processes.cluster import Cluster

SECOND = "host-two"


@contextmanager
def copying(
    folder: Path, broker: KafkaBroker, topic: str, *, failpoints: str = "", **settings: Any
) -> Iterator[tuple[Cluster, Flow]]:
    """Run a driver, the agents of both hosts, and receiver ``r1`` with ``failpoints``, under load."""
    broker.create_topic(topic)
    settings = {**settings, "receiver": {"copies": 2, **settings.get("receiver", {})}}
    with (
        Flow(broker.options, topic) as flow,
        Cluster(folder, broker.options, [topic], receivers=1, start=False, **settings) as cluster,
    ):
        for name in ("driver", "agent"):
            cluster.start(name)
        cluster.start_agent(SECOND)
        cluster.start("r1", failpoints=failpoints)
        yield cluster, flow


def end_without_copies(cluster: Cluster, flow: Flow) -> None:
    """Complete and check everything that was produced. In the end the other host has no copy (INV-8)."""
    flow.stop()
    cluster.await_completed(flow.truth.ends())
    cluster.check(flow.truth)
    folder = cluster.folder / f"blocks-{SECOND}"
    cluster.wait(lambda: not list(folder.rglob("*.copy")), "no copy to be left")
