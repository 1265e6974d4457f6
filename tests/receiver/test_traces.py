"""Traces of blocks at their receiver, in the exporter that keeps them in memory, and sent to a collector."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from forebay.model.errors import SettingsError
from forebay.model.values import TopicPartition
from forebay.process.clock import SystemClock
from forebay.settings.reading.load import from_values
from forebay.settings.schema import Settings
from forebay.traces.sending import spans_of
from forebay.traces.spans import Spans, root_ids
from receiver.main import compose
from tests.receiver.fakes import FakeKafka, FakeTracker, marked, running
from wal.storage.local import LocalStorage

P0 = TopicPartition("t", 0)


@pytest.fixture
def tracker() -> Iterator[FakeTracker]:
    with FakeTracker() as tracker:
        yield tracker


def settings_of(tmp_path: Path, url: str, **traces: object) -> Settings:
    return from_values(
        {
            "stream": "s",
            "kafka": {"bootstrap.servers": "unused:1", "topics": ["t"]},
            "wal": {"url": f"file://{tmp_path}/wal"},
            "receiver": {"block_interval": "50ms", "heartbeat_interval": "100ms", "drain_timeout": "60s"},
            "driver": {"url": url, "journal": f"file://{tmp_path}/journal"},
            "agent": {"blocks": f"{tmp_path}/blocks"},
            "traces": traces,
        }
    )


def ids(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def take_in(tmp_path: Path, tracker: FakeTracker, spans: Spans) -> None:
    """Run a receiver until it has taken in 1,000 records."""
    kafka = FakeKafka({P0: [b"%05d" % number for number in range(1000)]})
    storage = marked(LocalStorage(str(tmp_path / "wal")))
    service = compose(
        settings_of(tmp_path, tracker.url),
        "r-1",
        source=kafka,
        storage=storage,
        clock=SystemClock(),
        host="h",
        spans=spans,
    )
    with running(service):
        tracker.wait_for(lambda: tracker.positions.get(P0, 0) == 1000)
    spans.close()


def test_receiver_goes_on_without_traces_if_spans_cant_be_made(
    tmp_path: Path, tracker: FakeTracker, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Spans):
        def child(self, *_: object, **__: object) -> None:
            raise TypeError("no child")

        def root(self, *_: object, **__: object) -> None:
            raise TypeError("no root")

    spans = Broken(
        "forebay-receiver", "s", release="1", processor=SimpleSpanProcessor(InMemorySpanExporter()), share=1.0
    )
    take_in(tmp_path, tracker, spans)
    logged = [record for record in caplog.records if record.name == "receiver.traces"]
    assert [record.getMessage() for record in logged] == ["cannot make a span: some blocks have no trace"]


def test_each_accepted_block_has_a_trace_from_its_seal_to_the_answer(tmp_path: Path, tracker: FakeTracker) -> None:
    memory = InMemorySpanExporter()
    spans = Spans("forebay-receiver", "s", release="1", processor=SimpleSpanProcessor(memory), share=1.0)
    take_in(tmp_path, tracker, spans)
    found = memory.get_finished_spans()
    roots = {ids(span): span for span in found if span.name == "block"}
    assert set(roots) == {root_ids("block", "s", block.id) for block in tracker.blocks}
    assert sum(span.attributes["forebay.records"] for span in roots.values()) == 1000  # type: ignore[index, misc]
    for own, root in roots.items():
        steps = [span for span in found if span.parent is not None and span.parent.trace_id == own[0]]
        assert [span.name for span in steps] == ["store", "report"]
        assert all(span.parent is not None and span.parent.span_id == own[1] for span in steps)
        store, report = steps
        assert root.start_time == store.start_time and report.end_time == root.end_time
        assert store.end_time <= report.start_time <= report.end_time  # type: ignore[operator]
        assert dict(root.resource.attributes)["service.name"] == "forebay-receiver"


def test_share_keeps_the_same_traces_in_every_process() -> None:
    kept = []
    for _ in range(2):
        memory = InMemorySpanExporter()
        spans = Spans("forebay-receiver", "s", release="1", processor=SimpleSpanProcessor(memory), share=0.3)
        for number in range(200):
            spans.root("block", f"r-1-{number}", begun_ns=1, ended_ns=2, attributes={})
            spans.child("block", f"r-1-{number}", "wait", begun_ns=1, ended_ns=2)
        found = memory.get_finished_spans()
        kept.append({span.context.trace_id for span in found if span.context is not None})
        assert len(found) == 2 * len(kept[-1])
    assert kept[0] == kept[1] and 30 <= len(kept[0]) <= 90


def test_spans_are_sent_to_the_collector_of_the_settings(tmp_path: Path) -> None:
    bodies: list[bytes] = []

    class Collector(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Collector) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}/v1/traces"
        spans = spans_of(settings_of(tmp_path, "http://127.0.0.1:1", endpoint=endpoint), "receiver", "1")
        assert spans is not None
        spans.root("block", "r-1-1", begun_ns=1_000, ended_ns=2_000, attributes={"forebay.records": 7})
        spans.close()
        server.shutdown()
    (resource,) = ExportTraceServiceRequest.FromString(bodies[0]).resource_spans
    (span,) = resource.scope_spans[0].spans
    assert (span.name, span.start_time_unix_nano, span.end_time_unix_nano) == ("block", 1_000, 2_000)
    assert int.from_bytes(span.trace_id, "big") == root_ids("block", "s", "r-1-1")[0]


def test_without_an_endpoint_nothing_of_opentelemetry_is_imported() -> None:
    code = """
import sys
import receiver.main, driver.service
from forebay.settings.reading.load import from_values
from forebay.traces.sending import spans_of
settings = from_values({"stream": "s", "data": "/tmp/none", "kafka": {"topics": ["t"], "bootstrap.servers": "h:1"}})
assert spans_of(settings, "driver", "1") is None
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])


def test_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)
    settings = settings_of(tmp_path, "http://127.0.0.1:1", endpoint="http://127.0.0.1:1/v1/traces")
    with pytest.raises(SettingsError, match=r"pip install 'forebay\[otel\]', or remove the key"):
        spans_of(settings, "driver", "1")
