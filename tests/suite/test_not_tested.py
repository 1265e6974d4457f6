"""A test that could not run is named at the end of the run, with its reason."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = """
import pytest
from tests.support.run import not_tested

def pytest_terminal_summary(terminalreporter):
    not_tested.write_summary(terminalreporter)
"""
CASES = """
import pytest

@pytest.mark.parametrize("n", range(3))
def test_registry(n):
    pytest.skip("NOT TESTED: no registry is here")

def test_disk():
    pytest.skip("NOT TESTED: only root can mount a disk")

def test_platform():
    pytest.skip("another platform's")

def test_runs():
    pass
"""


def _run(folder: Path, cases: str, *options: str) -> str:
    (folder / "conftest.py").write_text(TESTS)
    (folder / "test_cases.py").write_text(cases)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--rootdir", str(folder), "-c", "/dev/null", "-p", "no:cacheprovider", *options, folder],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_summary_counts_skipped_tests_by_reason(tmp_path: Path) -> None:
    for options in ([], ["-n", "2"]):
        lines = _run(tmp_path, CASES, *options).splitlines()
        (title,) = (number for number, line in enumerate(lines) if "not tested: 4 tests" in line)
        assert lines[title + 1 : title + 3] == ["    3 × no registry is here", "    1 × only root can mount a disk"]
        assert "another platform" not in "\n".join(lines[title:])


def test_summary_is_absent_when_every_test_ran(tmp_path: Path) -> None:
    assert "not tested" not in _run(tmp_path, "def test_runs():\n    pass\n")
