"""Statistics of one run of a batch, as the journal and the history store them."""

from __future__ import annotations

import msgspec

from forebay.model.bounds import Size


class BatchStatistics(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Statistics of one run of a batch, measured by the driver that completed it. Durations are in milliseconds.

    ``records``: records of the batch, accepted losses included; offsets in a direct stream. ``bytes``: size of their keys and
    values; None in a direct stream.

    ``scheduling_delay_ms``: from the time when the run was due to the first start of its job. A batch is due at its own time,
    and a replayed batch when its replay begins. ``processing_ms``: duration of the attempt that succeeded, summed over the
    outputs. ``total_delay_ms``: from the time when the run was due to the end of the last output. It is longer than the sum of
    the other two by the duration of failed attempts and of the pauses after them.

    ``end_to_end_ms``: from a record's timestamp in Kafka to the end of the last output. The record is the newest one of a
    range, in the range where that one is the oldest. None if it is unknown, and in a replay and a direct stream. ``tiers``:
    tier → ranges read from it, and ``"<tier>: <kind>"`` → failures, by the attempts that succeeded. ``rerun``: whether an
    earlier attempt or an earlier driver may have run the batch.
    """

    records: Size
    scheduling_delay_ms: Size
    processing_ms: Size
    total_delay_ms: Size
    bytes: Size | None = None
    end_to_end_ms: Size | None = None
    tiers: dict[str, Size] = {}
    rerun: bool = False
    error: str = ""  # of the last failed attempt, as JobFailed.error; "": none failed
    place: str = ""  # as JobFailed.place
