"""Running queries of Spark's own Kafka source and of ``format("forebay")`` while topics and brokers change."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.errors import UsageError
from pyspark_forebay.progress import kafka_offsets
from tests.support.kafka.moved_log import move_log
from tests.support.kafka.polling import PATIENCE_SECONDS
from tests.support.spark import queries
from tests.support.spark.compared import LONG_MAX, QUICK, SHORT_PATIENCE, Topics
from tests.support.spark.jvm_spark import SparkProcess

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]

SIDES = ("spark", "forebay")
#: maximum time of a stop; a request for offsets takes longer if no broker answers
PROMPT_SECONDS = 8.0
Answers = dict[str, "Future[dict[str, Any]]"]


@pytest.fixture
def ask(jvm: SparkProcess, spark: Any, tmp_path: Path) -> Any:
    """Asks both sources at the same time; each has a checkpoint of its own, which later questions continue."""
    threads = ThreadPoolExecutor(2)

    def both(question: dict[str, Any], **theirs_only: str) -> Answers:
        theirs, ours = ({**question, "checkpoint": str(tmp_path / side)} for side in SIDES)
        theirs["options"] = {**theirs["options"], **theirs_only}
        return {
            "spark": threads.submit(jvm.ask, theirs),
            "forebay": threads.submit(queries.answer, spark, "forebay", ours),
        }

    yield both
    threads.shutdown()


def await_event(come: Callable[[], bool], answers: Answers) -> None:
    """Until ``come``; no query may have ended before."""
    deadline = time.monotonic() + PATIENCE_SECONDS * 4
    while not come():
        for side, answer in answers.items():
            assert not answer.done(), (side, answer.result())
        assert time.monotonic() < deadline
        time.sleep(0.05)


def await_batches(folder: Path, answers: Answers) -> None:
    """Until each query has completed two more batches, so that it has planned one of them after this call."""
    before = {side: completed(folder / side) for side in answers}
    await_event(lambda: all(completed(folder / side) >= before[side] + 2 for side in answers), answers)


def completed(checkpoint: Path) -> int:
    return max((int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")), default=-1)


def has_read(checkpoint: Path, topic: str, end: int) -> bool:
    """Whether the query has completed a batch that ends at ``end`` of the topic's first partition."""
    last = checkpoint / "offsets" / str(completed(checkpoint))
    if not last.exists():
        return False
    found: dict[str, dict[str, int]] = json.loads(last.read_text().splitlines()[-1])
    return found.get(topic, {}).get("0") == end


class Goal:
    """The file that ends the queries: how many records of each partition they must have seen. Written at the end in any case."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.counts: dict[str, int] = {}

    def __enter__(self) -> Goal:
        return self

    def __exit__(self, *_: object) -> None:
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps(self.counts))
        part.rename(self.path)


class Writer:
    """Writes to each of its partitions in turn, in a thread, until it is stopped."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._producer = self._made()
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self.counts: dict[str, list[int]] = {}
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> Writer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _made(self) -> Producer:
        return Producer({**self._topics.broker.options, "linger.ms": 5})

    def begin(self, topic: str, partitions: int) -> None:
        """Write to the topic too, when the broker knows all of its partitions."""
        await_event(lambda: self._topics.admin.topics().get(self._topics.named(topic)) == partitions, {})
        with self._lock:
            self._producer = self._made()  # an older one may not know the partitions yet
            known = self.counts.get(topic, [])
            self.counts[topic] = known + [0] * (partitions - len(known))

    def end(self, topic: str) -> int:
        """Write no more to the topic; return how many records its first partition has."""
        with self._lock:
            return self.counts.pop(topic)[0]

    def _write(self) -> None:
        while not self._stopping.wait(0.02):
            with self._lock:
                for topic, counts in self.counts.items():
                    self._topics.write(topic, [3] * len(counts), self._producer)
                    assert self._producer.flush(PATIENCE_SECONDS) == 0
                    self.counts[topic] = [count + 3 for count in counts]


def test_topics_and_partitions_that_come_and_go_under_load_are_read_as_by_spark(
    ask: Callable[..., Answers], kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    goal = Goal(tmp_path / "goal")
    with KafkaAdmin(kafka_broker.options) as admin:
        topics = Topics(kafka_broker, admin, f"changing-{os.getpid()}")
        options = {
            "kafka.bootstrap.servers": kafka_broker.options["bootstrap.servers"], "startingOffsets": "earliest",
            "subscribePattern": topics.named("T-"), "failOnDataLoss": "false", **QUICK,
        }  # fmt: skip
        topics.create("T-grows", 1)
        topics.create("T-goes", 1)
        with goal, Writer(topics) as writer:
            writer.begin("T-grows", 1)
            writer.begin("T-goes", 1)
            answers = ask({"kind": "follow", "options": options, "goal": str(goal.path)})
            await_event(lambda: all(completed(tmp_path / side) >= 0 for side in SIDES), answers)
            topics.create("T-comes", 2)
            writer.begin("T-comes", 2)
            topics.widen("T-grows", 3)
            writer.begin("T-grows", 3)
            gone = writer.end("T-goes")
            await_event(lambda: all(has_read(tmp_path / side, topics.named("T-goes"), gone) for side in SIDES), answers)
            topics.delete("T-goes")
            await_batches(tmp_path, answers)
            writer.stop()
            goal.counts = {
                f"{topics.named(topic)}/{number}": count
                for topic, counts in writer.counts.items()
                for number, count in enumerate(counts)
            }
        found = {side: answer.result() for side, answer in answers.items()}
    everything = {**goal.counts, f"{topics.named('T-goes')}/0": gone}
    for side in SIDES:
        assert "refused" not in found[side], found[side]
        assert found[side]["seen"] == {key: list(range(count)) for key, count in everything.items()}, side


def test_query_stops_while_no_broker_runs_and_continues_at_offsets_up_to_the_greatest_long(
    ask: Callable[..., Answers], own_kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    """It stops in the middle of a request for offsets, for which Spark's source waits until `default.api.timeout.ms` is over.

    While the broker is away, another topic's offsets are moved to the end of the range of a long.
    """
    first = LONG_MAX - 20
    gone = tmp_path / "gone"
    broker = own_kafka_broker
    options = {
        "kafka.bootstrap.servers": broker.options["bootstrap.servers"], "subscribe": "T-stopped",
        "startingOffsets": "earliest",
    }  # fmt: skip
    with KafkaAdmin(broker.options) as admin:
        topics = Topics(broker, admin, "own")
        options["subscribe"] = topics.named("T-stopped")
        for topic in ("T-stopped", "T-long"):
            topics.create(topic, 1)
            topics.write(topic, [4])
        answers = ask({"kind": "stop", "options": options, "gone": str(gone)}, **SHORT_PATIENCE)
        await_event(lambda: all(completed(tmp_path / side) >= 0 for side in SIDES), answers)
    broker.kill9()
    gone.touch()
    ours = answers["forebay"].result()
    assert "refused" not in ours and ours["seconds"] < PROMPT_SECONDS, ours
    answers["spark"].result()  # it waits until its request times out
    move_log(broker.directory / "data", topics.named("T-long"), first)
    broker.start()
    with KafkaAdmin(broker.options) as admin:
        topics = Topics(broker, admin, "own")
        topics.write("T-stopped", [3])
        topics.write("T-long", [5])
    more = ask({"kind": "stream", "options": options, "trigger": "available"})
    results = [answer.result()["batches"] for answer in more.values()]
    assert results[0] == results[1] and [row["offset"] for rows in results[0].values() for row in rows] == [4, 5, 6]
    places = json.dumps({topics.named("T-long"): {"0": first + 2}})
    at_the_end = {**options, "subscribe": topics.named("T-long"), "startingOffsets": places}
    theirs, ours = (answer.result() for answer in ask({"kind": "batch", "options": at_the_end}).values())
    assert "refused" not in ours and ours == theirs, (theirs, ours)
    assert [row["offset"] for row in ours["rows"]] == list(range(first + 2, first + 9))


def test_kafka_offsets_are_a_start_for_sparks_kafka_source(
    ask: Callable[..., Answers], kafka_broker: KafkaBroker, topic: str
) -> None:
    offsets = json.dumps({topic: {"0": 7, "1": 5}, "#topic-ids": {topic: "an-id"}, "#start": {topic: {"0": 1, "1": 0}}})
    options = {"kafka.bootstrap.servers": kafka_broker.options["bootstrap.servers"], "subscribe": topic}
    refused = ask({"kind": "batch", "options": {**options, "startingOffsets": offsets}})
    assert "Expected e.g." in refused["spark"].result()["refused"]
    assert [row["offset"] for row in refused["forebay"].result()["rows"]] == [7, 8, 9]
    theirs, ours = ask({"kind": "batch", "options": {**options, "startingOffsets": kafka_offsets(offsets)}}).values()
    assert theirs.result() == ours.result() and len(ours.result()["rows"]) == 3
    with pytest.raises(UsageError):
        kafka_offsets('{"reservoirVersion": 3}')
