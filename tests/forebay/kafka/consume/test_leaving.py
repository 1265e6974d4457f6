"""A source leaves its group in bounded time, also if no broker answers."""

from __future__ import annotations

import gc
import time

import pytest

from forebay.kafka.embedded.broker import MockBroker
from tests.support.kafka.polling import Commit, Reader, partitions_of, poll_until


def test_close_does_not_wait_for_the_answer_to_a_commit_without_a_broker(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """INV-6. librdkafka waits until the session has timed out: here for 60 s."""
    monkeypatch.setattr("forebay.kafka.consume.consumer.LEAVE_SECONDS", 0.2)
    with MockBroker() as broker:
        broker.create_topic("t")
        reader = Reader({**broker.options, "session.timeout.ms": "60000"}, "g", ["t"]).__enter__()
        poll_until(lambda: reader.rebalances, reader)
        reader.start(dict.fromkeys(partitions_of("t"), 0))
    gc.collect()  # ends the mock
    reader.source.commit({partitions_of("t")[0]: Commit(0)})
    reader.poll()
    began = time.monotonic()
    reader.source.close()
    assert time.monotonic() - began < 20
    assert [record.message for record in caplog.records if "leave the consumer group" in record.message] == [
        "cannot leave the consumer group: no answer within 0.2 s"
    ]
