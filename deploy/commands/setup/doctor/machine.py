"""Python, packages, Java and limits of this machine."""

from __future__ import annotations

import os
import platform
import re
import resource
import struct
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version

from deploy.commands.setup.doctor.findings import Finding
from driver.spark.java.check import JAVA_MIN, check_java
from forebay.model.errors import SettingsError, StoreError
from forebay.settings.schema import Settings

#: Java releases on which Spark 4 is tested
JAVA_TESTED = (17, 21)
#: open files that a busy service needs at least: connections, segments, and the local copies that tasks read
OPEN_FILES_MIN = 4_096
_AREA = "machine"
#: name, and the part with the bounds, of a requirement without a condition
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*([^;\[\]]*)")
_BOUND = re.compile(r"(>=|<=|==|!=|<|>)\s*([0-9]+(?:\.[0-9]+)*)")


def check_machine(settings: Settings | None) -> Iterator[Finding]:
    """Yield the findings about this machine. ``settings``: None if the configuration is wrong; Java is then not checked."""
    yield _python()
    yield from check_packages()
    if settings is not None and settings.driver.engine == "spark":
        yield _java()
    yield _open_files()


def _python() -> Finding:
    text = f"Python {platform.python_version()} ({sys.executable}), forebay {version('forebay')}, {platform.platform()}"
    if struct.calcsize("P") < 8:
        step = "install a 64-bit Python; WAL segments and blocks are mapped into memory"
        return Finding(_AREA, "python", "wrong", f"{text}: this Python is a 32-bit program", step)
    workers = os.environ.get("PYSPARK_PYTHON", "")
    detail = f"{text}; Spark's workers run {workers}" if workers else text
    return Finding(_AREA, "python", "fine", detail)


def check_packages(distribution: str = "forebay") -> Iterator[Finding]:
    """Yield a finding for each required package that is missing or has the wrong release; if there is none, one for all."""
    found = {}
    faults = False
    for requirement in requires(distribution) or ():
        named = _REQUIREMENT.match(requirement)
        if named is None or ";" in requirement:  # only on some Pythons, or of an extra
            continue
        name, bounds = named[1], named[2].strip()
        step = f"pip install '{name}{bounds}'"
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            faults = True
            yield Finding(_AREA, "packages", "wrong", f"{name} is not installed", step)
            continue
        if not fits(found[name], bounds):
            faults = True
            detail = f"{name} is {found[name]}, but forebay {version('forebay')} needs {bounds}"
            yield Finding(_AREA, "packages", "wrong", detail, step)
    if not faults:
        shown = ("pyspark", "confluent-kafka", "pyarrow", "s3fs", "hdfs-native", "msgspec", "litestar")
        detail = ", ".join(f"{name} {found[name]}" for name in shown if name in found)
        yield Finding(_AREA, "packages", "fine", f"all {len(found)} required packages fit: {detail}, …")


def fits(installed: str, bounds: str) -> bool:
    """Return whether a release is within ``bounds`` such as ``>=4.0,<4.4``. Only the numbers of a release count."""
    have = _numbers(installed)
    for operator, text in _BOUND.findall(bounds):
        bound = _numbers(text)
        length = max(len(have), len(bound))
        left, right = (tuple(list(one) + [0] * (length - len(one))) for one in (have, bound))
        compared = (left > right) - (left < right)
        if compared not in _ALLOWED[operator]:
            return False
    return True


#: operator → allowed results of the comparison of the installed release with the bound
_ALLOWED = {">=": (0, 1), "<=": (-1, 0), "==": (0,), "!=": (-1, 1), "<": (-1,), ">": (1,)}


def _numbers(release: str) -> tuple[int, ...]:
    found = re.match(r"[0-9]+(?:\.[0-9]+)*", release)
    return tuple(int(part) for part in found[0].split(".")) if found else ()


def _java() -> Finding:
    try:
        java = check_java()
    except SettingsError as error:
        return Finding(_AREA, "java", "wrong", str(error), "install Java 17 or 21, or set JAVA_HOME to one")
    except StoreError as error:  # as without memory for another process
        return Finding(_AREA, "java", "wrong", str(error), "check this machine's memory and limits, and try again")
    if java.version is None:
        return Finding(
            _AREA, "java", "note", f"{java.path} does not say its version", f"Spark needs Java {JAVA_MIN} or newer"
        )
    text = f"Java {java.version} ({java.path})"
    if java.version not in JAVA_TESTED:
        step = f"use Java {' or '.join(map(str, JAVA_TESTED))}, on which Spark 4 is tested"
        return Finding(_AREA, "java", "note", text, step)
    return Finding(_AREA, "java", "fine", text)


def _open_files() -> Finding:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= limit < OPEN_FILES_MIN:
        step = "raise it for the services (LimitNOFILE= of a systemd unit, or `ulimit -n`)"
        return Finding(_AREA, "open files", "note", f"a process may have only {limit} open files", step)
    text = "no limit" if limit == resource.RLIM_INFINITY else f"at most {limit} for a process"
    return Finding(_AREA, "open files", "fine", text)
