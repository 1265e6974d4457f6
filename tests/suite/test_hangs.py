"""A test that hangs fails alone, and a thread that it leaves does not keep the run from ending."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = """
from tests.support.run import hangs
hangs._GRACE_SECONDS = 0.5
hangs._THREADS_SECONDS = 0.1

def pytest_configure(config):
    config.pluginmanager.register(hangs.Hangs())
"""
CASES = """
import ctypes, os, signal, threading, pytest

@pytest.mark.timeout(1)
def test_waits_in_native_code():
    lock = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(lock)  # keeps the GIL, so no handler of a signal runs

def test_leaves_a_thread():
    threading.Thread(target=threading.Event().wait, name="left").start()

def test_leaves_a_child():
    if not os.fork():
        signal.pause()

def test_fine():
    pass
"""


def test_hanging_test_fails_alone_and_what_tests_leave_is_named(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(PLUGIN)
    (tmp_path / "test_cases.py").write_text(CASES)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--rootdir", str(tmp_path), "-c", "/dev/null", "-p", "no:cacheprovider", "-n1",
         "-o", "timeout=60", tmp_path],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert "1 failed, 3 passed" in done.stdout, done.stdout + done.stderr
    assert "crashed while running 'test_cases.py::test_waits_in_native_code'" in done.stdout
    assert "in test_waits_in_native_code" in done.stderr, "its stack"
    assert "tests left threads that do not end: left" in done.stderr
    assert "tests left a forked child" in done.stderr, "it would keep the output open for ever"
