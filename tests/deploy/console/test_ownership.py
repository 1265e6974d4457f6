"""Commands that write the files of services: refused as root in a folder of another user."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from deploy.console.ownership import refuse_as_root
from deploy.main import main
from forebay.model.errors import UsageError

OTHER_UID = 65534 if os.getuid() == 0 else os.getuid()
REFUSED = "Run the command as that user, with `sudo -u "


@pytest.fixture(autouse=True)
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)


def of_other_user(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    if os.getuid() == 0:
        os.chown(folder, OTHER_UID, -1)
    return folder


@pytest.mark.parametrize(
    ("written", "command"),
    [
        ("wal", ("recover",)),
        ("journal", ("recover",)),
        ("wal", ("wal", "repair")),
        ("journal", ("journal", "rebuild")),
        ("letters", ("dead-letters", "replay", "--to-topic", "t")),
        ("direct", ("direct", "replay", "file://{folder}/direct", "flights", "--to-batch", "1")),
        ("direct", ("direct", "accept-loss", "file://{folder}/direct", "flights", "t/0[0, 5)")),
    ],
)
def test_root_writes_nothing_into_a_folder_of_the_services_user(
    written: str, command: tuple[str, ...], project: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    project.replace("[agent]", f'[dead_letters]\nurl = "file://{project.folder}/letters"\n[agent]')
    folder = of_other_user(project.folder / written / "flights")
    arguments = [text.replace("{folder}", str(project.folder)) for text in command]
    assert main(["--config", str(project.config), *arguments, "--apply"]) == 2
    error = capsys.readouterr().err
    assert f"{folder} belongs to user " in error and REFUSED in error and "Nothing was changed." in error
    assert list(folder.iterdir()) == []


def test_root_writes_nothing_into_a_folder_of_the_agents_user_without_a_wal(
    project: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    project.replace(f'"file://{project.folder}/wal"', '"none"')
    of_other_user(project.folder / "blocks")
    assert main(["--config", str(project.config), "recover", "--apply"]) == 2
    assert f"{project.folder}/blocks belongs to user " in capsys.readouterr().err


def test_a_dry_run_is_not_refused(project: Any, capsys: pytest.CaptureFixture[str]) -> None:
    of_other_user(project.folder / "wal" / "flights")
    main(["--config", str(project.config), "wal", "repair"])
    assert REFUSED not in capsys.readouterr().err


def test_the_folder_above_decides_for_a_folder_that_is_lost(tmp_path: Path) -> None:
    of_other_user(tmp_path / "journal")
    with pytest.raises(UsageError, match=f"{tmp_path}/journal belongs to user"):
        refuse_as_root("flights", f"file://{tmp_path}/journal")


def test_folders_of_the_caller_and_remote_stores_are_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_as_root("flights", "s3://bucket/wal", "file:///")
    of_other_user(tmp_path / "flights")
    monkeypatch.setattr(os, "geteuid", lambda: OTHER_UID or 1)
    refuse_as_root("flights", str(tmp_path))
