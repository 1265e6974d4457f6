"""Which batches are in work, and what the threads that run them wait for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

from driver.decisions.batch_order import RunKey
from forebay.messages import OperatorAnswer


@dataclass(frozen=True, slots=True)
class Skip:
    """An operator's request to end a batch without its job. ``answer`` ends when that is durable, or with the refusal."""

    cause: str
    answer: Future[OperatorAnswer] = field(default_factory=Future)


class Progress:
    """The batches in work, and the signals that end a wait. Thread-safe.

    ``in_work``: batches from their first start until they are completed. ``held_up``: the batches in work that have failed or
    can't be read. While there is one, no other batch begins. ``paused``: whether an operator has paused the batches; then no
    attempt begins.
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
        self._between: set[RunKey] = set()  # all batches between two attempts
        self._blocked: set[RunKey] = set()  # those of them that are failed or can't be read
        self._skips: dict[RunKey, Skip] = {}
        self.paused = False

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

    def pause(self, paused: bool) -> None:
        """Set whether batches are paused."""
        self.paused = paused
        self.wake()

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

    @property
    def is_idle_in_pause(self) -> bool:
        """Whether batches are paused and no attempt runs."""
        with self._changed:
            return self.paused and self.in_work <= self._between

    def skip(self, batch_id: int, skip: Skip, *, only_failed: bool = False) -> bool:
        """Have the thread that runs the batch end it. Return False if the batch is not between two attempts, or if the
        next attempt only waits for the ordinary delay. ``only_failed``: also if the batch is not a failed one."""
        with self._changed:
            skippable = self._waiting if only_failed else self._between if self.paused else self._blocked
            run = next((run for run in skippable if run[1] == batch_id and run not in self._skips), None)
            if run is None:
                return False
            self._skips[run] = skip
            self._changed.notify_all()
            return True

    def await_attempt(
        self,
        run: RunKey,
        seconds: float,
        *,
        failed: bool = False,
        losses_seen: int | None = None,
        announce: Callable[[], None] = lambda: None,
    ) -> Skip | None:
        """Wait until the next attempt at a batch may begin. Return the request to skip the batch, if an operator made one.

        The wait ends after ``seconds``, or when an operator requests the attempt or, with ``losses_seen``, accepts a loss
        (:attr:`losses_accepted` is no longer ``losses_seen``); and not before a pause ends. ``failed``: whether the batch is
        failed. ``losses_seen``: only for a batch that can't be read. A request after the call of ``announce`` is not missed.
        """
        with self._changed:
            announce()
            retries = self._retries
            self._between.add(run)
            if failed:
                self._waiting.add(run)
            if failed or losses_seen is not None:
                self._blocked.add(run)

            def is_due() -> bool:
                accepted = losses_seen is not None and self._losses_accepted != losses_seen
                return accepted or self._retries != retries

            def has_ended() -> bool:
                return self.stopping.is_set() or run in self._skips

            self._changed.wait_for(lambda: is_due() or has_ended(), seconds)
            self._changed.wait_for(lambda: not self.paused or has_ended())
            self._waiting.discard(run)
            self._between.discard(run)
            self._blocked.discard(run)
            return self._skips.pop(run, None)

    @contextmanager
    def blocked(self, run: RunKey) -> Iterator[Callable[[], bool]]:
        """While open, the batch waits for its first attempt, and can be skipped. Yields a function that returns whether the wait
        has to end: the batches are paused or stop, or an operator skips the batch."""
        with self._changed:
            self._between.add(run)
            self._blocked.add(run)
        try:
            yield lambda: self.paused or self.stopping.is_set() or run in self._skips
        finally:
            with self._changed:
                self._between.discard(run)
                self._blocked.discard(run)

    def take_skip(self, run: RunKey) -> Skip | None:
        """Return an operator's request to skip the batch, which the caller carries out."""
        with self._changed:
            return self._skips.pop(run, None)

    def await_change(self, seen: int) -> None:
        """Wait until :attr:`changes` is no longer ``seen``."""
        with self._changed:
            # ``stop`` may have been called before the condition is evaluated for the first time
            self._changed.wait_for(lambda: self._changes != seen or self.stopping.is_set())
