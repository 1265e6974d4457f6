"""Offsets that Kafka skips: compaction and transaction markers told from loss, by a table (rule 8). Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    SKIPPED = "Kafka holds no record there: compaction, or transaction markers; the range takes the hole in"
    READ_AGAIN = "not proven yet: assign at the same position again and see whether the same offset comes first"
    LOST = "the log begins after the position: records were removed before they were taken in"


@dataclass(frozen=True, slots=True)
class Row:
    """``None`` matches both."""

    at_start: bool | None
    confirmed: bool | None
    log_begins_after_position: bool | None
    verdict: Verdict


#: the first row that matches decides
TABLE: tuple[Row, ...] = (
    # Within an assignment the fetches follow each other: a fetch below the start of the log is an error of its own.
    Row(False, None, None, Verdict.SKIPPED),
    Row(True, None, True, Verdict.LOST),
    # Right at a start a record fetched for an older assignment would look the same as compaction (rule 3).
    Row(True, False, False, Verdict.READ_AGAIN),
    Row(True, True, False, Verdict.SKIPPED),
)


def judge(*, at_start: bool, confirmed: bool, log_begins_after_position: bool) -> Verdict:
    """What to make of a hole between the position and the first offset that came.

    ``at_start``: nothing has come yet since the partition was assigned. ``confirmed``: the same offset came first after
    the assignment before this one, at the same position. ``log_begins_after_position``: by the broker's low watermark.
    """
    seen = (at_start, confirmed, log_begins_after_position)
    for row in TABLE:
        wanted = (row.at_start, row.confirmed, row.log_begins_after_position)
        if all(want is None or want == have for want, have in zip(wanted, seen, strict=True)):
            return row.verdict
    raise AssertionError(f"the table of holes has no row for {seen}")
