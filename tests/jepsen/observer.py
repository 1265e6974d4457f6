"""What the drivers' status shows during a run, looked at from outside and written into a file."""

from __future__ import annotations

import json
import ssl
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

_PAUSE_SECONDS = 0.5
_ANSWER_SECONDS = 3.0


class Observer:
    """Asks each of ``urls`` in a thread of its own. ``latest``: the status with the highest epoch; None before the first one.
    ``seconds``: how long its answer took. ``errors``: driver → why its last answer was no status. ``epochs``: driver → the epoch
    in which it last led."""

    def __init__(self, urls: Mapping[str, str], certificates: Path, token: Callable[[], str], file: Path) -> None:
        self._context = ssl.create_default_context(cafile=str(certificates / "authority.pem"))
        self._context.load_cert_chain(certificates / "observer.pem", certificates / "observer.key")
        self._token = token
        self._file = file.open("w")
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self.latest: dict[str, Any] | None = None
        self.seconds = 0.0
        self.errors: dict[str, str] = {}
        self.epochs: dict[str, int] = {}
        self._threads = [
            threading.Thread(target=self._run, args=(name, url), name=f"observer of {name}", daemon=True)
            for name, url in urls.items()
        ]

    def __enter__(self) -> Observer:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._file.close()

    def completed(self) -> dict[tuple[str, int], int]:
        """Return partition → offset before which all is completed, of the newest incarnation, as last seen."""
        status = self.latest
        return {} if status is None else {(p["topic"], p["partition"]): p["completed"] for p in status["partitions"]}

    def _run(self, name: str, url: str) -> None:
        while not self._stopping.wait(_PAUSE_SECONDS):
            began = time.monotonic()
            request = urllib.request.Request(f"{url}/v1/status", headers={"Authorization": f"Bearer {self._token()}"})
            try:
                with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS, context=self._context) as answer:
                    status = json.load(answer)
            except (OSError, ValueError) as error:  # it does not lead, or is cut off, paused or down
                self.errors[name] = str(error)
                continue
            self._write(name, status, time.monotonic() - began)

    def _write(self, name: str, status: dict[str, Any], seconds: float) -> None:
        lines = [[p["topic"], p["partition"], p["life"], p["position"], p["completed"]] for p in status["partitions"]]
        row = {"at": time.monotonic(), "driver": name, "epoch": status["driver_epoch"], "partitions": lines}
        with self._lock:
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()
            self.epochs[name] = status["driver_epoch"]
            if self.latest is None or status["driver_epoch"] >= self.latest["driver_epoch"]:
                self.latest, self.seconds = status, seconds
