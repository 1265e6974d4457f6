"""Proxies between a store's client and an S3 server, by what they do to each request (``make test-variety``).

Each one listens on loopback as long as its context, and yields its port.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeAlias

from tests.support.servers import nginx
from tests.support.stores.fault_proxy import FaultProxy

#: given a folder for its files and the port of the server, yields the port of what is before it
Before: TypeAlias = Callable[[Path, int], AbstractContextManager[int]]

_WRITES = ("PUT", "POST", "DELETE")
_OVERTAKEN_SECONDS, _LATE_SECONDS = 0.1, 0.7


@contextmanager
def nothing(folder: Path, port: int) -> Iterator[int]:
    yield port


@contextmanager
def _repeating(folder: Path, port: int) -> Iterator[int]:
    """Each request is carried out twice: the client of a conditional PUT learns that its object exists."""
    with FaultProxy(port) as proxy:
        proxy.arm("twice")
        yield proxy.port


@contextmanager
def _reordering(folder: Path, port: int) -> Iterator[int]:
    """Each second request waits until a later one was carried out."""
    with FaultProxy(port) as proxy:
        proxy.arm("overtaken", every=2, seconds=_OVERTAKEN_SECONDS)
        yield proxy.port


@contextmanager
def _late(folder: Path, port: int) -> Iterator[int]:
    """Each seventh write is answered with 504 and carried out later, after the client has sent it again."""
    with FaultProxy(port) as proxy:
        for verb in _WRITES:
            proxy.arm("late", verb, every=7, status=504, seconds=_LATE_SECONDS)
        yield proxy.port


@contextmanager
def _losing(folder: Path, port: int) -> Iterator[int]:
    """Each seventh write is carried out, and its answer is lost."""
    with FaultProxy(port) as proxy:
        for verb in _WRITES:
            proxy.arm("reset-after", verb, every=7)
        yield proxy.port


@contextmanager
def _nginx(folder: Path, port: int) -> Iterator[int]:
    """nginx reads each body before it sends it on. Every second write goes to a server that carries it out and does not answer:
    nginx sends it again to the other."""
    with FaultProxy(port) as silent:
        for verb in _WRITES:
            silent.arm("reset-after", verb)
        with nginx.repeating_proxy(folder / "nginx", silent.port, port) as before:
            yield before


PROXIES: dict[str, Before] = {
    "repeating": _repeating,
    "reordering": _reordering,
    "late": _late,
    "losing": _losing,
    "nginx": _nginx,
}
