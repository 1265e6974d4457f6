"""A Python with all packages of this one except the project itself."""

from __future__ import annotations

import shutil
import subprocess
import sys
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


def other_python(folder: Path) -> tuple[str, str]:
    """One of another minor version that this project supports too, and that version, as in "3.12": one that is on this machine,
    or made in ``folder``: this one, which says that it is another."""
    names = [f"3.{minor}" for minor in (10, 11, 12, 13) if minor != sys.version_info.minor]
    for name in names:
        if (found := find_python(name)) is not None:
            return found, name
    path = bare_python(folder)
    code = f"import sys; sys.version_info = (3, {names[0][2:]}, 0, 'final', 0)"
    next(folder.glob("lib/python*/site-packages/others.pth")).write_text(f"{_SITE}\n{code}\n")
    return path, names[0]


def find_python(name: str) -> str | None:
    """Return a Python on this machine of minor version ``name``, as in "3.12"; None if there is none."""
    paths = (shutil.which(f"python{name}"), *map(str, Path.home().glob(f".pyenv/versions/{name}.*/bin/python")))
    return next((path for path in paths if path is not None and _version(path) == name), None)


def _version(python: str) -> str:
    """ "" if it does not run: a shim, perhaps, of one that is not there."""
    command = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
