"""Where a sender looks for the marker of the transaction before, with made-up clients."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from forebay.kafka import transactions
from forebay.kafka.transactions import Marker, TransactionalSender


def test_a_topic_that_the_sender_before_makes_until_it_is_fenced_is_looked_at_for_its_marker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """INV-4: it commits a batch, the first of a new topic, while the next sender opens. That batch is not written twice."""
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
    monkeypatch.setattr(transactions, "Consumer", Consumer)
    sender = TransactionalSender({"bootstrap.servers": "127.0.0.1:9"}, None, "t", "g")
    assert sender.open() == Marker(7, "batch 7")
    sender.close()
