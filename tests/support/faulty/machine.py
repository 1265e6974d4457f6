"""A stream's real processes on a faulty machine: each has a shim (tests/support/faulty/shim.py) that the test steers by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.faulty.shim import Shim
from tests.support.faulty.write_log import Record, read_log
from tests.support.processes.cluster import Cluster


class FaultyCluster(Cluster):
    """``logged``: all processes append to one log of writes."""

    def __init__(
        self, folder: Path, options: Mapping[str, str], topics: Sequence[str], *, logged: bool = False, **settings: Any
    ) -> None:
        super().__init__(folder, options, topics, start=False, **settings)
        self._write_log = folder.with_name(f"{folder.name}.log") if logged else None
        self.shims = {
            name: Shim(folder.with_name(f"{folder.name}.{name}.shim"), folder, self._write_log) for name in self.names
        }

    def __enter__(self) -> FaultyCluster:
        super().__enter__()
        for name in self.names:
            self.start(name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        for shim in self.shims.values():
            shim.close()

    def start(
        self,
        name: str,
        *more: str,
        failpoints: str = "",
        environment: Mapping[str, str] | None = None,
        keep: bool = True,
    ) -> None:
        own = self.shims[name].environment if name in self.shims else {}
        super().start(name, *more, failpoints=failpoints, environment={**own, **(environment or {})}, keep=keep)

    def write_log(self) -> list[Record]:
        """Return what all processes have written so far."""
        assert self._write_log is not None
        return read_log(self._write_log, self.folder)
