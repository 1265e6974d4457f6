"""Each old mistake is caught by its fixed trace, and the right code passes the same trace."""

from __future__ import annotations

import pytest

from tests.simulation import traces
from tests.simulation.invariants import InvariantViolation
from tests.simulation.mistakes import MISTAKES, Mistake

_each = pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.name)


@_each
def test_right_code_passes_the_trace(mistake: Mistake) -> None:
    """The right code takes every step of the trace, and everything is completed afterwards."""
    traces.replay(traces.load(traces.DIRECTORY / f"{mistake.name}.json"))


@_each
def test_mistake_is_caught_by_its_trace(mistake: Mistake) -> None:
    trace = traces.load(traces.DIRECTORY / f"{mistake.name}.json")
    with pytest.raises(InvariantViolation) as caught:
        traces.replay(trace, mistake.kinds)
    assert caught.value.invariant == mistake.invariant == trace.invariant


def test_each_trace_belongs_to_a_mistake() -> None:
    names = {path.stem for path in traces.DIRECTORY.glob("*.json")}
    assert names == {mistake.name for mistake in MISTAKES}
