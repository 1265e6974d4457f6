"""Spark with its own Kafka source, to compare with: an environment with that release of pyspark, and the jars of the source.

It is made once, in the cache; ``python -m tests.support.spark.jvm_spark`` makes it (make services, make test in CI).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import venv
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

from forebay.kafka.embedded.jars import Libraries, cache_directory, find_java
from forebay.model.errors import UsageError
from tests.support.servers import debian

#: the newest release whose source Maven Central has with all that it needs
VERSION = "4.0.0"

CONNECTOR = Libraries(
    f"spark-kafka-{VERSION}", f"Spark's Kafka source {VERSION}", Path(__file__).with_name("spark_kafka.jars.lock")
)
_REQUIREMENTS = f"""\
pyspark=={VERSION} --hash=sha256:38db1b4f6095a080d7605e578d775528990e66dc326311d93e94a71cfc24e5a5
py4j==0.10.9.9 --hash=sha256:c7c26e4158defb37b0bb124933163641a2ff6e3a3913f7811b0ddbe07ed61533
"""
_INSTALL_SECONDS = 1200.0
_ROOT = Path(__file__).parents[3]


def _folder() -> Path:
    return cache_directory() / f"pyspark-{VERSION}-python{sys.version_info[0]}.{sys.version_info[1]}"


def python() -> Path:
    """The environment's Python, once it is made."""
    return _folder() / "bin" / "python"


def present() -> bool:
    return CONNECTOR.present() and (_folder() / "complete").exists()


def make() -> Path:
    """Makes what is not there yet; the environment's Python. Raises UsageError that says what failed."""
    CONNECTOR.fetch()
    target = _folder()
    if (target / "complete").exists():
        return python()
    print(f"fetching pyspark {VERSION} to compare with, once: this takes a minute or two", file=sys.stderr, flush=True)
    work = target.with_name(f"{target.name}.{os.getpid()}")
    shutil.rmtree(work, ignore_errors=True)
    try:
        venv.create(work, symlinks=True, with_pip=True)
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
            requirements.write(_REQUIREMENTS)
            requirements.flush()
            command = [str(work / "bin" / "python"), "-m", "pip", "install", "-q", "--no-cache-dir", "--require-hashes"]
            _run([*command, "-r", requirements.name])
        (work / "complete").touch()
        try:
            work.rename(target)  # its Python finds its packages by its own place
        except OSError:
            if not (target / "complete").exists():  # an earlier, incomplete one is there
                shutil.rmtree(target)
                work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return python()


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_SECONDS, check=False)
        output, failed = done.stdout + done.stderr, done.returncode != 0
    except (OSError, subprocess.TimeoutExpired) as error:
        output, failed = str(error), True
    if failed:
        raise UsageError(f"pyspark {VERSION} could not be installed: {' '.join(command)}: {output.strip()[-1500:]}")


def require_jvm_spark(missing: Callable[[str], None]) -> None:
    """Calls ``missing`` if Java or the environment is not here; in CI it is made if need be."""
    try:
        find_java()
        if not present():
            if os.environ.get("CI", "").lower() not in ("1", "true"):
                missing(
                    f"pyspark {VERSION} is not here: run `make services`, or python -m tests.support.spark.jvm_spark"
                )
            make()
    except UsageError as error:
        missing(str(error))


#: settings that docs/STREAMING.md recommends for sessions with many rows from Python sources
FAST_PYTHON = {"spark.python.unix.domain.socket.enabled": "true"}


class SparkProcess:
    """A process that answers queries (``tests.support.spark.queries``), one after another, until it is closed.

    ``source``: "kafka", Spark's own by the release here, or "forebay", by the one of this process. ``conf``: further settings
    of the session.
    """

    def __init__(self, source: str, folder: Path, conf: Mapping[str, str] = MappingProxyType({})) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log_file = folder / f"{source}.log"
        interpreter = str(python()) if source == "kafka" else sys.executable
        jars = sorted(CONNECTOR.folder().glob("*.jar")) if source == "kafka" else []
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        environment |= {"PYTHONPATH": str(_ROOT), "PYSPARK_PYTHON": interpreter}
        own = {"spark.sql.warehouse.dir": str(folder / "warehouse")}
        if jars:
            own["spark.jars"] = ",".join(map(str, jars))
        self._turn = threading.Lock()
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [interpreter, "-m", "tests.support.spark.queries", source, json.dumps({**own, **conf})],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=folder, env=environment, text=True,
                start_new_session=True,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """The process, whose child is Spark's JVM."""
        return self._process.pid

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """The answer of ``tests.support.spark.queries.answer``. From any thread."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with self._turn:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        assert line, f"the process has ended: {self.log_file.read_text()[-3000:]}"
        found: dict[str, Any] = json.loads(line)
        assert "failed" not in found, found["failed"]
        return found

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()  # it stops Spark and ends
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> SparkProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


if __name__ == "__main__":
    sys.exit(debian.main(lambda: print(make())))
