"""A moved clock is what a process sees; deadlines and the monotonic clock are not moved."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.jepsen.clock import HostClock, build

_SHOWS = """\
import sys, threading, time
from datetime import datetime
from confluent_kafka import Consumer

before = time.monotonic()
print(time.time(), datetime.now().timestamp(), flush=True)
threading.Event().wait(0.05)
time.sleep(0.05)
consumer = Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0})
consumer.poll(0.05)
consumer.close()
assert time.monotonic() - before < 30
print("waited", flush=True)
"""


@pytest.mark.parametrize("seconds", [3600, -3600])
def test_process_sees_the_moved_wall_clock_and_waits_as_long_as_it_says(tmp_path: Path, seconds: int) -> None:
    library = build(tmp_path)
    if library is None:
        pytest.skip("NOT TESTED: clocks are moved where there is a C compiler, on Linux with glibc on x86-64")
    clock = HostClock(library, tmp_path / "clock")
    clock.move(seconds)
    shown = subprocess.run(
        [sys.executable, "-c", _SHOWS],
        env={**os.environ, **clock.environment}, capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    first, second = shown.split("\n")[0].split()
    now = float(subprocess.run(["date", "+%s"], capture_output=True, text=True, check=True).stdout)
    assert float(first) - now == pytest.approx(seconds, abs=60)
    assert float(second) - now == pytest.approx(seconds, abs=60)
    assert "waited" in shown
