"""Finds Forebay's own packages before a user's modules of the same names, such as a ``driver.py`` beside ``jobs.py``.

This package runs first in the command's processes (``python -m forebay_start``) and in Spark's workers
(:mod:`forebay_start.spark_daemon`). Therefore its name is unlikely to be taken, and it imports only the standard library.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

#: the top-level packages of this project
NAMES = frozenset(
    {
        "forebay", "forebay_start", "wal", "receiver", "driver", "executor_agent", "direct", "recovery", "deploy",
        "pyspark_forebay",
    }
)  # fmt: skip


class _OwnPackages:
    """Finds ``NAMES`` in the parent folder of this package, before any folder on ``sys.path``.

    It has no base class: ``importlib.abc`` imports further modules, which would make the start of a command slower.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, [self._folder], target) if fullname in NAMES else None


def find_first() -> None:
    """Make every later import of ``NAMES`` find this project's own packages. Further calls have no effect."""
    if not any(isinstance(finder, _OwnPackages) for finder in sys.meta_path):
        sys.meta_path.insert(0, _OwnPackages(str(Path(__file__).resolve().parents[1])))


def hidden(folder: Path) -> list[Path]:
    """Return the modules and packages in ``folder`` that have one of ``NAMES``, which Forebay's processes never import."""
    if folder == Path(__file__).resolve().parents[1]:
        return []
    candidates = [folder / name for name in sorted(NAMES)]
    return [
        path
        for candidate in candidates
        for path in (candidate.with_suffix(".py"), candidate / "__init__.py")
        if path.is_file()
    ]


def main() -> int:
    """Run the ``forebay`` command and return its exit code."""
    find_first()
    # by name: this package is below all others, so it does not import the command that it starts
    command: Callable[[], int] = importlib.import_module("deploy.main").main
    return command()
