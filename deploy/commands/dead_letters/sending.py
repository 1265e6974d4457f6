"""Sending dead letters into a topic, and marking them as sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from deploy.commands.dead_letters.stored import NOT_COMPLETED, LetterFilter, pieces, sent_group
from deploy.console.invocation import person
from forebay.model.errors import UsageError
from forebay.model.topic_pattern import matches
from forebay.settings.schema import Settings

if TYPE_CHECKING:
    import pyarrow as pa

    from wal.storage import Storage


class Replayed(msgspec.Struct, frozen=True):
    """The result of a replay.

    ``sent``: topic → records sent into it, or that would be sent. ``skipped``: records sent by an earlier call. ``waiting``:
    records not sent because their batch is not completed.
    """

    sent: dict[str, int]
    skipped: int
    waiting: int
    done: bool


def send_back(settings: Settings, wanted: LetterFilter, target: str | None, because: str, yes: bool) -> Replayed:
    """Send the dead letters that were not sent yet, and mark them as sent.

    ``target``: topic; None sends each record into the topic that it came from. Records are sent and marked object by object:
    if this process is killed in between, the next call may send the records of one object again. Without ``yes`` nothing is
    sent. Raises UsageError, UnreachableError.
    """
    from driver.batches.tasks.decoding import as_records
    from forebay.kafka.client.admin import Committed, KafkaAdmin
    from forebay.kafka.produce.sender import send
    from forebay.process.clock import SystemClock
    from wal import dead_letters
    from wal.storage import open_storage

    letters = settings.dead_letters
    if letters.topic is not None and not wanted.everything:
        raise UsageError(
            "dead letters in a topic (dead_letters.topic) can only be sent all together, because only the offset up to which "
            "they were sent is recorded: leave the filters out"
        )
    storage: Storage | None = open_storage(letters.url, settings.storage) if letters.url is not None else None
    sent: dict[str, int] = {}
    skipped = waiting = 0
    check_target(settings, target)
    for piece in pieces(settings):
        records = dead_letters.identities(piece.table)
        fits = wanted.mask(piece.table)
        if piece.state == NOT_COMPLETED:
            waiting += sum(fits)
            continue
        fresh = [fit and record not in piece.sent for fit, record in zip(fits, records, strict=True)]
        skipped += sum(fits) - sum(fresh)
        for topic, indexes in _by_topic(piece.table, fresh, target).items():
            if yes:
                part = piece.table.take(indexes)
                send(settings.kafka.options, topic, as_records(part).to_batches(), same_partitions=False)
                if piece.letters is not None and storage is not None:
                    own = dead_letters.identities(part)
                    mark = dead_letters.Sent(topic, SystemClock().wall_ms(), person(because), tuple(own))
                    dead_letters.put_mark(storage, piece.letters, own, mark)
            sent[topic] = sent.get(topic, 0) + len(indexes)
        if yes and piece.where is not None and any(fresh):
            tp, until = piece.where
            with KafkaAdmin(settings.kafka.options, client_id="forebay-dead-letters") as admin:
                for cause in admin.publish(sent_group(settings), {tp: Committed(until, -1, "")}).values():
                    raise UsageError(
                        f"records were sent, but cannot be marked as sent in group {sent_group(settings)}: {cause}; the next "
                        "call sends them again"
                    )
    return Replayed(sent, skipped, waiting, yes)


def _by_topic(table: pa.Table, fresh: list[bool], target: str | None) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    topics: Any = table.column("topic").to_pylist()
    for index, (topic, wanted) in enumerate(zip(topics, fresh, strict=True)):
        if wanted:
            found.setdefault(target or topic, []).append(index)
    return found


def check_target(settings: Settings, target: str | None) -> None:
    """Raise UsageError for a topic that does not exist, holds dead letters, or is taken in by the stream itself."""
    from forebay.kafka.client.admin import KafkaAdmin

    if target is None:
        return
    kafka = settings.kafka
    if target in kafka.topics or (kafka.pattern is not None and matches(kafka.pattern, target)):
        raise UsageError(
            f"--to-topic {target}: stream {settings.stream!r} takes this topic in, so the job would get each record again; "
            "if that is intended, use --to-source, which sends each record into the topic that it came from"
        )
    if target == settings.dead_letters.topic:
        raise UsageError(f"--to-topic {target}: this topic holds the dead letters; name another one")
    with KafkaAdmin(kafka.options, client_id="forebay-dead-letters") as admin:
        if target not in admin.topics():
            admin.check_visible([target])
            raise UsageError(f"--to-topic {target}: the topic does not exist; create it first")
