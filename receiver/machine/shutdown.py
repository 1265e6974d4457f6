"""Whether the receiver drains, until when, and why. The steps of a drain are in ``drain``. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.settings.schema import ReceiverSettings
from receiver.machine.contact import DriverContact
from receiver.machine.outbox import Outbox


@dataclass(kw_only=True, slots=True, eq=False)
class Shutdown:
    """``draining``: a drain began; nothing new is taken in. ``deadline``: when it has failed. ``failure``: what failed before
    the drain and caused it, "" for a drain on request."""

    settings: ReceiverSettings
    outbox: Outbox
    contact: DriverContact
    draining: bool = False
    deadline: float = 0.0
    failure: str = ""

    def begin(self, now: float) -> None:
        """Begin a drain, unless one has begun."""
        if self.draining:
            return
        self.draining = True
        self.deadline = now + self.settings.drain_timeout
        self.contact.beat_at = now  # it may be the last heartbeat that reports the partitions this process has lost
        self.outbox.note("draining: what is open is sealed, stored, reported and committed")

    def fail(self, reason: str, now: float) -> None:
        """Drain because of a failure. What was taken in before it is kept: a custom source may not give it again."""
        self.failure = reason
        self.outbox.note(reason, warning=True)
        self.begin(now)
