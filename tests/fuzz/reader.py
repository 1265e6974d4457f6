"""A reader of foreign bytes as the fuzzer calls it: valid bytes to begin with, the call, and the errors that it documents."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.fuzz.mutation import mutated, with_checksums
from wal.storage import MemoryStorage

_names = itertools.count()


@dataclass(frozen=True, kw_only=True)
class Reader:
    """One reader.

    ``honest``: valid bytes. ``refused``: bytes that are mutated too, and raise one of ``allowed`` as they are. ``read``: the
    call. ``allowed``: the errors of its docstring. ``framed``: the bytes have frames with checksums. ``cost``: how many attempts
    of a fast reader take as long as one of this one.
    """

    honest: tuple[bytes, ...]
    read: Callable[[bytes], Any]
    allowed: tuple[type[Exception], ...]
    framed: bool = False
    cost: int = 1
    refused: tuple[bytes, ...] = ()

    def attempt(self, draw: random.Random) -> None:
        """Raise any error that is not documented."""
        data = mutated(draw.choice(self.honest + self.refused), draw)
        if self.framed and draw.random() < 0.7:
            data = with_checksums(data)
        with contextlib.suppress(*self.allowed):
            self.read(data)


def text_reader(
    read: Callable[[str], Any], *honest: str, allowed: tuple[type[Exception], ...], cost: int = 1
) -> Reader:
    """Return a reader of text; bytes that are not UTF-8 become lone surrogates, as in an argument of a command."""
    return Reader(
        honest=tuple(text.encode() for text in honest),
        read=lambda data: read(data.decode("utf-8", "surrogateescape")),
        allowed=allowed,
        cost=cost,
    )


def new_store() -> MemoryStorage:
    """Return an empty store that no other has."""
    return MemoryStorage(f"fuzz-making-{next(_names)}")


def store_of(path: str, data: bytes) -> MemoryStorage:
    """Return a store with one object. Only the four newest exist."""
    storage = MemoryStorage(f"fuzz-{next(_names) % 4}")
    storage.replace(path, data)
    return storage
