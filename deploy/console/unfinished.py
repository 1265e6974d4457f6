"""Finds the unfinished batch that a command names."""

from __future__ import annotations

from collections.abc import Sequence

from forebay.messages import BatchEntry
from forebay.model.errors import RefusedError
from forebay.model.identifiers import TIMELINE_SHIFT


def find_batch(batches: Sequence[BatchEntry], named: int) -> BatchEntry:
    """Return the unfinished batch with this id or number. Raises RefusedError if there is none."""
    for batch in batches:
        if batch.state != "completed" and named in (batch.batch_id, batch.number):
            return batch
    what = "id" if named >= 1 << TIMELINE_SHIFT else "number or id"
    raise RefusedError(f"no unfinished batch has the {what} {named}; `forebay status` lists the batches", "not-found")
