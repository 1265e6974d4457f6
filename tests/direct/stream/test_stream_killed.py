"""A direct stream whose process is killed before and after each step that writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.values import TopicPartition
from tests.support.kafka.polling import PATIENCE_SECONDS
from tests.support.state.again import produce

pytestmark = pytest.mark.kafka

PLACES = ("before-write", "before-sync", "after-sync")
KINDS = ("SpansBegun", "SpansAllocated")
JOURNAL = [f"journal.{place}:{kind}" for kind in KINDS for place in PLACES]
BATCH = ["driver.after-allocate", "driver.in-job", "driver.before-complete", "driver.after-complete"]
OPENING = ["journal.opening", "journal.after-snapshot"]
ENDING = [f"journal.{place}:SpansEnded" for place in PLACES]


def test_stream_killed_at_any_step_has_each_offset_in_one_batch(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """INV-2, INV-3, INV-7: each process is killed at the next place; a batch that runs again is the same."""
    kept, one, two = (TopicPartition(topic_name(), 0) for _ in range(3))

    def make(tp: TopicPartition) -> None:
        kafka_broker.create_topic(tp.topic, 1)
        produce(kafka_broker.options, tp, 20)

    make(kept)
    make(one)
    (tmp_path / "out").mkdir()
    (tmp_path / "hits").mkdir()
    marks = [*OPENING, *JOURNAL, *BATCH]
    topics = ",".join(tp.topic for tp in (kept, one, two))
    environment = {
        **os.environ,
        "FOREBAY_FAILPOINTS": ",".join(f"{mark}=kill" for mark in [*marks, *ENDING]),
        "FOREBAY_FAILPOINT_DIR": str(tmp_path / "hits"),
    }
    arguments = ["-m", "tests.support.processes.direct_process", kafka_broker.address, topics, str(tmp_path)]

    def hits() -> int:
        return len(list((tmp_path / "hits").glob("*.hit")))

    def spans(tp: TopicPartition) -> list[list[int]]:
        found = [
            json.loads(path.read_text()) for path in sorted((tmp_path / "out").glob("*.json"), key=lambda p: p.name)
        ]
        return [[begin, end] for batch in found for topic, _, begin, end in batch if topic == tp.topic]

    def reached(tp: TopicPartition, end: int) -> bool:
        return any(until == end for _, until in spans(tp))

    waited, deadline = threading.Event(), time.monotonic() + 2 * PATIENCE_SECONDS
    records = 20

    def delete(tp: TopicPartition) -> None:
        with KafkaAdmin(kafka_broker.options) as admin:
            admin.delete_topic(tp.topic)

    # unsynced writes survive a kill, so each event that occurs once must occur a second time for its last place
    steps = [
        (lambda: hits() >= len(marks) - 1, lambda: make(two)),
        (lambda: hits() == len(marks) and reached(one, 20) and reached(two, 20), lambda: delete(one)),
        (lambda: hits() == len(marks) + 2, lambda: delete(two)),
    ]
    with (tmp_path / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, *arguments], env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        while steps or hits() < len(marks) + len(ENDING) or not reached(kept, records):
            context = f"{sorted(os.listdir(tmp_path / 'hits'))} {(tmp_path / 'log').read_text()[-2000:]}"
            assert process.poll() is None and time.monotonic() < deadline, context
            if steps and steps[0][0]():
                steps.pop(0)[1]()
            if reached(kept, records) and hits() < len(marks) + len(ENDING):
                produce(kafka_broker.options, kept, 3)
                records += 3
            waited.wait(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert not list((tmp_path / "out").glob("other-*")), "a batch came again with other ranges"
    for tp, end in ((kept, records), (one, 20), (two, 20)):
        found = spans(tp)
        assert [begin for begin, _ in found] == [0, *(until for _, until in found[:-1])]
        assert found[-1][1] == end
