"""What executors need of this project: shipped to them by the driver, or found there; what does not fit is refused by name."""

from __future__ import annotations

import hashlib
import importlib
import py_compile
import re
import sys
import zipfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from pyspark import SparkContext

from driver.spark_blocks import partitions_on
from forebay.errors import UsageError

#: what tasks import, and what that imports
_PACKAGES = ("forebay", "wal", "driver", "direct")
#: as pyproject.toml has it
PYARROW_MAJOR_MIN = 18

_OTHER_PYTHON = re.compile(r"different (?:minor )?version: (\d+\.\d+)\S* than that in driver:? (\d+\.\d+)")
_NO_PYTHON = re.compile(r'Cannot run program "(.*?)"')


class Found(NamedTuple):
    """What the Python of an executor has: ``trouble`` says why this project's modules can't be imported, "" if they can."""

    host: str
    forebay: str
    pyarrow: str
    trouble: str


def ship(context: SparkContext) -> None:
    """Tasks of ``context`` import this project from a zip of the driver's own, before what is installed where they run."""
    files = {str(path.relative_to(root)): path for root, path in _sources()}
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files.values())).hexdigest()[:16]
    target = Path(context._temp_dir or "") / f"forebay-{version('forebay')}-{digest}.zip"
    if target.exists():  # by another stream's engine in this session
        return
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    before = list(sys.path)
    try:
        with TemporaryDirectory() as folder, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            compiled = str(Path(folder, "compiled"))
            for name, path in files.items():
                py_compile.compile(str(path), compiled, name, doraise=True, invalidation_mode=unchecked)
                archive.write(path, name)
                archive.write(compiled, f"{name}c")  # or each worker process would compile it anew
        context.addPyFile(str(target))
    except BaseException:
        # half of it, or one that Spark was not given, must not pass for one that was sent
        target.unlink(missing_ok=True)
        raise
    finally:
        sys.path[:] = before  # the driver itself goes on with its own files


def _sources() -> Iterator[tuple[Path, Path]]:
    """The folder that a package lies in, and each of its files."""
    for package in _PACKAGES:
        folder = Path(importlib.import_module(package).__file__ or "").parent
        for path in sorted(folder.rglob("*.py")):
            yield folder.parent, path


def check(context: SparkContext, hosts: Sequence[str]) -> None:
    """Looks at the Python of executors, one on each of ``hosts`` where that can be had. Raises UsageError."""
    try:
        found = partitions_on(context, [(b"", (host,)) for host in hosts]).mapPartitions(_look()).collect()
    except Exception as error:
        words = misfit(str(error))
        if words is None:
            raise
        raise UsageError(words) from None
    release = version("forebay")
    for one in found:
        words = refused(Found(*one), release)
        if words is not None:
            raise UsageError(words)


def _look() -> Any:
    """A function that needs nothing of this project where it runs: made here, it travels as it is, not by its name."""

    def look(_: Iterable[bytes]) -> Iterator[tuple[str, str, str, str]]:
        import importlib
        import socket
        import sys
        from importlib import metadata

        def release(name: str) -> str:
            try:
                return metadata.version(name)
            except metadata.PackageNotFoundError:
                return ""

        trouble = ""
        try:
            importlib.import_module("driver.decoding")  # and by it all that tasks need
        except Exception as error:
            trouble = str(error) or type(error).__name__
        archive = getattr(getattr(sys.modules.get("forebay"), "__loader__", None), "archive", "")
        yield socket.gethostname(), "" if archive else release("forebay"), release("pyarrow"), trouble

    return look


def refused(found: Found, release: str) -> str | None:
    """Why tasks can't run there, in one sentence; None if they can. ``release``: of this driver."""
    where = f"the Python of Spark's executors on {found.host}"
    if found.pyarrow and int(found.pyarrow.partition(".")[0]) < PYARROW_MAJOR_MIN:
        return (
            f"{where} has pyarrow {found.pyarrow}, and this driver needs at least {PYARROW_MAJOR_MIN}: install the packages of "
            f"forebay {release} there"
        )
    if found.forebay and found.forebay != release:
        return (
            f"{where} has forebay {found.forebay}, and this driver is {release}: install the same one there, or set "
            'ship = "auto" in [spark]'
        )
    if found.trouble:
        return (
            f"{where} can't import forebay ({found.trouble}): install forebay {release} with its packages there; with "
            'ship = "auto" in [spark] the driver brings forebay itself'
        )
    return None


def strangers(hosts: Collection[str], agents: Collection[str]) -> str:
    """What is wrong if Spark knows its ``hosts`` and the driver the hosts of ``agents`` by names of which none is the same."""
    if not hosts or not agents or not set(hosts).isdisjoint(agents):
        return ""
    return (
        f"no task can read a block on its own host: Spark's executors are on {', '.join(sorted(hosts))}, agents on "
        f"{', '.join(sorted(agents))}; set agent.host to the name that Spark's worker has"
    )


def misfit(error: str) -> str | None:
    """What is wrong with the Python of an executor that could not even begin, in one sentence; None if it is not that."""
    other = _OTHER_PYTHON.search(error)
    if other:
        return (
            f"Spark's executors run Python {other[1]}, and this driver {other[2]}: they must be of the same minor version; name "
            "the executors' one by PYSPARK_PYTHON in the driver's environment"
        )
    none = _NO_PYTHON.search(error)
    if none:
        return (
            f"a host of Spark's executors can't run {none[1]}: name one that is there on every host by PYSPARK_PYTHON in the "
            "driver's environment"
        )
    return None
