"""The tests of each package are in the folder of its path, or CONTRIBUTING names their folders."""

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


def _rows() -> set[str]:
    """Return the packages of the first table."""
    cells = [line.strip("| ").split(" | ") for line in _section().splitlines()]
    return {name for row in cells if len(row) == 2 and row[1].startswith("`tests/") for name in _NAME.findall(row[0])}


def _folder(package: str) -> str:
    return "tests/" + package.replace(".", "/")


def _has_tests(folder: str) -> bool:
    return any((ROOT / folder).glob("test_*.py"))


def _packages() -> set[str]:
    """Return the packages with modules of their own: a folder with only subpackages has no tests."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {
        ".".join(module.relative_to(ROOT).parent.parts)
        for root in settings["tool"]["importlinter"]["root_packages"]
        for module in (ROOT / root).rglob("*.py")
        if module.name != "__init__.py" and (module.parent / "__init__.py").exists()
    }


def test_each_package_has_tests_in_its_folder_or_a_row_and_each_row_names_packages() -> None:
    elsewhere = {package for package in _packages() if not _has_tests(_folder(package))}
    assert elsewhere - _rows() == set()
    assert _rows() - _packages() == set()


def test_each_named_folder_has_tests() -> None:
    named = {name for name in _NAME.findall(_section()) if re.match("tests/.", name)}
    assert {name for name in named - {"tests/support", "tests/a/b"} if not _has_tests(name)} == set()


def test_each_folder_with_tests_is_that_of_a_package_or_named() -> None:
    folders = {path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")}
    assert folders - set(_NAME.findall(_section())) - set(map(_folder, _packages())) == set()
