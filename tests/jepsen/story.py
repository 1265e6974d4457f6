"""The story of a run: what was done when, and what was seen, for a person to read and for the next run of the same seed."""

from __future__ import annotations

import json
import time
from pathlib import Path


class Story:
    """Lines of ``story.txt`` in ``folder``, also printed; times are seconds since the run began."""

    def __init__(self, folder: Path, quiet: bool = False) -> None:
        self._file = folder / "story.txt"
        self._quiet = quiet
        self._began = time.monotonic()
        self._ends: list[dict[str, object]] = []
        self.doing = "the start"

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def write(self, text: str) -> None:
        line = f"{self.seconds:7.1f}  {text}"
        with self._file.open("a") as file:
            file.write(line + "\n")
        if not self._quiet:
            print(line, flush=True)

    def ended(self, name: str, code: int, traceback: str, origin: str = "") -> None:
        """A process ended by itself. ``traceback``: the last line of the error in its log, if it has one. ``origin``: what it
        ran, if not this code: the checker does not judge it then."""
        if not origin:
            self._ends.append({"name": name, "code": code, "during": self.doing, "traceback": traceback})
        of_origin = f" of {origin}" if origin else ""
        self.write(f"{name}{of_origin} ended by itself with {code}{f': {traceback}' if traceback else ''}")

    def write_ends(self, path: Path) -> None:
        path.write_text(json.dumps(self._ends))
