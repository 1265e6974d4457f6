"""The check of wording reads test names and the change log, and refuses listed words but not other uses of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import check_words

PAGE = "docs/PAGE.md"


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(check_words, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    return tmp_path / PAGE


@pytest.mark.parametrize(
    "text",
    [
        "its old life", "a new life begins", "both lives of it: the lives", "a hole in the log", "it reports trouble",
        "the block stands in the WAL", "a block that was given up", "it gives up the copy", "the cause, in words",
        "lost without a word", "the driver's words for it",
    ],
)  # fmt: skip
def test_listed_word_is_refused(written: Path, text: str) -> None:
    written.write_text(text)
    assert len(list(check_words.problems(written))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "a batch's life cycle", "a life-cycle rule", "flights/0[10, 20) life 2", "the process lives", "`life`, `trouble`",
        "POST /v1/partitions/trouble", "troubleshooting", "a driver that stands\nby", "`…` stands for the name",
        "the sender gives up and tries again", "words of a line", "a standby understands it",
    ],
)  # fmt: skip
def test_other_use_of_the_word_is_accepted(written: Path, text: str) -> None:
    written.write_text(text)
    assert list(check_words.problems(written)) == []


def test_name_of_a_test_is_read(written: Path) -> None:
    module = written.with_suffix(".py")
    module.write_text("def test_kill_amid_a_write() -> None: ...\n\n\ndef amid_it() -> None: ...\n")
    assert list(check_words.problems(module)) == ["docs/PAGE.py:1: “amid”: during, in the middle of"]


def test_change_log_and_tests_are_read() -> None:
    assert {"CHANGELOG.md", "tests/suite/test_layers.py"} <= set(check_words.files([]))
