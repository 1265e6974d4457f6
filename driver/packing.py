"""Packing a batch's blocks into tasks: pure, deterministic, and journalled, so that a rerun has the same (INV-3)."""

from __future__ import annotations

from collections.abc import Sequence


def pack(blocks: Sequence[tuple[str, int]], tasks: int) -> tuple[tuple[str, ...], ...]:
    """Cuts ``blocks`` (id, bytes), in order of acceptance, into at most ``tasks`` runs of about equal bytes.

    Order is kept within and across tasks; no task is empty. ``tasks`` must be at least 1.
    """
    if tasks < 1:
        raise ValueError("a batch needs at least one task")
    total = sum(size for _, size in blocks)
    packed: list[tuple[str, ...]] = []
    run: list[str] = []
    before = 0
    for index, (block_id, size) in enumerate(blocks):
        run.append(block_id)
        before += size
        tasks_left = tasks - len(packed) - 1
        blocks_left = len(blocks) - index - 1
        full = before * tasks >= total * (len(packed) + 1)
        if blocks_left and tasks_left and (full or blocks_left <= tasks_left):
            packed.append(tuple(run))
            run = []
    if run:
        packed.append(tuple(run))
    return tuple(packed)
