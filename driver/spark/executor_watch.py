"""Notices that a cluster gives Spark no executors any more, which no attempt at a batch would survive."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from pyspark import SparkContext

from driver.spark.blocks import executors

log = logging.getLogger(__name__)

_PAUSE_SECONDS_MAX = 5.0
_LOOKS_MIN = 10


class ExecutorWatch:
    """Looks for executors in a thread of its own, from :meth:`start` to :meth:`stop`.

    If a master restarts while it can't reach an application, it forgets the application. The application notices nothing, gets no
    executors, and its tasks wait without end. A new application gets executors again.

    ``present``: returns whether there is an executor now. ``needed``: returns whether there should be one. ``limit_seconds``: how
    long there may be none. ``lost``: called once, in the thread, when there has been none for longer, after there was one: before
    the first one, the cluster may be full. The time in which this process is suspended does not count.
    """

    def __init__(
        self,
        present: Callable[[], bool],
        *,
        needed: Callable[[], bool],
        limit_seconds: float,
        lost: Callable[[], None],
    ) -> None:
        self._present = present
        self._needed = needed
        self._lost = lost
        self._pause_seconds = min(limit_seconds / _LOOKS_MIN, _PAUSE_SECONDS_MAX)
        self._looks_max = round(limit_seconds / self._pause_seconds)
        self._had_one = False
        self._looks = 0  # in a row without an executor
        self._stopped = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._run, name="executor-watch", daemon=True).start()

    def stop(self) -> None:
        """Look no more. A look that has begun ends by itself."""
        self._stopped.set()

    def look(self) -> bool:
        """Look once, and return whether the executors are lost."""
        if self._present():
            self._had_one, self._looks = True, 0
        elif self._had_one and self._needed():
            self._looks += 1
        else:
            self._looks = 0
        return self._looks > self._looks_max

    def _run(self) -> None:
        try:
            while not self._stopped.wait(self._pause_seconds):
                if self.look():
                    self._lost()
                    return
        except Exception as error:
            if not self._stopped.is_set():  # Spark itself has ended, and its next use raises that
                log.debug("executors are not watched any more: %s", error)


def watch_executors(context: SparkContext, limit_seconds: float) -> ExecutorWatch:
    """Start a watch that stops ``context`` if it had executors and then has none for ``limit_seconds``.

    With dynamic allocation, only the time in which Spark runs a job counts.
    """
    is_dynamic = context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true"

    def lost() -> None:
        log.error(
            "Spark has had no executor for %g s (spark.executors_timeout): its cluster may have forgotten the application %s. "
            "Spark is stopped, and the driver ends: a supervisor starts it again with a new application",
            limit_seconds,
            context.applicationId,
        )
        java: Any = context._jsc.sc()
        java.stop()

    watch = ExecutorWatch(
        lambda: bool(executors(context)),
        needed=lambda: not is_dynamic or bool(context.statusTracker().getActiveJobsIds()),
        limit_seconds=limit_seconds,
        lost=lost,
    )
    watch.start()
    return watch
