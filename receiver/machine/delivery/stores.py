"""Whether blocks become durable: stores that fail, wait for space, or hang. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from forebay import messages
from forebay.settings.schema import ReceiverSettings
from receiver import actions as act
from receiver import inputs as inp
from receiver.blocks.sealed_blocks import SealedBlocks
from receiver.machine.exchange.outbox import Outbox

#: a store that reported nothing, not even a failure, for this many times ``store_timeout`` hangs
STORE_PATIENCE = 2.0
#: a store without space says so about once a second, and each try may last as long as a request
_NO_SPACE_SECONDS_MIN = 30.0


@dataclass(kw_only=True, slots=True, eq=False)
class Stores:
    """Whether the stores take blocks, as their inputs say."""

    settings: ReceiverSettings
    outbox: Outbox
    sealed: SealedBlocks
    seconds: float = 0.0  # from the seal of the newest durable block until it was durable
    _no_space: str = ""  # the reason, "" if there is space
    _lacking: str = ""  # what is missing then
    _away: str = ""  # the reason, "" if the store takes blocks
    _store: str = ""  # which store is away then
    _answered_at: float = 0.0
    _replica_host: messages.ReplicaHost | None = None

    @property
    def held_up(self) -> bool:
        """Whether blocks wait for space or for a store."""
        return bool(self._no_space or self._away)

    @property
    def detail(self) -> str:
        """Why blocks wait, "" if they do not."""
        if self._no_space:
            return f"no {self._lacking}: {self._no_space}"
        return f"{self._store} does not take blocks, polling is paused: {self._away}" if self._away else ""

    def advance(self, now: float) -> None:
        """End the process if a store hangs. A store that fails or lacks space reports it again and again; one that hangs does
        not, so this is the limit of the wait (INV-6)."""
        waiting = self.sealed.first_not_stored()
        if waiting is None:
            return
        silence = now - max(waiting.sealed_at, self._answered_at)
        limit = STORE_PATIENCE * self.settings.store_timeout
        if silence > (max(limit, _NO_SPACE_SECONDS_MIN) if self._no_space else limit):
            self.outbox.exit(1, f"a write to the block store hangs: no result for {silence:.0f} s")

    def stored(self, event: inp.BlockStored, now: float) -> None:
        self._answered_at = now
        if self._no_space:
            self.outbox.note(f"{self._lacking} available again")
            self._no_space = ""
        if self._away:
            self.outbox.note(f"{self._store} takes blocks again")
            self._away = ""
        if (sealed := self.sealed.mark_durable(event.sequence, event.block)) is not None:
            self.seconds = now - sealed.sealed_at
        if not event.block.local and self.settings.local_copies:
            self.outbox.counters["local_copies_given_up"] += 1
        if event.block.in_wal and not event.block.other_hosts and self.settings.copies > 1:
            self.outbox.counters["replicas_given_up"] += 1

    def went_away(self, event: inp.StoreAway, now: float) -> None:
        """Note that the store fails and is retried. It does not hang: ``StoreFailed`` follows after ``store_timeout``."""
        self._answered_at = now
        if not self._away:
            self.outbox.note(f"{event.store} does not take blocks, retrying: {event.reason}", warning=True)
        self._away, self._store = event.reason, event.store

    def ran_out(self, event: inp.OutOfSpace, now: float) -> None:
        """Rule 7: wait without a limit. An operator or the clean-up frees space; no record is lost meanwhile."""
        self._answered_at = now
        if not self._no_space:
            self.outbox.note(f"no {event.lacking}, waiting: {event.reason}", warning=True)
        self._no_space, self._lacking = event.reason, event.lacking

    def replicate_to(self, host: messages.ReplicaHost) -> None:
        """Send replicas to this host from now on."""
        if host != self._replica_host:
            self._replica_host = host
            self.outbox.note(f"replicas go to host {host.host}")
            self.outbox.do(act.ReplicateTo(host))
