"""Windows by time: which windows end with a batch. Decision logic, without I/O."""

from __future__ import annotations

from forebay.model.errors import UsageError
from forebay.model.units import parse_duration

#: maximum number of windows that contain one batch
OVERLAP_MAX = 10_000


def milliseconds(duration: float | str, what: str) -> int:
    """Return a duration in seconds, or as ``"10m"``, in milliseconds. Raises UsageError unless it is at least 1 ms."""
    try:
        seconds = float(duration) if isinstance(duration, (int, float)) else parse_duration(duration)
    except ValueError as error:
        raise UsageError(f"{what} = {duration!r}: {error}") from None
    if not 0.001 <= seconds < float("inf"):
        raise UsageError(f"{what} must be at least 1 ms, not {duration!r}")
    return round(seconds * 1000)


def window_ends(before_ms: int, time_ms: int, length_ms: int, slide_ms: int) -> tuple[int, ...]:
    """Return the ends of the windows that a batch runs: multiples of ``slide_ms`` after the time of the batch before it and up to
    its own, without those of windows that contain no batch. Raises UsageError if too many windows overlap."""
    if length_ms > OVERLAP_MAX * slide_ms:
        raise UsageError(f"a batch can be in {OVERLAP_MAX} windows at most: set a longer slide than {slide_ms} ms")
    first = (before_ms // slide_ms + 1) * slide_ms
    return tuple(range(first, min(time_ms, before_ms + length_ms) + 1, slide_ms))
