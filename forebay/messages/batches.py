"""Batches and their statistics. ``None`` means unknown or not reached yet, never zero."""

from __future__ import annotations

import msgspec

from forebay.messages.message import Message

#: states of a batch whose last attempt failed
FAILED_STATES = ("failing", "failed", "unreadable")
#: all states of a batch
BATCH_STATES = ("queued", "running", *FAILED_STATES, "completed")


class BatchEntry(Message, frozen=True, kw_only=True):
    """One run of a batch with its statistics. Durations are in milliseconds.

    ``bytes``: size of keys and values; known once the job has started. ``attempts``: of an unfinished batch, those of all
    drivers; of a completed one, those of the driver that completed it.

    ``scheduling_delay_ms``: from the batch's time to the first start of its job; in a replay, from the begin of the replay.
    ``processing_ms``: duration of the attempt that succeeded, summed over the outputs. ``total_delay_ms``: from the batch's
    time, or the begin of the replay, to the completion; failed attempts and the pauses after them are part of it.
    ``end_to_end_ms``: from a record's timestamp in Kafka to the completion; of each range the newest record counts, and of
    these the oldest one.

    ``tiers``: tier → ranges read from it. ``written`` of a completed batch is known only to the driver that completed it.
    """

    batch_id: int
    number: int  # number in the sequence of its timeline, from 1
    time_ms: int
    state: str  # one of BATCH_STATES
    blocks: int
    records: int
    bytes: int | None = None
    attempts: int = 0
    scheduling_delay_ms: int | None = None
    processing_ms: int | None = None
    total_delay_ms: int | None = None
    end_to_end_ms: int | None = None
    tiers: dict[str, int] = msgspec.field(default_factory=dict)
    outputs: tuple[str, ...] = ()  # if an unfinished batch has several outputs: those that are done
    written: tuple[str, ...] = ()  # what the output helpers of its job wrote and skipped, as text
    replay: int = 0  # number of the replay in which it runs again; 0: none
    rerun: bool = False  # whether an earlier attempt or driver may have run it
    detail: str = ""  # the last error
    place: str = ""  # file, line and function of the user's code that raised it
    completed_ms: int | None = None


class BatchRange(Message, frozen=True, kw_only=True):
    """Offsets ``[from, until)`` of one incarnation of a partition, with the records and the bytes of keys and values."""

    topic: str
    partition: int
    incarnation: int
    from_offset: int
    until_offset: int
    records: int
    bytes: int | None = None


class BatchesAnswer(Message, frozen=True, kw_only=True):
    """GET /v1/batches. The newest batch first, and of one batch the newest run first."""

    total: int
    next: str = ""
    batches: tuple[BatchEntry, ...] = ()


class BatchDetail(Message, frozen=True, kw_only=True):
    """GET /v1/batches/{batch_id}. ``tasks``: number of blocks of each task. ``ranges``, ``tasks`` and ``block_ids`` are cut
    off at 1,000 entries; ``batch`` has the number of blocks."""

    batch: BatchEntry
    ranges: tuple[BatchRange, ...] = ()
    tasks: tuple[int, ...] = ()
    block_ids: tuple[str, ...] = ()
