"""The accumulator with which tasks count what they read from each tier."""

from __future__ import annotations

from pyspark import Accumulator, AccumulatorParam, SparkContext

from wal.reading import TierCounts


class _Counts(AccumulatorParam[TierCounts]):
    def zero(self, value: TierCounts) -> TierCounts:
        return TierCounts()

    def addInPlace(self, value1: TierCounts, value2: TierCounts) -> TierCounts:  # noqa: N802 - Spark's name
        return value1 + value2


def tier_counts(context: SparkContext) -> Accumulator[TierCounts]:
    """Return a new accumulator, which begins at zero."""
    return context.accumulator(TierCounts(), _Counts())
