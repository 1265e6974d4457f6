"""The releases that pyproject.toml claims, each in a fresh environment (``make test-matrix``).

A cell installs this tree with its dependencies, and runs the tests that use what the releases differ in: the interfaces of
Python's and Arrow's formats, of confluent-kafka, of the stores' clients and of PySpark. An interpreter that this machine does not
have is named in the table as not run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from uv import find_uv_bin

from tests.support.run.pythons import find_python

ROOT = Path(__file__).parents[3]
#: what the tests import beside the project
_TOOLS = ("pytest>=8.3", "pytest-timeout>=2.3", "pytest-xdist>=3.8", "hypothesis>=6.120")
#: pyspark 4.0 leaves sockets to the collector, which finds them in any later test
_SOCKETS = ("-W", "ignore:unclosed:ResourceWarning")
#: name → tests that are run together
GROUPS: dict[str, tuple[str, ...]] = {
    # msgspec, pyarrow, numpy, xxhash, google-crc32c, cryptography, tomli
    "formats": (
        "tests/forebay/model",
        "tests/forebay/settings/test_settings.py",
        "tests/forebay/settings/test_refused_settings.py",
        "tests/golden",
        "tests/wal/segments",
        "tests/wal/blocks",
        "tests/wal/keyed",
        "--ignore=tests/golden/test_wire_names.py",  # imports streaming queries too, which pyspark has from 4.2 on
    ),
    # litestar, uvicorn, urllib3, prometheus-client, click, rich
    "services": (
        "tests/driver/http/test_api.py",
        "tests/driver/http/test_health.py",
        "tests/driver/http/test_outages.py",
        "tests/deploy/commands/setup/test_init.py",
    ),
    # confluent-kafka, also past its Python objects
    "Kafka": (
        *(
            "tests/forebay/kafka/native/test_native.py",
            "tests/forebay/kafka/client/test_admin.py",
            "tests/forebay/kafka/consume/test_fresh_consumers.py",
        ),
        *("-k", "not loader and not flights"),  # which need a package of the demo
    ),
    # fsspec, s3fs, tenacity, hdfs-native
    "stores": (
        "tests/wal/storage/test_storage_contract.py",
        "tests/wal/storage/test_log_on_stores.py",
        "tests/wal/storage/test_store_requests.py",
        *("-k", "[s3 or [hdfs or [file"),
    ),
    # pyspark, pandas, pyarrow
    "Spark": (
        "tests/engines/test_spark_state.py",
        "tests/engines/test_spark_kafka_tier.py",
        "tests/pyspark_forebay/test_spark_releases.py",
        *_SOCKETS,
    ),
    "batches": ("tests/engines/test_spark_engine.py", "tests/direct/stream/test_stream_with_spark.py", *_SOCKETS),
}
_SHOWN = ("pyspark", "confluent-kafka", "pyarrow", "numpy", "pandas")
_LINES_OF_FAILURE = 60
#: maximum time of one command: an installation, or a group of tests
_COMMAND_SECONDS = 1200.0


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


def run_cell(cell: Cell, folder: Path, groups: Iterable[str]) -> Result:
    """Run the tests of ``groups`` in the environment of ``cell``, which is made in ``folder`` unless it is there."""
    interpreter = find_python(cell.python)
    if interpreter is None:
        return Result(cell, "not run", f"no python{cell.python} on this machine")
    began = time.monotonic()
    python = str(folder / "bin" / "python")
    done = folder / "installed"
    if not done.exists():
        for command in _installation(cell, interpreter, folder):
            if (ended := _run(command, python)).returncode != 0:
                return Result(cell, "failed", f"installation: {_tail(ended)}", seconds=time.monotonic() - began)
        done.touch()
    # old releases of anyio, a dependency of Litestar's, have a plug-in that a new pytest warns about
    pytest = [python, "-m", "pytest", "-q", "-m", "not long", "-p", "no:cacheprovider", "-p", "no:anyio"]
    failed, details = False, []
    for group in groups:
        ended = _run([*pytest, *GROUPS[group]], python)
        if ended.returncode != 0:
            failed = True
            print(_tail(ended), file=sys.stderr)
        *_, last = ended.stdout.strip().splitlines() or [f"pytest exited with {ended.returncode}"]
        details.append(f"{group}: {last.strip('= ')}")
    outcome = "failed" if failed else "passed"
    return Result(cell, outcome, "; ".join(details), _releases(python), time.monotonic() - began)


def _installation(cell: Cell, interpreter: str, folder: Path) -> Iterator[list[str]]:
    install = _uv("pip", "install", "--quiet", "--python", str(folder / "bin" / "python"))
    resolution = ("--resolution", "lowest-direct") if cell.lowest else ()
    yield _uv("venv", "--quiet", "--clear", "--python", interpreter, str(folder))
    yield [*install, *resolution, f"{ROOT}[otel]", *cell.requirements]
    yield [*install, *_TOOLS]  # afterwards, so that what the project has at its lowest stays


def _run(command: Sequence[str], python: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, cwd=ROOT, env=_environment(python), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            check=False, timeout=_COMMAND_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        return subprocess.CompletedProcess(command, 1, "", f"{error}")


def _tail(ended: subprocess.CompletedProcess[str]) -> str:
    return "\n".join((ended.stdout + ended.stderr).splitlines()[-_LINES_OF_FAILURE:])


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


def main() -> int:
    names = [cell.name for cell in CELLS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cells", nargs="*", metavar="CELL", help=f"{', '.join(names)} [default: all]")
    parser.add_argument("--tests", action="append", choices=list(GROUPS), help="of this group alone; can be repeated")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="make the environments here, and use those that are here"
    )
    given = parser.parse_args()
    if unknown := sorted(set(given.cells) - set(names)):
        parser.error(f"no cell {', '.join(unknown)}: there are {', '.join(names)}")
    cells = [cell for cell in CELLS if not given.cells or cell.name in given.cells]
    table = Table("cell", "Python", "releases", "outcome", "tests, or the reason", "seconds")
    results = []
    for result in _results(cells, given.keep, given.tests or list(GROUPS)):
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


def _results(cells: Iterable[Cell], kept: Path | None, groups: Sequence[str]) -> Iterator[Result]:
    for cell in cells:
        with tempfile.TemporaryDirectory(prefix="forebay-matrix-", ignore_cleanup_errors=True) as folder:
            yield run_cell(cell, (kept or Path(folder)) / cell.name, groups)


if __name__ == "__main__":
    sys.exit(main())
