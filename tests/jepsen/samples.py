"""Samples of what must not grow during a soak run: processes, files of the store, and how long answers and batches take."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from pathlib import Path
from statistics import median

from tests.jepsen.observer import Observer
from tests.jepsen.world import STORE, STREAM, World

_EVERY_SECONDS_MAX, _SAMPLES_MIN = 5.0, 40
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: a series of this unit counts as growing from this growth on
FLOORS = {"MB": 8.0, "descriptors": 8.0, "threads": 4.0, "files": 20.0, "kB": 200.0, "ms": 100.0}


class Samples:
    """``series``: (name, unit) → (seconds, value). A process that was started again begins a new series, and so does a standby
    that begins to lead: then it holds the stream's state. ``seconds``: length of the run."""

    def __init__(self, world: World, observer: Observer, seconds: float) -> None:
        self._every = min(_EVERY_SECONDS_MAX, seconds / _SAMPLES_MIN)
        self.series: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
        self._world = world
        self._observer = observer
        self._due = 0.0
        self._epochs: dict[str, int | None] = {}

    def tick(self) -> None:
        """Take a sample if one is due."""
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + self._every
        at = self._world.story.seconds
        for name, pid in self._world.services.running().items():
            self._process(at, self._role(f"{name}, start {self._world.services[name].starts}", name), pid)
        self._store(at)
        status = self._observer.latest
        if status is not None:
            self.series["status answer", "ms"].append((at, self._observer.seconds * 1000))
            times = [b["total_delay_ms"] for b in status["batches"] if b["total_delay_ms"]]
            if times:
                self.series["total delay of a batch", "ms"].append((at, median(times)))

    def _role(self, process: str, name: str) -> str:
        """Return the name of the series of ``process``: another one since it leads, if it was a standby at its first sample."""
        epoch = self._observer.epochs.get(name)
        return process if self._epochs.setdefault(process, epoch) == epoch else f"{process}, leading"

    def _process(self, at: float, name: str, pid: int) -> None:
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            descriptors = len(os.listdir(f"/proc/{pid}/fd"))
            threads = len(os.listdir(f"/proc/{pid}/task"))
        except OSError:
            return  # it has just ended
        self.series[f"memory of {name}", "MB"].append((at, pages * _PAGE_BYTES / 1e6))
        self.series[f"descriptors of {name}", "descriptors"].append((at, descriptors))
        self.series[f"threads of {name}", "threads"].append((at, threads))

    def _store(self, at: float) -> None:
        """The store's own files: WAL segments, journal segments, snapshot copies. The history may grow (docs/scaling.md)."""
        if self._world.shape.store != "s3":
            return
        bucket = self._world.disks[STORE] / "objects" / "forebay"
        for name, folder in (
            ("WAL", bucket / "wal" / STREAM / "blocks"),
            ("journal", bucket / "journal" / STREAM),
            ("snapshot copies", bucket / "wal" / STREAM / "snapshots"),
        ):
            files = size = 0
            for path in folder.rglob("*"):
                if "history" in path.parts or path.parent.name == "epochs":
                    continue
                try:
                    found = path.stat()
                except FileNotFoundError:
                    continue  # deleted meanwhile
                if path.is_file():
                    files += 1
                    size += found.st_size
            self.series[f"files of {name}", "files"].append((at, files))
            self.series[f"size of {name}", "kB"].append((at, size / 1e3))
