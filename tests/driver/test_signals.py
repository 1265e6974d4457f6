"""What `forebay driver` does at a first and at a second signal, while a job runs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from driver.spark.engine import SparkEngine
from forebay.settings.reading.load import from_values

#: forks a driver for each pair of signals and prints how each ended
PAIRS = """
import json, os, signal, sys, time
from unittest import mock
import driver.main
from forebay.settings.reading.load import from_values

class Driver:
    url = ""
    def __init__(self, *_, **__): pass
    def start(self): return True
    def run(self):
        os.write(began, b"r")
        while True: time.sleep(0.02)  # a pause would miss a signal that came just before it
    def stop(self, drain): os.write(began, b"s")
    def close(self): pass

settings, statuses = from_values(json.loads(sys.argv[1])), []
for first, second in json.loads(sys.argv[2]):
    begins, began = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(120)
        with mock.patch.multiple(driver.main, Driver=Driver, source_kind=mock.Mock()):
            driver.main.with_engine(settings, (), {}, False)
        os._exit(0)
    assert os.read(begins, 1) == b"r"
    os.kill(child, first)
    assert os.read(begins, 1) == b"s"
    os.kill(child, second)
    statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps(statuses))
"""


def values(folder: Path) -> dict[str, object]:
    return {
        "stream": "s",
        "kafka": {"topics": ["t"], "bootstrap.servers": "127.0.0.1:1"},
        "wal": {"url": f"file://{folder}/wal"},
        "driver": {"journal": f"file://{folder}/journal", "url": "http://127.0.0.1:1", "engine": "local"},
        "agent": {"blocks": f"{folder}/blocks", "url": "http://127.0.0.1:2"},
    }


def test_second_signal_ends_the_driver_immediately_whichever_of_the_two_it_is(tmp_path: Path) -> None:
    """INV-6."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    pairs = [(first, second) for first in numbers for second in numbers]
    done = subprocess.run(
        [sys.executable, "-c", PAIRS, json.dumps(values(tmp_path)), json.dumps(pairs)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # by its second byte if it came before the main thread had handled the first
    ended = [(-second, 128 + second) for _, second in pairs]
    assert all(status in either for status, either in zip(json.loads(done.stdout), ended, strict=True)), done.stdout


def test_spark_does_not_take_ctrl_c_from_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PySpark's own handler raises KeyboardInterrupt in the middle of a batch."""

    class Builder:
        def config(self, *_: object) -> Builder:
            return self

        def getOrCreate(self) -> object:  # noqa: N802 - PySpark's name
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            return object()

    monkeypatch.setattr("driver.spark.engine.SparkSession.builder", Builder())
    before = signal.getsignal(signal.SIGINT)
    try:
        SparkEngine(from_values(values(tmp_path)), dict)._make_session()
        assert signal.getsignal(signal.SIGINT) is before
    finally:
        signal.signal(signal.SIGINT, before)
