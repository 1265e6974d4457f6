"""The metrics of a whole driver in one process: a mock broker, real HTTP, a real journal and WAL, a job without Spark."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import urllib3
from prometheus_client.parser import text_string_to_metric_families

from driver import IngestContext
from driver.batches.job.batch import Batch
from forebay import messages as m
from forebay.http.client import Client
from forebay.kafka.embedded.broker import MockBroker
from forebay.model.errors import UsageError
from forebay.model.values import TopicPartition
from forebay.settings.reading.load import from_values
from tests.support.processes.played import PlayedReceiver
from tests.support.servers import prometheus

# a server's thread leaves its loop's sockets to the collector
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def values(url: str) -> dict[str, float]:
    """The values of all series without labels of their own, and of the others by their labels."""
    found = {}
    for family in text_string_to_metric_families(urllib3.request("GET", f"{url}/metrics").data.decode()):
        for sample in family.samples:
            labels = [value for name, value in sorted(sample.labels.items()) if name != "stream"]
            found[" ".join([sample.name, *labels])] = sample.value
    return found


def until(url: str, name: str, reached: Callable[[float], bool]) -> dict[str, float]:
    """The values once that of ``name`` is ``reached``."""
    for _ in range(600):
        if reached((found := values(url)).get(name, -1.0)):
            return found
        threading.Event().wait(0.05)
    raise AssertionError(f"{name} is {found.get(name)}")


def test_driver_shows_what_it_takes_in_and_what_its_job_does(
    tmp_path: Path, mock_broker: MockBroker, topic_name: Callable[[], str]
) -> None:
    topic = topic_name()
    mock_broker.create_topic(topic)
    settings = from_values(
        {
            "stream": "s",
            "kafka": {"topics": [topic], "group": topic, **mock_broker.options},
            "wal": {"url": f"file://{tmp_path}/wal", "retention": "0s"},
            "driver": {
                "journal": f"file://{tmp_path}/journal", "url": "http://127.0.0.1:0", "engine": "local",
                "batch_interval": "20ms", "job_retry_delay": "1ms", "snapshot_copy_interval": "0s",
            },
            "agent": {"blocks": f"{tmp_path}/blocks"},
        }
    )  # fmt: skip
    failures = [ValueError("once"), ValueError("twice")]

    def job(batch: Batch) -> Any:
        list(batch.read())
        if failures:
            raise failures.pop()

    with IngestContext(None, settings) as intake:
        intake.foreach_batch(job)
        url = intake.url
        until(url, "forebay_driver_state running", lambda value: value == 1)
        receiver = PlayedReceiver(settings, url)
        for _ in range(3):
            receiver.take_in(TopicPartition(topic, 0), 10)
        found = until(url, "forebay_completed_records_total", lambda value: value == 30)
        assert found["forebay_driver_leads"] == 1
        assert found["forebay_receiver_registrations_total"] == 1
        assert (found["forebay_taken_blocks_total"], found["forebay_taken_records_total"]) == (3, 30)
        assert found["forebay_batch_failures_total job"] == 2
        assert found["forebay_batch_failures_total unreadable"] == 0
        batches = found["forebay_completed_batches_total"]
        for name in ("scheduling_delay", "processing", "total_delay"):
            assert found[f"forebay_batch_{name}_seconds_count"] == batches >= 1
        assert found["forebay_batch_total_delay_seconds_sum"] > 0
        assert found["forebay_tier_reads_total read wal"] >= 3
        assert found[f"forebay_partition_position 0 {topic}"] == 30
        assert found["forebay_journal_sync_seconds_count"] > 0
        assert found["forebay_journal_bytes"] > 0
        assert found["forebay_driver_decision_longest_wait_seconds"] > 0
        assert found["process_resident_memory_bytes"] > 1e6

        head = urllib3.request("HEAD", f"{url}/metrics")
        assert (head.status, head.data) == (200, b"")
        assert head.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert int(head.headers["content-length"]) > 1000
        assert urllib3.request("POST", f"{url}/metrics", json={}).status == 405

        beat = m.HeartbeatRequest(
            receiver_id="r1", epoch=receiver.epoch, state="active", detail="", acknowledged=0, buffered_bytes=0,
            records=0, metrics_url="http://h1:7082",
        )  # fmt: skip
        receiver.client.post("/v1/receivers/heartbeat", beat, m.HeartbeatAnswer)
        groups = json.loads(urllib3.request("GET", f"{url}/v1/metrics/targets").data)
        assert [(group["targets"], group["labels"]["service"]) for group in groups] == [
            ([url.removeprefix("http://")], "driver"),
            (["h1:7082"], "receiver"),
        ]
        hostile = msgspec.structs.replace(beat, metrics_url="http://h1:7082/elsewhere?a=")
        with pytest.raises(UsageError, match="a receiver's metrics_url must be http"):
            Client(url).post("/v1/receivers/heartbeat", hostile, m.HeartbeatAnswer)
        if prometheus.is_there():
            text = urllib3.request("GET", f"{url}/metrics").data.decode()
            prometheus.promtool("check", "metrics", text=text)
