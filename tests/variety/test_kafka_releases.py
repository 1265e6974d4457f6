"""The oldest and the newest release of Kafka that Forebay supports: kills while records flow, and the audit."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from forebay.kafka.embedded.jars import Libraries
from tests.conftest import missing, running_in_ci
from tests.integration.test_random_crashes import crash_on, draw_seed
from tests.support.kafka.flow import Flow
from tests.support.kafka.releases import NEWEST, OLDEST, NewestBroker, OldestBroker
from tests.support.processes.cluster import Cluster

pytestmark = [pytest.mark.long, pytest.mark.variety, pytest.mark.kafka]


@pytest.mark.parametrize(
    ("kind", "libraries"), [(OldestBroker, OLDEST), (NewestBroker, NEWEST)], ids=[OLDEST.name, NEWEST.name]
)
def test_random_kills_of_processes_and_of_the_broker_lose_and_repeat_nothing(
    kind: type[KafkaBroker], libraries: Libraries, tmp_path: Path
) -> None:
    """INV-1, INV-2, INV-3."""
    if not libraries.present() and not running_in_ci():
        missing(f"there are no jars of {libraries.title}: run python -m tests.support.kafka.releases")
    draw = random.Random(draw_seed())
    with kind(tmp_path / "kafka") as broker:
        broker.create_topic("flowing")
        with (
            Flow(broker.options, "flowing", rate=500) as flow,
            Cluster(tmp_path, broker.options, ["flowing"]) as cluster,
        ):
            cluster.await_records(1)
            killed = crash_on(cluster, flow, draw, kills=3)
            broker.kill9()
            broker.start()
            killed += crash_on(cluster, flow, draw, kills=2)
            flow.stop()
            cluster.await_completed(flow.truth.ends())
            cluster.check(flow.truth)
            cluster.drain()
    print(f"{libraries.title}: {flow.records} records, {dict(killed)} killed, the broker killed once")
