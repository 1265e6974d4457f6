"""The dead letters of a finished run of an output: whether there are too many, and which run's dead letters count."""

from __future__ import annotations

import logging

from driver.batches.job.work import BatchWork
from driver.batches.tasks.decoding import too_many
from wal import dead_letters
from wal.storage import open_storage

log = logging.getLogger(__name__)


def confirm_dead_letters(work: BatchWork) -> None:
    """Make this run of the output the one whose dead letters count. Call it before the output is journalled as completed.

    If the run decoded nothing, it sends no request to the store; otherwise it lists the batch's folder once. Raises JobError if
    too many records could not be decoded, StoreError.
    """
    place = next((plan for plan in work.decodes if plan.url), None)
    if place is None:
        return
    storage = open_storage(place.url, place.storage)
    paths = storage.list(f"{dead_letters.batch_folder(place.run.stream, place.run.key)}/{place.run.output}")
    if not paths:
        return
    own = [path for path in paths if path.startswith(f"{place.run.folder}/")]
    counted = [found for found in dead_letters.counting(own) if found.run == place.run]
    by_call = dead_letters.records_by_call(storage, counted[0]) if counted else {}
    for plan in work.decodes:
        if by_call.get(plan.call, 0) > plan.limit:
            raise too_many(by_call[plan.call], plan, f"they are in {place.url} below {place.run.folder}")
    dead_letters.put_done(storage, place.run)
    if by_call:
        records = sum(by_call.values())
        log.warning(
            "batch %d: %d records could not be decoded; `forebay dead-letters list` shows them", work.batch_id, records
        )
