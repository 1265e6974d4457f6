"""The last errors that ended nothing: they ride on the heartbeats (INV-6: a few). Pure."""

from __future__ import annotations

from dataclasses import dataclass

from forebay import messages

#: errors that a heartbeat tells, and the characters of each
ERRORS_MAX, ERROR_WORDS_MAX = 5, 300


@dataclass(slots=True)
class _Error:
    count: int
    at: float


class ToldErrors:
    def __init__(self) -> None:
        self._errors: dict[str, _Error] = {}  # by their words, the latest last

    def add(self, text: str, now: float) -> None:
        """The same words again are counted."""
        words = text[:ERROR_WORDS_MAX]
        known = self._errors.pop(words, None)
        self._errors[words] = _Error(known.count + 1 if known is not None else 1, now)
        while len(self._errors) > ERRORS_MAX:
            del self._errors[next(iter(self._errors))]

    def notes(self, now: float) -> tuple[messages.ErrorNote, ...]:
        return tuple(
            messages.ErrorNote(words=words, count=error.count, seconds_ago=round(now - error.at, 1))
            for words, error in self._errors.items()
        )
