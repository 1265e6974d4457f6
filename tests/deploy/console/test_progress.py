"""Long commands show their progress on a terminal, and nothing of it in a pipe or in the data on stdout."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest

from tests.support.run.wheel import ROOT

_BAR = """
from deploy.console.progress import progress_bar
with progress_bar("reading {0} [red]", 10, unit_bytes=False) as progress:
    for _ in range(10):
        progress(1)
    print("data")
"""
_SPINNER = """
from deploy.console.progress import spinner
with spinner("waiting {0} [red]"):
    print("data")
"""


def on_a_terminal(code: str) -> tuple[str, bytes]:
    """Run ``code`` with a terminal as stderr and a pipe as stdout; return what both got."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=theirs, cwd=ROOT, env=environment
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 4096):
                shown += part
        except OSError:  # the other end is closed
            pass
        os.close(ours)
        data, _ = process.communicate(timeout=60)
        assert process.returncode == 0, shown
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode()), data


@pytest.mark.parametrize(("code", "title", "figures"), [(_BAR, "reading", "10/10"), (_SPINNER, "waiting", "0:00:00")])
def test_progress_goes_to_the_terminal_and_data_to_the_pipe(code: str, title: str, figures: str) -> None:
    shown, data = on_a_terminal(code)
    assert f"{title} {{0}} [red]" in shown and figures in shown
    assert data == b"data\n"


@pytest.mark.parametrize("code", [_BAR, _SPINNER])
def test_nothing_is_shown_in_a_pipe(code: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert (done.stdout, done.stderr) == ("data\n", "")
