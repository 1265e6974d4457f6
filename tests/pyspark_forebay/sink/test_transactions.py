"""Batches of a streaming query into a real Kafka, each in one transaction: killed at every point, read back as committed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructType

from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.errors import StoreError, UsageError
from pyspark_forebay.sink import writers
from pyspark_forebay.sink.rows import pack_rows
from pyspark_forebay.sink.writers import TaskRows, TransactionalWriter, writer_of
from tests.support.kafka.polling import PATIENCE_SECONDS, committed_values
from tests.support.processes.output_process import OutputProcess, SinkOutput, Turn, batch_of, expected, rows_of

pytestmark = pytest.mark.kafka

IN_COMMIT = ("sink.before-rows", "sink.mid-rows", "sink.before-commit", "sink.after-commit", "driver.before-complete")
BATCHES = [Turn(number) for number in range(8)]
SCHEMA = StructType().add("value", StringType()).add("topic", StringType())


@pytest.fixture(scope="module")
def output_process() -> Iterator[OutputProcess]:
    with OutputProcess() as process:
        yield process


def options(broker: KafkaBroker, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": broker.options["bootstrap.servers"], "transactional": "true", **more}


def rows(broker: KafkaBroker, topic: str) -> list[Any]:
    found = (tuple(map(int, value.split())) for value in committed_values(broker, topic, 2))
    return sorted((number, place, replay) for number, place, replay in found)


def test_batch_whose_commit_is_killed_at_any_step_is_written_once(
    kafka_broker: KafkaBroker, topic_name: Callable[[], str], output_process: OutputProcess, tmp_path: Path
) -> None:
    """Each process is killed at its second arrival: the first is often in the rerun of the previous process's batch."""
    topic = topic_name()
    kafka_broker.create_topic(topic, 2)
    arguments = [options(kafka_broker, topic=topic, groupIdPrefix=topic)]

    def run(armed: str = "") -> int:
        directory = tmp_path / (armed or "last")
        directory.mkdir()
        status = output_process.run("sink", arguments, {}, tmp_path / "completed", BATCHES, 1, armed, directory)
        assert bool(armed) == bool(list(directory.glob("*.hit"))), armed
        return status

    for point in IN_COMMIT:
        assert run(f"{point}=kill@2") == -signal.SIGKILL
    assert run() == 0
    assert rows(kafka_broker, topic) == expected(BATCHES)


def test_query_that_slept_in_a_commit_adds_nothing_when_it_wakes(
    kafka_broker: KafkaBroker, topic_name: Callable[[], str], output_process: OutputProcess, tmp_path: Path
) -> None:
    """INV-4: it sleeps with all rows sent and not committed.

    The query is started elsewhere; then the first one wakes, and is refused.
    """
    topic = topic_name()
    kafka_broker.create_topic(topic, 2)
    arguments = [options(kafka_broker, topic=topic, groupIdPrefix=topic)]
    hits = tmp_path / "hits"
    hits.mkdir()
    output_process.begin(
        "sink", arguments, {}, tmp_path / "older", BATCHES[:1], 1, "sink.before-commit=stop", hits
    )  # fmt: skip
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (hits / "sink.before-commit.hit").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    try:
        newer = SinkOutput(*arguments)
        for turn in BATCHES[:2]:
            newer.write(batch_of(turn), rows_of(turn))
    finally:
        os.kill(int((hits / "pid").read_text()), signal.SIGCONT)
    assert output_process.end() == StoreError.exit_code
    assert rows(kafka_broker, topic) == expected(BATCHES[:2])


def message(values: list[str], topic: str, batch: int = 0) -> TaskRows:
    columns = pa.record_batch({"value": pa.array(values), "topic": pa.array([topic] * len(values))})
    return TaskRows("a-query", batch, pack_rows([columns], None))


def test_rows_of_several_topics_are_one_transaction_with_one_marker(
    kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    """Without the option topic, the marker may be at any topic; a batch that runs again need not write to the same
    topics."""
    one, two, three = (topic_name() for _ in range(3))
    for topic in (one, two, three):
        kafka_broker.create_topic(topic, 2)
    writer = writer_of(options(kafka_broker, groupIdPrefix=one), SCHEMA, streaming=True)
    assert isinstance(writer, TransactionalWriter)
    writer.commit([message(["a"], two), message(["b", "c"], three)], 0)
    writer.commit([message([], one), message([], two)], 0)
    writer.commit([message(["again"], one), message(["again"], three)], 0)
    writer.commit([message(["d"], one, 1), message(["e"], three, 1)], 1)
    writer.commit([message(["again"], two, 1)], 1)
    found = {topic: sorted(committed_values(kafka_broker, topic, 2)) for topic in (one, two, three)}
    assert found == {one: [b"d"], two: [b"a"], three: [b"b", b"c", b"e"]}


def test_refused_row_leaves_nothing_of_its_batch(kafka_broker: KafkaBroker, topic_name: Callable[[], str]) -> None:
    topic = topic_name()
    kafka_broker.create_topic(topic, 2)
    writer = writer_of(options(kafka_broker, groupIdPrefix=topic), SCHEMA, streaming=False)
    assert isinstance(writer, TransactionalWriter)
    parts = [
        TaskRows("q", None, pack_rows([pa.record_batch({"value": [text], "topic": [topic]})], None))
        for text in ("whole", "x" * 2_000_000)
    ]
    with pytest.raises(StoreError, match="too large"):
        writer.commit([*parts])
    assert committed_values(kafka_broker, topic, 2) == []
    writer.commit([parts[0], None])
    assert committed_values(kafka_broker, topic, 2) == [b"whole"]


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"transactional": "yes"}, "option transactional: 'yes': allowed are"),
        ({"kafka.transactional.id": "x"}, "set the option transactional to true"),
        ({"kafka.transaction.timeout.ms": "soon"}, "transaction.timeout.ms: 'soon': allowed are whole numbers"),
        ({"kafka.transaction.timeout.ms": "9" * 400}, "allowed are whole numbers from 1 to 2147483647"),
        ({"kafka.transaction.timeout.ms": "0"}, "allowed are whole numbers from 1 to 2147483647"),
    ],
)
def test_invalid_transaction_options_are_refused(more: dict[str, str], word: str) -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:9", "topic": "t", "transactional": "true", **more}
    with pytest.raises(UsageError) as caught:
        writer_of(given, SCHEMA, streaming=True)
    assert word in str(caught.value)


def test_sink_options_with_another_effect_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    writers._warn_once.cache_clear()  # another test of this process may have logged the same
    given = {"kafka.bootstrap.servers": "127.0.0.1:9", "topic": "t", "kafka.acks": "0", "kafka.max.block.ms": "5"}
    for more in ({}, {}, {"transactional": "true", "kafka.delivery.timeout.ms": "5", "unheardOf": "1"}):
        writer_of({**given, **more}, SCHEMA, streaming=True)
    logged = [record.getMessage() for record in caplog.records if record.name == "forebay.sink"]
    for word in ("enable.idempotence is false", "max.block.ms", "kafka.delivery.timeout.ms is ignored", "unheardof"):
        assert len([sentence for sentence in logged if word in sentence]) == 1, (word, logged)
