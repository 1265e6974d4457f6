"""Loads ``shim.c`` into a service's process: faults of its disk, and a log of its writes."""

from __future__ import annotations

import functools
import mmap
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from tests.conftest import missing

#: bits of the operations that a fault concerns
WRITE, SYNC, READ, OPEN, NAME = 1, 2, 4, 8, 16
_SOURCE = Path(__file__).with_name("shim.c")
_FAULT: Final = struct.Struct("=iiiiq104s")
_FAULTS = 8
_FLAGS = ("-std=gnu11", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror")


@functools.cache
def library() -> Path:
    """Return the compiled library. Skips the test, and fails in CI, if there is no C compiler or the system is not Linux."""
    compiler = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    if compiler is None or os.uname().sysname != "Linux":
        missing("a C compiler on Linux, for the library that makes disks faulty: apt-get install gcc libc6-dev")
    made = Path(tempfile.mkdtemp(prefix="forebay-shim-")) / "shim.so"
    done = subprocess.run(
        [str(compiler), *_FLAGS, "-o", str(made), str(_SOURCE), "-ldl", "-lpthread"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    return made


class Shim:
    """The faults of one process, or of several that share it. ``root``: the folder whose files the faults and the log concern.

    ``log``: a file that all processes of one host append to; None: no log.
    """

    def __init__(self, control: Path, root: Path, log: Path | None = None) -> None:
        self._control = control
        self._root = root
        self._log = log
        control.parent.mkdir(parents=True, exist_ok=True)
        control.write_bytes(bytes(mmap.PAGESIZE))
        with control.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        if log is not None:
            log.touch()

    @property
    def environment(self) -> dict[str, str]:
        """What the process needs in its environment."""
        found = {"LD_PRELOAD": str(library()), "FOREBAY_SHIM": str(self._control), "FOREBAY_SHIM_ROOT": str(self._root)}
        return found | ({"FOREBAY_SHIM_LOG": str(self._log)} if self._log is not None else {})

    def fail(
        self, operations: int, error: int = 0, *, part: str = "", times: int = -1, delay_ms: int = 0, place: int = 0
    ) -> None:
        """Let ``operations`` fail with the number ``error`` on paths that contain ``part``, after ``delay_ms``.

        ``times``: how often; -1: until :meth:`heal`. ``place``: up to eight faults exist side by side. With ``error`` 0 the
        operations are only slow.
        """
        self.heal(place)
        at = self._at(place)
        _FAULT.pack_into(self._memory, at, 0, error, times, delay_ms, 0, part.encode())
        struct.pack_into("=i", self._memory, at, operations)  # last: from now on it is read

    def hits(self, place: int = 0) -> int:
        """Return how often the fault has occurred."""
        return int(_FAULT.unpack_from(self._memory, self._at(place))[4])

    def heal(self, place: int = 0) -> None:
        """End a fault; the count of its hits stays until the next one."""
        struct.pack_into("=i", self._memory, self._at(place), 0)

    def close(self) -> None:
        self._memory.close()

    @staticmethod
    def _at(place: int) -> int:
        assert 0 <= place < _FAULTS
        return place * _FAULT.size
