"""``pyspark.daemon`` with workers that find Forebay's own packages first; named by ``spark.python.daemon.module``."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Callable

from forebay_start import find_first


def ends_quietly(worker: Callable[[socket.socket, bool], int]) -> Callable[[socket.socket, bool], int]:
    """Return ``worker`` of ``pyspark.daemon`` without its traceback when Spark needs no further rows, as after ``df.show(3)``.

    Spark then closes the connection, on which the worker still writes. The worker process ends either way.
    """

    def run(connection: socket.socket, authenticated: bool) -> int:
        try:
            return worker(connection, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            return 1  # ends the process

    return run


def load_worker() -> None:
    """Import what each worker imports first, once for all workers that are forked later.

    It starts no thread, since a fork copies only the thread that forks. NumPy and pyarrow start some, so each worker imports
    them itself.
    """
    importlib.import_module("pyspark.worker")


if __name__ == "__main__":
    find_first()
    load_worker()
    from pyspark import daemon

    daemon.worker = ends_quietly(daemon.worker)  # type: ignore[assignment]
    daemon.manager()
