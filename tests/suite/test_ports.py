"""Processes that run tests at the same time get different ports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.run.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
_TAKES = "from tests.support.run.ports import free_port; print(*(free_port() for _ in range(100)), flush=True); input()"


def test_no_two_processes_get_the_same_port() -> None:
    own = [free_port() for _ in range(100)]
    with subprocess.Popen(
        [sys.executable, "-c", _TAKES], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        theirs = [int(port) for port in other.stdout.readline().split()]
        other.communicate("\n")
    assert len(set(own)) == len(set(theirs)) == 100
    assert not set(own) & set(theirs)
