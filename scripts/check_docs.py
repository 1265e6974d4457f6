"""Checks README, CHANGELOG and docs: links resolve, named `make` targets and `forebay` commands exist, and files generated from
the settings are current."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click
import settings_page

from deploy.main import commands

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
_MAKE = re.compile(r"(?:^|[`\s;&(])make ([a-z][a-z-]*)", re.MULTILINE)
_FOREBAY = re.compile(
    r"(?:^|[`\s;&(/])forebay((?: --?[a-z-]+(?:[ =][A-Za-z./_-]*\.toml)?)*) ([a-z][a-z-]*)", re.MULTILINE
)
_TARGET = re.compile(r"^([a-z][a-z-]*):", re.MULTILINE)
_HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)


def anchors(text: str) -> set[str]:
    """The names that headings get where such pages are shown: lower case, punctuation gone, hyphens for spaces."""
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in _HEADING.findall(text)}


def broken_links(page: Path, text: str) -> list[str]:
    found = []
    for link in (a or b for a, b in _LINK.findall(_CODE.sub("", text))):
        path, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = page if not path else (page.parent / path).resolve()
        if not target.exists():
            found.append(f"{page.relative_to(ROOT)}: link to {link}: no such file")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text(encoding="utf-8")):
            found.append(f"{page.relative_to(ROOT)}: link to {link}: no such heading")
    return found


def unknown_commands(page: Path, text: str) -> list[str]:
    code = "\n".join(_CODE.findall(text))
    targets = set(_TARGET.findall((ROOT / "Makefile").read_text(encoding="utf-8")))
    known = set(commands.list_commands(click.Context(commands)))
    place = page.relative_to(ROOT)
    return [f"{place}: make {name}: no such target" for name in _MAKE.findall(code) if name not in targets] + [
        f"{place}: forebay {name}: no such command" for _, name in _FOREBAY.findall(code) if name not in known
    ]


def main() -> int:
    pages = [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        ROOT / "CONTRIBUTING.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]
    problems = []
    for page in pages:
        text = page.read_text(encoding="utf-8")
        problems += broken_links(page, text) + unknown_commands(page, text)
    problems += settings_page.problems()
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
