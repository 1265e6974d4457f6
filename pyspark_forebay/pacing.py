"""How much a trigger reads: Spark's read limits, and the options that set them."""

from __future__ import annotations

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from forebay.kafka.consume.planning import is_enough, share_by_lag
from forebay.process.clock import Clock
from pyspark_forebay.offsets import Positions
from pyspark_forebay.options.source import SourceOptions

_NO_LIMIT = 2**63 - 1


class Pacing:
    """Decides how far each trigger of one query reads. It lives in the process that plans the query."""

    def __init__(self, options: SourceOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._triggered: float | None = None  # when the last trigger read

    def default_limit(self) -> ReadLimit:
        """Return Spark's limit for the query. Every limit except ReadAllAvailable means that the options decide."""
        options = self._options
        if options.max_offsets_per_trigger is None and options.min_offsets_per_trigger is None:
            return ReadAllAvailable()
        return ReadMaxRows(options.max_offsets_per_trigger or _NO_LIMIT)

    def until(self, begin: Positions, end: Positions, limit: ReadLimit, *, whole: bool) -> Positions | None:
        """Return the offsets up to which this trigger reads; None if it must wait for ``minOffsetsPerTrigger``.

        ``whole``: whether the trigger reads to ``end`` even if there is little to read, as Trigger.AvailableNow requires.
        """
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
