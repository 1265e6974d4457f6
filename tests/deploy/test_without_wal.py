"""Commands on a stream without a WAL."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.main import main

CONFIG = """
stream = "flights"
[kafka]
topics = ["flights"]
"bootstrap.servers" = "127.0.0.1:1"
[wal]
url = "none"
[driver]
journal = "file://{folder}/journal"
url = "http://127.0.0.1:1"
[agent]
blocks = "{folder}/blocks"
"""


@pytest.mark.parametrize(
    "message",
    [
        "wal inspect", "wal verify", "wal repair", "wal retention --dry-run", "wal follow",
        "journal rebuild", "journal rebuild --yes",
    ],
)  # fmt: skip
def test_a_command_that_needs_a_wal_says_that_there_is_none(
    message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "forebay.toml"
    config.write_text(CONFIG.format(folder=tmp_path))
    assert main(["--config", str(config), *message.split()]) == 2
    said = capsys.readouterr().err
    assert "this stream has no WAL" in said
    assert "Traceback" not in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["forebay.toml"], "nothing was made"


@pytest.mark.parametrize("message", ["recover", "recover --apply"])
def test_recover_without_a_wal_needs_a_journal(
    message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "forebay.toml"
    config.write_text(CONFIG.format(folder=tmp_path))
    assert main(["--config", str(config), *message.split()]) == 2
    said = capsys.readouterr().err
    assert "holds no journal" in said
    assert "Traceback" not in said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["forebay.toml"], "nothing was made"


def test_validate_says_what_a_stream_without_a_wal_does_not_survive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from deploy.commands.setup.validation import check_folders
    from forebay.settings.durability_notes import without_wal
    from forebay.settings.reading.load import load

    config = tmp_path / "forebay.toml"
    config.write_text(CONFIG.format(folder=tmp_path))
    settings = load(config)
    assert "two hosts" not in without_wal(settings)
    assert [check.name for check in check_folders(settings)] == ["journal", "blocks"]


def test_a_journal_can_be_inspected_without_a_wal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "forebay.toml"
    config.write_text(CONFIG.format(folder=tmp_path))
    assert main(["--config", str(config), "journal", "inspect"]) == 0
    assert "no WAL belongs to it" in capsys.readouterr().out
