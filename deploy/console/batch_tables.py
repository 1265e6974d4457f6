"""Batches in tables: their columns, delays and times."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from forebay.messages import BatchEntry

if TYPE_CHECKING:
    from rich.console import Group


def batch_tables(batches: Sequence[BatchEntry]) -> list[Group]:
    """Return a table of batches with their delays, and one of their errors and outputs; "-" for what is unknown."""
    from rich.filesize import decimal

    from deploy.console.table import table

    columns = ("number", "state", "records", "size", "attempts", "scheduling", "processing", "total", "end to end")
    rows = [
        (
            b.number,
            f"{b.state}, replay {b.replay}" if b.replay else b.state,
            b.records,
            decimal(b.bytes) if b.bytes is not None else "-",
            b.attempts,
            delay(b.scheduling_delay_ms),
            delay(b.processing_ms),
            delay(b.total_delay_ms),
            delay(b.end_to_end_ms),
        )
        for b in batches
    ]
    notes = [(b.number, note) for b in batches if (note := batch_note(b))]
    return [
        table("Batches", columns, rows),
        *([table("Errors and outputs of batches", ("number", "detail"), notes)] if notes else []),
    ]


def batch_note(batch: BatchEntry) -> str:
    """Return the last error of a batch, its outputs that are done, and what output helpers wrote."""
    error = f"last error: {batch.detail}" if batch.detail and batch.state == "completed" else batch.detail
    done = f"done: {', '.join(batch.outputs)}" if batch.outputs else ""
    return "; ".join(filter(None, (error, done, *batch.written)))


def delay(milliseconds: int | None) -> str:
    """Return a delay for a person: ``85 ms``, ``1.2 s``, ``5 min 3 s``, ``2 h 4 min``; "-" if it is unknown."""
    if milliseconds is None:
        return "-"
    if milliseconds < 1_000:
        return f"{milliseconds} ms"
    if milliseconds < 120_000:
        return f"{milliseconds / 1000:.1f} s"
    seconds = milliseconds // 1000
    if seconds < 7_200:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"


def moment(time_ms: int) -> str:
    """Return a time as text, UTC."""
    return (
        datetime.fromtimestamp(time_ms / 1000, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )
