"""Compiles ``gather.c`` when the package is built: the hook of the build, and ``python scripts/compile_native.py``.

The compiler is that of ``$CC``, else cc, gcc or clang, else the one in the package ``ziglang``, which the build installs if there
is no other. Without any, the package is built without the library, and records are gathered in Python.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_FOLDER = Path("forebay", "kafka", "native")
_SOURCE, _LIBRARY = _FOLDER / "gather.c", _FOLDER / "gather.so.1"
_FLAGS = ("-std=gnu11", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra")


class Compilation(BuildHookInterface[Any]):
    """The build's hook."""

    def dependencies(self) -> list[str]:
        return [] if _own_compiler() else ["ziglang>=0.13"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        if self.target_name != "wheel" or not (root / _SOURCE).exists():
            return
        error = compile_library(root)
        if error:
            self.app.display_warning(f"records will be gathered in Python, several times slower: {error}")
            return
        build_data["artifacts"].append(str(_LIBRARY))
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"


def compile_library(root: Path) -> str:
    """Compile the library in the tree ``root``. Return "", or why that is not possible."""
    compiler = _own_compiler() or _packaged_compiler()
    if not compiler:
        return "there is no C compiler"
    made = root / f"{_LIBRARY}.{os.getpid()}"  # .gitignore keeps it out of a package that is built at the same time
    try:
        done = subprocess.run(
            [*compiler, *_FLAGS, "-o", str(made), str(root / _SOURCE)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            return f"{shlex.join(compiler)} failed: {done.stderr.strip()}"
        made.replace(root / _LIBRARY)  # a process that has loaded the old one keeps it
    except OSError as error:
        return f"{shlex.join(compiler)}: {error}"
    finally:
        made.unlink(missing_ok=True)
    return ""


def _own_compiler() -> list[str]:
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    return next(([name] for name in ("cc", "gcc", "clang") if shutil.which(name)), [])


def _packaged_compiler() -> list[str]:
    return [sys.executable, "-m", "ziglang", "cc"] if importlib.util.find_spec("ziglang") else []


if __name__ == "__main__":
    sys.exit(compile_library(Path(__file__).resolve().parents[1]) or None)
