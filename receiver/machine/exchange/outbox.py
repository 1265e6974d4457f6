"""What one input causes: actions in the order in which the service performs them, requests, log notes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from receiver import actions as act
from receiver.machine.exchange.recent_errors import RecentErrors
from receiver.machine.exchange.requests import A, Failed, Requests


class Outbox:
    """Collects the actions of all parts.

    ``origin``: the name of the source in texts. ``counters``: events by name since the start, for heartbeats. ``errors``:
    the last warnings, for heartbeats. ``ended``: an ``Exit`` was decided; no action follows it.
    """

    def __init__(self, requests: Requests, origin: str) -> None:
        self.origin = origin
        self.counters: Counter[str] = Counter()
        self.errors = RecentErrors()
        self.ended = False
        self._requests = requests
        self._actions: list[act.Action] = []
        self._now = 0.0

    def begin(self, now: float) -> None:
        """Start collecting for an input that came at ``now``."""
        self._now = now

    def take(self) -> list[act.Action]:
        """Return the actions collected since the last call."""
        actions, self._actions = self._actions, []
        return actions

    def do(self, action: act.Action) -> None:
        if not self.ended:
            self._actions.append(action)

    def ask(
        self, answer: type[A], now: float, done: Callable[[A, float], None], failed: Callable[[Failed, float], None]
    ) -> int:
        """Return the number of a new request, to be sent as part of an action. An input of the class ``answer`` answers it."""
        return self._requests.add(answer, now, done, failed)

    def note(self, text: str, warning: bool = False, **fields: object) -> None:
        """Log ``text`` with the ``fields`` of the event. A warning also becomes a recent error."""
        self.do(act.Note(text, warning, fields))
        if warning:
            self.errors.add(text, self._now)

    def exit(self, code: int, reason: str) -> None:
        """End the process; ``code`` as in :class:`receiver.actions.Exit`."""
        self.do(act.Exit(code, reason))
        self.ended = True
