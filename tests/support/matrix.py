"""The releases that pyproject.toml claims, each in a fresh environment: ``python -m tests.support.matrix`` (make test-matrix).

A cell installs this tree with its dependencies, runs a fast part of the tests, and one test with Kafka and Spark. An interpreter
that this machine does not have is named in the table as not run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from uv import find_uv_bin

from tests.support.pythons import find_python

ROOT = Path(__file__).parents[2]
#: what the tests import beside the project
_TOOLS = ("pytest>=8.3", "pytest-timeout>=2.3", "pytest-xdist>=3.8", "hypothesis>=6.120")
#: decisions, formats and settings without servers; then records, requests and a stream with Kafka and Spark
_FAST = (
    "tests/records",
    "tests/settings",
    "tests/golden",
    "tests/wal/segments",
    "tests/receiver/machine",
    "tests/driver/decisions",
    "--ignore=tests/golden/test_wire_names.py",  # imports streaming queries too, which pyspark has from 4.2 on
)
_REAL = ("tests/kafka/test_native.py", "tests/engines/test_spark_kafka_tier.py")
_SHOWN = ("pyspark", "confluent-kafka", "pyarrow", "numpy", "pandas")
_LINES_OF_FAILURE = 60


class Cell(NamedTuple):
    """``python``: minor version. ``requirements``: beside those of the project.

    ``lowest``: whether each direct dependency has the lowest release that pyproject.toml allows.
    """

    name: str
    python: str
    requirements: tuple[str, ...] = ()
    lowest: bool = False


CELLS = (
    Cell("oldest", "3.10", lowest=True),
    Cell("3.11", "3.11", ("pyspark==4.1.*",)),
    Cell("3.12", "3.12", ("pyspark==4.2.*",)),
    Cell("newest", "3.13"),
    Cell("3.10", "3.10"),
)


class Result(NamedTuple):
    """``outcome``: "passed", "failed" or "not run"; ``detail``: the reason; ``releases``: of what the cell has installed."""

    cell: Cell
    outcome: str
    detail: str
    releases: str = ""
    seconds: float = 0.0


def run_cell(cell: Cell, folder: Path) -> Result:
    """Make the environment of ``cell`` in ``folder``, and run its tests there."""
    interpreter = find_python(cell.python)
    if interpreter is None:
        return Result(cell, "not run", f"no python{cell.python} on this machine")
    began = time.monotonic()
    python = str(folder / "bin" / "python")
    resolution = ("--resolution", "lowest-direct") if cell.lowest else ()
    # old releases of anyio, a dependency of Litestar's, have a plug-in that a new pytest warns about
    pytest = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:anyio"]
    commands = [
        _uv("venv", "--quiet", "--python", interpreter, str(folder)),
        _uv("pip", "install", "--quiet", "--python", python, *resolution, f"{ROOT}[otel]", *cell.requirements),
        # afterwards, so that what the project has at its lowest stays
        _uv("pip", "install", "--quiet", "--python", python, *_TOOLS),
        [*pytest, *_FAST],
        [*pytest, *_REAL],
    ]
    summary, releases = "", ""
    for command in commands:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=_environment(python),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            print("\n".join((done.stdout + done.stderr).splitlines()[-_LINES_OF_FAILURE:]), file=sys.stderr)
            detail = f"{' '.join(command[:4])} … exited with {done.returncode}"
            return Result(cell, "failed", detail, releases, time.monotonic() - began)
        if "pytest" in command[2:3]:
            summary += ("; " if summary else "") + done.stdout.strip().splitlines()[-1].strip("= ")
        releases = releases or _releases(python)
    return Result(cell, "passed", summary, releases, time.monotonic() - began)


def _uv(*arguments: str) -> list[str]:
    """Return a command of uv, without the Python whose environment uv would prefer."""
    return [find_uv_bin(), *arguments]


def _environment(python: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME")}
    return {**own, "PYSPARK_PYTHON": python, "PATH": f"{Path(python).parent}{os.pathsep}{own['PATH']}"}


def _releases(python: str) -> str:
    """Return the releases in the environment; "" as long as the project is not installed."""
    done = subprocess.run(_uv("pip", "freeze", "--python", python), capture_output=True, text=True, check=False)
    found = dict(line.split("==") for line in done.stdout.splitlines() if "==" in line)
    return ", ".join(f"{name} {found[name]}" for name in _SHOWN if name in found) if "pyspark" in found else ""


def run(cells: Iterable[Cell]) -> Iterator[Result]:
    for cell in cells:
        with tempfile.TemporaryDirectory(prefix="forebay-matrix-", ignore_cleanup_errors=True) as folder:
            yield run_cell(cell, Path(folder) / "env")


def main() -> int:
    names = [cell.name for cell in CELLS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cells", nargs="*", metavar="CELL", help=f"{', '.join(names)} [default: all]")
    wanted = parser.parse_args().cells
    if unknown := sorted(set(wanted) - set(names)):
        parser.error(f"no cell {', '.join(unknown)}: there are {', '.join(names)}")
    table = Table("cell", "Python", "releases", "outcome", "tests, or the reason", "seconds")
    results = []
    for result in run(cell for cell in CELLS if not wanted or cell.name in wanted):
        results.append(result)
        table.add_row(
            result.cell.name,
            result.cell.python,
            result.releases,
            result.outcome,
            result.detail,
            f"{result.seconds:.0f}",
        )
        print(f"{result.cell.name}: {result.outcome}: {result.detail}", flush=True)
    Console(width=200 if not sys.stdout.isatty() else None).print(table)
    return int(any(result.outcome == "failed" for result in results))


if __name__ == "__main__":
    sys.exit(main())
