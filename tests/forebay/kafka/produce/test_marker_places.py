"""Where a sender searches for the previous transaction's marker, with scripted clients."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from forebay.kafka.client import group_offsets
from forebay.kafka.produce import transactions
from forebay.kafka.produce.transactions import Marker, TransactionalSender
from forebay.model.errors import MissingRightError, StoreError, UnreachableError


def test_marker_is_read_from_topic_created_until_fencing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """INV-4: the earlier sender commits the first batch of a new topic while the next sender opens. It is not written twice."""
    committed = {"old": 6}

    class Producer:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def init_transactions(self, _: float) -> None:
            committed["new"] = 7  # just in time

        def list_topics(self, timeout: float) -> Any:
            return SimpleNamespace(topics=dict(committed))

        def purge(self) -> None:
            pass

        def poll(self, _: float) -> None:
            pass

    class Consumer:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def committed(self, places: list[Any], timeout: float) -> list[Any]:
            return [
                SimpleNamespace(error=None, offset=number, metadata=f"batch {number}")
                for number in (committed[place.topic] for place in places)
            ]

        def close(self) -> None:
            pass

    monkeypatch.setattr(transactions, "Producer", Producer)
    monkeypatch.setattr(group_offsets, "Consumer", Consumer)
    sender = TransactionalSender({"bootstrap.servers": "127.0.0.1:9"}, None, transactional_id="t", group="g")
    assert sender.open() == Marker(7, "batch 7")
    sender.close()


class _Opened:
    """A transactional producer whose first calls fail with ``errors``."""

    def __init__(self, *errors: KafkaError) -> None:
        self.errors = list(errors)

    def __call__(self, *_: Any, **__: Any) -> _Opened:
        return self

    def init_transactions(self, seconds: float) -> None:
        assert seconds > 0
        if self.errors:
            raise KafkaException(self.errors.pop(0))

    def list_topics(self, topic: str, timeout: float) -> Any:
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None)})

    def purge(self) -> None:
        pass

    def poll(self, _: float) -> None:
        pass


class _Readers:
    """Consumers: each answers with the next of ``answers``, all later ones with the last."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.made = self.closed = 0

    def __call__(self, *_: Any, **__: Any) -> Any:
        self.made += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

        def committed(places: list[Any], timeout: float) -> list[Any]:
            assert timeout > 0
            if isinstance(answer, KafkaError):
                raise KafkaException(answer)
            return [answer]

        return SimpleNamespace(committed=committed, close=self._close, poll=lambda seconds: None)

    def _close(self) -> None:
        self.closed += 1


def _opening(
    monkeypatch: pytest.MonkeyPatch, producer: _Opened, readers: _Readers, seconds: float = 60.0
) -> TransactionalSender:
    monkeypatch.setattr(transactions, "Producer", producer)
    monkeypatch.setattr(group_offsets, "Consumer", readers)
    return TransactionalSender(
        {"bootstrap.servers": "127.0.0.1:9"}, "t", transactional_id="id", group="g", timeout_seconds=seconds
    )


_MARKED = SimpleNamespace(error=None, offset=7, metadata="batch 7")


@pytest.mark.parametrize(
    "first",
    [
        KafkaError(KafkaError.NOT_COORDINATOR),
        KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS),
        SimpleNamespace(error=KafkaError(KafkaError.NOT_COORDINATOR)),
    ],
    ids=["not coordinator", "loading", "of one partition"],
)
def test_marker_request_is_retried_by_new_consumer(monkeypatch: pytest.MonkeyPatch, first: Any) -> None:
    readers = _Readers(first, _MARKED)
    sender = _opening(monkeypatch, _Opened(), readers)
    assert sender.open() == Marker(7, "batch 7")
    assert (readers.made, readers.closed) == (2, 1)
    sender.close()
    assert readers.closed == 2


def test_marker_without_answer_times_out_as_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    readers = _Readers(KafkaError(KafkaError.NOT_COORDINATOR))
    with pytest.raises(UnreachableError, match="topic t: cannot read its marker"):
        _opening(monkeypatch, _Opened(), readers, 0.5).open()
    assert readers.made == readers.closed > 1


def test_refused_marker_request_is_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    readers = _Readers(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
    with pytest.raises(MissingRightError, match=r"topic t: cannot read its marker.*kafka-acls.sh"):
        _opening(monkeypatch, _Opened(), readers).open()
    assert (readers.made, readers.closed) == (1, 1)


def test_takeover_of_id_is_retried_after_transient_error(monkeypatch: pytest.MonkeyPatch) -> None:
    passing = KafkaError(KafkaError._TIMED_OUT, "in time", False, True)
    assert passing.retriable()
    sender = _opening(monkeypatch, _Opened(passing, passing), _Readers(_MARKED))
    assert sender.open() == Marker(7, "batch 7")
    sender.close()
    with pytest.raises(StoreError, match="topic t: cannot open it for transactions"):
        _opening(monkeypatch, _Opened(KafkaError(KafkaError._STATE)), _Readers(_MARKED)).open()
