"""Which decisions a run reached, and after which other decision of the same process.

A run that reaches something new is worth continuing: ``night.py`` begins other runs where it did.
"""

from __future__ import annotations

from collections.abc import Sequence

from driver.journal.events import Event
from driver.tracker.requests import Request
from forebay.model.errors import ForebayError
from receiver import actions as act
from receiver import inputs as inp

#: what differs in two refusals for the same reason
_WITHOUT_NUMBERS = str.maketrans("", "", "0123456789abcdef")
_REASON_CHARACTERS_MAX = 60


class Coverage:
    """``reached``: decision and, after an arrow, the decision of the same process before it → the step that reached it first."""

    def __init__(self) -> None:
        self.reached: dict[str, int] = {}
        self.step = 0
        self._last: dict[str, str] = {}

    def decided(self, driver: str, request: Request, events: Sequence[Event]) -> None:
        if events:
            kinds = sorted({type(event).__name__ for event in events})
            self._note(driver, f"{type(request).__name__}: {' '.join(kinds)}")

    def refused(self, driver: str, request: Request, refusal: ForebayError) -> None:
        reason = str(refusal).translate(_WITHOUT_NUMBERS)[:_REASON_CHARACTERS_MAX]
        self._note(driver, f"{type(request).__name__}: {type(refusal).__name__} {reason}")

    def acted(self, receiver: str, event: inp.Input, actions: Sequence[act.Action]) -> None:
        kinds = [type(action).__name__ for action in actions if not isinstance(action, act.Note)]
        if kinds:
            self._note(receiver, f"{type(event).__name__}: {' '.join(kinds)}")

    def ended(self, process: str, error: BaseException) -> None:
        self._note(process, f"ended: {type(error).__name__}")

    def _note(self, process: str, what: str) -> None:
        before = self._last.get(process, "")
        self._last[process] = what
        self.reached.setdefault(f"{what} < {before}", self.step)
