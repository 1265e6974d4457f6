"""Ends a test that hangs, and a run that a test's thread or forked child would keep from ending.

pytest-timeout raises in a test after its time limit. It cannot end a test that waits in native code, and a thread that the test
started keeps the interpreter from exiting. In both cases this plug-in prints the stacks of all threads and ends the process:
pytest-xdist then reports the running test as failed and continues in another process. A forked child has the run's output open,
and a reader of that output would wait for its end: the plug-in kills each child that is left.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

#: beyond the time limit of a test
_GRACE_SECONDS = 60.0
#: time for threads to end after the last test
_THREADS_SECONDS = 10.0


class Hangs:
    """The plug-in."""

    def __init__(self) -> None:
        self._before = set(threading.enumerate())
        self._stderr = os.dup(2)  # pytest captures the original in a test
        self._status = 0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        limit = _limit_seconds(item)
        if limit:
            faulthandler.dump_traceback_later(limit + _GRACE_SECONDS, exit=True, file=self._stderr)
        try:
            return (yield)
        finally:
            faulthandler.cancel_dump_traceback_later()

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._status = int(exitstatus)

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        for child in _forked_children():
            os.write(self._stderr, f"tests left a forked child, {child}, which is killed now\n".encode())
            os.kill(child, signal.SIGKILL)
        gc.collect()  # an unused pool ends its idle threads when it is collected
        deadline = time.monotonic() + _THREADS_SECONDS
        left = [thread for thread in threading.enumerate() if not thread.daemon and thread not in self._before]
        for thread in left:
            thread.join(max(0.0, deadline - time.monotonic()))
        names = [thread.name for thread in left if thread.is_alive()]
        if names:
            sys.stdout.flush()
            os.write(self._stderr, f"tests left threads that do not end: {', '.join(names)}\n".encode())
            faulthandler.dump_traceback(self._stderr)
            os._exit(self._status or pytest.ExitCode.TESTS_FAILED)
        os.close(self._stderr)


def _forked_children() -> list[int]:
    """Return the children that still run this process's program: they have its arguments, and none if they are zombies."""
    own = Path("/proc/self/cmdline").read_bytes()
    children = [int(child) for file in Path("/proc/self/task").glob("*/children") for child in file.read_text().split()]
    return [child for child in children if _arguments(child) == own]


def _arguments(process: int) -> bytes:
    """Return the arguments of a process as the kernel has them; b"" if it has ended meanwhile."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def _limit_seconds(item: pytest.Item) -> float:
    """Return the time limit of a test as pytest-timeout has it; 0 without one."""
    marker, option = item.get_closest_marker("timeout"), item.config.getoption("timeout")
    return float(marker.args[0] if marker is not None else item.config.getini("timeout") if option is None else option)
