"""Decides by a table whether a gap between offsets is compaction or transaction markers, or lost records (rule 8). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class GapVerdict(Enum):
    """What a gap is."""

    SKIPPED = "Kafka holds no record there: compaction, or transaction markers; the range includes the gap"
    READ_AGAIN = "not confirmed: read again from the same position, and see whether the same offset comes first"
    LOST = "the log begins after the position: Kafka deleted records before they were taken in"


@dataclass(frozen=True, slots=True)
class GapRow:
    """A row of the table. ``None`` matches both values."""

    at_start: bool | None
    confirmed: bool | None
    log_begins_after_position: bool | None
    verdict: GapVerdict


#: the first row that matches decides
TABLE: tuple[GapRow, ...] = (
    # Within an assignment each fetch follows the one before. A fetch below the start of the log is an error of its own.
    GapRow(False, None, None, GapVerdict.SKIPPED),
    GapRow(True, None, True, GapVerdict.LOST),
    # Just after a start, a record that was fetched for an older assignment would look the same as compaction (rule 3).
    GapRow(True, False, False, GapVerdict.READ_AGAIN),
    GapRow(True, True, False, GapVerdict.SKIPPED),
)


def judge(*, at_start: bool, confirmed: bool, log_begins_after_position: bool) -> GapVerdict:
    """Return the verdict on the gap between the position and the first offset that was polled.

    ``at_start``: no record was polled since the partition was started. ``confirmed``: the previous start, at the same position,
    returned the same first offset. ``log_begins_after_position``: the broker's low watermark is above the position.
    """
    seen = (at_start, confirmed, log_begins_after_position)
    for row in TABLE:
        wanted = (row.at_start, row.confirmed, row.log_begins_after_position)
        if all(want is None or want == have for want, have in zip(wanted, seen, strict=True)):
            return row.verdict
    raise AssertionError(f"the table of gaps has no row for {seen}")
