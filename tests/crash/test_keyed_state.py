"""The driver is killed at every step of a change of keyed state, and of its clean-up: each record is counted exactly once, and
each window by time has the same batches in every run. WAL and journal are in files, on a real S3 server or on a real HDFS.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from tests.support.kafka.flow import Flow
from tests.support.processes.cluster import Cluster
from tests.support.state.counting import JOB_NAME, SETTINGS, check_counts, check_windows, kill_at_each_step
from tests.support.stores.contract import STORES

pytestmark = pytest.mark.kafka


#: S3 and HDFS only in `make test-long`, because the random kills in tests/integration test a keyed state on them in less time
STORES_OF_THE_STATE = (
    "file", pytest.param("s3", marks=pytest.mark.long), pytest.param("hdfs", marks=(pytest.mark.long, pytest.mark.hdfs)),
)  # fmt: skip


@pytest.mark.parametrize("store", STORES_OF_THE_STATE)
def test_a_kill_at_any_step_counts_each_record_once(
    store: str, tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-3, INV-4, INV-8: with the batch, or not at all; what the killed runs left is deleted in the end."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    (tmp_path / "store").mkdir()
    with STORES[store](tmp_path / "store") as place, Flow(kafka_broker.options, topic, rate=200) as flow:
        place.begin()
        urls: dict[str, dict[str, Any]] = {
            "wal": {"url": f"{place.url}/wal"}, "driver": {"journal": f"{place.url}/journal"}, "storage": dict(place.options)
        }  # fmt: skip
        settings: dict[str, Any] = {name: {**SETTINGS.get(name, {}), **urls[name]} for name in urls}
        with Cluster(
            tmp_path, kafka_broker.options, [topic], receivers=1, start=False, job=JOB_NAME, **settings
        ) as cluster:
            kill_at_each_step(cluster, flow)
            flow.stop()
            cluster.await_completed(flow.truth.ends())
            cluster.check(flow.truth)
            check_counts(cluster, flow.truth)
            check_windows(cluster)
