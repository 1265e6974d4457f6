"""Pythons that have all that this one has, but for the project itself."""

from __future__ import annotations

import venv
from pathlib import Path

import pytest

_SITE = Path(pytest.__file__).parents[1]


def bare_python(folder: Path, *lines: str) -> str:
    """Makes it in ``folder``; its path. ``lines``, which begin with ``import``, are run at each start of it."""
    venv.create(folder, symlinks=True)
    site = next(folder.glob("lib/python*/site-packages"))
    # a folder that is named here gives its packages, not what is linked into it, as the project is
    (site / "others.pth").write_text("".join(f"{line}\n" for line in (str(_SITE), *lines)))
    return str(folder / "bin" / "python")
