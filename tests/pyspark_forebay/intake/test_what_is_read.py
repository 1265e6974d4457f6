"""Which topics and partitions a query reads, what its tasks get, and what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path

import msgspec
import pytest

from forebay.model.errors import UnknownTopicError, UsageError
from forebay.model.values import TopicPartition
from pyspark_forebay.intake import client
from pyspark_forebay.intake.progress_group import ProgressGroup
from pyspark_forebay.intake.source import IntakeSource
from pyspark_forebay.intake.stream import IntakeStreamReader
from pyspark_forebay.options.source import read_options
from tests.support.state.asked_intake import ALL, Taken, batch_of, begun, records
from tests.support.state.tracked import TOPIC


@pytest.mark.parametrize(
    ("group", "kafka", "message"),
    [
        ("g", {}, "the stream does not read Kafka, so it has no consumer groups"),
        ("forebay.flights", {"bootstrap.servers": "b:1"}, "'forebay.flights' is a consumer group of the stream itself"),
    ],
)
def test_invalid_progress_group_is_refused(group: str, kafka: dict[str, str], message: str) -> None:
    """Offsets in the stream's own group would count as the stream's commits."""
    with pytest.raises(UsageError, match=message):
        ProgressGroup(group, kafka, ("forebay.flights", "forebay.flights.completed"))


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({}, ["a/0", "a/1", "ab/0"]),
        ({"subscribe": "a"}, ["a/0", "a/1"]),
        ({"subscribePattern": "b$"}, ["ab/0"]),
        ({"assign": '{"a": [1]}'}, ["a/1"]),
    ],
)
def test_query_reads_its_subscription_or_everything(given: dict[str, str], read: list[str]) -> None:
    options = read_options({"tracker": "http://127.0.0.1:1", **given}, streaming=False)
    source = IntakeSource(options, client.Intake.of(options))
    known = [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("ab", 0)]
    assert [str(tp) for tp in known if source.reads(tp)] == read


def test_empty_batch_query_has_one_task_and_leaves_no_connection(taken: Taken) -> None:
    (nothing,) = batch_of().partitions()
    assert nothing.value is None and list(batch_of().read(nothing)) == []
    assert taken.driver.closed == 1
    taken.take()
    offsets = {name: f'{{"{TOPIC}": {{"0": {at}}}}}' for name, at in (("startingOffsets", 8), ("endingOffsets", 3))}
    with pytest.raises(UsageError, match="starting offset 8 of t/0 is beyond its ending offset 3"):
        batch_of(**offsets).partitions()
    assert taken.driver.closed == 2


@pytest.mark.parametrize("option", ["startingOffsets", "startingOffsetsByTimestamp"])
def test_options_must_name_every_partition_that_is_read(option: str, taken: Taken) -> None:
    taken.take()
    with pytest.raises(UsageError, match=rf"option {option} must name every .* missing: t/0; not read by .*: t/7"):
        batch_of(**{option: f'{{"{TOPIC}": {{"7": 5}}}}'}).partitions()


def test_tasks_get_token_and_topic_ids_and_show_no_secret(taken: Taken, tmp_path: Path) -> None:
    """INV-5: the ids show that Kafka's records belong to the incarnation."""
    file = tmp_path / "tokens"
    file.write_text("query secret-word-of-no-user\n")
    file.chmod(0o600)
    taken.take()
    options = {"kafka.bootstrap.servers": "b:1", "kafka.sasl.password": "secret-of-kafkas"}
    (task,) = batch_of(tokenFile=str(file), startingOffsets=f'{{"{TOPIC}": {{"0": 0}}}}', **options).partitions()
    file.unlink()
    plan = pickle.loads(pickle.dumps(task)).value.plan
    assert "secret-word" in plan.access.headers()["authorization"]
    assert plan.kafka.options["bootstrap.servers"] == "b:1"
    assert plan.topic_ids == {"t/0/1": "id-1"}
    of_kafka = msgspec.structs.replace(task.value, kafka=options)
    assert "secret" not in repr(task.value) + str(of_kafka)


def letters() -> str:
    return "q"


def test_tasks_get_no_state_of_the_planner(taken: Taken) -> None:
    """INV-4: a task that ends must not end the cursor."""
    taken.take()
    reader = IntakeStreamReader({"tracker": "http://127.0.0.1:1"}, new_id=letters)
    reader.latestOffset(reader.initialOffset(), ALL)
    asked = len(taken.driver.asked)
    pickle.loads(pickle.dumps(reader)).stop()
    assert len(taken.driver.asked) == asked
    reader.stop()


@pytest.mark.parametrize(
    ("given", "message"), [({"subscribe": "t,nobody"}, "nobody"), ({"assign": '{"t": [0, 7]}'}, "t/7")]
)
def test_topic_that_the_stream_does_not_take_in_is_refused(given: dict[str, str], message: str, taken: Taken) -> None:
    taken.take()
    reader = IntakeStreamReader({"tracker": "http://127.0.0.1:1", **given}, new_id=letters)
    for call in (lambda: reader.latestOffset(reader.initialOffset(), ALL), batch_of(**given).partitions):
        with pytest.raises(UnknownTopicError, match=f"the stream does not take in {message}$"):
            call()
    assert not taken.tracked.state.cursors


def test_checkpoint_with_a_batch_of_another_source_is_refused(taken: Taken) -> None:
    """INV-3: its ends are Kafka's offsets; read from blocks, it might be another batch."""
    taken.take()
    reader = begun()
    for start, end in (({TOPIC: {"0": 0}}, {TOPIC: {"0": 5}}), ({}, {TOPIC: {"0": 5}, "#cursor": "q"})):
        with pytest.raises(UsageError, match="another source planned"):
            reader.partitions(start, end)
    assert not taken.tracked.state.cursors
    end = reader.latestOffset({TOPIC: {"0": 0}}, ALL)  # where that has ended, the query goes on over the intake
    assert records(reader.partitions({TOPIC: {"0": 0}}, end)) == {"t/0[0, 10)": 10}
    reader.stop()
