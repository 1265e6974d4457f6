"""The last steps of a receiver: report and commit everything, release the claims, exit. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.model.values import block_id
from forebay.process.restarts import RESTART_EXIT_CODE
from forebay.settings.schema import ReceiverSettings
from receiver import actions as act
from receiver import inputs as inp
from receiver.machine.delivery.buffer import Buffer
from receiver.machine.delivery.commits import CommitRetries
from receiver.machine.exchange.outbox import Outbox
from receiver.machine.exchange.requests import Failed
from receiver.machine.membership.partitions import Partitions
from receiver.machine.membership.registration import Registration
from receiver.machine.membership.shutdown import Shutdown
from receiver.machine.ownership.assignment import names
from receiver.machine.ownership.claims import Claims


@dataclass(kw_only=True, slots=True, eq=False)
class Drain:
    """Takes the steps of a drain that has begun: one request at a time, repeated until the deadline of the drain."""

    settings: ReceiverSettings
    outbox: Outbox
    registration: Registration
    shutdown: Shutdown
    partitions: Partitions
    buffer: Buffer
    commits: CommitRetries
    claims: Claims
    _committed: bool = False
    _request: int = 0  # the open request, 0: none
    _try_at: float = 0.0
    _obstacle: str = ""  # why the last step is not done

    def stop(self, now: float) -> None:
        """Drain without reporting what is in memory: Kafka still has it, and the next owner takes it in."""
        self.buffer.clear()
        self.shutdown.begin(now)

    def advance(self, now: float) -> None:
        """Take the next step of a drain that has begun."""
        left = self._left()
        if now >= self.shutdown.deadline:
            timeout = f"{self.settings.drain_timeout:g} s"
            self.outbox.exit(1, f"not drained within {timeout} (receiver.drain_timeout): {left or self._obstacle}")
            return
        if left or self._request or now < self._try_at:
            return
        if not self._committed:
            positions = {p.tp: self.commits.point(p) for p in self.partitions if p.token}
            if positions:
                self._obstacle = f"{self.outbox.origin} did not answer the last commit"
                self._request = self.outbox.ask(inp.CommitSynced, now, self._synced, self._failed)
                self.outbox.do(act.CommitSync(self._request, positions))
                return
            self._committed = True
        self._obstacle = "the driver did not answer the release of the claims"
        self._request = self.claims.release(self.partitions, now, self._released, self._failed)
        if not self._request:
            self._exit()

    def _left(self) -> str:
        """Return what the drain still has to report, for the log; "" if nothing."""
        blocks = [sealed.pending.sequence for sealed in self.buffer.sealed]
        if blocks:
            first = block_id(self.registration.receiver_id, self.registration.epoch, blocks[0])
            return f"{len(blocks)} blocks not reported (the first is {first})"
        if self.buffer.has_open:
            return "the open block is not sealed"
        held = [partition.tp for partition in self.partitions if partition.held_from >= 0]
        return f"partitions with records that wait for a new claim: {names(held)}" if held else ""

    def _synced(self, event: inp.CommitSynced, now: float) -> None:
        self._request = 0
        owned = {tp: error for tp, error in event.errors.items() if tp in self.partitions}
        if not owned:
            self._committed = True
            return
        tp, error = next(iter(owned.items()))
        self._retry(f"{self.outbox.origin} refused the last commit of {tp}: {error}", now)

    def _released(self, event: inp.Released, now: float) -> None:
        self._request = 0
        self._exit()

    def _failed(self, failure: Failed, now: float) -> None:
        self._request = 0
        self._retry(failure.reason, now)

    def _retry(self, reason: str, now: float) -> None:
        self._obstacle = reason
        self._try_at = now + self.settings.reclaim_delay

    def _exit(self) -> None:
        shutdown = self.shutdown
        if shutdown.failure:
            self.outbox.exit(1, shutdown.failure)
        elif shutdown.restarts:
            self.outbox.exit(RESTART_EXIT_CODE, "drained, to be started again")
        else:
            self.outbox.exit(0, "drained")
