"""What a run notes of a process that ended: the error at the end of its last traceback since it began."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.jepsen.services import Service
from tests.jepsen.story import Story
from tests.support.processes.namespaces import Host
from tests.support.run.releases import RELEASES

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


def test_end_of_an_earlier_release_is_in_the_story_alone(tmp_path: Path) -> None:
    """The checker judges this code."""
    story = Story(tmp_path, quiet=True)
    story.ended("d1", 1, "KeyError: 'x'", f"release {RELEASES[-1].name}")
    story.ended("d2", 4, "")
    story.write_ends(tmp_path / "ends.json")
    assert [end["name"] for end in json.loads((tmp_path / "ends.json").read_text())] == ["d2"]
    assert (
        f"d1 of release {RELEASES[-1].name} ended by itself with 1: KeyError: 'x'"
        in (tmp_path / "story.txt").read_text()
    )


def test_service_gets_newer_settings_from_its_upgrade_on(tmp_path: Path) -> None:
    host = Host("d1", "198.18.0.1", "fb1-d1", "fb1.1", tmp_path / "hosts.txt", {})
    newer = {"FOREBAY__SPARK__EXECUTORS_TIMEOUT": "20s"}
    service = Service("d1", host, tmp_path, ("driver",), {}, RELEASES[-1], newer)
    assert not newer.keys() & service.environment().keys()
    service.release = None
    assert newer.items() <= service.environment().items()
