"""The graceful stop, with a time limit: receivers drain, the driver makes batches of the blocks that they reported, and the
jobs finish.

:func:`remaining` returns what a drain still waits for, without I/O; :class:`Drain` does the waiting.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from driver.journal.state import State
from driver.tracker import Tracker
from driver.tracker.requests import Ask, BeginDrain, Read
from forebay.model.errors import UnreachableError
from forebay.model.identifiers import is_reserved
from forebay.process.clock import Clock

log = logging.getLogger(__name__)

#: pause between two checks of what a drain waits for
LOOK_SECONDS = 0.1
#: maximum time that a job goes on after its Spark tasks were cancelled at the end of a drain's time
GRACE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Remaining:
    """What a drain waits for.

    ``receivers``: receivers that still take records in. ``blocks``: number of blocks without a batch. ``batches``: number of
    batches that are not completed, those of a replay included. ``silent``: receivers that have not acknowledged the drain and
    are not waited for: they hold nothing that this driver could get, or are lost.
    """

    receivers: tuple[str, ...] = ()
    blocks: int = 0
    batches: int = 0
    silent: tuple[str, ...] = ()

    @property
    def is_nothing(self) -> bool:
        return not (self.receivers or self.blocks or self.batches)

    @property
    def text(self) -> str:
        parts = [f"receivers {', '.join(self.receivers)}"] if self.receivers else []
        parts += [f"{self.blocks} blocks without a batch"] if self.blocks else []
        parts += [f"{self.batches} batches"] if self.batches else []
        return ", ".join(parts) or "nothing"


def remaining(tracker: Tracker, now: float, since: float, receiver_timeout: float) -> Remaining:
    """Return what a drain waits for at ``now``, in seconds on the monotonic clock.

    A receiver is drained when it has acknowledged the drain and released its claims, which it does last. The drain does not
    wait for a receiver whose last heartbeat is more than ``receiver_timeout`` seconds ago. ``since``: when the driver began to
    lead. It replaces the time of the last heartbeat if a receiver has sent none to this driver.
    """
    state = tracker.state
    owners = {partition.owner for partition in state.partitions.values() if partition.owner}
    at_work, silent = [], []
    for receiver in state.receivers.values():
        name = receiver.receiver_id
        if is_reserved(name) or not receiver.instance_id:
            continue
        heartbeat = tracker.receiver_heartbeats.get(name)
        is_lost = now - (heartbeat.at if heartbeat is not None else since) > receiver_timeout
        has_not_obeyed = tracker.is_to_drain(name)
        if not is_lost and (name in owners or (heartbeat is not None and has_not_obeyed)):
            at_work.append(name)
        elif has_not_obeyed:
            silent.append(name)
    batches = len(state.unfinished()) + len(state.replaying)
    return Remaining(tuple(sorted(at_work)), len(state.waiting), batches, tuple(sorted(silent)))


@dataclass(frozen=True, slots=True)
class ReadRemaining(Read[Remaining]):
    """Reads what a drain waits for. The arguments are those of :func:`remaining`."""

    tracker: Tracker
    clock: Clock
    since: float
    receiver_timeout: float

    def read(self, state: State) -> Remaining:
        return remaining(self.tracker, self.clock.monotonic(), self.since, self.receiver_timeout)


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
        return f"{done}{drained}{silent}; what waits still: {self.left.text}"


class Drain:
    """Drains receivers and completes batches until all batches are completed, the time limit is reached, or another thread sets
    ``stopped``.

    ``held_up``: returns why no batch can be completed now, "" if one can; if it is set, the drain does not wait for batches.
    ``others``: gets whether something is left, and returns whether another stream of a joint job, which drains too, has
    something left. ``allocate``: makes a batch of the waiting blocks. ``receivers``: the receivers that were ordered to drain.
    ``left``: what the drain still waited for when it ended.
    """

    def __init__(
        self,
        *,
        ask: Ask,
        look: Read[Remaining],
        allocate: Callable[[], None],
        stopped: threading.Event,
        clock: Clock,
        timeout_seconds: float,
        held_up: Callable[[], str] = lambda: "",
        others: Callable[[bool], bool] = lambda busy: False,
    ) -> None:
        self._others = others
        self._held_up = held_up
        self.hopeless = ""  # why no batch could be completed, if the drain ended because of that
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
        """Wait for the drain. Return whether every record that was taken in is in a completed batch."""
        try:
            self._order()
            while self._see().receivers and self._goes_on():
                pass
            while self._is_something_left():
                self.hopeless = self._held_up()
                if self.hopeless:
                    break
                if self.left.blocks:
                    self._allocate()
                if not self._goes_on():
                    break
        except UnreachableError:
            log.debug("the drain ends because the decision loop has ended")
        return self.left.is_nothing

    def _order(self) -> None:
        self.receivers = self._ask(BeginDrain())

    def _is_something_left(self) -> bool:
        left = self._see()
        busy = bool(left.blocks or left.batches)
        return self._others(busy) or busy

    def _see(self) -> Remaining:
        self.left = self._ask(self._look)
        return self.left

    def _goes_on(self) -> bool:
        return not self._stopped.wait(LOOK_SECONDS) and self._clock.monotonic() < self._deadline
