"""Senders whose records the brokers do not accept, with scripted clients."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException

from forebay.kafka.client import group_offsets
from forebay.kafka.client.leaders import why_not_accepted
from forebay.kafka.produce import sender, transactions
from forebay.kafka.produce.sender import send_rows
from forebay.kafka.produce.transactions import TransactionalSender
from forebay.model.errors import ForebayError, StoreError, UnreachableError
from forebay.model.values import TopicPartition

OPTIONS = {"bootstrap.servers": "b:9092"}
FENCED = KafkaException(KafkaError(KafkaError._FATAL, "fenced"))


class Client:
    """The parts of a producer and a consumer that senders use. ``ended``: whether it has ended, and raises at each call."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.reports: list[Callable[[Any, Any], None]] = []
        self.left = 0
        self.ended = False

    def _call(self, *_: Any, **__: Any) -> None:
        if self.ended:
            raise FENCED

    init_transactions = begin_transaction = abort_transaction = commit_transaction = _call
    send_offsets_to_transaction = purge = poll = close = consumer_group_metadata = _call

    def committed(self, places: list[Any], timeout: float) -> list[Any]:
        return [SimpleNamespace(error=None, offset=-1, metadata="") for _ in places]

    def list_topics(self, *_: Any, timeout: float) -> Any:
        partition = SimpleNamespace(leader=-1, replicas=[2, 3], isrs=[3])
        return SimpleNamespace(topics={"t": SimpleNamespace(error=None, partitions={0: partition})})

    def produce(self, topic: str, on_delivery: Callable[[Any, Any], None], **_: Any) -> None:
        self.reports.append(on_delivery)

    def flush(self, timeout: float) -> int:
        self._call()
        return self.left

    def report(self, code: int) -> None:
        """Report the oldest record without a result."""
        self.reports.pop(0)(KafkaError(code), SimpleNamespace(topic=lambda: "t", partition=lambda: 0))


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    made: list[Client] = []

    def make(*_: Any, **__: Any) -> Client:
        made.append(Client())
        return made[-1]

    for module, name in ((sender, "Producer"), (transactions, "Producer"), (group_offsets, "Consumer")):
        monkeypatch.setattr(module, name, make)
    return made


@pytest.fixture
def opened(clients: list[Client]) -> TransactionalSender:
    opened = TransactionalSender(OPTIONS, "t", transactional_id="id", group="group")
    opened.open()
    opened.begin()
    opened.put([("t", None, b"v", None, None)])
    return opened


def test_unacknowledged_records_fail_the_transaction(clients: list[Client], opened: TransactionalSender) -> None:
    """The error is the timeout, not the error of the next call."""
    clients[0].left = 3
    with pytest.raises(UnreachableError, match="Kafka at b:9092: topic t: 3 records were not accepted"):
        opened.commit("marker", 1)


def test_timed_out_record_error_names_brokers_that_could_lead(
    clients: list[Client], opened: TransactionalSender
) -> None:
    clients[0].report(KafkaError._MSG_TIMED_OUT)
    with pytest.raises(
        UnreachableError, match="a record of t/0 was not accepted: t/0 has no leader until broker 3 is back: "
    ):
        opened.commit("marker", 1)


def test_late_results_of_aborted_transaction_are_ignored(clients: list[Client], opened: TransactionalSender) -> None:
    assert opened.abort()
    opened.begin()
    clients[0].report(KafkaError._PURGE_QUEUE)
    opened.commit("marker", 1)


def test_ended_client_begins_no_transaction_and_closes_quietly(
    clients: list[Client], opened: TransactionalSender
) -> None:
    clients[0].ended = True
    with pytest.raises(StoreError, match="topic t: the transaction can't continue: fenced"):
        opened.put([("t", None, b"v", None, None)])
    assert not opened.abort()
    opened.close()


def test_ended_client_fails_rows_with_project_error(monkeypatch: pytest.MonkeyPatch, clients: list[Client]) -> None:
    monkeypatch.setattr(Client, "poll", lambda *_: (_ for _ in ()).throw(FENCED))
    with pytest.raises(ForebayError, match="Kafka at b:9092: after 0 records: fenced"):
        send_rows(OPTIONS, "t", [pa.record_batch({"value": ["v"]})])


@pytest.mark.parametrize(
    ("leader", "in_sync", "message"),
    [
        (2, [2, 3], ""),
        (-1, [3], "t/0 has no leader until broker 3 is back"),
        (-1, [], "t/0 has no leader until broker 2 or 3 is back"),
        (2, [2], "broker 3 is not in sync with the leader of t/0: min.insync.replicas may need it"),
    ],
)
def test_error_names_brokers_that_block_a_partition(leader: int, in_sync: list[int], message: str) -> None:
    partition = SimpleNamespace(leader=leader, replicas=[2, 3], isrs=in_sync)
    shown = SimpleNamespace(topics={"t": SimpleNamespace(partitions={0: partition})})
    client: Any = SimpleNamespace(list_topics=lambda timeout: shown)
    assert why_not_accepted(client, TopicPartition("t", 0)) == message
    assert why_not_accepted(client, TopicPartition("t", 1)) == why_not_accepted(client, TopicPartition("u", 0)) == ""
