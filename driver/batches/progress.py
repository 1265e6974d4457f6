"""Which batches are in work, and what the threads that run them wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable

from driver.decisions.batch_order import RunKey


class Progress:
    """The batches in work, and the signals that end a wait. Thread-safe.

    ``in_work``: batches from their first start until they are completed. ``held_up``: the batches in work that have failed or
    can't be read. While there is one, no other batch begins.
    """

    def __init__(self) -> None:
        self.in_work: set[RunKey] = set()
        self.held_up: set[RunKey] = set()
        self.stopping = threading.Event()
        self._changed = threading.Condition()
        self._changes = 0  # of what there is to run
        self._losses_accepted = 0
        self._retries = 0  # how often an operator requested the next attempt
        self._waiting: set[RunKey] = set()  # failed batches that wait for their next attempt

    @property
    def changes(self) -> int:
        """The number of calls of :meth:`wake` so far."""
        return self._changes

    @property
    def losses_accepted(self) -> int:
        """The number of losses that operators have accepted since the start."""
        return self._losses_accepted

    def stop(self) -> None:
        """End every wait, now and from now on."""
        self.stopping.set()
        self.wake()

    def wake(self, losses_accepted: int = 0) -> None:
        """Wake the waiting threads, because there may be a batch to run. ``losses_accepted``: number of losses that an operator
        has accepted since the last call."""
        with self._changed:
            self._changes += 1
            self._losses_accepted += losses_accepted
            self._changed.notify_all()

    def finish(self, run: RunKey) -> None:
        """Remove a completed batch from the batches in work."""
        self.in_work.discard(run)
        self.held_up.discard(run)
        self.wake()

    def retry(self) -> tuple[int, ...]:
        """End the wait of every failed and every unreadable batch; return their ids."""
        with self._changed:
            held_up = tuple(sorted(batch_id for _, batch_id in tuple(self.held_up)))
            self._waiting.clear()
            self._retries += 1
            self._changed.notify_all()
        return held_up

    @property
    def waits_for_retry(self) -> bool:
        """Whether every batch in work is held up, and at least one waits for its next attempt."""
        with self._changed:
            return bool(self._waiting) and self.in_work <= self.held_up

    def await_change(self, seen: int) -> None:
        """Wait until :attr:`changes` is no longer ``seen``."""
        self._wait(lambda: self._changes != seen)

    def await_retry(self, run: RunKey, seconds: float, announce: Callable[[], None]) -> None:
        """Wait until the next attempt at a failed batch is due, after ``seconds``, or an operator requests it. A request after
        the call of ``announce`` is not missed."""
        with self._changed:
            announce()
            self._waiting.add(run)
            self._changed.wait_for(lambda: run not in self._waiting or self.stopping.is_set(), seconds)
            self._waiting.discard(run)

    def await_loss(self, seen: int, seconds: float) -> None:
        """Wait until an operator accepts a loss (:attr:`losses_accepted` is no longer ``seen``) or requests the next attempt, or
        ``seconds`` have passed."""
        retries = self._retries
        self._wait(lambda: self._losses_accepted != seen or self._retries != retries, seconds)

    def _wait(self, decided: Callable[[], bool], seconds: float | None = None) -> None:
        with self._changed:
            # ``stop`` may have been called before ``decided`` is evaluated for the first time
            self._changed.wait_for(lambda: decided() or self.stopping.is_set(), seconds)
