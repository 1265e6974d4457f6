"""Finds Java, and fetches the listed jars of Apache Kafka and other servers of the tests once."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import urllib3

from forebay.model.errors import UsageError

KAFKA_VERSION = "4.1.0"
MAVEN_CENTRAL = "https://repo1.maven.org/maven2"

_JAVA_RELEASES = (17, 21)
_CONNECTIONS = 8
#: pause before the second request for a jar; it doubles before each later one
BACKOFF_SECONDS = 0.5
#: variables that name certificates to trust instead of the system's
_CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE")


def find_java() -> str:
    """Return the path of Java 17 or 21, by JAVA_HOME or PATH. Raises UsageError, which says what to install."""
    home = os.environ.get("JAVA_HOME")
    candidates = [str(Path(home) / "bin" / "java")] if home else []
    on_path = shutil.which("java")
    candidates += [on_path] if on_path else []
    seen: list[str] = []
    for java in candidates:
        try:
            release = _release(java)
        except OSError:
            continue
        if release in _JAVA_RELEASES:
            return java
        seen.append(f"{java} is Java {release or 'of an unknown release'}")
    found = f" ({'; '.join(seen)})" if seen else ""
    raise UsageError(
        f"Java 17 or 21 is needed and was not found{found}: "
        "install it (apt-get install -y openjdk-17-jre-headless) or set JAVA_HOME"
    )


@functools.cache
def _release(java: str) -> int:
    """Return the release of ``java``, 0 if it prints none. Raises OSError if it can't be run."""
    done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    match = re.search(r'version "(\d+)', done.stderr)
    return int(match[1]) if match else 0


def cache_directory(cache: str | Path | None = None) -> Path:
    """Return the folder of fetched files: ``cache``, else FOREBAY_CACHE, else ``.cache`` of a checkout, else the user's cache."""
    given = cache or os.environ.get("FOREBAY_CACHE")
    if given:
        return Path(given).resolve()
    root = Path(__file__).resolve().parents[3]
    if (root / "pyproject.toml").is_file():
        return (root / ".cache").resolve()  # Java's archives of classes hold the paths of their jars
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "forebay"


@dataclass(frozen=True, slots=True)
class Libraries:
    """Java libraries with their dependencies.

    ``name``: their folder in the cache, with the version. ``title``: for errors. ``lock``: a file of ``scripts/lock_jars.py``
    with a line for each jar: its SHA-256, two spaces, its path in a Maven repository (as ``sha256sum --check`` reads it).
    """

    name: str
    title: str
    lock: Path

    def folder(self, cache: str | Path | None = None) -> Path:
        """Return the folder of the jars, which may not exist yet."""
        return cache_directory(cache) / self.name / "libs"

    def present(self, cache: str | Path | None = None) -> bool:
        """Return whether all jars are fetched."""
        return (cache_directory(cache) / self.name / "complete").exists()

    @property
    def count(self) -> int:
        """The number of jars."""
        return len(self.lock.read_text().splitlines())

    def fetch(self, cache: str | Path | None = None, progress: Callable[[int], None] = lambda _: None) -> Path:
        """Fetch the jars if they are missing, from Maven Central or the repository in FOREBAY_MAVEN. Return their folder.

        Raises UsageError, which says what to do, if that fails or a jar differs from the listed one. Two processes may fetch at
        the same time: the first to finish provides the folder. ``progress``: called with 1 for each jar that was fetched.
        """
        libraries = self.folder(cache)
        target = libraries.parent
        if self.present(cache):
            return libraries
        work = target.with_name(f"{target.name}.{os.getpid()}")
        shutil.rmtree(work, ignore_errors=True)
        (work / "libs").mkdir(parents=True)
        try:
            with _pool() as pool, ThreadPoolExecutor(_CONNECTIONS) as threads:
                fetches = [
                    threads.submit(self._fetch, pool, line, work / "libs")
                    for line in self.lock.read_text().splitlines()
                ]
                try:
                    for fetched in as_completed(fetches):
                        fetched.result()
                        progress(1)
                except UsageError:
                    threads.shutdown(cancel_futures=True)
                    raise
            (work / "complete").touch()
            try:
                work.rename(target)
            except OSError:
                if not self.present(cache):  # an earlier, incomplete one is there
                    shutil.rmtree(target)
                    work.rename(target)
        finally:
            shutil.rmtree(work, ignore_errors=True)
        return libraries

    def _fetch(self, pool: urllib3.PoolManager, line: str, folder: Path) -> None:
        wanted, _, path = line.partition("  ")
        url = f"{os.environ.get('FOREBAY_MAVEN', MAVEN_CENTRAL).rstrip('/')}/{path}"
        try:
            answer = pool.request("GET", url)
        except urllib3.exceptions.HTTPError as error:
            raise UsageError(self._failed(url, str(error))) from None
        if answer.status != 200:
            raise UsageError(self._failed(url, f"status {answer.status} {answer.reason}"))
        found = hashlib.sha256(answer.data).hexdigest()
        if found != wanted:
            raise UsageError(f"{self.title}: {url} has the SHA-256 {found} instead of {wanted}: no jar was kept")
        (folder / path.rpartition("/")[2]).write_bytes(answer.data)

    def _failed(self, url: str, why: str) -> str:
        return (
            f"cannot fetch the jars of {self.title}: {url}: {why}\n"
            "retry with access to Maven Central, or name a mirror of it: FOREBAY_MAVEN=URL"
        )


KAFKA = Libraries(
    f"kafka-{KAFKA_VERSION}", f"Apache Kafka {KAFKA_VERSION}", Path(__file__).with_name("kafka.jars.lock")
)


def jars_present(cache: str | Path | None = None) -> bool:
    return KAFKA.present(cache)


def fetch_jars(cache: str | Path | None = None) -> Path:
    """Fetch Kafka's jars if they are missing, and return their folder (:meth:`Libraries.fetch`)."""
    return KAFKA.fetch(cache)


def _pool() -> urllib3.PoolManager:
    """Return a pool that trusts the certificates in the environment, else the system's."""
    bundle = next((os.environ[name] for name in _CERTIFICATE_VARIABLES if os.environ.get(name)), None)
    return urllib3.PoolManager(
        maxsize=_CONNECTIONS,
        block=True,
        ssl_context=ssl.create_default_context(cafile=bundle),
        timeout=urllib3.Timeout(connect=10, read=60),
        retries=urllib3.Retry(5, backoff_factor=BACKOFF_SECONDS, status_forcelist=(429, 500, 502, 503, 504)),
    )


def main() -> int:
    """``python -m forebay.kafka.embedded.jars``: fetch the jars and print their folder (make kafka, make test)."""
    try:
        print(fetch_jars())
    except UsageError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
