"""The dead letters of an output's run: where they are stored, and at its end whether there are too many, and which run's dead
letters count."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from driver.batches.job.work import BatchWork
from driver.batches.tasks.decoding import DeadLetterPlan, too_many
from forebay.settings.schema import DeadLetterSettings, Settings
from wal import dead_letters
from wal.dead_letters import Run, output_folder
from wal.storage import StorageOptions, open_storage

log = logging.getLogger(__name__)


def dead_letter_plan(settings: Settings, work: BatchWork) -> DeadLetterPlan:
    """Return where the next ``decode`` of ``work``'s output stores dead letters, and add it to ``work.decodes``."""
    return letters_of(work, settings.dead_letters, settings.storage, settings.kafka.options)


def letters_of(
    work: BatchWork, letters: DeadLetterSettings, storage: StorageOptions, options: Mapping[str, str]
) -> DeadLetterPlan:
    """Do :func:`dead_letter_plan` without the settings of a stream. ``options``: options of librdkafka."""
    plan = DeadLetterPlan(
        run=Run(work.stream, work.key, output_folder(work.output), work.epoch, work.attempt),
        time_ms=work.time_ms,
        output=work.output,
        call=len(work.decodes) + 1,
        limit=max(letters.records_allowed, int(letters.max_fraction * work.records)),
        allowed=letters.records_allowed,
        fraction=letters.max_fraction,
        url=letters.url or "",
        storage=storage,
        topic=letters.topic or "",
        options=options if letters.topic else {},
    )
    work.decodes.append(plan)
    return plan


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
