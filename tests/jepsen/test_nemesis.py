"""Faults begin in the order of their plan, and one that needs the target of another waits for its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.jepsen import faults
from tests.jepsen.faults import Kind, Step, Waits
from tests.jepsen.run import Nemesis
from tests.jepsen.story import Story


def test_fault_waits_for_the_end_of_another_with_its_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    may_end = False

    def waits(world: Any, step: Step) -> Waits:
        yield lambda: may_end
        done.append(str(step))

    def passes(world: Any, step: Step) -> Waits:
        yield 0.0
        done.append(str(step))

    monkeypatch.setitem(faults.KINDS, "waits", Kind(lambda draw, shape: (), waits))
    monkeypatch.setitem(faults.KINDS, "passes", Kind(lambda draw, shape: (), passes))
    steps = [Step(0, "waits", ("d1",), 1), Step(0, "passes", ("d1",), 1), Step(0, "passes", ("d2",), 1)]
    nemesis = Nemesis(world=None, steps=steps, story=Story(tmp_path, quiet=True))  # type: ignore[arg-type]
    for _ in range(3):
        nemesis.tick()
    assert done == []
    assert not nemesis.quiet
    may_end = True
    while not nemesis.quiet or nemesis.done < 3:
        nemesis.tick()
    assert done == ["waits d1", "passes d1", "passes d2"]
    assert "end of passes d2" in (tmp_path / "story.txt").read_text()
