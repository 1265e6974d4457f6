"""Forebay's code on executors: the driver ships it, or checks the installed release and refuses one that does not fit."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import py_compile
import re
import sys
import threading
import zipfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from pyspark import SparkContext

from driver.spark.address import is_local
from driver.spark.blocks import executors, hosts_of, partitions_on
from forebay.model.errors import UsageError
from forebay.settings.named import refuse_own_name

#: packages that tasks import, directly or indirectly
_PACKAGES = ("forebay_start", "forebay", "wal", "driver", "recovery", "direct", "pyspark_forebay")
#: modules that import everything that tasks need
_FIRST = ("driver.spark.engine", "direct.stream.batch")
#: as in pyproject.toml
PYARROW_MAJOR_MIN = 18

_OTHER_PYTHON = re.compile(r"different (?:minor )?version: (\d+\.\d+)\S* than that in driver:? (\d+\.\d+)")
_NO_PYTHON = re.compile(r'Cannot run program "(.*?)"')


class ExecutorPython(NamedTuple):
    """The Python of an executor: its host, and the releases that are installed there. ``fault``: why ``module`` can't be
    imported; "" if all modules can."""

    host: str
    forebay: str
    pyarrow: str
    module: str
    fault: str


#: engines of several streams start at the same time, and a zip counts as sent from its creation on
_SHIPPING = threading.Lock()


def ship(context: SparkContext, modules: Sequence[str] = ()) -> None:
    """Send Forebay and the user's ``modules`` to the executors of ``context``, as a zip of the driver's files. Tasks import
    from it before they import what is installed there. Raises UsageError for a module that can't be sent."""
    with _SHIPPING:
        _ship(context, modules)


def _ship(context: SparkContext, modules: Sequence[str]) -> None:
    files = {str(path.relative_to(root)): path for root, path in (*_sources(), *_named(modules))}
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        digest.update(f"{name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    target = Path(context._temp_dir or "") / _archive_name(digest.hexdigest()[:16])
    if target.exists():  # another stream's engine sent it in this session
        return
    before = list(sys.path)
    try:
        with TemporaryDirectory() as folder, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, path in files.items():
                archive.write(path, name)
                compiled = _compiled(path, name, folder)
                if compiled is not None:
                    archive.write(compiled, f"{name}c")
        context.addPyFile(str(target))
    except BaseException:
        # an incomplete zip, or one that Spark did not get, must not count as sent
        target.unlink(missing_ok=True)
        raise
    finally:
        sys.path[:] = before  # the driver itself continues with its own files


def far(context: SparkContext) -> bool:
    """Whether tasks may run on other machines than the driver's."""
    return not is_local(context.master or "")


def bring(context: SparkContext) -> None:
    """Ship the code to the executors of a session that no engine manages, and check them, if tasks run on other machines.

    Does nothing if an engine or an earlier call has shipped the code in this session. Raises UsageError.
    """
    sent = Path(context._temp_dir or "").glob(_archive_name("*"))
    if not far(context) or next(sent, None) is not None:
        return
    ship(context)
    if hosts := sorted(hosts_of(executors(context))):
        check(context, hosts)


def _archive_name(digest: str) -> str:
    return f"forebay-{version('forebay')}-{digest}.zip"


def _compiled(path: Path, name: str, folder: str) -> str | None:
    """Compile a file, so that not every worker process must. Return None if it can't be compiled; it may be a template that
    is never imported."""
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    try:
        return py_compile.compile(str(path), f"{folder}/compiled", name, doraise=True, invalidation_mode=unchecked)
    except py_compile.PyCompileError:
        return None


def _sources() -> Iterator[tuple[Path, Path]]:
    """Return each file of Forebay's packages, with the folder that contains its package."""
    for package in _PACKAGES:
        folder = Path(importlib.import_module(package).__file__ or "").parent
        for path in sorted(folder.rglob("*.py")):
            yield folder.parent, path


def _named(modules: Sequence[str]) -> Iterator[tuple[Path, Path]]:
    """Return the files of the user's modules and packages, as :func:`_sources` does. For packages this includes files that are
    not Python."""
    for name in modules:
        refuse_own_name("spark.modules", name, name)
        try:
            found = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            found = None
        if found is None:
            raise UsageError(f"spark.modules: the driver finds no module {name!r}: add its folder to PYTHONPATH")
        origin = Path(found.origin or "")
        if origin.suffix != ".py" or not origin.is_file():
            raise UsageError(
                f"spark.modules: {name!r} does not consist of Python files: install it on the hosts of Spark's executors"
            )
        if found.submodule_search_locations is None:
            yield origin.parent, origin
            continue
        for path in sorted(origin.parent.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield origin.parent.parent, path


def check(context: SparkContext, hosts: Sequence[str], modules: Sequence[str] = ()) -> None:
    """Check Python and packages of one executor on each of ``hosts``, as far as Spark can place a task there. Raises UsageError
    if one does not fit."""
    rows = [(b"", (host,)) for host in hosts]
    try:
        found = partitions_on(context, rows).mapPartitions(_look((*_FIRST, *modules))).collect()
    except Exception as error:
        reason = misfit(str(error))
        if reason is None:
            raise
        raise UsageError(reason) from None
    release = version("forebay")
    for one in found:
        reason = refused(ExecutorPython(*one), release)
        if reason is not None:
            raise UsageError(reason)


def _look(modules: Sequence[str]) -> Any:
    """Return a function that reports the installed releases, and whether ``modules`` can be imported. It can run on executors
    without Forebay, because Python pickles a nested function by value, not by name."""

    def look(_: Iterable[bytes]) -> Iterator[tuple[str, ...]]:
        import importlib
        import socket
        import sys
        from importlib import metadata

        def release(name: str) -> str:
            try:
                return metadata.version(name)
            except metadata.PackageNotFoundError:
                return ""

        module = fault = ""
        for module in modules:
            try:
                importlib.import_module(module)
            except Exception as error:
                fault = str(error) or type(error).__name__
                break
        archive = getattr(getattr(sys.modules.get("forebay"), "__loader__", None), "archive", "")
        yield socket.gethostname(), "" if archive else release("forebay"), release("pyarrow"), module, fault

    return look


def refused(found: ExecutorPython, release: str) -> str | None:
    """Return a sentence that says why tasks can't run on the executor; None if they can. ``release``: this driver's release."""
    where = f"the Python of Spark's executors on {found.host}"
    if found.pyarrow and int(found.pyarrow.partition(".")[0]) < PYARROW_MAJOR_MIN:
        return (
            f"{where} has pyarrow {found.pyarrow}, and tasks need at least {PYARROW_MAJOR_MIN}: install the packages of "
            f"forebay {release} there"
        )
    if found.forebay and found.forebay != release:
        return (
            f"{where} has forebay {found.forebay}, and this driver is {release}: install the same one there, or set "
            'ship = "auto" in [spark]'
        )
    if found.fault and found.module not in _FIRST:
        return (
            f"{where} can't import {found.module} ({found.fault}): install what it needs there, or name in spark.modules what "
            "the driver is to ship"
        )
    if found.fault:
        return (
            f"{where} can't import forebay ({found.fault}): install forebay {release} with its packages there; with "
            'ship = "auto" in [spark] the driver ships forebay itself'
        )
    return None


def strangers(hosts: Collection[str], agents: Collection[str]) -> str:
    """Return a warning if none of Spark's ``hosts`` has the name of a host in ``agents``; otherwise ""."""
    if not hosts or not agents or not set(hosts).isdisjoint(agents):
        return ""
    return (
        f"no task can read local copies: Spark's executors are on {', '.join(sorted(hosts))}, agents on "
        f"{', '.join(sorted(agents))}; set agent.host to the name of Spark's worker"
    )


def misfit(error: str) -> str | None:
    """If Spark's error says that an executor's Python could not start, return a sentence about it; otherwise None."""
    other = _OTHER_PYTHON.search(error)
    if other:
        return (
            f"Spark's executors run Python {other[1]}, and this driver {other[2]}: the minor versions must be the same; set "
            "PYSPARK_PYTHON in the driver's environment to the executors' Python"
        )
    none = _NO_PYTHON.search(error)
    if none:
        return (
            f"a host of Spark's executors can't run {none[1]}: set PYSPARK_PYTHON in the driver's environment to a Python that "
            "exists on every host"
        )
    return None
