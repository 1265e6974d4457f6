"""Builds the documentation site of docs/ into a folder, or with --check into none.

    python scripts/site_pages.py [--check] [--output FOLDER]

MkDocs sees only its own folder. So this script copies docs/ aside, adds each file outside docs/ that a page links to as a page
of its own, and places every page in the navigation. It fails for a dead link, for a page of a folder that the navigation does not
have, and for a page that asks another host.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["NO_MKDOCS_2_WARNING"] = "1"

from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import MkDocsException

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
#: folder of the site with pages of files outside docs/
_FILES = "files"
_LINK = re.compile(r"(?<=\]\()([^)#\s]+)((?:#[^)\s]*)?)(?=\))")
_CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.DOTALL | re.MULTILINE)
_LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml", ".json": "json", ".sh": "sh"}
#: attributes and rules that make a browser ask a server
_REQUESTS = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed|object)\b[^>]*?\b(?:src|srcset|data)=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|<link\b(?![^>]*rel=["']?canonical)[^>]*?\bhref=["']?((?:https?:)?//[^"'\s>]+)"""
    r"""|url\(["']?((?:https?:)?//[^"')]+)|@import\s+["']((?:https?:)?//[^"']+)"""
)


def copy_pages(target: Path) -> None:
    """Copy docs/ to ``target``, and with it the files of the repository that pages link to, as pages."""
    shutil.copytree(DOCS, target)
    done: set[Path] = set()
    waiting = [(path, target / path.relative_to(DOCS)) for path in sorted(DOCS.rglob("*.md"))]
    while waiting:
        source, page = waiting.pop()
        text = source.read_text(encoding="utf-8")
        for linked in sorted(_outside(source, text) - done):
            done.add(linked)
            made = target / page_of(linked)
            made.parent.mkdir(parents=True, exist_ok=True)
            if linked.suffix == ".md":
                waiting.append((linked, made))
            else:
                made.write_text(_shown(linked), encoding="utf-8")
        page.write_text(_relinked(source, page.relative_to(target), text), encoding="utf-8")


def page_of(path: Path) -> Path:
    """Return where the site has a file of the repository: its place in docs/, or a page below ``files``."""
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS)
    own = path.relative_to(ROOT)
    return Path(_FILES) / (own if own.suffix == ".md" else f"{own}.md")


def _outside(source: Path, text: str) -> set[Path]:
    """Return the files and folders outside docs/ that a page links to."""
    targets = (
        (source.parent / link).resolve() for part in _prose(text) for link, _ in _LINK.findall(part) if _is_path(link)
    )
    return {path for path in targets if path.exists() and not path.is_relative_to(DOCS) and path.is_relative_to(ROOT)}


def _prose(text: str) -> list[str]:
    return _CODE.split(text)[::2]


def _is_path(link: str) -> bool:
    return not re.match(r"[a-z]+:", link)


def _relinked(source: Path, page: Path, text: str) -> str:
    """Return the page with links to the places that the site has."""

    def at_its_place(link: re.Match[str]) -> str:
        target = (source.parent / link[1]).resolve()
        if not _is_path(link[1]) or not target.exists():
            return link[0]
        if target == ROOT / "docs":
            target = DOCS / "index.md"
        return os.path.relpath(page_of(target), page.parent) + link[2]

    parts = _CODE.split(text)
    parts[::2] = [_LINK.sub(at_its_place, part) for part in parts[::2]]
    return "".join(parts)


def _shown(path: Path) -> str:
    """Return a page that shows a file, or each file of a folder."""
    files = [path] if path.is_file() else sorted(p for p in path.resolve().rglob("*") if p.suffix in _LANGUAGES)
    name = path.relative_to(ROOT)
    parts = [f"# {name}\n"]
    for file in files:
        title = f"## {file.name}\n\n" if path.is_dir() else ""
        code = file.read_text(encoding="utf-8").rstrip("\n")
        parts.append(f"{title}````{_LANGUAGES.get(file.suffix, 'text')}\n{code}\n````\n")
    return "\n".join(parts)


def complete_navigation(nav: list[Any], folder: Path) -> None:
    """Append each page that mkdocs.yml does not place to the section with the index of its folder.

    The index of ``docs/operations`` is ``OPERATIONS.md`` or ``operations/README.md``; that of docs/ itself is
    ``reference/README.md``. Raises MkDocsException for a page of a folder without an index.
    """
    placed = set(_pages(nav))
    for page in sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.md")):
        if page in placed or page.startswith(f"{_FILES}/"):
            continue
        name = page.rpartition("/")[0] or "reference"
        indexes = {f"{name.upper()}.md", f"{name}/README.md"}
        section = next((entries for entries in _sections(nav) if indexes & {p for e in entries for p in _own(e)}), None)
        if section is None:
            raise MkDocsException(f"docs/{page}: add this page to nav in mkdocs.yml")
        section.append(page)


def _own(entry: Any) -> list[str]:
    """Return the page of one entry, [] for a section."""
    values = [entry] if isinstance(entry, str) else list(entry.values())
    return [value for value in values if isinstance(value, str)]


def _pages(entries: list[Any]) -> Iterator[str]:
    for entry in entries:
        yield from _own(entry)
        if isinstance(entry, dict):
            for value in entry.values():
                yield from _pages(value) if isinstance(value, list) else ()


def _sections(entries: list[Any]) -> Iterator[list[Any]]:
    """Yield each list of entries, the innermost first."""
    for entry in entries:
        for value in entry.values() if isinstance(entry, dict) else ():
            if isinstance(value, list):
                yield from _sections(value)
    yield entries


def outside_requests(site: Path) -> list[str]:
    """Return each address of another host that a browser would ask for."""
    found = []
    for path in sorted(site.rglob("*")):
        if path.suffix in (".html", ".css"):
            text = path.read_text(encoding="utf-8")
            addresses = (next(filter(None, match)) for match in _REQUESTS.findall(text))
            found += [f"{path.relative_to(site)}: asks {address}" for address in addresses]
    return found


def build_site(output: Path) -> list[str]:
    """Build the site into ``output``. Return what is wrong with it; [] if nothing is."""
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    handler.setLevel(logging.WARNING)
    logger = logging.getLogger("mkdocs")
    logger.addHandler(handler)
    try:
        with tempfile.TemporaryDirectory() as scratch:
            pages = Path(scratch) / "docs"
            copy_pages(pages)
            config = load_config(str(ROOT / "mkdocs.yml"), docs_dir=str(pages), site_dir=str(output))
            complete_navigation(config.nav or [], pages)
            with contextlib.redirect_stdout(io.StringIO()):
                build(config)
    except MkDocsException as error:
        return [*log.getvalue().splitlines(), str(error)]
    finally:
        logger.removeHandler(handler)
    return outside_requests(output)


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("--check", action="store_true", help="only report what is wrong")
    parser.add_argument("--output", type=Path, default=ROOT / "site", help="folder of the site [default: site]")
    arguments = parser.parse_args()
    if arguments.check:
        with tempfile.TemporaryDirectory() as scratch:
            problems = build_site(Path(scratch) / "site")
    else:
        problems = build_site(arguments.output)
        if not problems:
            print(f"open {arguments.output / 'index.html'}")
    print("\n".join(problems), file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
