"""The most recent errors that did not end the process, which heartbeats report (INV-6: a few). Pure."""

from __future__ import annotations

from dataclasses import dataclass

from forebay import messages

#: maximum number of errors in a heartbeat, and characters of each
ERRORS_MAX, ERROR_LENGTH_MAX = 5, 300


@dataclass(slots=True)
class _Error:
    count: int
    at: float


class RecentErrors:
    """At most ``ERRORS_MAX`` different texts. Not thread-safe."""

    def __init__(self) -> None:
        self._errors: dict[str, _Error] = {}  # by text, the latest last

    def add(self, text: str, now: float) -> None:
        """Add an error that occurred at ``now``, or count it if its text is known."""
        message = text[:ERROR_LENGTH_MAX]
        known = self._errors.pop(message, None)
        self._errors[message] = _Error(known.count + 1 if known is not None else 1, now)
        while len(self._errors) > ERRORS_MAX:
            del self._errors[next(iter(self._errors))]

    def notes(self, now: float) -> tuple[messages.ErrorNote, ...]:
        """Return the errors as heartbeats report them, the latest last."""
        return tuple(
            messages.ErrorNote(message=message, count=error.count, seconds_ago=round(now - error.at, 1))
            for message, error in self._errors.items()
        )
