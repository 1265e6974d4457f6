"""Requests on their way, known by their numbers. Pure.

Answers come late, twice or never: one that belongs to no request any more changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Request:
    """``done``: called with the answer and the time; ``failed``: with the reason and the time when there is none."""

    sent_at: float
    done: Callable[[Any, float], None]
    failed: Callable[[str, float], None]


class Requests:
    """Not thread-safe."""

    def __init__(self) -> None:
        self.last = 0  # the highest number given
        self._open: dict[int, Request] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._open

    def add(self, now: float, done: Callable[[Any, float], None], failed: Callable[[str, float], None]) -> int:
        """The number of a new one."""
        self.last += 1
        self._open[self.last] = Request(now, done, failed)
        return self.last

    def take(self, number: int) -> Request | None:
        """What is answered now. None: it was answered before, or given up."""
        return self._open.pop(number, None)

    def take_overdue(self, sent_before: float) -> list[Request]:
        """Those whose answers are taken for lost."""
        overdue = [number for number, request in self._open.items() if request.sent_at < sent_before]
        return [self._open.pop(number) for number in overdue]
