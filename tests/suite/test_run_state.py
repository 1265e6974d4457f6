"""A long run names each failure when it happens, and does not begin without room on the disk."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.run import run_state

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = """
from tests.support.run import run_state

def pytest_configure(config):
    config.pluginmanager.register(run_state.Failures(config))
"""
CASES = """
import os, pytest

def test_fails():
    assert 1 == 2, "not equal"

def test_ends_the_run():
    os._exit(3)
"""


def test_failure_is_named_before_the_run_ends(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(PLUGIN)
    (tmp_path / "test_cases.py").write_text(CASES)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--rootdir", str(tmp_path), "-c", "/dev/null", "-p", "no:cacheprovider",
         "-o", "timeout=60", "--capture=sys", tmp_path],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 3, done.stdout + done.stderr
    assert "failed so far: test_cases.py::test_fails (call): AssertionError: not equal\n" in done.stdout


def test_complete_run_without_room_on_the_disk_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.statvfs("/")
    almost_full = os.statvfs_result((4096, 4096, 2**40 // 4096, 2**33 // 4096, 2**33 // 4096, *tuple(whole)[5:10]))
    monkeypatch.setattr(os, "statvfs", lambda folder: almost_full)
    with pytest.raises(pytest.exit.Exception, match=r"8\.0 GiB free; a complete run needs 16\.0 GiB"):
        run_state.require_room()
