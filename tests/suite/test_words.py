"""The check of wording reads texts and names of every kind of file, and refuses listed words but not other uses of them."""

from __future__ import annotations

import ast
import json
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


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("Makefile", "clean:  ## remove what was made, but for .venv\n"),
        ("a.toml", 'name = "Examples: each stands alone"\n'),
        ("alerts.yml", "summary: a receiver is at work\n"),
        ("a.sh", "# it waits in vain\n"),
        ("page.js", "const show = (row) => html`<p>${row.state} was told</p>`;\n"),
        ("index.html", "<p>Nobody leads.</p>\n"),
        ("steps.ipynb", json.dumps({"cells": [{"cell_type": "markdown", "source": ["one\n", "all at once\n"]}]})),
    ],
)
def test_other_kinds_of_files_are_read(written: Path, file: str, text: str) -> None:
    path = written.with_name(file)
    path.write_text(text)
    assert len(list(check_words.problems(path))) == 1


def test_property_in_the_pages_code_is_not_text(written: Path) -> None:
    path = written.with_name("page.js")
    path.write_text("const failing = (row) => row.trouble || rows[0].life;\n")
    assert list(check_words.problems(path)) == []


def test_each_part_of_an_f_string_is_read(written: Path) -> None:
    module = written.with_suffix(".py")
    module.write_text("x = y = 1\nseen = f'{x} told {y}'\nname = f'{x}told'\nwire = 'told'\n")
    assert list(check_words.problems(module)) == ["docs/PAGE.py:2: “told”: reported, logged, or name who says it"]


@pytest.mark.parametrize(
    "source",
    [
        "class ToldWhenLost: ...", "class _GivenUpError: ...", "def search_in_vain() -> None: ...",
        "async def heard_of() -> None: ...",
        "def receive(words: str) -> None: ...", "END_UNTOLD = 1", "class A:\n    heard_ms: int = 0",
        "def f(self: object) -> None:\n    self.news = 1", "for words in (): ...",
    ],
)  # fmt: skip
def test_listed_word_in_a_name_is_refused(written: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_words, "FOLDERS_OF_NAMES", frozenset(["docs"]))
    module = written.with_suffix(".py")
    module.write_text(f"{source}\n")
    assert len(list(check_words.problems(module))) == 1


def test_part_of_another_word_in_a_name_is_accepted() -> None:
    source = (
        "newsletter = keywords = passwords = spared = 1\ndef unheardof(amidst: int) -> None: ...\nnewest = told.words"
    )
    for _, name in check_words.names(ast.parse(source)):
        assert check_words.REFUSED_NAMES.search(check_words.snake_case(name)) is None, name
    assert check_words.snake_case("HTTPServerTold") == "http_server_told"


def test_every_kind_of_file_is_in_the_list() -> None:
    read = set(check_words.files([]))
    assert {"CHANGELOG.md", "tests/suite/test_layers.py", "Makefile", "pyproject.toml", "docs/quickstart.ipynb"} <= read
    assert {
        "driver/web/static/main.js",
        "driver/web/static/index.html",
        "deploy/monitoring/alerts.yml",
        "scripts/setup.sh",
    } <= read
    assert not any("/vendor/" in file for file in read)
