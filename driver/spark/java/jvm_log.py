"""The lines that Spark's JVM writes to stderr, as events of this process's log."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterator, Sequence
from typing import IO

#: Log4j's default line: date, time, level, class, text
_EVENT = re.compile(r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (TRACE|DEBUG|INFO|WARN|ERROR|FATAL) ([\w.$]+): (.*)")
_LEVELS = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
#: parts of lines of every normal start, which ask for nothing
_USUAL = (
    "WARNING: Using incubator modules: jdk.incubator.vector",
    "Using Spark's default log4j profile",
    "Setting default log level to",
    "To adjust logging level use",
    "Unable to load native-hadoop library for your platform",
    "Your hostname, ",
    "Set SPARK_LOCAL_IP if you need to bind to another address",
)
#: the warning about a task of a small batch (``driver.spark.small``), which has the batch's columns
_LARGE_TASK = re.compile(r"Stage \d+ contains a task of very large size \(\d{4} KiB\)")
#: beginnings of lines about the end of the JVM, of one of its threads or of a Python worker
_ENDS = ("#", "Exception in thread ", "Fatal Python error", "Traceback ")
#: maximum number of bytes that are read together
_READ_BYTES = 65_536


class JvmLog:
    """A pipe for the stderr of a JVM that this process starts, and the thread that logs what arrives there.

    Pass :attr:`stderr` to the JVM's ``Popen``, and call :meth:`follow` when the JVM was started. The thread ends when the JVM and
    all its children have ended.
    """

    def __init__(self) -> None:
        read, write = os.pipe()
        self.stderr: IO[bytes] = os.fdopen(write, "wb", buffering=0)
        self._read = read
        self._thread = threading.Thread(target=self._run, name="jvm-log", daemon=True)

    def follow(self) -> None:
        """Log the lines from now on. Lines written since the start of the JVM are not lost."""
        self.stderr.close()  # only the JVM has the pipe's end from now on
        self._thread.start()

    def _run(self) -> None:
        rest = b""
        while chunk := os.read(self._read, _READ_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            log_lines([line.decode("utf-8", "replace").rstrip("\r") for line in lines])
        if rest:
            log_lines([rest.decode("utf-8", "replace")])
        os.close(self._read)


def log_lines(lines: Sequence[str]) -> None:
    """Log lines of the JVM. Lines after an event of Log4j, such as Java's stack, belong to it."""
    for level, name, text in events(lines):
        logging.getLogger(f"spark.{name}" if name else "spark").log(level, "%s", text)


def events(lines: Sequence[str]) -> Iterator[tuple[int, str, str]]:
    """Yield level, class and text of each event in ``lines``.

    A line that is not of Log4j has no class, and level INFO, or ERROR if it is about the end of a process.
    """
    found: tuple[int, str, list[str]] | None = None
    for line in lines:
        match = _EVENT.fullmatch(line)
        if match is None and found is not None and line.startswith(("\t", "    ", "Caused by: ")):
            found[2].append(line)
            continue
        if found is not None:
            yield found[0], found[1], "\n".join(found[2])
            found = None
        if not line.strip():
            continue
        usual = any(part in line for part in _USUAL) or _LARGE_TASK.search(line) is not None
        if match is None:
            yield logging.DEBUG if usual else logging.ERROR if line.startswith(_ENDS) else logging.INFO, "", line
        else:
            found = (logging.DEBUG if usual else _LEVELS[match[1]], match[2], [match[3]])
    if found is not None:
        yield found[0], found[1], "\n".join(found[2])
