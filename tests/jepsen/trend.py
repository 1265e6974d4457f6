"""Whether a series grows: the Mann-Kendall test for a trend, and the Theil-Sen slope for its size."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

#: a series counts as growing if the p-value of the test for a trend is below this …
_P_MAX = 0.01
#: … and if it grows by more than this part of its median over the time that was looked at
GROWTH_MAX = 0.1
#: samples are put together to at most this many medians; below the least number nothing is said
_POINTS_MAX, POINTS_MIN = 120, 12
#: nor of a shorter series: a driver's connections to its store become more in its first minutes
SECONDS_MIN = 1_200.0
#: part of a series at its beginning that is left out: caches fill, pools open their connections
_WARM_UP = 0.25


@dataclass(frozen=True)
class Trend:
    """``points``: medians that were compared. ``p``: probability of such an order without a trend. ``growth``: by the slope,
    over the whole time. ``middle``: the median. All 0 with too few points."""

    points: int
    p: float
    growth: float
    middle: float

    def grows(self, floor: float) -> bool:
        """Whether the series grows, by more than ``floor`` in its own unit."""
        enough = self.points >= POINTS_MIN and self.growth > max(floor, GROWTH_MAX * self.middle)
        return enough and self.p < _P_MAX


def trend(samples: Sequence[tuple[float, float]]) -> Trend:
    """Return the trend of (time, value) samples, in order of time, without the warm-up."""
    points = medians(samples[int(len(samples) * _WARM_UP) :], _POINTS_MAX)
    if len(points) < POINTS_MIN:
        return Trend(len(points), 1.0, 0.0, median(v for _, v in points) if points else 0.0)
    pairs = list(itertools.combinations(points, 2))
    slope = median((v2 - v1) / (t2 - t1) for (t1, v1), (t2, v2) in pairs if t2 > t1)
    score = sum((v2 > v1) - (v2 < v1) for (_, v1), (_, v2) in pairs)
    values = [v for _, v in points]
    return Trend(len(points), _probability(score, values), slope * (points[-1][0] - points[0][0]), median(values))


def is_too_short(samples: Sequence[tuple[float, float]]) -> bool:
    """Return whether nothing can be said about the samples."""
    return trend(samples).points < POINTS_MIN or samples[-1][0] - samples[0][0] < SECONDS_MIN


def medians(samples: Sequence[tuple[float, float]], points_max: int) -> list[tuple[float, float]]:
    """Return at most ``points_max`` medians of neighbouring samples."""
    each = max(1, math.ceil(len(samples) / points_max))
    parts = (samples[at : at + each] for at in range(0, len(samples), each))
    return [(median(t for t, _ in part), median(v for _, v in part)) for part in parts]


def _probability(score: int, values: Sequence[float]) -> float:
    """Return the two-sided probability of Kendall's ``score`` by its normal approximation, corrected for ties."""
    n = len(values)
    ties = sum(count * (count - 1) * (2 * count + 5) for count in Counter(values).values())
    variance = (n * (n - 1) * (2 * n + 5) - ties) / 18
    if score == 0 or variance <= 0:
        return 1.0
    z = (abs(score) - 1) / math.sqrt(variance)
    return math.erfc(z / math.sqrt(2))
