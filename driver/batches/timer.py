"""The batch timer: at the end of each batch interval it makes a batch, or makes one due."""

from __future__ import annotations

import threading
from collections.abc import Callable

from driver.batches.progress import Progress
from driver.decision_loop.loop import DriverLoop
from driver.tracker.requests import Allocate, AllocateSpans
from forebay.process import failpoints
from forebay.process.clock import Clock


class BatchTimer:
    """A thread that calls ``end_interval``, with the time in milliseconds, at each multiple of ``interval_seconds``; missed
    intervals count as one. With an interval of 0 there is no thread.

    With ``ahead`` the timer makes the batch itself, at the end of the interval. ``tasks``: returns how many tasks a batch has.
    ``empty_batches``: whether an interval without blocks gives a batch too. ``allocation``: makes the request for a batch of a
    direct stream from the batch's time (ms), or returns None if there is no batch to make; without it, a batch consists of
    blocks. ``failed``: called with the error that ended the timer.
    """

    def __init__(
        self,
        loop: DriverLoop,
        clock: Clock,
        progress: Progress,
        *,
        end_interval: Callable[[int], None],
        interval_seconds: float,
        tasks: Callable[[], int],
        empty_batches: bool,
        ahead: bool,
        allocation: Callable[[int], AllocateSpans | None] | None,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._progress = progress
        self._end_interval = end_interval
        self._interval = interval_seconds
        self._tasks = tasks
        self._empty_batches = empty_batches
        self._ahead = ahead
        self._allocation = allocation
        self._failed = failed
        self._thread = threading.Thread(target=self._run, name="batch-timer", daemon=True)

    def start(self) -> None:
        if self._interval > 0:
            self._thread.start()

    def join(self) -> None:
        if self._thread.ident is not None:
            self._thread.join()

    @property
    def is_current_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def drain(self) -> None:
        """Allocate no empty batch from now on."""
        self._empty_batches = False

    def allocate(self, time_ms: int, empty: bool = False) -> None:
        """Make a batch of the waiting blocks, unless too many batches are queued. With ``empty``, make one even if no block
        waits."""
        request = Allocate(time_ms, self._tasks(), empty) if self._allocation is None else self._allocation(time_ms)
        if request is not None and self._loop.ask(request) is not None:
            failpoints.hit("driver.after-allocate")
            self._progress.wake()

    def _run(self) -> None:
        last = 0.0
        stopping = self._progress.stopping
        try:
            while not stopping.is_set():
                now = self._clock.wall_ms() / 1000.0
                due = (now // self._interval + 1) * self._interval
                if abs(due - last) < self._interval / 2:  # it woke a moment before the wall clock got there
                    due += self._interval
                last = due
                if stopping.wait(max(0.0, due - now)):
                    return
                time_ms = round(due * 1000)
                if self._ahead:
                    self.allocate(time_ms, self._empty_batches)
                else:
                    self._end_interval(time_ms)
        except BaseException as error:
            self._failed(error)
