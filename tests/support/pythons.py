"""A Python that has all that this one has, but for the project itself."""

from __future__ import annotations

import venv
from pathlib import Path

import pytest

_SITE = Path(pytest.__file__).parents[1]


def bare_python(folder: Path) -> str:
    """Makes it in ``folder``; its path."""
    venv.create(folder, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    # a folder that is named here gives its packages, not what is linked into it, as the project is
    (site / "others.pth").write_text(f"{_SITE}\n")
    return str(folder / "bin" / "python")
