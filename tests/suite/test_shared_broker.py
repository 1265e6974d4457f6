"""The broker that the processes of a run share (``tests.support.kafka.shared_broker``)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Client
from pathlib import Path

import pytest

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.errors import ForebayError
from forebay.model.values import TopicPartition
from tests.support.kafka import shared_broker
from tests.support.kafka.polling import Commit
from tests.support.kafka.shared_broker import Keeper, find, of_many


@pytest.fixture(autouse=True)
def without_keeper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(shared_broker.VARIABLE, raising=False)


class StartedBroker(KafkaBroker):
    address = "127.0.0.1:9"


class Started:
    """Counts the brokers that a keeper starts."""

    def __init__(self) -> None:
        self.brokers: list[KafkaBroker] = []
        self.error = ""

    def __call__(self, folder: Path) -> KafkaBroker:
        if self.error:
            raise ForebayError(self.error)
        self.brokers.append(StartedBroker(folder))
        return self.brokers[-1]


@pytest.fixture
def started() -> Iterator[Started]:
    made = Started()
    keeper = Keeper(made)
    yield made
    keeper.close()
    assert shared_broker.VARIABLE not in os.environ
    assert not Path(keeper.path).exists()


def test_processes_find_one_broker_that_the_first_question_starts(started: Started) -> None:
    assert started.brokers == []
    found = [find() for _ in range(3)]
    assert [one is not None and one.options for one in found] == [{"bootstrap.servers": StartedBroker.address}] * 3
    assert len(started.brokers) == 1


def test_a_broker_that_could_not_be_started_is_an_error_that_says_why(started: Started) -> None:
    started.error = "Kafka did not answer\nits log is empty"
    with pytest.raises(ForebayError, match=r"^Kafka did not answer\nits log is empty$"):
        find()


def test_folders_of_killed_runs_are_removed_from_memory(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left, used = (tmp_path / f"forebay-broker-{pid}-x" for pid in (ended.pid, os.getpid()))
    for folder in (left, used, tmp_path / "other"):
        (folder / "kafka").mkdir(parents=True)
    shared_broker._remove_of_killed_runs(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {used.name, "other"}


def test_a_process_without_a_keeper_finds_none() -> None:
    assert find() is None


def test_no_test_starts_or_stops_the_broker_of_all(started: Started) -> None:
    found = find()
    assert found is not None
    for refused in (found.launch, found.start, found.stop, found.kill9):
        with pytest.raises(ForebayError, match="own_kafka_broker"):
            refused()


def test_a_killed_process_ends_no_answers(started: Started) -> None:
    Client(os.environ[shared_broker.VARIABLE], family="AF_UNIX").close()
    assert find() is not None


def test_groups_that_two_tests_may_share_are_named() -> None:
    fine = (
        "test-some-thing-4711-1",
        "forebay.t-4711-12.completed",
        "forebay-source-16fd2706-8baf-433b-82eb-8c7fada847da",
    )
    assert of_many([*fine, "orders-2", "forebay.flights"]) == ["forebay.flights", "orders-2"]


@pytest.mark.kafka
def test_groups_with_commits_are_seen(kafka_broker: KafkaBroker, topic_name: Callable[[], str]) -> None:
    topic = topic_name()
    kafka_broker.create_topic(topic, 1)
    with KafkaAdmin(kafka_broker.options) as admin:
        assert admin.publish(topic, {TopicPartition(topic, 0): Commit(0)}) == {}
    assert topic in shared_broker.groups_of(kafka_broker)
