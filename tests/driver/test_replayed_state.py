"""A whole driver whose operator rewinds a stream with keyed state while a batch runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from driver import IngestContext
from driver.batches.job.batch import Batch
from forebay.http.client import Client
from forebay.kafka.embedded.broker import MockBroker
from forebay.messages import OperatorAnswer, ReplayRequest, StatusAnswer
from forebay.model.values import TopicPartition
from forebay.settings.reading.load import from_values
from tests.support.processes.played import PlayedReceiver

SCHEMA = pa.schema([("key", pa.int64()), ("records", pa.int64())])


def test_a_batch_that_runs_when_a_replay_begins_runs_again_after_it_and_every_record_is_in_the_state_once(
    tmp_path: Path, mock_broker: MockBroker, topic_name: Callable[[], str]
) -> None:
    """INV-3: the running batch has read the version that the replay replaces, so what it writes can't become the state."""
    topic = topic_name()
    mock_broker.create_topic(topic)
    settings = from_values(
        {
            "stream": "s",
            "data": str(tmp_path),
            "kafka": {"topics": [topic], "group": topic, **mock_broker.options},
            "driver": {"url": "http://127.0.0.1:0", "engine": "local", "batch_interval": "20ms"},
        }
    )
    runs: list[tuple[int, int, bool, int, int]] = []
    begun, go, ended = threading.Event(), threading.Event(), threading.Event()

    def count(batch: Batch) -> None:
        state = batch.state("totals", SCHEMA, "key")
        known = sum(records or 0 for records in state.read().column("records").to_pylist())
        runs.append((batch.number, batch.replay, batch.rerun, known, batch.records))
        if len(runs) == 3:
            begun.set()
            assert go.wait(60)
        state.write(pa.table({"key": [0], "records": [known + batch.records]}, SCHEMA))
        if len(runs) == 5:
            ended.set()

    with IngestContext(None, settings).foreach_batch(count) as intake:
        client = Client(intake.url)

        def until(completed: int) -> None:
            while client.get("/v1/status", StatusAnswer).batches_completed < completed:
                threading.Event().wait(0.02)

        while client.get("/v1/status", StatusAnswer).state != "running":
            threading.Event().wait(0.02)
        receiver = PlayedReceiver(settings, intake.url)
        for number, records in enumerate((2, 3, 4), start=1):
            receiver.take_in(TopicPartition(topic, 0), records)
            if number < 3:
                until(number)
        assert begun.wait(60)
        client.post("/v1/operator/replay", ReplayRequest(batch=2, cause="ann"), OperatorAnswer)
        go.set()
        assert ended.wait(60)
        until(3)
        client.close()
    assert runs == [
        (1, 0, False, 0, 2),
        (2, 0, False, 2, 3),
        (3, 0, False, 5, 4),
        (2, 1, True, 2, 3),
        (3, 0, True, 5, 4),
    ]
