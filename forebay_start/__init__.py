"""Finds Forebay's own packages before a user's modules of the same names, such as a ``driver.py`` beside ``jobs.py``.

Of a name that nobody else uses, and free of imports beyond the standard library: it comes before everything else, in the
command's processes (``python -m forebay_start``) and in Spark's workers (:mod:`forebay_start.spark_daemon`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
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


class _OwnPackages(MetaPathFinder):
    """Finds ``NAMES`` in the folder that this package is in, whatever ``sys.path`` says."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, [self._folder], target) if fullname in NAMES else None


def find_first() -> None:
    """From now on imports of ``NAMES`` give this project's own packages. May be called again."""
    if not any(isinstance(finder, _OwnPackages) for finder in sys.meta_path):
        sys.meta_path.insert(0, _OwnPackages(str(Path(__file__).resolve().parents[1])))


def hidden(folder: Path) -> list[Path]:
    """Modules and packages in ``folder`` that have a name of ours, and that no process of ours therefore imports."""
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
    """The ``forebay`` command."""
    find_first()
    from deploy.main import main as command

    return command()
