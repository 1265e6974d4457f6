"""Failures of the operating system in a host's block directory: one call fails once, while a process of the host acts there."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

#: functions of ``os``: one of them fails
CALLS = ("open", "write", "fsync", "rename", "unlink", "scandir", "statvfs", "link")


def _failed(number: int) -> Callable[[], Exception]:
    return lambda: OSError(number, os.strerror(number))


#: what it raises
ERRORS: tuple[Callable[[], Exception], ...] = (
    _failed(errno.EDQUOT),
    _failed(errno.EMFILE),
    _failed(errno.EIO),
    MemoryError,
)
#: each call with each error
FAULTS = range(len(CALLS) * len(ERRORS))


class FolderFault:
    """The next failure in one host's block directory. ``failed``: called at each failure."""

    def __init__(self, failed: Callable[[], None]) -> None:
        self._failed = failed
        self._armed: int | None = None
        self._is_ignored = False

    @property
    def is_armed(self) -> bool:
        return self._armed is not None

    def arm(self, number: int) -> None:
        """Let the next call of a kind fail by an error: ``number`` is one of ``FAULTS``."""
        self._armed = number

    def disarm(self) -> None:
        self._armed = None

    @contextmanager
    def acting(self) -> Iterator[None]:
        """Let the fault act on the calls of the product. It must not pause within, except after the failure."""
        if self._armed is None:
            yield
            return
        name, error = CALLS[self._armed // len(ERRORS)], ERRORS[self._armed % len(ERRORS)]
        call: Callable[..., Any] = getattr(os, name)

        def fail_once(*arguments: Any, **options: Any) -> Any:
            if self._is_ignored:
                return call(*arguments, **options)
            self.disarm()
            setattr(os, name, call)
            self._failed()
            raise error()

        setattr(os, name, fail_once)
        try:
            yield
        finally:
            setattr(os, name, call)

    @contextmanager
    def ignored(self) -> Iterator[None]:
        """The simulation itself reads the directory."""
        before, self._is_ignored = self._is_ignored, True
        try:
            yield
        finally:
            self._is_ignored = before
