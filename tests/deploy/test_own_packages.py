"""Forebay's own packages are found before modules of the same names in the current folder and on PYTHONPATH."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from forebay_start import NAMES, hidden
from forebay_start.spark_daemon import ends_quietly

_ROOT = str(Path(__file__).parents[2])


def python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    for name in NAMES - {"forebay_start"}:
        (folder / f"{name}.py").write_text(f"raise ImportError('the user\\'s own {name}')\n")
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), _ROOT))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_command_that_starts_services_runs_beside_them(tmp_path: Path) -> None:
    done = python(tmp_path, "-m", "forebay_start", "--version")
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("forebay ")


def test_imports_of_our_names_give_our_packages(tmp_path: Path) -> None:
    code = "import forebay_start\nforebay_start.find_first()\n"
    code += "\n".join(f"import {name}\nprint({name}.__file__)" for name in sorted(NAMES))
    done = python(tmp_path, "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [f"{_ROOT}/{name}/__init__.py" for name in sorted(NAMES)]


@pytest.mark.parametrize("file", ["wal.py", "driver/__init__.py"])
def test_modules_with_names_of_forebay_are_found(file: str, tmp_path: Path) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.touch()
    (tmp_path / "jobs.py").touch()
    assert hidden(tmp_path) == [path]
    assert hidden(Path(_ROOT)) == []


@pytest.mark.parametrize("error", [BrokenPipeError, ConnectionResetError])
def test_task_whose_rows_spark_no_longer_needs_ends_its_worker_without_a_traceback(error: type[OSError]) -> None:
    def worker(connection: socket.socket, authenticated: bool) -> int:
        raise error

    with socket.socket() as connection:
        assert ends_quietly(worker)(connection, True) == 1


def test_other_errors_and_the_exit_code_of_a_worker_are_kept() -> None:
    def broken(connection: socket.socket, authenticated: bool) -> int:
        raise OSError("of another kind")

    with socket.socket() as connection:
        assert ends_quietly(lambda _, authenticated: 7 if authenticated else 0)(connection, True) == 7
        with pytest.raises(OSError, match="of another kind"):
            ends_quietly(broken)(connection, True)
