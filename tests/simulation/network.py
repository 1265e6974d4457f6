"""HTTP between receivers and drivers: every request and every answer may be lost, repeated, delayed, reordered or cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.http_answers import HttpAnswer

#: maximum number of copies of a request or an answer
COPIES_MAX = 2


@dataclass(slots=True, eq=False)
class Exchange:
    """One request and its answers.

    ``copies``: of the request, still on their way. ``on_answer``: called with an answer, or None for "no answer in time". The
    sender drops repeated answers by the number of the request.
    """

    label: str
    body: Any
    on_answer: Callable[[HttpAnswer | None], None]
    copies: int = 1
    made: int = 1
    answers: dict[int, HttpAnswer] = field(default_factory=dict)
    answered: int = 0
    abandoned: bool = False  # the client has stopped waiting
    at_driver: int = 0  # requests that a driver received and has not answered

    @property
    def sender(self) -> str:
        """The process that sent it."""
        return self.label.partition("/")[0]

    @property
    def is_lost(self) -> bool:
        """Whether no copy, no answer and no driver is left that could end the wait of its sender."""
        return not self.copies and not self.answers and not self.at_driver

    @property
    def over(self) -> bool:
        return not self.copies and not self.answers and not self.at_driver and self.abandoned


class Network:
    def __init__(self) -> None:
        self.exchanges: dict[str, Exchange] = {}
        #: all registrations: a copy of one may arrive long after its answer
        self.registrations: list[Exchange] = []
        self._numbers: Counter[str] = Counter()

    def send(self, sender: str, kind: str, body: Any, on_answer: Callable[[HttpAnswer | None], None]) -> Exchange:
        name = f"{sender}/{kind}"
        self._numbers[name] += 1
        exchange = Exchange(f"{name}#{self._numbers[name]}", body, on_answer)
        self.exchanges[exchange.label] = exchange
        if kind == "register":
            self.registrations.append(exchange)
        return exchange

    def request_taken(self, exchange: Exchange) -> None:
        exchange.copies -= 1
        exchange.at_driver += 1

    def answer(self, exchange: Exchange, answer: Any) -> None:
        """Send ``answer``, a message or an error, on its way back."""
        exchange.at_driver -= 1
        exchange.answered += 1
        exchange.answers[exchange.answered] = HttpAnswer.of(answer)
        self._tidy(exchange)

    def driver_died(self, exchange: Exchange) -> None:
        exchange.at_driver -= 1
        self._tidy(exchange)

    def lose_request(self, exchange: Exchange) -> None:
        exchange.copies -= 1
        self._tidy(exchange)

    def repeat_request(self, exchange: Exchange) -> None:
        exchange.copies += 1
        exchange.made += 1
        self.exchanges[exchange.label] = exchange

    def deliver_answer(self, exchange: Exchange, number: int, cut_at: int | None = None) -> None:
        """Deliver an answer, whole or up to a part of it."""
        answer = exchange.answers.pop(number)
        self.end(exchange, answer if cut_at is None else answer.cut(cut_at))

    def lose_answer(self, exchange: Exchange, number: int) -> None:
        del exchange.answers[number]
        self._tidy(exchange)

    def end(self, exchange: Exchange, answer: HttpAnswer | None = None) -> None:
        """End the client's wait: its time limit has passed, or it gets ``answer``. Messages on their way may still arrive."""
        exchange.abandoned = True
        self._tidy(exchange)
        exchange.on_answer(answer)

    def _tidy(self, exchange: Exchange) -> None:
        if exchange.over:
            self.exchanges.pop(exchange.label, None)

    def sender_died(self, sender: str) -> None:
        """End the wait of every sender of this process. Requests on their way may still arrive."""
        for exchange in list(self.exchanges.values()):
            if exchange.label.startswith(f"{sender}/"):
                exchange.abandoned = True
                exchange.answers.clear()
                exchange.on_answer = lambda answer: None
                self._tidy(exchange)
