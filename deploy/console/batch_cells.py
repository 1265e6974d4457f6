"""Batches in tables: their columns, delays and times."""

from __future__ import annotations

from datetime import datetime, timezone

from forebay.messages import BatchEntry

#: heads of the columns that :func:`batch_cells` fills
BATCH_COLUMNS = (
    "number", "id", "state", "blocks", "records", "size", "attempts", "scheduling", "processing", "total", "end to end",
)  # fmt: skip


def batch_cells(batch: BatchEntry) -> tuple[object, ...]:
    """Return the cells of ``BATCH_COLUMNS`` for a batch; "-" for what is unknown."""
    from rich.filesize import decimal

    return (
        batch.number,
        batch.batch_id,
        f"{batch.state}, replay {batch.replay}" if batch.replay else batch.state,
        batch.blocks,
        batch.records,
        decimal(batch.bytes) if batch.bytes is not None else "-",
        batch.attempts,
        delay(batch.scheduling_delay_ms),
        delay(batch.processing_ms),
        delay(batch.total_delay_ms),
        delay(batch.end_to_end_ms),
    )


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
