"""Ports for the servers of tests."""

from __future__ import annotations

import fcntl
import itertools
import os
import socket
import tempfile
from functools import cache
from pathlib import Path
from typing import TextIO

#: below those of the embedded Kafka and of the demo, and of outgoing connections: no client takes one while its server restarts
_LOW, _HIGH = 12_000, 20_000
#: more than a process of a run has servers at the same time
_EACH = 160

_tried = itertools.count()


@cache
def _own_range() -> tuple[int, TextIO]:
    """Return the first port of a range that no other process on this machine uses, and the file whose lock keeps it so."""
    folder = Path(tempfile.gettempdir()) / f"forebay-test-ports-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    for first in range(_LOW, _HIGH, _EACH):
        file = (folder / str(first)).open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            continue
        return first, file
    raise AssertionError(f"all {(_HIGH - _LOW) // _EACH} ranges of ports are locked in {folder}")


def free_port() -> int:
    """Return a free loopback port, which no other test process of this machine gets, nor this one again soon."""
    first, _ = _own_range()
    for _ in range(_EACH):
        port = first + next(_tried) % _EACH
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError("no free port on loopback")
