"""When the open block is sealed: after ``receiver.block_interval``, or earlier for the driver's next batch. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.settings.schema import ReceiverSettings

#: no block is sealed early before this fraction of ``block_interval``, so that a fast stream makes no tiny blocks
YOUNGEST = 0.05
#: how fast the time from a seal to its answer is learned, when it grows and when it shrinks
LEARN_LONGER, LEARN_SHORTER = 0.5, 0.03
_NEVER = float("inf")


@dataclass(kw_only=True, slots=True, eq=False)
class Sealing:
    """Plans one early seal for each answer to a report.

    The answer says when the driver expects its next batch. A block must be sealed before that by the time that it takes from the
    seal to the answer, or it misses the batch. A wrong expectation costs a smaller block or some time, and nothing else.
    """

    settings: ReceiverSettings
    _early_at: float = _NEVER
    _way_seconds: float = 0.0  # from a seal to the driver's answer

    def due_at(self, opened_at: float) -> float:
        """Return when a block that was opened at ``opened_at`` is sealed if no record is added."""
        interval = self.settings.block_interval
        return min(opened_at + interval, max(self._early_at, opened_at + YOUNGEST * interval))

    def awaited_until(self, now: float) -> float:
        """Return the latest end of a poll that begins at ``now`` without an open block. A poll that ends later could miss the
        early seal with records that arrived before it."""
        latest = now + self.settings.block_interval
        return min(self._early_at, latest) if self._early_at > now else latest

    def sealed(self, now: float) -> None:
        """A block was sealed: the next one is sealed early only after another answer, unless the early seal is yet to come."""
        if now >= self._early_at:
            self._early_at = _NEVER

    def answered(self, sealed_at: float, next_batch_ms: int, every_ms: int, now: float) -> None:
        """The driver accepted a block that was sealed at ``sealed_at``. The other arguments are those of the answer."""
        interval = self.settings.block_interval
        longer = min(now - sealed_at, interval) - self._way_seconds
        self._way_seconds += longer * (LEARN_LONGER if longer > 0 else LEARN_SHORTER)
        if next_batch_ms < 0:
            self._early_at = _NEVER
            return
        at = now + next_batch_ms / 1000 - self._way_seconds
        # what is sealed too late for a batch is sealed for the one after it
        self._early_at = at if at >= now else at + every_ms / 1000
