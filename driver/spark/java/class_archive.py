"""Archives of Java's classes, with which Spark's JVM starts faster: "Class Data Sharing" in Java's guide to its virtual machine.

An archive fits one Java and one list of jars. Its name is ``spark-FITS-CONTENT.jsa``: a digest of what it fits, and one of its
content. So a rename makes it visible whole, and a damaged one is not used. The archive is code that the driver runs: it is used
only if no other user can write it. The JVM ignores an archive that does not fit, and starts all the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import mmap
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark
import xxhash
from pyspark.find_spark_home import _find_spark_home

from driver.spark.java.check import java_path
from forebay.model.errors import ForebayError
from forebay.process.clock import SystemClock
from forebay.process.memory import free_bytes
from forebay.process.tether import tethered

log = logging.getLogger(__name__)

#: memory and space that must be free before an archive is made; it takes about half of each
MEMORY_MIN, SPACE_MIN = 1_500_000_000, 500_000_000
#: archives that stay in a folder: while a stream is upgraded, two releases may start in turn
KEPT = 2
#: an unfinished archive that is older was left by a process that was killed
_LEFT_SECONDS = 86_400.0
_MAKING_SECONDS = 900.0
_LOOK_SECONDS = 0.5
_ERROR_CHARACTERS = 500
#: several streams of a process make their archive in turn, so the second one finds it
_MAKING = threading.Lock()
#: variables and options of Spark from which the JVM takes options
_VARIABLES = ("SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS")
_OPTIONS = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")
_SHARING = ("SharedArchiveFile", "ArchiveClassesAtExit", "-Xshare", "RecordDynamicDumpInfo")
_NAME = re.compile(r"spark-[0-9a-f]{16}-([0-9a-f]{16})\.jsa")
_UNFINISHED = "unfinished-"
#: the JVM reports to stdout otherwise why it ignores an archive
_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
_MAKER = "from forebay_start import find_first; find_first(); from driver.spark.java.class_loading import main; main()"


class ClassArchive:
    """The archive in ``folder`` for the Java and the jars of a new Spark session with ``options``. Thread-safe."""

    def __init__(self, folder: Path, options: Mapping[str, str], environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self._options = options
        self._environment = os.environ if environment is None else environment
        self._used: Path | None = None

    def java_options(self) -> tuple[str, ...]:
        """Return the options of a JVM that uses the archive; () without a usable one."""
        try:
            self._used = path = self.find()
        except (OSError, ForebayError) as error:
            log.warning("spark.class_archive: Spark starts without an archive of classes: %s", error)
            return ()
        return () if path is None else (f"-XX:SharedArchiveFile={path}", *_QUIET)

    def find(self) -> Path | None:
        """Return the archive; None if there is none, or if the user's own options name one. Raises UsageError without Java,
        OSError."""
        if self._chosen_by_user() or not self.folder.is_dir():
            return None
        _check_owner(self.folder.stat(), self.folder)
        prefix = f"spark-{self._fits()}-"
        for path in _newest(self.folder):
            if path.name.startswith(prefix):
                if _is_whole(path):
                    return path
                log.warning("spark.class_archive: %s is damaged, so it is deleted, and made again", path)
                _discard(path)
        return None

    def discard(self) -> None:
        """Delete the archive that :meth:`java_options` named, since no JVM starts with it."""
        if self._used is not None:
            _discard(self._used)

    def make(self, stopping: threading.Event) -> Path | None:
        """Make the archive if there is none, by another Spark that runs the queries of ``driver.spark.warming`` at the lowest
        priority. Return it; None if the user's own options name one, if memory or space are short, or if ``stopping`` is set.

        Raises OSError, ForebayError with the reason if it can't be made.
        """
        if self._chosen_by_user():
            return None
        while not _MAKING.acquire(timeout=_LOOK_SECONDS):  # another stream of this process makes one
            if stopping.is_set():
                return None
        try:
            return self._make(stopping)
        finally:
            _MAKING.release()

    def _make(self, stopping: threading.Event) -> Path | None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if (found := self.find()) is not None:
            return found
        memory, space = free_bytes(), shutil.disk_usage(self.folder).free
        if memory < MEMORY_MIN or space < SPACE_MIN:
            log.info(
                "makes no archive of classes: %d MB of memory and %d MB of space are free",
                memory // 10**6,
                space // 10**6,
            )
            return None
        _delete_left(self.folder)
        with tempfile.TemporaryDirectory(prefix=_UNFINISHED, dir=self.folder) as unfinished:
            made = Path(unfinished) / "spark.jsa"
            if not self._load_classes(made, stopping):
                return None
            made.chmod(0o400)
            _sync(made)
            path = made.rename(self.folder / f"spark-{self._fits()}-{_digest(made)}.jsa")
            _sync(self.folder)
        for other in _newest(self.folder)[KEPT:]:
            _discard(other)
        return path

    def _chosen_by_user(self) -> bool:
        texts = [self._environment.get(name, "") for name in _VARIABLES]
        texts += [self._options.get(name, "") for name in _OPTIONS]
        return any(option in text for option in _SHARING for text in texts)

    def _fits(self) -> str:
        """Return a digest of Java, its release, and the class path."""
        java = Path(java_path(self._environment)).resolve()
        release = java.parents[1] / "release"
        home = Path(_find_spark_home())
        files = [java, *sorted((home / "jars").iterdir())]
        about: list[Any] = [
            pyspark.__version__,
            str(home),
            release.read_text(errors="replace") if release.is_file() else "",
            self._options.get("spark.driver.extraClassPath", ""),
            [(str(path), (status := path.stat()).st_size, status.st_mtime_ns) for path in files],
        ]
        return hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]

    def _load_classes(self, made: Path, stopping: threading.Event) -> bool:
        """Run Spark until it has written ``made``. Return False if ``stopping`` ended it."""
        options = shlex.join((f"-XX:ArchiveClassesAtExit={made}", "-XX:TieredStopAtLevel=1", *_QUIET))
        environment = {**self._environment, "SPARK_SUBMIT_OPTS": options, "PYSPARK_PYTHON": sys.executable}
        class_path = self._options.get("spark.driver.extraClassPath", "")
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                tethered([sys.executable, "-c", _MAKER, class_path]),
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True,
            )  # fmt: skip
            clock = SystemClock()
            deadline = clock.monotonic() + _MAKING_SECONDS
            try:
                while process.poll() is None:
                    if stopping.wait(_LOOK_SECONDS):
                        return False
                    if clock.monotonic() > deadline:
                        raise ForebayError(f"it was not made within {_MAKING_SECONDS:g} s")
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if process.returncode != 0 or not made.exists():
                output.seek(0)
                text = output.read().decode(errors="replace").strip()[-_ERROR_CHARACTERS:]
                raise ForebayError(f"Spark ended with exit code {process.returncode} and wrote no archive: {text}")
        return True


def _newest(folder: Path) -> list[Path]:
    """Return the archives in ``folder``, the newest first."""
    found: list[tuple[float, Path]] = []
    for path in folder.iterdir():
        if _NAME.fullmatch(path.name):
            with contextlib.suppress(FileNotFoundError):  # another driver deleted it
                found.append((path.lstat().st_mtime, path))
    return [path for _, path in sorted(found, reverse=True)]


def _discard(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("spark.class_archive: cannot delete %s: %s", path, error.strerror)


def _delete_left(folder: Path) -> None:
    for path in folder.glob(f"{_UNFINISHED}*"):
        with contextlib.suppress(FileNotFoundError):
            if SystemClock().wall_ms() / 1000.0 - path.lstat().st_mtime > _LEFT_SECONDS:
                shutil.rmtree(path)


def _is_whole(path: Path) -> bool:
    """Return whether the content fits the name. Raises ForebayError if others can write the file, OSError."""
    match = _NAME.fullmatch(path.name)
    return match is not None and _digest(path) == match[1]


def _digest(path: Path) -> str:
    """Return the digest of a file that only this user or root can write. Raises ForebayError for any other, OSError."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        _check_owner(status, path)
        if not stat.S_ISREG(status.st_mode) or not status.st_size:
            return ""
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return xxhash.xxh3_64_hexdigest(content)


def _check_owner(status: os.stat_result, path: Path) -> None:
    if status.st_uid not in (0, os.geteuid()):
        raise ForebayError(f"{path} belongs to another user ({status.st_uid}): set a folder of this user")
    if status.st_mode & 0o022:
        raise ForebayError(f"other users can write {path}: run `chmod go-w {path}`")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
