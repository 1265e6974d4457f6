"""CONTRIBUTING names the folders with the tests of each package, and each folder of tests."""

from __future__ import annotations

import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

ROOT = Path(__file__).resolve().parents[2]
_NAME = re.compile(r"`([^`]+)`")


def _section() -> str:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return page.partition("\n## Folders of tests\n")[2].partition("\n## ")[0]


def _rows() -> dict[str, list[str]]:
    """Return the folders of each package in the first table."""
    rows = {}
    for line in _section().splitlines():
        cells = line.strip("| ").split(" | ")
        if len(cells) == 2 and cells[1].startswith("`tests/"):
            first, *below = _NAME.findall(cells[0])
            rows.update(dict.fromkeys([first, *(first + name for name in below)], _NAME.findall(cells[1])))
    return rows


def _packages() -> set[str]:
    """Return the packages with modules of their own: a folder with only subpackages has no tests."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {
        ".".join(module.relative_to(ROOT).parent.parts)
        for root in settings["tool"]["importlinter"]["root_packages"]
        for module in (ROOT / root).rglob("*.py")
        if module.name != "__init__.py" and (module.parent / "__init__.py").exists()
    }


def test_each_package_has_a_row_and_each_row_a_package() -> None:
    assert _rows().keys() == _packages()


def test_each_named_folder_has_tests() -> None:
    named = {name for name in _NAME.findall(_section()) if re.match("tests/.", name)}
    assert {name for name in named - {"tests/support"} if not any((ROOT / name).glob("test_*.py"))} == set()


def test_each_folder_with_tests_is_named() -> None:
    folders = {path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")}
    assert folders - set(_NAME.findall(_section())) == set()
