"""A read of the state by any function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from driver.journal.state import State
from driver.tracker.requests import Read


@dataclass(frozen=True, slots=True)
class ReadBy(Read[Any]):
    """Reads what ``function`` returns for the state."""

    function: Callable[[State], Any]

    def read(self, state: State) -> Any:
        return self.function(state)
