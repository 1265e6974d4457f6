"""The end of background work: any thread can wait for it, and its failure is raised once."""

from __future__ import annotations

import threading


class Ending:
    """Whether background work has ended, and how. Thread-safe. ``ended``: whether no work runs at the start."""

    def __init__(self, ended: bool = False) -> None:
        self._failure: BaseException | None = None
        self._event = threading.Event()
        if ended:
            self._event.set()

    @property
    def is_set(self) -> bool:
        """Whether the work has ended."""
        return self._event.is_set()

    @property
    def failure(self) -> BaseException | None:
        """The failure that was recorded and is not raised yet; None: there is none."""
        return self._failure

    def begin(self) -> None:
        self._failure = None
        self._event.clear()

    def fail(self, error: BaseException) -> None:
        """Record the failure; only the first one counts."""
        self._failure = self._failure or error

    def end(self) -> None:
        self._event.set()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Return whether the work ended within the timeout. Raises nothing."""
        return self._event.wait(timeout_seconds)

    def wait_and_raise(self, timeout_seconds: float | None = None) -> bool:
        """As :meth:`wait`, but raise the failure, once."""
        if not self.wait(timeout_seconds):
            return False
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return True
