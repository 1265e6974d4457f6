"""When the ends of Kafka's logs passed an offset, from the ends that the driver read over time. No I/O."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping

from forebay.model.values import TopicPartition

#: points kept for each partition; a full history keeps every second point of its older half, so old points lie further apart
POINTS_MAX = 64
#: minimum time between two points
STEP_SECONDS = 4.0


class EndHistory:
    """The ends of each partition over time. One thread adds; any thread may read.

    A record at offset ``o`` was written between the last read with an end up to ``o`` and the next read. The time is interpolated
    between the two, as if records came at an even rate.
    """

    def __init__(self) -> None:
        #: partition → times and ends, both ascending; replaced as a whole, never changed
        self._points: dict[TopicPartition, tuple[tuple[float, ...], tuple[int, ...]]] = {}

    def note(self, now: float, ends: Mapping[TopicPartition, int]) -> None:
        """Add the ends read at ``now``, in monotonic seconds. Partitions that are not in ``ends`` are forgotten."""
        before = self._points
        self._points = {tp: _with(before.get(tp, ((), ())), now, end) for tp, end in ends.items()}

    def seconds_since(self, tp: TopicPartition, offset: int, now: float) -> float | None:
        """Return how long ago the record at ``offset`` was written: 0 if there is none yet; None if it was before the first
        read."""
        times, ends = self._points.get(tp, ((), ()))
        if not ends or offset < ends[0]:
            return None
        after = bisect_right(ends, offset)  # the first read that found a record at the offset
        if after == len(ends):
            return 0.0
        share = (offset - ends[after - 1]) / (ends[after] - ends[after - 1])
        return max(0.0, now - (times[after - 1] + share * (times[after] - times[after - 1])))


def _with(
    points: tuple[tuple[float, ...], tuple[int, ...]], now: float, end: int
) -> tuple[tuple[float, ...], tuple[int, ...]]:
    times, ends = points
    if ends and end < ends[-1]:  # the topic was created again, or its log was cut back
        return (now,), (end,)
    if len(ends) >= 2 and end == ends[-1] == ends[-2]:
        return (*times[:-1], now), ends  # nothing was written: only the time until which is known
    if len(ends) >= 2 and now - times[-2] < STEP_SECONDS:
        return (*times[:-1], now), (*ends[:-1], end)
    if len(ends) == POINTS_MAX:
        half = POINTS_MAX // 2
        times, ends = times[:half:2] + times[half:], ends[:half:2] + ends[half:]
    return (*times, now), (*ends, end)
