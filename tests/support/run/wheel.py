"""The wheel, built and installed without a network."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[3]
#: where this environment's packages lie: what the wheel depends on
DEPENDENCIES = Path(sysconfig.get_path("purelib"))


def build_wheel(folder: Path, version: str | None = None) -> Path:
    """Builds the wheel of this tree into ``folder``; of a copy that calls itself ``version``, if that is given."""
    tree = ROOT
    if version is not None:
        tree = folder / f"tree-{version}"
        tree.mkdir(parents=True)
        for package in ROOT.glob("*/__init__.py"):
            name = package.parent.name
            shutil.copytree(package.parent, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        (tree / "scripts").mkdir()
        for name in ("README.md", "LICENSE", "scripts/compile_native.py"):
            shutil.copy(ROOT / name, tree / name)
        text = (ROOT / "pyproject.toml").read_text()
        own = next(line for line in text.splitlines() if line.startswith("version = "))
        (tree / "pyproject.toml").write_text(text.replace(own, f'version = "{version}"', 1))
    output = folder / f"wheel-{version or 'own'}"
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(output)],
        cwd=tree, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return next(output.glob("*.whl"))


def install_wheel(wheel: Path, environment: Path) -> Path:
    """A fresh virtual environment with ``wheel`` alone, which finds its dependencies in this one's: the command of it."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    site = next((environment / "lib").glob("python3*/site-packages"))
    # a plain path: what else this environment points to, the tree that is tested above all, is not followed
    (site / "dependencies.pth").write_text(f"{DEPENDENCIES}\n")
    subprocess.run(
        [
            sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"), "install", "--quiet",
            "--no-index", "--no-deps", "--ignore-installed", str(wheel),
        ],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return environment / "bin" / "forebay"
