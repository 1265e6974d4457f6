"""Server-sent events as a client reads them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from forebay.model.numbers import whole_number
from forebay.model.wire import UNDECODABLE

#: maximum bytes of one event
EVENT_BYTES_MAX = 16 << 20


@dataclass(frozen=True, slots=True)
class Event:
    """One event.

    ``kind``: "overview", the kind of an event for listeners such as "batch-completed", "dropped" (the client was too slow, and
    the stream ends), or "end" (the driver stops). ``data``: a ``messages.OverviewAnswer`` for "overview", otherwise a
    dictionary. ``number``: counts the events of listeners since the driver's start; 0 for the other kinds.
    """

    kind: str
    data: Any
    number: int = 0


def parse_events(chunks: Iterable[bytes]) -> Iterator[tuple[str, bytes, int]]:
    """Yield kind, data and number of each event in the body of ``text/event-stream``. Comments are ignored.

    Raises ValueError for an event that is longer than ``EVENT_BYTES_MAX``.
    """
    kind, data, number = "message", b"", 0
    for line in _lines(chunks):
        name, _, value = line.partition(b": ")
        if not line:
            if data:
                yield kind, data, number
            kind, data, number = "message", b"", 0
        elif name == b"event":
            kind = value.decode()
        elif name == b"data":
            data += value
            if len(data) > EVENT_BYTES_MAX:
                raise ValueError(f"an event has more than {EVENT_BYTES_MAX} bytes")
        elif name == b"id":
            number = whole_number(value) or 0


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > EVENT_BYTES_MAX:
            raise ValueError(f"an event has more than {EVENT_BYTES_MAX} bytes")
        yield from lines


def decoded(kind: str, data: bytes, number: int, overview: type[Any]) -> Event:
    """Return the event. ``overview``: the type of an overview's data. Raises ValueError for data that can't be decoded."""
    try:
        return Event(kind, msgspec.json.decode(data, type=overview if kind == "overview" else Any), number)
    except UNDECODABLE as error:
        raise ValueError(f"an event of kind {kind!r} can't be decoded: {error}") from None
