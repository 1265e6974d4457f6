"""The scripts that write docs/reference and build the site: what they render, and what they refuse."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import click
import pytest

from tests.support.run.wheel import ROOT

sys.path.insert(0, str(ROOT / "scripts"))


def script(name: str) -> ModuleType:
    return importlib.import_module(name)


@dataclass(frozen=True)
class Described:
    """A value. ``size``: its size in bytes."""

    size: int
    name: str = "a|b"

    def grow(self, by: int = 1, *, twice: bool = False) -> Described:
        """Return a larger value, as :meth:`grow` of ``Described``::

            value.grow(2)

        ``by``: how much. ``twice``: whether to do it again.
        """
        return self

    def silent(self) -> None: ...


def test_class_is_rendered_with_signature_fields_and_members() -> None:
    text = "\n".join(script("python_reference").class_section("Described", Described))
    assert "class Described(size: int, name: str = 'a|b')" in text
    assert "| `size` | `int` | required |" in text and "| `name` | `str` | `'a\\|b'` |" in text
    assert "### Described.grow" in text and "def grow(by: int = 1, *, twice: bool = False) -> Described" in text
    assert "as `grow` of `Described`:\n\n```python\nvalue.grow(2)\n```" in text


def test_undocumented_members_and_fields_are_found() -> None:
    found = list(script("python_reference").undocumented("Described", Described))
    assert found == ["Described.silent", "Described.name (mention ``name`` in the docstring of its class)"]


def test_command_without_help_texts_is_found() -> None:
    @click.group()
    def group() -> None:
        """A group."""

    @group.command()
    @click.option("--fast", is_flag=True)
    def run(fast: bool) -> None: ...

    reference = script("command_reference")
    named = dict(reference.walk(group, "tool"))
    assert set(named) == {"tool", "tool run"}
    assert list(reference.undocumented(group, "tool")) == ["tool run: no description", "tool run --fast: no help text"]


def test_help_text_is_shown_as_written() -> None:
    reference = script("command_reference")
    assert reference.shown("Use --apply or *.toml <FILE>.") == r"Use `--apply` or \*.toml \<FILE>."


def test_stale_page_is_reported_with_the_command_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = script("reference_pages")
    assert len({page.file for page in pages.PAGES}) == len(pages.PAGES)
    monkeypatch.setattr(pages, "undocumented", lambda: iter(["wal.thing"]))
    monkeypatch.setattr(pages, "FOLDER", tmp_path)
    for page in pages.PAGES:
        page.path.write_text(page.text())
    assert pages.problems() == ["wal.thing: a public name without a description"]
    (tmp_path / "batch.md").write_text("# Batch\n")
    assert pages.problems()[1:] == [
        "docs/reference/batch.md is not what the code says: run .venv/bin/python scripts/reference_pages.py"
    ]


def test_pictures_are_what_the_script_draws() -> None:
    drawings = script("drawings")
    assert list(drawings.problems()) == []
    for draw in drawings.PICTURES.values():
        svg = draw().svg()
        assert (
            "prefers-color-scheme: dark" in svg
            and "<title" in svg
            and "http" not in svg.replace("http://www.w3.org", "")
        )


def test_page_that_the_navigation_does_not_name_joins_the_index_of_its_folder(tmp_path: Path) -> None:
    site = script("site_pages")
    pages = ("index.md", "OPS.md", "ops/a.md", "ops/b.md", "files/x.py.md", "reference/README.md", "LOGS.md")
    for page in pages:
        (tmp_path / page).parent.mkdir(exist_ok=True)
        (tmp_path / page).write_text("# X\n")
    nav = [
        {"Home": "index.md"},
        {"Use": [{"Sub": ["ops/a.md"]}]},
        {"Operate": ["OPS.md"]},
        {"Reference": ["reference/README.md"]},
    ]
    site.complete_navigation(nav, tmp_path)
    assert nav[1:3] == [{"Use": [{"Sub": ["ops/a.md"]}]}, {"Operate": ["OPS.md", "ops/b.md"]}]
    assert nav[3] == {"Reference": ["reference/README.md", "LOGS.md"]}
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "d.md").write_text("# X\n")
    with pytest.raises(Exception, match=r"docs/new/d\.md: add this page to nav"):
        site.complete_navigation(nav, tmp_path)


@pytest.mark.parametrize(
    ("html", "address"),
    [
        ('<script src="https://cdn.example/x.js"></script>', "https://cdn.example/x.js"),
        ('<link rel="stylesheet" href="//fonts.example/a.css">', "//fonts.example/a.css"),
        ("<style>a { background: url(https://img.example/x.png) }</style>", "https://img.example/x.png"),
        ('<img alt="" src="http://img.example/x.png">', "http://img.example/x.png"),
    ],
)
def test_request_to_another_host_is_found(html: str, address: str, tmp_path: Path) -> None:
    (tmp_path / "x.html").write_text(html)
    assert script("site_pages").outside_requests(tmp_path) == [f"x.html: asks {address}"]


def test_links_to_other_hosts_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "x.html").write_text('<a href="https://kafka.apache.org/">Kafka</a><img src="images/a.svg">')
    assert script("site_pages").outside_requests(tmp_path) == []


def test_site_has_every_page_and_asks_no_other_host(tmp_path: Path) -> None:
    """The site with the files outside docs/ that pages link to. A dead link would be in the list of problems."""
    assert script("site_pages").build_site(tmp_path / "site") == []
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix(".html")
        made = name.with_name("index.html") if page.name == "README.md" else name
        assert (tmp_path / "site" / made).is_file(), page
    start = (tmp_path / "site" / "operations" / "start.html").read_text()
    assert 'href="../files/deploy/examples/one-machine.toml.html"' in start
    assert "search_index.json" in {path.name for path in (tmp_path / "site").rglob("*.json")}
