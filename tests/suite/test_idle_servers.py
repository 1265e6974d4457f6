"""A server of a share of tests ends with the share's last test, and the next share that needs it starts it again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = """
import pytest
from tests.support.run import idle_servers

def pytest_configure(config):
    config.pluginmanager.register(idle_servers.IdleServers())

@pytest.fixture(scope="session")
def events():
    return []

@pytest.fixture(scope="session")
def hdfs_server(events):
    events.append("start")
    yield
    events.append("end")

@pytest.fixture(scope="session")
def user(hdfs_server, events):
    yield
    events.append("user's end")
"""
FIRST = """
def test_first(user, events):
    assert events == ["start"]

def test_second(hdfs_server, events):
    assert events == ["start"]
"""
OTHER = """
def test_other(events):
    assert events == ["start", "user's end", "end"]

def test_again(user, events):
    assert events[3:] == ["start"]
"""


def test_server_ends_with_its_share_and_starts_again_for_another(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(PLUGIN)
    (tmp_path / "test_1.py").write_text(FIRST)
    (tmp_path / "test_2.py").write_text(OTHER)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--rootdir", str(tmp_path), "-c", "/dev/null", "-p", "no:cacheprovider", tmp_path],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert "4 passed" in done.stdout, done.stdout + done.stderr
