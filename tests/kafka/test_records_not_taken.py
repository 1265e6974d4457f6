"""What senders do and say when brokers do not take their records, with made-up clients."""

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
GIVEN_UP = KafkaException(KafkaError(KafkaError._FATAL, "given up"))


class Client:
    """A producer and a consumer, as far as senders use them. ``ended``: whether it has given itself up, as librdkafka does, and
    says so at every call."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.reports: list[Callable[[Any, Any], None]] = []
        self.left = 0
        self.ended = False

    def _call(self, *_: Any, **__: Any) -> None:
        if self.ended:
            raise GIVEN_UP

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
        """Of the oldest record that nothing was said of."""
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
    opened = TransactionalSender(OPTIONS, "t", "id", "group")
    opened.open()
    opened.begin()
    opened.put([("t", None, b"v", None, None)])
    return opened


def test_records_of_which_nothing_is_told_in_time_fail_the_transaction_by_that_name(
    clients: list[Client], opened: TransactionalSender
) -> None:
    """And not by what the next call makes of it."""
    clients[0].left = 3
    with pytest.raises(UnreachableError, match="Kafka at b:9092: topic t: 3 records were not accepted"):
        opened.commit("marker", 1)


def test_a_record_that_was_not_taken_in_time_is_told_with_who_could_take_it(
    clients: list[Client], opened: TransactionalSender
) -> None:
    clients[0].report(KafkaError._MSG_TIMED_OUT)
    with pytest.raises(
        UnreachableError, match="a record of t/0 was not accepted: t/0 has no leader until broker 3 is back: "
    ):
        opened.commit("marker", 1)


def test_what_is_told_of_an_aborted_transaction_does_not_fail_the_next(
    clients: list[Client], opened: TransactionalSender
) -> None:
    assert opened.abort()
    opened.begin()
    clients[0].report(KafkaError._PURGE_QUEUE)
    opened.commit("marker", 1)


def test_a_client_that_has_given_itself_up_begins_no_other_transaction_and_is_closed_in_silence(
    clients: list[Client], opened: TransactionalSender
) -> None:
    clients[0].ended = True
    with pytest.raises(StoreError, match="topic t: the transaction can't continue: given up"):
        opened.put([("t", None, b"v", None, None)])
    assert not opened.abort()
    opened.close()


def test_a_client_that_gives_itself_up_fails_the_rows_by_an_error_of_ours(
    monkeypatch: pytest.MonkeyPatch, clients: list[Client]
) -> None:
    monkeypatch.setattr(Client, "poll", lambda *_: (_ for _ in ()).throw(GIVEN_UP))
    with pytest.raises(ForebayError, match="Kafka at b:9092: after 0 records: given up"):
        send_rows(OPTIONS, "t", [pa.record_batch({"value": ["v"]})])


@pytest.mark.parametrize(
    ("leader", "in_sync", "words"),
    [
        (2, [2, 3], ""),
        (-1, [3], "t/0 has no leader until broker 3 is back"),
        (-1, [], "t/0 has no leader until broker 2 or 3 is back"),
        (2, [2], "broker 3 is not in sync with the leader of t/0: min.insync.replicas may need it"),
    ],
)
def test_what_hinders_a_partition_is_told_with_the_brokers_to_look_at(
    leader: int, in_sync: list[int], words: str
) -> None:
    partition = SimpleNamespace(leader=leader, replicas=[2, 3], isrs=in_sync)
    shown = SimpleNamespace(topics={"t": SimpleNamespace(partitions={0: partition})})
    client: Any = SimpleNamespace(list_topics=lambda timeout: shown)
    assert why_not_accepted(client, TopicPartition("t", 0)) == words
    assert why_not_accepted(client, TopicPartition("t", 1)) == why_not_accepted(client, TopicPartition("u", 0)) == ""
