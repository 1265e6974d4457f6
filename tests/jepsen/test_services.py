"""What a run notes of a process that ended: the error at the end of its last traceback since it began."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jepsen.services import Service
from tests.support.processes.namespaces import Host

FAILED = """\
2026-11-23T19:36:43Z INFO driver.main: standby of stream stream
Traceback (most recent call last):
  File "a.py", line 1, in <module>
    put(path)

OSError: [Errno 22] Invalid argument
"""


@pytest.mark.parametrize(
    ("log", "shown"),
    [
        (FAILED, "OSError: [Errno 22] Invalid argument"),
        (FAILED + FAILED.replace("OSError", "KeyError"), "KeyError: [Errno 22] Invalid argument"),
        ("2026-11-23T19:37:05Z ERROR driver.main: another driver leads stream 'stream'\n", ""),
    ],
)
def test_traceback_of_a_process_is_its_last_error(tmp_path: Path, log: str, shown: str) -> None:
    (tmp_path / "logs").mkdir()
    host = Host("d1", "198.18.0.1", "fb1-d1", "fb1.1", tmp_path / "hosts.txt", {})
    service = Service("d1", host, tmp_path, ("driver",), {})
    service.log.write_text(log)
    assert service.traceback() == shown
