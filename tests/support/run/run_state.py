"""What a long run needs to tell early: that the disk has too little room for it, and each failure when it happens.

pytest prints failures after the last test. A run that is ended from outside would never name its own.
"""

from __future__ import annotations

import os
import tempfile

import pytest

from wal.blocks import kept_free

#: what a complete run writes at one time, beside the share of the disk that local copies of blocks leave free
_ROOM_BYTES = 6 * 2**30


def require_room() -> None:
    """End the run if the folder of temporary files has too little room: receivers would write no local copies, and tests wait for
    them."""
    system = os.statvfs(folder := tempfile.gettempdir())
    free, kept = system.f_bavail * system.f_frsize, kept_free(system.f_blocks * system.f_frsize)
    if free < (needed := kept + _ROOM_BYTES):
        pytest.exit(
            f"the filesystem of {folder} has {free / 2**30:.1f} GiB free; a complete run needs {needed / 2**30:.1f} GiB."
            " Make room there, or set TMPDIR to a folder on another filesystem.",
            returncode=pytest.ExitCode.TESTS_FAILED,
        )


class Failures:
    """The plug-in of the first process: names each failure as it happens."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = "" if crash is None else f": {crash.message.splitlines()[0][:200]}" if crash.message else ""
            terminal.ensure_newline()
            terminal.line(f"failed so far: {report.nodeid} ({report.when}){why}")
