"""Streaming queries whose planner's process is started again where a machine is too busy for it.

Spark gives that process ten seconds from its start to its first word, which no setting changes, and a Python that imports pyspark
may take as long beside many other tests. Then nothing has happened yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

STARTS_MAX = 5

Result = TypeVar("Result")


def started(run: Callable[[], Result]) -> Result:
    """What ``run`` returns, which starts a query and waits for its end. It is called again when the planner did not start."""
    for _ in range(STARTS_MAX - 1):
        try:
            return run()
        except Exception as error:
            if "failed to connect back" not in str(error):
                raise
    return run()
