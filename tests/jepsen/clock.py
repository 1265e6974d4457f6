"""The wall clock of a host, which a fault moves; the monotonic clock stays.

A library that is loaded before the C library (``clock.c``) moves the time by what a file says.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("clock.c")
_BYTES = 8


class HostClock:
    """The clock of the processes that were started with ``environment``. ``file``: how far it is ahead, in seconds."""

    def __init__(self, library: Path, file: Path) -> None:
        self._file = file
        file.write_bytes(bytes(_BYTES))
        self.environment = {"LD_PRELOAD": str(library), "FOREBAY_TEST_CLOCK": str(file)}

    def move(self, seconds: int) -> None:
        """Set the wall clock so many seconds ahead of the machine's, from now on."""
        with self._file.open("r+b") as file:  # written in place: the processes have it mapped
            file.write(seconds.to_bytes(_BYTES, "little", signed=True))


def build(folder: Path) -> Path | None:
    """Return the library, compiled into ``folder``; None without a C compiler, or on another kind of machine."""
    compiler = shutil.which("cc")
    if compiler is None or platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc":
        return None
    library = folder / "clock.so"
    command = [compiler, "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(library), str(_SOURCE)]
    subprocess.run(command, check=True)
    return library
