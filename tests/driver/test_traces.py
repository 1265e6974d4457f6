"""Traces of batches, and of blocks from the driver's side, in the exporter that keeps them in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

import driver.traces
import forebay.traces.spans
from driver import IngestContext
from driver.batches.job.batch import Batch
from driver.journal import events as ev
from driver.traces import QUEUE_MAX, BatchTraces
from forebay import messages as m
from forebay.http.client import Client
from forebay.kafka.embedded.broker import MockBroker
from forebay.model.values import TopicPartition
from forebay.process.clock import SystemClock
from forebay.settings.reading.load import from_values
from forebay.traces.spans import LINKS_MAX, Spans, root_ids
from tests.support.processes.played import PlayedReceiver

# a server's thread leaves its loop's sockets to the collector
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def spans_in(memory: InMemorySpanExporter) -> Spans:
    return Spans("forebay-driver", "s", release="1", processor=SimpleSpanProcessor(memory), share=1.0)


def ids(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def test_batch_has_a_trace_with_its_attempts_that_links_to_those_of_its_blocks(
    tmp_path: Path, mock_broker: MockBroker, topic_name: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topic_name()
    mock_broker.create_topic(topic)
    memory = InMemorySpanExporter()
    monkeypatch.setattr("driver.service.driver.spans_of", lambda *_: spans_in(memory))
    settings = from_values(
        {
            "stream": "s",
            "kafka": {"topics": [topic], "group": topic, **mock_broker.options},
            "wal": {"url": f"file://{tmp_path}/wal", "retention": "0s"},
            "driver": {
                "journal": f"file://{tmp_path}/journal", "url": "http://127.0.0.1:0", "engine": "local",
                "batch_interval": "20ms", "job_retry_delay": "1ms",
            },
            "agent": {"blocks": f"{tmp_path}/blocks"},
            "traces": {"endpoint": "http://127.0.0.1:1/v1/traces"},
        }
    )  # fmt: skip
    done = threading.Event()
    failures = [ValueError("no")]

    def job(batch: Batch) -> Any:
        if failures:
            raise failures.pop()
        done.set()

    with IngestContext(None, settings) as intake:
        intake.foreach_batch(job)
        client = Client(intake.url)
        deadline = time.monotonic() + 60
        while (status := client.get("/v1/status", m.StatusAnswer)).state != "running":
            assert time.monotonic() < deadline, status
            threading.Event().wait(0.02)
        block = PlayedReceiver(settings, intake.url).take_in(TopicPartition(topic, 0), 10)
        assert done.wait(30)
    found = {span.name: span for span in memory.get_finished_spans()}
    batch, wait = found["batch"], found["wait"]
    name = batch.attributes["forebay.batch"]  # type: ignore[index]
    assert ids(batch) == root_ids("batch", "s", str(name))
    assert dict(batch.attributes or {}) == {
        "forebay.batch": name, "forebay.blocks": 1, "forebay.records": 10, "forebay.attempts": 2
    }  # fmt: skip
    (link,) = batch.links
    assert (link.context.trace_id, link.context.span_id) == root_ids("block", "s", block.id) == ids_of_parent(wait)
    jobs = [span for span in memory.get_finished_spans() if span.name == "job"]
    assert [span.status.status_code for span in jobs] == [StatusCode.ERROR, StatusCode.UNSET]
    assert "ValueError: no" in str(jobs[0].status.description)
    assert [span.attributes["forebay.attempt"] for span in jobs] == [1, 2]  # type: ignore[index]
    for span in (found["queue"], *jobs):
        assert ids_of_parent(span) == ids(batch)
        assert batch.start_time <= span.start_time <= span.end_time <= batch.end_time  # type: ignore[operator]


def ids_of_parent(span: ReadableSpan) -> tuple[int, int]:
    assert span.parent is not None
    return span.parent.trace_id, span.parent.span_id


def test_full_queue_drops_events_and_never_blocks(caplog: pytest.LogCaptureFixture) -> None:
    memory = InMemorySpanExporter()
    traces = BatchTraces(spans_in(memory), SystemClock())
    for number in range(QUEUE_MAX + 10):
        traces.note([ev.BatchAllocated(batch_id=number, number=number, time_ms=1, tasks=())])
    assert caplog.text.count("the queue of traces is full") == 1


def test_batch_of_many_blocks_has_a_bounded_number_of_links() -> None:
    memory = InMemorySpanExporter()
    traces = BatchTraces(spans_in(memory), SystemClock())
    traces.start()
    blocks = tuple(f"r1-1-{number}" for number in range(10 * LINKS_MAX))
    traces.note([ev.BatchAllocated(batch_id=1, number=1, time_ms=1, tasks=(blocks,))])
    traces.note([ev.BatchCompleted(batch_id=1, time_ms=2, attempts=1)])
    traces.stop()
    (batch,) = memory.get_finished_spans()
    assert len(batch.links) == LINKS_MAX
    assert batch.attributes is not None and batch.attributes["forebay.blocks"] == len(blocks)


class Stuck(SpanProcessor):
    """A processor that does not return from what ``stuck`` names before ``answering`` is set."""

    def __init__(self, *stuck: str) -> None:
        self._stuck = stuck
        self.answering = threading.Event()

    def on_end(self, span: ReadableSpan) -> None:
        self._wait("on_end")

    def shutdown(self) -> None:
        self._wait("shutdown")

    def _wait(self, method: str) -> None:
        if method in self._stuck:
            self.answering.wait(30)


def test_collector_that_does_not_answer_delays_a_stop_for_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(forebay.traces.spans, "CLOSE_SECONDS", 0.1)
    stuck = Stuck("shutdown")
    begun = time.monotonic()
    Spans("forebay-driver", "s", release="1", processor=stuck, share=1.0).close()
    assert time.monotonic() - begun < 10
    stuck.answering.set()
    assert "the collector of traces does not answer" in caplog.text


def test_full_queue_and_a_span_that_does_not_end_delay_a_stop_for_a_bounded_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(driver.traces, "PUT_SECONDS", 0.1)
    monkeypatch.setattr(driver.traces, "JOIN_SECONDS", 0.1)
    stuck = Stuck("on_end")
    traces = BatchTraces(Spans("forebay-driver", "s", release="1", processor=stuck, share=1.0), SystemClock())
    traces.start()
    for number in range(QUEUE_MAX + 10):
        traces.note([ev.BatchAllocated(batch_id=number, number=number, time_ms=1, tasks=())])
        traces.note([ev.BatchCompleted(batch_id=number, time_ms=2, attempts=1)])
    begun = time.monotonic()
    traces.stop()
    assert time.monotonic() - begun < 10
    stuck.answering.set()


def test_span_that_cannot_be_made_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    memory = InMemorySpanExporter()
    spans = spans_in(memory)
    make = spans.root

    def root(kind: str, name: str, **rest: Any) -> None:
        if name != "3":
            raise ValueError("no span")
        make(kind, name, **rest)

    monkeypatch.setattr(spans, "root", root)
    traces = BatchTraces(spans, SystemClock())
    traces.start()
    for number in (1, 2, 3):
        traces.note([ev.BatchAllocated(batch_id=number, number=number, time_ms=1, tasks=())])
        traces.note([ev.BatchCompleted(batch_id=number, time_ms=2, attempts=1)])
    traces.stop()
    assert [span.attributes["forebay.batch"] for span in memory.get_finished_spans()] == ["3"]  # type: ignore[index]
    assert caplog.text.count("cannot make a span") == 1
