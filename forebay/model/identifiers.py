"""Names of streams, receivers and hosts, the ids of receivers, and the numbers that a driver assigns.

The high part of each number that a driver assigns (receiver epoch, token, batch id, journal epoch) is the journal's timeline. So
a rebuilt journal never assigns a number that an older timeline assigned.
"""

from __future__ import annotations

import re
from functools import lru_cache

#: number of low bits that count within a timeline; timeline << 40 is exact as a JSON number up to timeline 8191
TIMELINE_SHIFT = 40

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
#: prefix of receiver ids of the driver and the tools; requests with such an id are refused
RESERVED_PREFIX = "forebay-"


def is_reserved(receiver_id: str) -> bool:
    """Return whether only the driver and the tools may use this receiver id."""
    return receiver_id.startswith(RESERVED_PREFIX)


def managed_id(stream: str, ordinal: int) -> str:
    """Return the id of the managed receiver number ``ordinal`` of ``stream``, from 0."""
    return f"{stream}-r{ordinal}"


def managed_ordinal(stream: str, receiver_id: str) -> int | None:
    """Return the ordinal of an id that :func:`managed_id` makes for ``stream``; None for any other id."""
    found = re.fullmatch(r"(.+)-r(0|[1-9][0-9]{0,4})", receiver_id)
    return int(found[2]) if found is not None and found[1] == stream else None


def numbered(timeline: int, count: int) -> int:
    """Return number ``count`` of a timeline. Raises ValueError unless 1 ≤ timeline < 8192 and 0 ≤ count < 2**40."""
    if not 1 <= timeline < 8192 or not 0 <= count < 1 << TIMELINE_SHIFT:
        raise ValueError(f"timeline {timeline}, count {count}: out of range")
    return timeline << TIMELINE_SHIFT | count


def timeline_of(number: int) -> int:
    """Return the timeline of an assigned number."""
    return number >> TIMELINE_SHIFT


def count_of(number: int) -> int:
    """Return the count of an assigned number within its timeline."""
    return number & ((1 << TIMELINE_SHIFT) - 1)


#: what :func:`check_name` accepts, as errors say it
NAME_RULE = "a name has 1 to 64 letters, digits, '.', '_' and '-', and begins with a letter or digit"


def is_name(name: str) -> bool:
    """Return whether :func:`check_name` accepts ``name``."""
    return _NAME.fullmatch(name) is not None


@lru_cache(1024)  # each block names its stream and its receiver
def check_name(kind: str, name: str) -> str:
    """Return ``name`` if it can be part of a path: 1 to 64 of ``A-Za-z0-9_.-``, the first a letter or digit.

    Raises ValueError otherwise. All names of streams, receivers and hosts are checked here, so none can lead out of a directory.
    """
    if not is_name(name):
        raise ValueError(f"{kind} {name!r}: {NAME_RULE}")
    return name
