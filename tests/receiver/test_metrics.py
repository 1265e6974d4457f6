"""A receiver's metrics: what is counted while it takes records in, and where it serves them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest
import urllib3
from prometheus_client.parser import text_string_to_metric_families

import receiver.metrics as d
from forebay.metrics.definition import Metric
from forebay.model.errors import StoreError, UsageError
from forebay.model.values import TopicPartition
from forebay.process.clock import SystemClock
from forebay.settings.reading.load import from_values
from forebay.settings.schema import METRICS_PORTS, Settings
from receiver.main import compose
from receiver.metrics import ReceiverMetrics
from receiver.service import ReceiverService
from receiver.serving import serving
from tests.receiver.fakes import FakeKafka, FakeTracker, marked, running
from tests.support.run.ports import free_port
from wal.storage.local import LocalStorage

# a server's thread leaves its loop's sockets to the collector
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

P0 = TopicPartition("t", 0)


@pytest.fixture
def tracker() -> Iterator[FakeTracker]:
    with FakeTracker() as tracker:
        yield tracker


def settings_of(tmp_path: Path, url: str, metrics_url: str) -> Settings:
    own = {
        "block_interval": "50ms", "heartbeat_interval": "100ms", "reclaim_delay": "50ms", "report_timeout": "5s",
        "drain_timeout": "60s", "memory": "32MB", "metrics_url": metrics_url,
    }  # fmt: skip
    return from_values(
        {
            "stream": "s",
            "kafka": {"bootstrap.servers": "unused:1", "topics": ["t"]},
            "wal": {"url": f"file://{tmp_path}/wal"},
            "receiver": own,
            "driver": {"url": url, "journal": f"file://{tmp_path}/journal"},
            "agent": {"blocks": f"{tmp_path}/blocks"},
        }
    )


def composed(settings: Settings, kafka: FakeKafka, tmp_path: Path, name: str = "r-1") -> Any:
    clock = SystemClock()
    metrics = ReceiverMetrics(stream="s", receiver_id=name, release="1", memory_bytes=32_000_000, clock=clock)
    storage = marked(LocalStorage(str(tmp_path / "wal")))
    return compose(settings, name, source=kafka, storage=storage, clock=clock, host="h", metrics=metrics), metrics


def values(url: str) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(urllib3.request("GET", url).data.decode()):
        for sample in family.samples:
            assert sample.labels["stream"] == "s" and sample.labels["receiver"] == "r-1"
            more = [value for name, value in sorted(sample.labels.items()) if name not in ("stream", "receiver")]
            found[" ".join([sample.name, *more])] = sample.value
    return found


def served(settings: Settings, service: ReceiverService, metrics: ReceiverMetrics) -> AbstractContextManager[None]:
    assert settings.receiver.metrics_url is not None
    return serving(settings, settings.receiver.metrics_url, service, metrics, "h")


def test_receiver_counts_blocks_syncs_and_reports_and_tells_the_driver_where(
    tmp_path: Path, tracker: FakeTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_of(tmp_path, tracker.url, "http://127.0.0.1:0")
    kafka = FakeKafka({P0: [b"%05d" % number for number in range(1000)]})
    service, metrics = composed(settings, kafka, tmp_path)
    with served(settings, service, metrics), running(service):
        tracker.wait_for(lambda: tracker.positions.get(P0, 0) == 1000)
        tracker.wait_for(lambda: tracker.heartbeats[-1].records == 1000)
        found = values(f"{service.metrics_url}/metrics")
        blocks = len(tracker.blocks)
        assert found["forebay_receiver_records_total"] == 1000
        assert found["forebay_receiver_stored_blocks_total"] == blocks
        assert found["forebay_receiver_stored_bytes_total"] == sum(
            r.bytes for b in tracker.blocks for r in b.meta.ranges
        )
        assert found["forebay_receiver_store_seconds_count"] == blocks
        assert 1 <= found["forebay_receiver_sync_seconds_count"] <= blocks
        assert 1 <= found["forebay_receiver_report_seconds_count"] <= blocks
        assert found["forebay_receiver_events_total blocks_accepted"] == blocks
        assert found["forebay_receiver_state active"] == 1
        assert found["forebay_receiver_partitions"] == 1
        assert (found["forebay_receiver_sealed_blocks"], found["forebay_receiver_storing_blocks"]) == (0, 0)
        assert found["forebay_receiver_memory_bytes"] == 32_000_000
        assert not any(value for name, value in found.items() if name.startswith("forebay_receiver_failures"))
        assert tracker.heartbeats[-1].metrics_url == service.metrics_url
        assert service.metrics_url.startswith("http://127.0.0.1:")


def test_failures_are_counted_by_kind(tmp_path: Path, tracker: FakeTracker) -> None:
    class Failing(LocalStorage):
        failures = 2  # of one write: the writer tries another segment before it gives the error on

        def create(self, path: str) -> Any:
            if self.failures:
                self.failures -= 1
                raise StoreError("the disk does not answer")
            return super().create(path)

    settings = settings_of(tmp_path, tracker.url, "http://127.0.0.1:0")
    kafka = FakeKafka({P0: [b"x"] * 10})
    clock = SystemClock()
    metrics = ReceiverMetrics(stream="s", receiver_id="r-1", release="1", memory_bytes=1, clock=clock)
    service: ReceiverService = compose(
        settings,
        "r-1",
        source=kafka,
        storage=marked(Failing(str(tmp_path / "wal"))),
        clock=clock,
        host="h",
        metrics=metrics,
    )
    with running(service):
        tracker.wait_for(lambda: tracker.positions.get(P0, 0) == 10)
    assert b'forebay_receiver_failures_total{kind="store",receiver="r-1",stream="s"} 1.0' in metrics.metrics.render()


def test_receivers_of_one_host_take_ports_of_their_own(tmp_path: Path, tracker: FakeTracker) -> None:
    port = free_port()
    settings = settings_of(tmp_path, tracker.url, f"http://127.0.0.1:{port}")
    with ExitStack() as opened:
        urls = []
        for name in ("r-1", "r-2", "r-3"):
            service, metrics = composed(settings, FakeKafka({}), tmp_path, name)
            opened.enter_context(served(settings, service, metrics))
            urls.append(service.metrics_url)
        assert urls[0] == f"http://127.0.0.1:{port}"
        assert len(set(urls)) == 3
        for url, name in zip(urls, ("r-1", "r-2", "r-3"), strict=True):
            assert f'receiver="{name}"' in urllib3.request("GET", f"{url}/metrics").data.decode()
            assert urllib3.request("GET", f"{url}/v1/status").status == 404
    assert int(urls[2].rpartition(":")[2]) < port + METRICS_PORTS


def test_receiver_without_a_free_port_names_the_last_one(
    tmp_path: Path, tracker: FakeTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("receiver.serving.METRICS_PORTS", 1)
    settings = settings_of(tmp_path, tracker.url, f"http://127.0.0.1:{free_port()}")
    (one, ones), (other, others) = (composed(settings, FakeKafka({}), tmp_path, name) for name in ("r-1", "r-2"))
    with (
        served(settings, one, ones),
        pytest.raises(UsageError, match="the port is in use"),
        served(settings, other, others),
    ):
        pass


def test_each_metric_of_the_module_is_counted_or_read() -> None:
    defined = {value for value in vars(d).values() if isinstance(value, Metric)}
    assert defined == {*d.COUNTED, *d.READ}
