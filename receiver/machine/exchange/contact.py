"""What a receiver knows about its driver: which one answers, whether it answers, when the next heartbeat is due. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from receiver.machine.exchange.outbox import Outbox


@dataclass(kw_only=True, slots=True, eq=False)
class DriverContact:
    """Rule 7: an unreachable driver ends nothing. Polling goes on with paused partitions; unreported blocks are kept.

    ``epoch``: the highest driver epoch seen. ``acknowledged``: the highest version of a command done for that driver.
    ``failures``: requests in a row without an answer. ``silence``: why the last request failed, "" after an answer.
    ``beat_at``: when the next heartbeat is due.
    """

    outbox: Outbox
    epoch: int = 0
    acknowledged: int = 0
    failures: int = 0
    silence: str = ""
    beat_at: float = 0.0

    def see(self, driver_epoch: int) -> None:
        if driver_epoch > self.epoch:
            self.epoch = driver_epoch
            self.acknowledged = 0  # a new driver counts its commands from 1

    def answered(self) -> None:
        if self.silence:
            self.outbox.note("the driver answers again")
        self.silence = ""
        self.failures = 0

    def missed(self, reason: str) -> None:
        """A request got no answer. The 1st, 2nd, 4th, 8th … in a row is logged."""
        self.failures += 1
        if self.failures.bit_count() == 1:
            self.outbox.note(f"the driver is out of reach, retrying with growing delay: {reason}", warning=True)
        self.silence = reason or "no answer"
