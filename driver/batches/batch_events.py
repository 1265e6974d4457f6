"""Events of a batch's run for listeners, and the fields of its line in the log."""

from __future__ import annotations

from typing import Any

from driver.batches.job.measure import RunMeasure
from driver.batches.job.work import BatchWork
from driver.listeners.events import BatchCompleted, BatchFailed, BatchStarted, OutputCompleted
from forebay.messages import BatchEntry
from forebay.process.logs import fields


def started(work: BatchWork, measure: RunMeasure, now_ms: int, names_ranges: bool) -> BatchStarted:
    return BatchStarted(
        time_ms=now_ms,
        batch_id=work.batch_id,
        number=work.number,
        output=work.output,
        attempt=work.attempt,
        records=work.records,
        replay=work.replay,
        batch_time_ms=work.time_ms,
        bytes=measure.bytes,
        rerun=work.rerun,
        scheduling_delay_ms=measure.scheduling_delay_ms,
        ranges=measure.ranges if names_ranges else (),
        first=measure.attempts == 1,
    )


def output_completed(work: BatchWork, measure: RunMeasure, now_ms: int) -> OutputCompleted:
    return OutputCompleted(
        time_ms=now_ms,
        batch_id=work.batch_id,
        number=work.number,
        output=work.output,
        attempt=work.attempt,
        processing_ms=max(0, round(measure.attempt_seconds * 1000)),
        replay=work.replay,
    )


def completed(entry: BatchEntry, measure: RunMeasure, now_ms: int) -> BatchCompleted:
    return BatchCompleted(
        time_ms=now_ms,
        batch_id=entry.batch_id,
        number=entry.number,
        attempts=entry.attempts,
        replay=entry.replay,
        batch_time_ms=entry.time_ms,
        records=entry.records,
        bytes=entry.bytes,
        rerun=entry.rerun,
        scheduling_delay_ms=entry.scheduling_delay_ms,
        processing_ms=entry.processing_ms,
        total_delay_ms=entry.total_delay_ms,
        end_to_end_ms=entry.end_to_end_ms,
        tiers=entry.tiers,
        written=entry.written,
        ranges=measure.ranges,
    )


def logged(entry: BatchEntry, measure: RunMeasure, stream: str) -> dict[str, Any]:
    """Return the fields of a completed batch's log line."""
    return fields(
        stream=stream,
        batch=entry.batch_id,
        number=entry.number,
        replay=entry.replay or None,
        rerun=entry.rerun or None,
        attempts=entry.attempts,
        blocks=entry.blocks,
        records=entry.records,
        bytes=entry.bytes,
        scheduling_delay_ms=entry.scheduling_delay_ms,
        processing_ms=entry.processing_ms,
        total_delay_ms=entry.total_delay_ms,
        end_to_end_ms=entry.end_to_end_ms,
        tiers=entry.tiers or None,
        offsets=tuple(f"{r.topic}/{r.partition}[{r.from_offset},{r.until_offset})" for r in measure.ranges),
        written=entry.written,
    )


def failed(work: BatchWork, now_ms: int, detail: str, final: bool, unreadable: bool = False) -> BatchFailed:
    return BatchFailed(
        time_ms=now_ms,
        batch_id=work.batch_id,
        number=work.number,
        output=work.output,
        attempt=work.attempt,
        detail=detail,
        final=final,
        unreadable=unreadable,
        replay=work.replay,
    )
