"""Blocks that an agent cannot delete, and commands that it refuses: nothing else ends with them."""

from __future__ import annotations

import errno
import os
import re
import threading
from pathlib import Path

import pytest
import urllib3

from executor_agent import service
from executor_agent.main import Agent
from forebay.messages import Command
from forebay.model.errors import StoreError
from forebay.settings.schema import Settings
from tests.executor_agent.fake_driver import FakeDriver, delete, held
from tests.support.state.stored import Stored
from wal.blocks import local_path
from wal.reading import BlockReference

# a server's thread leaves its loop's sockets to the collector
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def test_block_that_cannot_be_deleted_stops_no_other_deletion(
    stored: Stored,
    driver: FakeDriver,
    settings: Settings,
    three: list[BlockReference],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """INV-8: its command is not acknowledged, nor are later ones. The driver is not called unreachable."""
    first, second, third = three
    stuck, real = local_path(stored.blocks_directory, "s", first.id), Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if path == stuck and not deletable.is_set():
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))
        real(path, missing_ok)

    deletable = threading.Event()
    monkeypatch.setattr(Path, "unlink", unlink)
    with Agent(settings) as agent:
        driver.say(5, delete(6, 5), delete(7, 5, first, second), delete(8, 5, third))
        beat = driver.await_heartbeat(lambda beat: beat.attempted == 8)
        assert (beat.acknowledged, beat.undeleted, beat.undeleted_blocks) == (6, (first.id,), 1)
        assert beat.undeleted_cause == f"cannot delete {stuck}: Operation not permitted"
        assert held(stored) == [first.id]
        status = agent.status()
        assert (status.undeleted, status.undeleted_blocks) == ((f"s/{first.id}",), 1)
        assert (status.undeleted_cause, status.silent_driver) == (beat.undeleted_cause, "")
        assert agent.service_status().text.endswith("1 blocks cannot be deleted")
        metrics = urllib3.request("GET", f"{agent.url}/metrics").data.decode()
        assert re.search(r"^forebay_agent_undeleted_blocks{.*} 1$", metrics, re.MULTILINE)
        driver.await_heartbeat(lambda beat: beat.undeleted_blocks == 1)
        assert len([said for said in caplog.messages if str(stuck) in said]) == 1
        deletable.set()
        beat = driver.await_heartbeat(lambda beat: beat.acknowledged == 8)
        assert (beat.undeleted, beat.undeleted_blocks, beat.undeleted_cause) == ((), 0, "")
        assert agent.status().undeleted_blocks == 0
        driver.say(5)
        driver.await_heartbeat(lambda beat: beat.attempted == 0)


def test_refused_command_stops_no_other_command(
    stored: Stored, driver: FakeDriver, settings: Settings, three: list[BlockReference]
) -> None:
    """A newer driver's commands of an unknown kind must not let the folder fill up."""
    with Agent(settings) as agent:
        driver.say(
            5,
            delete(1, 5, three[0]),
            Command(version=2, driver_epoch=5, kind="polish"),
            delete(3, 5, three[1]),
            Command(version=4, driver_epoch=5, kind="start-receiver", receiver_id="t-r0"),
        )
        beat = driver.await_heartbeat(lambda beat: beat.acknowledged != 0)
        assert (beat.acknowledged, beat.attempted) == (1, 1)
        assert held(stored) == [three[2].id]
        assert "refused" in agent.heartbeat.silent_driver


def test_heartbeat_names_a_bounded_number_of_blocks_that_cannot_be_deleted(
    driver: FakeDriver, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-6. The driver considers the command as not tried, because it cannot know the other blocks."""
    monkeypatch.setattr(service, "UNDELETED_REPORTED_MAX", 2)
    blocks = tuple(f"s/r1-1-{number}" for number in range(3))

    def fail(stream: str, block_id: str) -> bool:
        raise StoreError(f"cannot delete {stream}/{block_id}")

    with Agent(settings) as agent:
        monkeypatch.setattr(agent.store, "delete", fail)
        driver.say(5, Command(version=3, driver_epoch=5, kind="delete", blocks=blocks))
        beat = driver.await_heartbeat(lambda beat: beat.undeleted_blocks == 3)
        assert (beat.undeleted, beat.attempted) == (("r1-1-0", "r1-1-1"), 0)
