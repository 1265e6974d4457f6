"""The dictionary of all loggers, which pytest iterates over in each phase of a test, while other threads may create loggers."""

from __future__ import annotations

import logging
from typing import Any


class Loggers(dict[str, Any]):
    """Name → logger. Its values are those of one moment: a thread that imports a module may create a logger at any time, and
    pytest (9.2, ``_pytest.logging.catching_logs``) iterates without the lock of ``logging``."""

    def values(self) -> Any:
        return list(super().values())  # one step for other threads


def install() -> None:
    manager = logging.root.manager
    if not isinstance(manager.loggerDict, Loggers):
        manager.loggerDict = Loggers(manager.loggerDict)
