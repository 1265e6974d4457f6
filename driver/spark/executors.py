"""What executors need of this project: shipped to them by the driver, or found there; what does not fit is refused by name."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
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

from driver.spark.blocks import executors, hosts_of, partitions_on
from forebay.model.errors import UsageError
from forebay.settings.named import refuse_own_name

#: what tasks import, and what that imports
_PACKAGES = ("forebay_start", "forebay", "wal", "driver", "recovery", "direct", "pyspark_forebay")
#: by these all that tasks need is imported
_FIRST = ("driver.spark.engine", "direct.stream.batch")
#: as pyproject.toml has it
PYARROW_MAJOR_MIN = 18

_OTHER_PYTHON = re.compile(r"different (?:minor )?version: (\d+\.\d+)\S* than that in driver:? (\d+\.\d+)")
_NO_PYTHON = re.compile(r'Cannot run program "(.*?)"')


class Found(NamedTuple):
    """What the Python of an executor has: ``trouble`` says why ``module`` can't be imported, "" if all can."""

    host: str
    forebay: str
    pyarrow: str
    module: str
    fault: str


def ship(context: SparkContext, modules: Sequence[str] = ()) -> None:
    """Tasks of ``context`` import this project, and the user's ``modules``, from a zip of the driver's own, before what is
    installed where they run. Raises UsageError for a module that can't be brought to them."""
    files = {str(path.relative_to(root)): path for root, path in (*_sources(), *_named(modules))}
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        digest.update(f"{name}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    target = Path(context._temp_dir or "") / _archive_name(digest.hexdigest()[:16])
    if target.exists():  # by another stream's engine in this session
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
        # half of it, or one that Spark was not given, must not pass for one that was sent
        target.unlink(missing_ok=True)
        raise
    finally:
        sys.path[:] = before  # the driver itself goes on with its own files


def far(context: SparkContext) -> bool:
    """Whether tasks run elsewhere than in the driver's own process and its forks."""
    return not is_local(context.master or "")


def is_local(master: str) -> bool:
    """Whether tasks run on the driver's own machine, in forks of one process there."""
    return re.fullmatch(r"local(\[.*\])?", master) is not None


def bring(context: SparkContext) -> None:
    """For a session without an engine: :func:`ship`, if its tasks run elsewhere, and a look at the executors that are there.
    What an engine, or an earlier call, has sent in this session is enough. Raises UsageError."""
    sent = Path(context._temp_dir or "").glob(_archive_name("*"))
    if not far(context) or next(sent, None) is not None:
        return
    ship(context)
    if hosts := sorted(hosts_of(executors(context))):
        check(context, hosts)


def _archive_name(digest: str) -> str:
    return f"forebay-{version('forebay')}-{digest}.zip"


def _compiled(path: Path, name: str, folder: str) -> str | None:
    """Or each worker process would compile it anew. None if it can't be: a template, perhaps, that nobody imports."""
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    try:
        return py_compile.compile(str(path), f"{folder}/compiled", name, doraise=True, invalidation_mode=unchecked)
    except py_compile.PyCompileError:
        return None


def _sources() -> Iterator[tuple[Path, Path]]:
    """The folder that a package lies in, and each of its files."""
    for package in _PACKAGES:
        folder = Path(importlib.import_module(package).__file__ or "").parent
        for path in sorted(folder.rglob("*.py")):
            yield folder.parent, path


def _named(modules: Sequence[str]) -> Iterator[tuple[Path, Path]]:
    """As :func:`_sources`, of the user's own modules and packages; a package's other files come along."""
    for name in modules:
        refuse_own_name("spark.modules", name, name)
        try:
            found = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            found = None
        if found is None:
            raise UsageError(
                f"spark.modules: there is no module {name!r} where the driver runs: put its folder on PYTHONPATH"
            )
        origin = Path(found.origin or "")
        if origin.suffix != ".py" or not origin.is_file():
            raise UsageError(
                f"spark.modules: {name!r} is no module or package of Python files: install it where Spark's executors run"
            )
        if found.submodule_search_locations is None:
            yield origin.parent, origin
            continue
        for path in sorted(origin.parent.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield origin.parent.parent, path


def check(context: SparkContext, hosts: Sequence[str], modules: Sequence[str] = ()) -> None:
    """Looks at the Python of executors, one on each of ``hosts`` where that can be had. Raises UsageError."""
    rows = [(b"", (host,)) for host in hosts]
    try:
        found = partitions_on(context, rows).mapPartitions(_look((*_FIRST, *modules))).collect()
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


def _look(modules: Sequence[str]) -> Any:
    """A function that tells what a Python has, and whether ``modules`` can be imported there. It needs nothing of this project
    where it runs: made here, it travels as it is, not by its name."""

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
    if found.fault and found.module not in _FIRST:
        return (
            f"{where} can't import {found.module} ({found.fault}): install what it needs there, or name in spark.modules what "
            "of your own the driver shall bring"
        )
    if found.fault:
        return (
            f"{where} can't import forebay ({found.fault}): install forebay {release} with its packages there; with "
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
