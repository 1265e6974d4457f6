"""Streaming queries whose planner process is started again after Spark's own time limit ended it.

Spark gives this process ten seconds from its start to its first message, which no setting changes (docs/STREAMING.md). Until
then it imports PySpark, NumPy and PyArrow, and nothing of Forebay (tests/pyspark_forebay/test_planner_start.py); beside many
other tests that may take this long. No other error is retried.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

STARTS_MAX = 5
#: what Spark says when the ten seconds are over
NOT_STARTED = "failed to connect back"

Result = TypeVar("Result")

log = logging.getLogger(__name__)


def started(run: Callable[[], Result]) -> Result:
    """What ``run`` returns, which starts a query and waits for its end. It is called again when the planner did not start."""
    for attempt in range(1, STARTS_MAX):
        try:
            return run()
        except Exception as error:
            if NOT_STARTED not in str(error):
                raise
            log.warning(
                "Spark's limit of ten seconds ended the start of a planner, attempt %d of %d", attempt, STARTS_MAX
            )
    return run()
