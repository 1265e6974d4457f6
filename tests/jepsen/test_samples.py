"""Samples of a soak run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from tests.jepsen.samples import Samples


def test_standby_that_begins_to_lead_begins_a_new_series() -> None:
    observer = SimpleNamespace(epochs={"d1": 1})
    samples = Samples(cast(Any, None), cast(Any, observer), 100.0)

    def roles() -> list[str]:
        return [samples._role(f"{name}, start 1", name) for name in ("d1", "d2", "agent-w1")]

    assert roles() == roles() == ["d1, start 1", "d2, start 1", "agent-w1, start 1"]
    observer.epochs["d2"] = 2
    assert roles() == ["d1, start 1", "d2, start 1, leading", "agent-w1, start 1"]
    assert samples._role("d1, start 2", "d1") == "d1, start 2", "a process that starts again is a standby at first"
    observer.epochs["d1"] = 3
    assert samples._role("d1, start 2", "d1") == "d1, start 2, leading"
