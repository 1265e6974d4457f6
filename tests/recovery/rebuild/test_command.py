"""``forebay journal rebuild`` as a command."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

import pytest

from deploy.main import main
from driver.journal.leadership import timeline
from forebay.model.errors import StoreError
from tests.recovery.test_killed import CONFIGURATION
from tests.support.state.lost_journal import Lost
from tests.support.state.tracked import STREAM, offsets
from wal.storage.local import LocalStorage


def lost_in(folder: Path) -> tuple[Lost, list[str]]:
    """Return a stream on disk whose journal is lost, and the arguments that begin a command for it."""
    lost = Lost(LocalStorage(f"{folder}/journal"), LocalStorage(f"{folder}/wal"))
    epoch = lost.t.register()
    lost.take_in(epoch, offsets(0, 10, lost.t.claim(epoch).view.token))
    lost.copy()
    config = folder / "forebay.toml"
    config.write_text(CONFIGURATION.format(stream=STREAM, folder=folder))
    return lost, ["--config", str(config)]


@pytest.mark.parametrize("error", [KeyError("getpwuid(): uid not found: 4242"), OSError("no username")])
def test_journal_is_rebuilt_under_a_uid_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """As in a container with --user 4242."""
    lost, config = lost_in(tmp_path)

    def failing() -> str:
        raise error

    monkeypatch.setattr(getpass, "getuser", failing)
    assert main([*config, "journal", "rebuild"]) == 0
    assert main([*config, "journal", "rebuild", "--apply"]) == 0
    assert lost.lead().rebuilds[-1].cause.startswith(f"forebay journal rebuild by uid {os.getuid()}@")


@pytest.mark.parametrize("options", [[], ["--apply"]])
def test_unreadable_segment_is_named_and_no_timeline_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    """INV-5."""
    lost, config = lost_in(tmp_path)
    (path,) = (path for path in lost.wal.list(STREAM) if "/blocks/" in path)
    read = LocalStorage.read

    def failing(store: LocalStorage, name: str, offset: int = 0, length: int | None = None) -> bytes:
        if name == path:
            raise StoreError(f"{name} can't be read: Input/output error")
        return read(store, name, offset, length)

    with monkeypatch.context() as patched:
        patched.setattr(LocalStorage, "read", failing)
        assert main([*config, "journal", "rebuild", *options]) == 1
    assert f"segment {path} of " in capsys.readouterr().err
    assert timeline.newest_marker(lost.wal, STREAM) == 1 and lost.journal.list("") == []
