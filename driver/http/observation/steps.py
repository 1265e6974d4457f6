"""The steps on the way of a record, with rate, waiting records, their age, and the delay of each step."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from driver.http.observation.snapshot import Snapshot
from forebay import messages as m
from forebay.model.values import Block


@dataclass(frozen=True, slots=True)
class Rates:
    """Records per second, as means of about 10 s; None before the second snapshot."""

    taken: float | None = None
    completed: float | None = None


def steps(snapshot: Snapshot, rates: Rates, last_batch: m.BatchEntry | None = None) -> tuple[m.Step, ...]:
    """Return the six steps in order.

    ``delay_seconds`` is the number of waiting records divided by the rate (Little's law), where the rate is above 0. Of the step
    "wal" it is the time from the seal of a block until it is durable. While no record is in an uncompleted batch, it is, for the
    step "batches", the total delay of ``last_batch``, the one completed last.
    Values of receivers are those of their last heartbeats.
    """
    totals, now_ms = snapshot.totals, snapshot.now_ms
    lags = [partition.lag for partition in snapshot.tracked_partitions]
    in_kafka = None if not lags or None in lags else sum(lag for lag in lags if lag is not None)
    beats = [
        last.heartbeat
        for last in snapshot.receiver_heartbeats.values()
        if snapshot.now - last.at <= snapshot.around.receiver_timeout
    ]
    storing = sum(beat.storing_records for beat in beats)
    stored = [beat.store_seconds for beat in beats if beat.store_seconds]
    first_unfinished = snapshot.oldest_blocks[0] if totals.unfinished_records and snapshot.oldest_blocks else None
    buffered = sum(last.heartbeat.buffered_bytes for last in snapshot.receiver_heartbeats.values())
    batches = len(snapshot.unfinished)
    in_batches = _step(
        "batches",
        rates.completed,
        totals.unfinished_records,
        _age(first_unfinished, now_ms),
        f"{batches} batch{'es' if batches != 1 else ''} not completed",
    )
    if not totals.unfinished_records:
        in_batches = msgspec.structs.replace(in_batches, delay_seconds=_total_delay(last_batch))
    return (
        _step("kafka", rates.taken, in_kafka, _oldest_in_kafka(snapshot, in_kafka), "not taken in yet"),
        _step(
            "blocks",
            rates.taken,
            None
            if not beats or min(beat.open_records for beat in beats) < 0
            else sum(beat.open_records for beat in beats),
            max((beat.open_seconds for beat in beats), default=None),
            f"{buffered} bytes buffered at receivers",
        ),
        m.Step(
            name="wal",
            records_per_second=rates.taken,
            waiting_records=storing if beats else None,
            oldest_seconds=max((beat.storing_seconds for beat in beats), default=None),
            delay_seconds=round(sum(stored) / len(stored), 3) if stored else None,
            detail=f"{totals.wal_blocks} blocks in {totals.wal_segments} segments, {totals.wal_bytes} bytes",
        ),
        _step(
            "tracker",
            rates.taken,
            totals.waiting_records,
            _age(snapshot.first_waiting, now_ms),
            f"{totals.waiting_blocks} blocks wait for a batch",
        ),
        in_batches,
        m.Step(
            name="committed",
            records_per_second=rates.completed,
            detail=f"{totals.records_completed} records in {totals.batches_completed} batches",
        ),
    )


def _step(name: str, rate: float | None, waiting: int | None, oldest_seconds: float | None, detail: str) -> m.Step:
    delay = round(waiting / rate, 3) if rate and waiting is not None else None
    return m.Step(
        name=name,
        records_per_second=rate,
        waiting_records=waiting,
        oldest_seconds=0.0 if waiting == 0 else oldest_seconds,
        delay_seconds=0.0 if waiting == 0 else delay,
        detail=detail,
    )


def _age(block: Block | None, now_ms: int) -> float | None:
    return None if block is None else round(max(0, now_ms - block.meta.created_ms) / 1000, 1)


def _total_delay(batch: m.BatchEntry | None) -> float | None:
    return None if batch is None or batch.total_delay_ms is None else round(batch.total_delay_ms / 1000, 3)


def _oldest_in_kafka(snapshot: Snapshot, waiting: int | None) -> float | None:
    """Return the age of the oldest record that is not taken in; None if it is unknown."""
    ends = snapshot.around.ends
    if not waiting or ends is None:
        return None
    ages = [ends.history.seconds_since(p.tp, p.position, snapshot.now) for p in snapshot.partitions.values()]
    known = [age for age in ages if age is not None]
    return round(max(known), 1) if known and len(known) == len(ages) else None
