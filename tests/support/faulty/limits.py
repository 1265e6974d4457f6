"""Limits of the kernel on a running process: its memory, by a cgroup, and its file descriptors."""

from __future__ import annotations

import errno
import itertools
import os
import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.conftest import missing

_V1, _V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
_numbers = itertools.count()
_REMOVAL_SECONDS = 10.0
#: numbers of standard input, output and error, which every process has open: all lower than this one
_STANDARD_DESCRIPTORS = 3


class MemoryGroup:
    """A cgroup for one process and its children. The kernel kills one of them when they need more than the limit."""

    def __init__(self, folder: Path, limit_file: str, usage_file: str) -> None:
        self._folder = folder
        self._limit_file = limit_file
        self._usage_file = usage_file

    def add(self, pid: int) -> None:
        """Add a process; pages that it has already are not counted, those it gets from now on are."""
        (self._folder / "cgroup.procs").write_text(str(pid))

    def command(self, command: Sequence[str]) -> list[str]:
        """Return ``command`` so that it is in the group from its first page on."""
        return ["sh", "-c", 'echo $$ > "$0"; exec "$@"', str(self._folder / "cgroup.procs"), *command]

    def limit(self, size_bytes: int) -> None:
        """Set the limit. If the processes use more, the kernel frees what it can before this call returns."""
        swap = self._folder / "memory.swap.max"
        if swap.exists():
            swap.write_text("0")
        try:
            (self._folder / self._limit_file).write_text(str(size_bytes))
        except OSError as error:
            if error.errno != errno.EBUSY:  # version 1: more is used than can be freed
                raise

    @property
    def usage_bytes(self) -> int:
        return int((self._folder / self._usage_file).read_text())

    @property
    def peak_bytes(self) -> int:
        """The most that was ever used."""
        for name in ("memory.max_usage_in_bytes", "memory.peak"):
            if (self._folder / name).exists():
                return int((self._folder / name).read_text())
        raise AssertionError("this kernel does not count the peak of a cgroup")

    @property
    def kills(self) -> int:
        """How many processes the kernel has killed for lack of memory."""
        for name in ("memory.oom_control", "memory.events"):
            file = self._folder / name
            if file.exists():
                counts = dict(line.split() for line in file.read_text().splitlines())
                return int(counts["oom_kill"])
        raise AssertionError("this kernel does not count kills in a cgroup")


@contextmanager
def memory_group() -> Iterator[MemoryGroup]:
    """Make a cgroup, and remove it at the end. Skips the test if none can be made here."""
    v1 = (_V1 / "memory.limit_in_bytes").exists()
    folder = (_V1 if v1 else _V2) / f"forebay-test-{os.getpid()}-{next(_numbers)}"
    files = ("memory.limit_in_bytes", "memory.usage_in_bytes") if v1 else ("memory.max", "memory.current")
    try:
        folder.mkdir()
    except OSError as error:
        missing(f"a cgroup of its own, whose memory a test limits: {error}")
    try:
        if not (folder / files[0]).exists():
            missing(f"the memory controller of cgroups: {folder} has no {files[0]}")
        yield MemoryGroup(folder, *files)
    finally:
        deadline = time.monotonic() + _REMOVAL_SECONDS
        while True:
            try:
                folder.rmdir()
                break
            except OSError as error:  # a process in it has been killed and has not been removed yet
                if error.errno != errno.EBUSY or time.monotonic() > deadline:
                    raise
            time.sleep(0.02)


@contextmanager
def no_more_descriptors(pid: int) -> Iterator[None]:
    """Let a process open nothing more: what it opens fails with EMFILE, also after it has closed something.

    What is open stays open.
    """
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (_STANDARD_DESCRIPTORS, before[1]))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):  # it has ended
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
