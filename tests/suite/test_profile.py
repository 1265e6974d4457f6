"""The profile of a run lists where wall time and processor time go, by file, by test and by kind of process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.run import profile

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = """
from pathlib import Path
from tests.support.run import profile

def pytest_configure(config):
    profile._SAMPLE_SECONDS = 0.02
    for plugin in (profile.Profile, profile.Processes):
        config.pluginmanager.register(plugin(Path(__file__).parent / "profile"))
"""
CASES = """
import subprocess, sys
from pathlib import Path

def test_own():
    sum(range(3_000_000))

def test_child():
    subprocess.run([sys.executable, "-Ic", "sum(range(30_000_000))"], cwd=Path(__file__).parent, check=True)
"""


def test_process_is_named_by_its_program_and_not_by_a_tests_folder(tmp_path: Path) -> None:
    """Most programs that tests start have a folder of pytest in their command line."""
    folder = "/tmp/pytest-of-root/pytest-3/popen-gw1/test_kafka_and_node0"
    for command, kind in {
        f"/a/python {folder}/bin/forebay driver --config {folder}/f.toml": "Python: commands",
        f"/a/python -m benchmarks.race {folder}/x": "Python: other: benchmarks.race",
        f"/a/python {folder}/job.py --to {folder}": "Python: other: job.py",
        "/a/python -u -c import sys;exec(eval(sys.stdin.readline()))": "Python: workers of pytest",
        "/a/python -m tests.support.processes.forked": "Python: fork of driver",
        f"/a/versitygw posix {folder}": "S3 server",
        f"/a/chromium --type=renderer --user-data-dir={folder}": "Chromium",
        f"/a/strange {folder}/data": "other: driver",
    }.items():
        assert profile.kind_of(command, "driver") == kind


def test_profile_counts_processor_time_of_tests_and_of_their_processes(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(PLUGIN)
    (tmp_path / "test_cases.py").write_text(CASES)
    subprocess.run(
        [sys.executable, "-m", "pytest", "--rootdir", str(tmp_path), "-c", "/dev/null", "-p", "no:cacheprovider", tmp_path],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    found = {timed.test: timed for timed in profile.read(tmp_path / "profile")}
    own, child = found["test_cases.py::test_own"], found["test_cases.py::test_child"]
    assert own.own_cpu_seconds > own.children_cpu_seconds == 0
    assert child.children_cpu_seconds > child.own_cpu_seconds
    assert child.wall_seconds > 0 and child.start >= own.start
    processes = profile.read_processes(tmp_path / "profile")
    assert sorted(process.kind for process in processes) == ["Python: first process of pytest", "Python: other"]
    (other,) = (process for process in processes if process.kind == "Python: other")
    assert child.children_cpu_seconds / 2 < other.cpu_seconds < child.children_cpu_seconds * 1.5
    assert other.place == tmp_path.name, "of its working directory"
    lines = list(profile.report(list(found.values()), processes))
    assert lines[0].startswith("2 tests: wall ") and any("Python: other" in line for line in lines)
    assert sum("test_cases.py" in line for line in lines) == 4, "one file in two lists, two tests in one"
