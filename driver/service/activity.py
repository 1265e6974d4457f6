"""The driver's current state, as its status shows it: what it does or waits for, and whether it must stop."""

from __future__ import annotations

import logging
import threading

from forebay.model.errors import UnreachableError
from forebay.process.reminder import Reminder

log = logging.getLogger(__name__)

_FINDING_PARTITIONS = "finding the partitions"


class Activity:
    """State, detail and failure of the driver. Its threads set attributes directly: each is one assignment.

    ``state``: "waiting", "standby", "running", "stopping" or "failed". ``detail``: what the driver waits for; "": nothing.
    ``spark_ui``: URL of the Spark UI; "": it is off. ``stopping``: set when the driver must end. ``jobs_ended``: set when no job
    runs any more.
    """

    def __init__(self) -> None:
        self.state = "waiting"
        self.detail = "opening the journal"
        self.spark_ui = ""
        self.failure: BaseException | None = None
        self.engine_ready = False
        self.partitions_found = False
        self.stopping = threading.Event()
        self.jobs_ended = threading.Event()
        self._reminder = Reminder()

    def stop(self) -> None:
        """Tell all threads to stop."""
        self.stopping.set()
        if self.state != "failed":
            self.state = "stopping"

    def drain(self) -> None:
        """Set the status detail to show that the driver drains."""
        if self.state != "failed":
            self.state, self.detail = "stopping", "draining"

    def fail(self, error: BaseException) -> None:
        """Store the error that ends the driver; only the first one counts. While the driver stops, an UnreachableError is not a
        failure."""
        if self.failure is None and not (self.stopping.is_set() and isinstance(error, UnreachableError)):
            self.failure = error
            self.state, self.detail = "failed", str(error)

    def await_partitions(self) -> None:
        """If the stream's partitions are not known yet, set the status to show that the driver waits for them."""
        self.detail = _FINDING_PARTITIONS if not self.partitions_found else ""

    def run_if_ready(self) -> None:
        """Become "running" once the engine is up and the stream's partitions are known."""
        if self.state == "waiting" and self.engine_ready and self.partitions_found:
            self.state, self.detail = "running", ""

    def wait_for(self, detail: str, now: float) -> None:
        """Set the status to show that the source or the WAL does not answer; "" if it answers. Log the first time, and then after
        growing delays. ``now``: monotonic seconds."""
        if self.state == "failed" or (not detail and not self.detail.startswith(("Kafka", "source", "WAL"))):
            return
        if detail and self._reminder.is_due(now, detail):
            log.warning("waiting: %s%s", detail, self._reminder.count())
        elif self.detail and not detail:
            log.info("no longer waiting for %s", self.detail.partition(":")[0])
        self.detail = detail
