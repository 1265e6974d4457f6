"""Decides which repeats of an event are logged, such as failures to reach a broker. Without I/O."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Reminder:
    """Logs the first event of a series, then one after ``first_seconds``, and further ones after delays that double up to
    ``max_seconds``. An event with another text than the last logged one is logged after ``first_seconds`` at the latest.

    A series ends when no event came for longer than the present delay. ``omitted``: events since the last logged one.
    """

    first_seconds: float = 60.0
    max_seconds: float = 3600.0
    omitted: int = 0
    _delay: float = 0.0
    _logged_at: float = 0.0
    _seen_at: float = 0.0
    _text: str = ""

    def is_due(self, now: float, text: str = "") -> bool:
        """Return whether an event at ``now``, on a monotonic clock, is to be logged. Reset :attr:`omitted` after logging."""
        waited, quiet = now - self._logged_at, now - self._seen_at
        self._seen_at = now
        if not self._delay or quiet > self._delay:
            self._delay = self.first_seconds
        elif waited >= self._delay:
            self._delay = min(self._delay * 2, self.max_seconds)
        elif text == self._text or waited < self.first_seconds:
            self.omitted += 1
            return False
        self._logged_at, self._text = now, text
        return True

    def count(self) -> str:
        """Return ``" (N more since the last line)"`` for the events that were not logged, "" if there are none; forget them."""
        omitted, self.omitted = self.omitted, 0
        return f" ({omitted} more since the last line)" if omitted else ""
