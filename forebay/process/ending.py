"""The end of what runs in the background: waited for from anywhere, and what failed is raised once."""

from __future__ import annotations

import threading


class Ending:
    """From any thread. ``ended``: whether nothing runs yet."""

    def __init__(self, ended: bool = False) -> None:
        self._failure: BaseException | None = None
        self._event = threading.Event()
        if ended:
            self._event.set()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def begin(self) -> None:
        self._failure = None
        self._event.clear()

    def fail(self, error: BaseException) -> None:
        """The first that is told counts."""
        self._failure = self._failure or error

    def end(self) -> None:
        self._event.set()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """False if it has not ended in time. Raises nothing."""
        return self._event.wait(timeout_seconds)

    def wait_and_raise(self, timeout_seconds: float | None = None) -> bool:
        """As :meth:`wait`; raises what failed, once."""
        if not self.wait(timeout_seconds):
            return False
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return True
