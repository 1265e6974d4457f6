"""WAL and journal on Google Cloud Storage and Azure Blob Storage, as their emulators answer: kill -9 of processes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from tests.support.kafka.flow import Truth, numbered, produce
from tests.support.processes.cluster import Cluster
from tests.support.stores.contract import azure_server, gs_server
from tests.support.stores.emulators import PLACE, Emulator

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize(("scheme", "serve"), [("gs", gs_server), ("abfs", azure_server)])
def test_kills_lose_and_repeat_nothing(
    tmp_path: Path,
    kafka_broker: KafkaBroker,
    topic_name: Callable[[], str],
    scheme: str,
    serve: Callable[[Path], AbstractContextManager[Emulator]],
) -> None:
    """INV-1, INV-2, INV-3, INV-4: the processes open the store by its URL and its section of the settings alone. Without local
    copies, tasks read every block from it."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    truth = Truth()
    with (
        serve(tmp_path / "server") as server,
        Cluster(
            tmp_path / "cluster", kafka_broker.options, [topic], receivers=1, storage=server.options,
            wal={"url": f"{scheme}://{PLACE}/wal"}, driver={"journal": f"{scheme}://{PLACE}/journal"},
            receiver={"local_copies": False},
        ) as cluster,
    ):  # fmt: skip
        for start in range(0, 600, 300):
            produce(kafka_broker.options, topic, numbered(300, start=start), truth)
            cluster.await_completed(truth.ends())
            for name in ("driver", "r1") if not start else ():
                cluster.kill9(name)
                cluster.restart(name)
        assert cluster.command("wal", "verify").returncode == 0
        cluster.check(truth)
