"""Checks README, CHANGELOG and docs: links resolve, named `make` targets, `forebay` commands, modules and files exist, generated
files are current, and every public name has a description."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import click
import drawings
import grafana_dashboard
import http_page
import metrics_page
import reference_pages
import settings_page

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the packages of this tree

from deploy.main import commands
from forebay.settings.reference import keys_by_section

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


_PACKAGES = (
    "forebay", "wal", "receiver", "driver", "executor_agent", "direct", "recovery", "deploy", "pyspark_forebay", "forebay_start",
)  # fmt: skip
_DOTTED = re.compile(rf"(?<![\w./@-])((?:{'|'.join(_PACKAGES)})(?:\.[A-Za-z_]\w*)+)(?![\w-])")
_FILE = re.compile(
    rf"(?<![\w./-])((?:{'|'.join((*_PACKAGES, 'tests', 'scripts', 'benchmarks'))})/[\w/.-]*\.(?:py|toml|md))"
)

_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")

#: a link to a module, and the name in it to open first
_OPENED = re.compile(r"\[`([\w.]+)`\]\(([^)\s]+\.py)\):\s+`(\w+)(?:\.(\w+))?`")

#: dotted names that are no modules: a header of dead letters, failpoints, a package of an earlier commit
_OTHER_NAMES = ("forebay.topic", "receiver.revoke", "driver.answer", "deploy.examples.own_sources")


def _names(module: Path) -> set[str]:
    """Return what a module defines or imports at its top level."""
    found: set[str] = set()
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            found.add(node.name)
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def _has_method(module: Path, cls: str, method: str) -> bool:
    classes = [n for n in ast.parse(module.read_text(encoding="utf-8")).body if isinstance(n, ast.ClassDef)]
    return any(n.name == cls and any(getattr(m, "name", "") == method for m in n.body) for n in classes)


def names_not_in_linked_modules(page: Path, text: str) -> list[str]:
    """Return each function, class or method that is named after a link to a module without it, and each link whose text is not
    the module of its file."""
    found = []
    for dotted, link, name, method in _OPENED.findall(text):
        module = (page.parent / link).resolve()
        if not module.exists():
            continue  # broken_links reports it
        if str(module.relative_to(ROOT).with_suffix("")).replace("/", ".").removesuffix(".__init__") != dotted:
            found.append(f"{page.relative_to(ROOT)}: {dotted}: the link is to {link}")
        elif name not in _names(module) or (method and not _has_method(module, name, method)):
            found.append(f"{page.relative_to(ROOT)}: {dotted} has no {name}{method and '.'}{method}")
    return found


def _is_known(dotted: str, settings_keys: frozenset[str]) -> bool:
    """Return whether ``dotted`` is a module, a name in one, or a key of the settings."""
    if dotted in settings_keys or dotted.endswith(".toml") or dotted in _OTHER_NAMES:
        return True
    path = ROOT
    parts = dotted.split(".")
    for number, part in enumerate(parts):
        if (path / part).is_dir():
            path = path / part
        elif (module := path / f"{part}.py").exists():
            return number + 1 == len(parts) or parts[number + 1] in _names(module)
        else:
            return (path / "__init__.py").exists() and part in _names(path / "__init__.py")
    return True


def unknown_names(page: Path, text: str) -> list[str]:
    """Return the modules, names and files of this repository that the page names and that do not exist."""
    code = "\n".join(_CODE.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL)))
    keys = frozenset(f"{section}.{key}" for section, names in keys_by_section().items() for key in names)
    place = page.relative_to(ROOT)
    names = [name for name in _DOTTED.findall(code) if not _is_known(name, keys)]
    files = [name for name in _FILE.findall(code) if not (ROOT / name).exists()]
    tests = [
        f"{path}::{test}"
        for path, test in _TEST.findall(code)
        if (ROOT / path).exists() and test not in _names(ROOT / path)
    ]
    return [f"{place}: {name}: no such module, name, file, setting or test" for name in (*names, *files, *tests)]


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
        if page.name != "CHANGELOG.md":
            problems += unknown_names(page, text) + names_not_in_linked_modules(page, text)
    problems += [*metrics_page.problems(), *grafana_dashboard.problems()]
    problems += [*settings_page.problems(), *http_page.problems(), *reference_pages.problems(), *drawings.problems()]
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
