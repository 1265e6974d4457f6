"""Whether the receiver drains, until when, and why. ``receiver.machine.control.drain`` has the steps. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.settings.schema import ReceiverSettings
from receiver.machine.exchange.contact import DriverContact
from receiver.machine.exchange.outbox import Outbox


@dataclass(kw_only=True, slots=True, eq=False)
class Shutdown:
    """``draining``: a drain has begun, so nothing new is taken in. ``deadline``: when the drain fails. ``failure``: the cause of
    the drain, "" for a drain on request. ``restarts``: whether a supervisor is to start the receiver again."""

    settings: ReceiverSettings
    outbox: Outbox
    contact: DriverContact
    draining: bool = False
    deadline: float = 0.0
    failure: str = ""
    restarts: bool = False

    def begin(self, now: float, restarts: bool = False) -> None:
        """Begin a drain, unless one has begun."""
        if self.draining:
            return
        self.draining = True
        self.restarts = restarts
        self.deadline = now + self.settings.drain_timeout
        self.contact.beat_at = (
            now  # it may be the last heartbeat, and the driver learns from it which partitions were lost
        )
        self.outbox.note("draining: sealing, storing, reporting and committing what was taken in")

    def fail(self, reason: str, now: float) -> None:
        """Drain because of a failure. What was taken in before it is kept: a custom source may not return it again."""
        self.failure = reason
        self.outbox.note(reason, warning=True)
        self.begin(now)
