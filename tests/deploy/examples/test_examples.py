"""The example configurations: this release accepts each of them, and untested ones say that they are untested."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.main import main

EXAMPLES = Path(__file__).parents[3] / "deploy" / "examples"
FILES = sorted(EXAMPLES.rglob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(EXAMPLES)))
def test_example_is_valid_without_changes(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", str(path), "validate", "--offline"]) == 0, capsys.readouterr()


def test_offline_a_wrong_option_is_found_and_nothing_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (EXAMPLES / "one-machine.toml").read_text()
    path = tmp_path / "forebay.toml"
    path.write_text(text.replace('"bootstrap.servers"', '"fetch.wait.max.mss" = 1\n"bootstrap.servers"', 1))
    assert main(["--config", str(path), "validate", "--offline"]) == 2
    output = capsys.readouterr().out
    assert "fetch.wait.max.mss" in output and "broker" not in output and "wal:" not in output


def test_untested_example_says_that_it_is_untested() -> None:
    assert "untested" in "".join((EXAMPLES / "yarn.toml").read_text().splitlines()[:4])
