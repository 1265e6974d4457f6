"""Open requests by their numbers. Pure.

An answer may come late, twice or never. An answer to a request that is no longer open changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from receiver.inputs import Answer

A = TypeVar("A", bound=Answer)


@dataclass(frozen=True, slots=True)
class Failed:
    """The request with this number got no answer."""

    request: int
    reason: str


@dataclass(frozen=True, slots=True)
class Request:
    """An open request. ``done``: called with the answer and the time; ``failed``: called instead if none comes."""

    number: int
    sent_at: float
    done: Callable[[Answer, float], None]
    failed: Callable[[Failed, float], None]

    def fail(self, reason: str, now: float) -> None:
        self.failed(Failed(self.number, reason), now)


class Requests:
    """The open requests of one machine. Not thread-safe."""

    def __init__(self) -> None:
        self.last = 0  # the number of the newest request
        self._open: dict[int, Request] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._open

    def add(
        self,
        answer: type[A],
        now: float,
        done: Callable[[A, float], None],
        failed: Callable[[Failed, float], None],
    ) -> int:
        """Return the number of a new request, which an input of the class ``answer`` answers."""

        def checked(event: Answer, at: float) -> None:
            assert isinstance(event, answer), f"{event} does not answer request {event.request}"
            done(event, at)

        self.last += 1
        self._open[self.last] = Request(self.last, now, checked, failed)
        return self.last

    def take(self, number: int) -> Request | None:
        """Close and return a request. None: it was answered before, or its time was over."""
        return self._open.pop(number, None)

    def take_overdue(self, sent_before: float) -> list[Request]:
        """Close and return the requests whose answers are considered lost."""
        overdue = [number for number, request in self._open.items() if request.sent_at < sent_before]
        return [self._open.pop(number) for number in overdue]
