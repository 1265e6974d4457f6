"""The check for a Java that Spark can run on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from forebay.model.errors import SettingsError, StoreError
from forebay.process.os_errors import failure

#: oldest Java that Spark 4 supports
JAVA_MIN = 17
_ANSWER_SECONDS = 60.0
_VERSION = re.compile(r'version "(?:1\.)?(\d{1,5})')
_INSTALL = "install Java 17 or 21, as in `apt-get install openjdk-17-jre-headless`"


class Java(NamedTuple):
    """A Java that runs. ``version``: its major version; None if it does not say."""

    path: str
    version: int | None


def check_java(environment: Mapping[str, str] | None = None) -> Java:
    """Return the Java that Spark will start. Raise SettingsError if there is none, if it does not run, or if it is too old.

    Raise StoreError if the system starts no process for a while, or if Java does not answer in time.
    """
    java = java_path(environment)
    try:
        done = subprocess.run(
            [java, "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_ANSWER_SECONDS,
            check=False,
        )
    except OSError as error:
        raise failure(f"driver.engine = 'spark': {java} can't be run", error, _INSTALL) from None
    except subprocess.TimeoutExpired:
        message = f"driver.engine = 'spark': {java} did not say its version within {_ANSWER_SECONDS:g} s"
        raise StoreError(f"{message}; check this host's load, disk and memory, and try again") from None
    version = _VERSION.search(done.stdout)
    if done.returncode != 0:
        reason = done.stdout.strip().partition("\n")[0] or f"exit code {done.returncode}"
        raise SettingsError(f"driver.engine = 'spark': {java} can't be run: {reason}; {_INSTALL}")
    if version is not None and int(version[1]) < JAVA_MIN:
        raise SettingsError(
            f"driver.engine = 'spark': {java} is Java {version[1]}, and Spark needs {JAVA_MIN}; {_INSTALL}"
        )
    return Java(java, int(version[1]) if version is not None else None)


def java_path(environment: Mapping[str, str] | None = None) -> str:
    """Return the path of the Java that Spark will start. Raise SettingsError if there is none."""
    environment = os.environ if environment is None else environment
    home = environment.get("JAVA_HOME", "")
    java = str(Path(home) / "bin" / "java") if home else ""
    if not home or not os.access(java, os.X_OK):
        java = shutil.which("java", path=environment.get("PATH", "")) or ""
    if not java:
        raise SettingsError(f"driver.engine = 'spark': no Java found in JAVA_HOME or on the PATH; {_INSTALL}")
    return java
