"""How much a trigger reads: Spark's read limits and the options that stand for them."""

from __future__ import annotations

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from forebay.kafka.consume.planning import is_enough, share_by_lag
from forebay.process.clock import Clock
from pyspark_forebay.offsets import Positions
from pyspark_forebay.options import SourceOptions

_NO_LIMIT = 2**63 - 1


class Pacing:
    """Of one query, in its planner's process."""

    def __init__(self, options: SourceOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._triggered: float | None = None  # when a trigger read last

    def default_limit(self) -> ReadLimit:
        """Any limit but "all" stands for what the options say: Spark's limits can't say the half of it."""
        options = self._options
        if options.max_offsets_per_trigger is None and options.min_offsets_per_trigger is None:
            return ReadAllAvailable()
        return ReadMaxRows(options.max_offsets_per_trigger or _NO_LIMIT)

    def until(self, begin: Positions, end: Positions, limit: ReadLimit, *, whole: bool) -> Positions | None:
        """Up to where this trigger reads; None: too little is there for one yet. ``whole``: what is there is read to its end,
        however little, as Trigger.AvailableNow wants it."""
        if isinstance(limit, ReadAllAvailable):
            return end
        if not whole and self._waits(begin, end):
            return None
        most = self._options.max_offsets_per_trigger
        return end if most is None else share_by_lag(begin, end, most)

    def _waits(self, begin: Positions, end: Positions) -> bool:
        least = self._options.min_offsets_per_trigger
        if least is None:
            return False
        now, longest = self._clock.monotonic(), self._options.max_trigger_delay_seconds
        waited = longest if self._triggered is None else now - self._triggered
        if not is_enough(begin, end, least, waited, longest):
            return True
        self._triggered = now
        return False
