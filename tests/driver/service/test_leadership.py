"""A standby stays one when it cannot take over because the store is full or out of reach."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from driver.journal.files import claim_path
from driver.service.activity import Activity
from driver.service.leadership import Leadership
from driver.service.stores import Stores
from forebay.model.errors import FencedError, OutOfSpaceError, StoreError
from forebay.process.clock import SystemClock
from forebay.settings.reading.load import load
from wal.storage import AppendFile, MemoryStorage

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Full(MemoryStorage):
    """Refuses as many claims, and as many new segments, as given."""

    def __init__(self, name: str, claims: int, segments: int) -> None:
        super().__init__(name)
        self.claims, self.segments = claims, segments

    def put_new(self, path: str, data: Buffer) -> None:
        if "/epochs/" in path and self.claims:
            self.claims -= 1
            raise OutOfSpaceError(f"{path} can't be written: no space left")
        super().put_new(path, data)

    def create(self, path: str) -> AppendFile:
        if self.segments:
            self.segments -= 1
            raise StoreError(f"{path} can't be written: the store is away")
        return super().create(path)


def leadership(folder: Path) -> tuple[Leadership, Activity, list[FencedError]]:
    config = folder / "forebay.toml"
    config.write_text(
        f'stream = "s"\ndata = "{folder}/data"\n[kafka]\ntopics = ["t"]\n"bootstrap.servers" = "127.0.0.1:1"\n'
        '[driver]\njob = "jobs:x"\nlease_duration = "200ms"\n'
    )
    activity, fenced = Activity(), list[FencedError]()
    made = Leadership(
        settings=load(config),
        clock=SystemClock(),
        activity=activity,
        superseded=lambda error: bool(fenced.append(error)) or True,
    )
    return made, activity, fenced


@pytest.mark.parametrize(("claims", "segments"), [(2, 0), (0, 1)])
def test_standby_takes_over_when_the_store_takes_writes_again(tmp_path: Path, claims: int, segments: int) -> None:
    """It ended with exit code 1 before, and a supervisor that gives up left the stream without a standby."""
    journal = Full(f"memory://{tmp_path.name}", claims, segments)
    made, _, fenced = leadership(tmp_path)
    led = made.lead(Stores(journal, None), "http://127.0.0.1:1", standby=True)
    assert led is not None
    opened, _ = led
    assert (journal.claims, journal.segments, fenced) == (0, 0, [])
    assert journal.exists(claim_path("s", opened.epoch))
    made.end(abandon=False)
    opened.close()


def test_standby_at_a_full_store_can_be_stopped(tmp_path: Path) -> None:
    made, activity, _ = leadership(tmp_path)
    stopper = threading.Timer(0.3, activity.stop)
    stopper.start()
    assert made.lead(Stores(Full("memory://full", 10**9, 0), None), "http://127.0.0.1:1", standby=True) is None
    stopper.join()


def test_driver_that_does_not_stand_by_reports_the_full_store(tmp_path: Path) -> None:
    made, _, _ = leadership(tmp_path)
    with pytest.raises(OutOfSpaceError):
        made.lead(Stores(Full("memory://none", 1, 0), None), "http://127.0.0.1:1", standby=False)


def test_store_that_fails_when_the_lease_ends_is_logged_and_hides_no_other_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made, _, _ = leadership(tmp_path)
    journal = MemoryStorage(f"memory://{tmp_path.name}")
    led = made.lead(Stores(journal, None), "http://127.0.0.1:1", standby=False)
    assert led is not None

    def fail(path: str, data: Buffer) -> None:
        raise StoreError(f"{path} can't be replaced: the store is away")

    monkeypatch.setattr(journal, "replace", fail)
    made.end(abandon=False)
    assert "cannot end the lease" in caplog.text and "the store is away" in caplog.text
    led[0].close()
