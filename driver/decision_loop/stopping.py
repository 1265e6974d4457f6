"""The graceful stop: receivers drain, what they reported gets its batch, the jobs finish, within a time.

What there is yet to wait for is a decision on values (:func:`remaining`); :class:`Drain` is the thread that waits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from driver.journal.state import State
from driver.tracker import Tracker
from driver.tracker.requests import Ask, BeginDrain, Request
from forebay.model.errors import UnreachableError
from forebay.model.values import is_reserved
from forebay.process.clock import Clock

log = logging.getLogger(__name__)

#: between two looks at what there is yet to wait for
LOOK_SECONDS = 0.1
#: so long may a job go on after its Spark tasks were cancelled at the end of the time
GRACE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Remaining:
    """What a drain waits for. ``receivers``: at work; ``blocks`` wait for a batch, ``batches`` for their completion, replayed
    ones among them. ``silent``: receivers that were told to drain and are not waited for, since they hold nothing that
    this driver could get, or are lost: they have not said that they heard of it."""

    receivers: tuple[str, ...] = ()
    blocks: int = 0
    batches: int = 0
    silent: tuple[str, ...] = ()

    @property
    def is_nothing(self) -> bool:
        return not (self.receivers or self.blocks or self.batches)

    @property
    def words(self) -> str:
        parts = [f"receivers {', '.join(self.receivers)}"] if self.receivers else []
        parts += [f"{self.blocks} blocks without a batch"] if self.blocks else []
        parts += [f"{self.batches} batches"] if self.batches else []
        return ", ".join(parts) or "nothing"


def remaining(tracker: Tracker, now: float, since: float, receiver_timeout: float) -> Remaining:
    """``since``: when the driver began to listen, for receivers that it has not heard of; those silent for
    ``receiver_timeout`` are not waited for. A receiver is drained when it has obeyed and released its claims, which it does
    last."""
    state = tracker.state
    owners = {partition.owner for partition in state.partitions.values() if partition.owner}
    at_work, silent = [], []
    for receiver in state.receivers.values():
        name = receiver.receiver_id
        if is_reserved(name) or not receiver.instance_id:
            continue
        news = tracker.receiver_heartbeats.get(name)
        is_lost = now - (news.at if news is not None else since) > receiver_timeout
        has_not_obeyed = tracker.is_to_drain(name)
        if not is_lost and (name in owners or (news is not None and has_not_obeyed)):
            at_work.append(name)
        elif has_not_obeyed:
            silent.append(name)
    batches = len(state.unfinished()) + len(state.replaying)
    return Remaining(tuple(sorted(at_work)), len(state.waiting), batches, tuple(sorted(silent)))


@dataclass(frozen=True, slots=True)
class Summary:
    """What one driver did, from its start to its stop."""

    batches: int
    records: int
    drained: tuple[str, ...] = ()
    left: Remaining = field(default_factory=Remaining)

    def __str__(self) -> str:
        drained = f"; receivers drained: {', '.join(self.drained)}" if self.drained else ""
        silent = f"; receivers that did not answer: {', '.join(self.left.silent)}" if self.left.silent else ""
        done = f"{self.batches} batches with {self.records} records completed"
        return f"{done}{drained}{silent}; what waits still: {self.left.words}"


class Drain:
    """Runs in a thread of its own until all is completed, the time is over, or ``stopped`` is set by somebody else.

    ``held_up``: whether a failed batch holds the others up, which then are not waited for.
    ``allocate`` makes a batch of what waits. ``receivers``: those that were told to drain; ``left``: what was still to be
    waited for when it ended.
    """

    def __init__(
        self,
        ask: Callable[[Request], object],
        look: Callable[[State], Remaining],
        allocate: Callable[[], None],
        stopped: threading.Event,
        clock: Clock,
        timeout_seconds: float,
        held_up: Callable[[], bool] = lambda: False,
    ) -> None:
        self._held_up = held_up
        self.hopeless = False  # it ended since a failed batch holds the others up
        self._ask = ask
        self._look = look
        self._allocate = allocate
        self._stopped = stopped
        self._clock = clock
        self._deadline = clock.monotonic() + timeout_seconds
        self.receivers: tuple[str, ...] = ()
        self.left = Remaining()

    @property
    def drained(self) -> tuple[str, ...]:
        return tuple(name for name in self.receivers if name not in self.left.receivers + self.left.silent)

    def run(self) -> bool:
        """Whether all that was taken in is completed."""
        try:
            self._order()
            while self._see().receivers and self._goes_on():
                pass
            while (left := self._see()).blocks or left.batches:
                self.hopeless = self._held_up()
                if self.hopeless:
                    break
                if left.blocks:
                    self._allocate()
                if not self._goes_on():
                    break
        except UnreachableError:
            log.debug("the drain ends with the deciding thread")
        return self.left.is_nothing

    def _order(self) -> None:
        told = self._ask(BeginDrain())
        assert isinstance(told, tuple)
        self.receivers = told

    def _see(self) -> Remaining:
        left = self._ask(Ask(self._look))
        assert isinstance(left, Remaining)
        self.left = left
        return left

    def _goes_on(self) -> bool:
        return not self._stopped.wait(LOOK_SECONDS) and self._clock.monotonic() < self._deadline
