"""The parts of a decision, and the recorder that collects them while the decision is made."""

from __future__ import annotations

from dataclasses import dataclass

from driver.journal import events as ev
from driver.journal.state import State
from driver.journal.transitions import apply
from forebay.model.errors import FencedError, RefusedError, UsageError


@dataclass(frozen=True, slots=True)
class DeleteSegment:
    """Delete the segment in the WAL (idempotent), then send the request ``CleanedUp(number)``."""

    number: int
    path: str


Action = DeleteSegment
Refusal = FencedError | RefusedError | UsageError


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to a request, and the events that must be durable before the answer is sent.

    ``refusal``: sent instead of the answer, if set. ``events`` must be durable before it is sent, as for an answer.
    """

    answer: object = None
    events: tuple[ev.Event, ...] = ()
    actions: tuple[Action, ...] = ()
    refusal: Refusal | None = None


class Recorder:
    """Applies the events of a decision to ``state`` while it is made, and keeps them for the journal. All parts share it."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._events: list[ev.Event] = []
        self._actions: list[Action] = []

    def begin(self) -> None:
        """Begin a new decision."""
        self._events.clear()
        self._actions.clear()

    @property
    def has_events(self) -> bool:
        """Whether an event was applied since :meth:`begin`."""
        return bool(self._events)

    def apply(self, *events: ev.Event) -> None:
        """Apply ``events`` in order.

        Raises UnwritableEvent at the first event that the journal could not write; those before it are applied.
        """
        for event in events:
            ev.refuse_unwritable(event)
            apply(self.state, event)
            self._events.append(event)

    def act(self, action: Action) -> None:
        """Have ``action`` performed when the decision's events are durable."""
        self._actions.append(action)

    def decision(self, answer: object = None, refusal: Refusal | None = None) -> Decision:
        """Return the decision as it was recorded since :meth:`begin`."""
        return Decision(answer, tuple(self._events), tuple(self._actions), refusal)
