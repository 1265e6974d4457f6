"""A driver whose stream comes from a class of the user's own: no broker is asked, and what the class raises ends nothing."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from driver.background.discovery import Known, discover
from driver.batches.job.batch import Batch
from driver.context import IngestContext
from forebay.http.client import Client
from forebay.messages import StatusAnswer
from forebay.model.values import TopicPartition
from forebay.settings.reading.load import from_values
from forebay.sources.custom import CustomUpstream
from forebay.sources.receiving import Record, ReliableSource, RetryLater
from tests.support.processes.played import PlayedReceiver


class Two(ReliableSource):
    """``raises``: what ``identity`` does for each of its next calls, in any part of the process."""

    raises: ClassVar[list[Exception]] = []

    def partitions(self) -> Sequence[str]:
        return ["x", "y"]

    def open(self, partition: str, offset: int) -> None: ...

    def poll(self, partitions: Sequence[str], max_records: int, timeout_seconds: float) -> Mapping[str, list[Record]]:
        return {}

    def close(self) -> None: ...

    def first_offset(self, partition: str) -> int:
        return 40 if partition == "x" else 0

    def identity(self, partition: str) -> str:
        if self.raises:
            raise self.raises.pop()
        return f"id of {partition}"


def test_the_driver_waits_for_the_class_and_then_begins_where_it_says(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = from_values(
        {
            "stream": "s",
            "receiver": {"source": f"{__name__}:Two"},
            "wal": {"url": f"file://{tmp_path}/wal"},
            "driver": {
                "journal": f"file://{tmp_path}/journal", "url": "http://127.0.0.1:0", "engine": "local",
                "batch_interval": "20ms", "lease_duration": "300ms", "snapshot_copy_interval": "0s",
            },
            "agent": {"blocks": f"{tmp_path}/blocks"},
        }
    )  # fmt: skip
    Two.raises = [RetryLater("not mounted"), ValueError("a slip")]
    done = threading.Event()

    def job(batch: Batch) -> None:
        assert [r.label for r in batch.ranges] == ["x/0[40, 45)"]
        done.set()

    with IngestContext(None, settings) as intake:
        intake.foreach_batch(job)
        client = Client(intake.url)
        for _ in range(1000):
            status = client.get("/v1/status", StatusAnswer)
            assert status.state != "failed", status.detail
            if status.state == "running":
                break
            threading.Event().wait(0.02)
        assert {(p.topic, p.position) for p in status.partitions} == {("x", 40), ("y", 0)}
        assert status.topic_ids_known
        PlayedReceiver(settings, intake.url, "s-r0").take_in(TopicPartition("x", 0), 5)
        assert done.wait(30)
    assert not Two.raises
    messages = [record.getMessage() for record in caplog.records]
    # further reasons within the first minute are counted, and the status shows them
    assert f"waiting: source: {__name__}:Two: identity(): ValueError: a slip" in messages


def test_a_partition_that_appears_later_begins_at_its_beginning_whatever_the_policy() -> None:
    """INV-5: what was written to it before it was noticed is not skipped."""
    settings = from_values(
        {
            "stream": "s",
            "receiver": {"source": f"{__name__}:Two"},
            "kafka": {"starting_offsets": "latest"},
            "wal": {"url": "file:///w"},
            "driver": {"journal": "file:///j"},
            "agent": {"blocks": "/b"},
        }
    )
    upstream = CustomUpstream(settings)
    found = discover(
        upstream, settings, upstream.partitions(), Known(frozenset({"y/0"}), frozenset({"y"}), created=True), 1
    )
    assert found is not None
    assert [(s.topic, s.start, s.topic_id) for s in found.starts] == [("x", 40, "id of x")]
