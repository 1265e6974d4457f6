"""The state of a direct stream that has begun, and the id of its first batch."""

from __future__ import annotations

from driver.journal.events import SpansBegun
from driver.journal.state import State
from driver.journal.transitions import apply
from forebay.model.identifiers import numbered

BATCH = numbered(1, 1)


def begun() -> State:
    state = State(stream="s", timeline=1)
    apply(state, SpansBegun({"t/0": 10}, {"t": "id"}, 1, "given"))
    return state
