"""Requests whose error passes, with scripted clients."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicCollection

from forebay.kafka.client import requests
from forebay.kafka.client.admin import KafkaAdmin
from forebay.model.errors import ForebayError, MissingRightError, UnknownTopicError, UnreachableError
from forebay.model.values import TopicPartition
from forebay.process.clock import SystemClock

TP = TopicPartition("t", 0)
LEADERLESS = SimpleNamespace(leader=-1, isrs=[], replicas=[2, 3])


class Scripted:
    """Clients that answer requests for offsets with ``answers`` in order, then always with the last: an offset or an error.

    ``hidden``: the topics that the authorizer hides.
    """

    def __init__(
        self, *answers: int | KafkaError, shown: dict[int, object] | None = None, hidden: tuple[str, ...] = ()
    ) -> None:
        self.answers = list(answers)
        self.hidden = hidden
        self.shown = shown
        self.made = 0
        self.asked: list[tuple[int, float]] = []  # by which client, and how many seconds it had
        self.came = threading.Event()

    def __call__(self, *_: object, **__: object) -> Any:
        self.made += 1
        number = self.made

        def list_offsets(specs: Any, *, request_timeout: float, **_: object) -> Any:
            self.asked.append((number, request_timeout))
            self.came.set()
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            future: Future[Any] = Future()
            if isinstance(answer, KafkaError):
                future.set_exception(KafkaException(answer))
            else:
                future.set_result(SimpleNamespace(offset=answer, leader_epoch=0))
            return dict.fromkeys(specs, future)

        def list_topics(**_: object) -> Any:
            if self.shown is None:
                raise KafkaException(KafkaError(KafkaError._TRANSPORT))
            return SimpleNamespace(topics={"t": SimpleNamespace(partitions=self.shown)})

        def describe_topics(topics: TopicCollection, **_: object) -> Any:
            futures: dict[str, Future[Any]] = {topic: Future() for topic in topics.topic_names}
            for topic, future in futures.items():
                if topic in self.hidden:
                    future.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
                else:
                    future.set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
            return futures

        return SimpleNamespace(
            list_offsets=list_offsets, list_topics=list_topics, describe_topics=describe_topics, poll=lambda seconds: 0
        )


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[Scripted], Scripted]:
    def play(clients: Scripted) -> Scripted:
        monkeypatch.setattr(requests, "AdminClient", clients)
        return clients

    return play


@pytest.mark.parametrize(
    "first",
    [
        KafkaError(KafkaError.FENCED_LEADER_EPOCH),
        KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION),
        KafkaError(KafkaError._TIMED_OUT),
        KafkaError(KafkaError._TRANSPORT),
        OFFSET_INVALID,
    ],
    ids=str,
)
def test_client_that_knows_former_leader_is_replaced(
    play: Callable[[Scripted], Scripted], first: KafkaError | int
) -> None:
    """Such a client may ask the former leader again and again; and -1001 is not an offset, though it is in the answer."""
    clients = play(Scripted(first, 7))
    with KafkaAdmin({}) as asking:
        assert asking.ends([TP]) == {TP: 7}
        assert [number for number, _ in clients.asked] == [1, 2]
        assert asking.ends([TP]) == {TP: 7}
    assert [number for number, _ in clients.asked] == [1, 2, 2]


def test_attempts_have_growing_timeouts_within_total_timeout(
    play: Callable[[Scripted], Scripted],
) -> None:
    """INV-6."""

    class Passing:
        now = 0.0

        def monotonic(self) -> float:
            return self.now

        def wall_ms(self) -> int:
            return 0

    clock = Passing()
    clients = play(Scripted(KafkaError(KafkaError._TIMED_OUT), shown={0: LEADERLESS}))
    client = clients()
    slow = client.list_offsets

    def list_offsets(specs: Any, *, request_timeout: float, **more: object) -> Any:
        clock.now += request_timeout
        return slow(specs, request_timeout=request_timeout, **more)

    client.list_offsets = list_offsets
    with KafkaAdmin({}, timeout_seconds=20.0, clock=clock) as asking:
        asking._requests._new_client = lambda: client  # type: ignore[method-assign]
        asking._requests._client = client
        with pytest.raises(UnreachableError, match=r"offsets of t/0: t/0 has no leader until broker 2 or 3 is back"):
            asking.ends([TP])
    assert [seconds for _, seconds in clients.asked] == [2.0, 4.0, 8.0, 4.0]


def test_lasting_error_is_not_retried(play: Callable[[Scripted], Scripted]) -> None:
    for code, kind in (
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, MissingRightError),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, UnknownTopicError),
    ):
        clients = play(Scripted(KafkaError(code), 7))
        with KafkaAdmin({}) as asking, pytest.raises(kind):
            asking.ends([TP])
        assert len(clients.asked) == 1


def test_request_waits_for_leaderless_partition_but_not_for_missing_one(
    play: Callable[[Scripted], Scripted],
) -> None:
    """A client reports the same error for both."""
    clients = play(Scripted(KafkaError(KafkaError._NOENT), 7, shown={}))
    with KafkaAdmin({}) as asking, pytest.raises(UnknownTopicError, match="Kafka has no such topic or partition"):
        asking.ends([TP])
    assert len(clients.asked) == 1
    clients = play(Scripted(KafkaError(KafkaError._NOENT), 7, shown={0: LEADERLESS}))
    with KafkaAdmin({}) as asking:
        assert asking.ends([TP]) == {TP: 7}


@pytest.mark.parametrize(("hidden", "kind"), [((), UnknownTopicError), (("t",), MissingRightError)])
def test_client_that_seeks_the_leader_of_a_deleted_topic_until_its_timeout_is_not_taken_for_a_silent_broker(
    play: Callable[[Scripted], Scripted], hidden: tuple[str, ...], kind: type[Exception]
) -> None:
    play(Scripted(KafkaError(KafkaError._TIMED_OUT), shown={}, hidden=hidden))
    with KafkaAdmin({}, timeout_seconds=0.1) as asking, pytest.raises(kind):
        asking.ends([TP])


@pytest.mark.parametrize("code", [KafkaError._NOENT, KafkaError.UNKNOWN_TOPIC_OR_PART])
def test_topic_that_the_authorizer_hides_is_not_reported_as_missing(
    play: Callable[[Scripted], Scripted], code: int
) -> None:
    clients = play(Scripted(KafkaError(code), 7, shown={}, hidden=("t",)))
    with KafkaAdmin({}) as asking, pytest.raises(MissingRightError, match="--operation Describe --topic t"):
        asking.ends([TP])
    assert len(clients.asked) == 1


def test_close_ends_repeated_request(play: Callable[[Scripted], Scripted]) -> None:
    clients = play(Scripted(KafkaError(KafkaError.LEADER_NOT_AVAILABLE)))
    asking = KafkaAdmin({}, timeout_seconds=3600.0)
    failed: list[ForebayError] = []

    def ask() -> None:
        try:
            asking.ends([TP])
        except ForebayError as error:
            failed.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    assert clients.came.wait(60.0)
    asking.close()
    thread.join(60.0)
    assert [str(error) for error in failed] == ["this Kafka admin client is closed"]


def test_answer_clears_reasons_of_silent_brokers(play: Callable[[Scripted], Scripted]) -> None:
    play(Scripted(KafkaError(KafkaError._TIMED_OUT), KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), 7))
    with KafkaAdmin({}) as asking:
        asking._requests.errors(KafkaError(KafkaError._TRANSPORT, "b:1/1: refused"))
        with pytest.raises(UnknownTopicError):
            asking.ends([TP])
        assert asking.why_silent() == "b:1/1: refused"
        assert asking.ends([TP]) == {TP: 7}
        assert asking.why_silent() == ""


@pytest.mark.parametrize("answers", [True, False])
def test_client_of_a_failed_attempt_ends_with_the_request(monkeypatch: pytest.MonkeyPatch, answers: bool) -> None:
    """Not with a later garbage collection: each client has threads, and a connection to each broker."""
    made: list[weakref.ref[Any]] = []
    create = requests.AdminRequests._new_client

    def recorded(self: requests.AdminRequests) -> Any:
        client = create(self)
        made.append(weakref.ref(client))
        return client

    monkeypatch.setattr(requests.AdminRequests, "_new_client", recorded)

    def ask(client: Any, seconds: float) -> str:
        if answers and len(made) == 3:
            return "answer"
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    gc.disable()
    try:
        asking = requests.AdminRequests(
            {"bootstrap.servers": "127.0.0.1:1"}, address="", timeout_seconds=0.5, clock=SystemClock()
        )
        if answers:
            assert asking.send(ask, "it") == "answer"
        else:
            with pytest.raises(UnreachableError):
                asking.send(ask, "it")
        assert len(made) >= 3
        assert [client() for client in made[:-1]] == [None] * (len(made) - 1)
        asking.close()
        assert made[-1]() is None
    finally:
        gc.enable()
