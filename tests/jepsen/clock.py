"""The wall clock of a host, moved by libfaketime; the monotonic clock stays. ``python -m tests.jepsen.clock`` fetches it."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.support import debian

_PACKAGE, _LIBRARY = "libfaketime", "usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"


class HostClock:
    """The clock of the processes that were started with ``environment``. ``file``: holds how far it is off."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.move(0)

    def move(self, seconds: int) -> None:
        """Set the wall clock so many seconds ahead of the machine's."""
        temporary = self._file.with_suffix(".new")
        temporary.write_text(f"{seconds:+d}\n")
        temporary.replace(self._file)

    @property
    def environment(self) -> dict[str, str]:
        library = debian.found(_PACKAGE, _LIBRARY)
        assert library is not None
        return {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }


def available() -> bool:
    return debian.found(_PACKAGE, _LIBRARY) is not None


if __name__ == "__main__":
    sys.exit(debian.main(lambda: print(debian.unpacked(_PACKAGE, _LIBRARY))))
