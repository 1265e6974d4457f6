"""Ports for the servers of tests."""

from __future__ import annotations

import itertools
import os
import socket

from tests.support.shares import WORKERS_MAX, worker_number

#: below those of the embedded Kafka and of the demo, and of outgoing connections: no client takes one while its server restarts
_LOW, _HIGH = 12_000, 20_000
_EACH = (_HIGH - _LOW) // WORKERS_MAX

_tried = itertools.count(os.getpid() * 79)


def free_port() -> int:
    """A free loopback port, which no other process of the same run is given, nor the same one again soon."""
    first = _LOW + worker_number() % WORKERS_MAX * _EACH
    for _ in range(_EACH):
        port = first + next(_tried) % _EACH
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise AssertionError("no free port on loopback")
