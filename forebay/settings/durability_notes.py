"""The losses that a stream without a WAL does not survive, which each service logs when it starts."""

from __future__ import annotations

from forebay.settings.schema import Settings


def without_wal(settings: Settings) -> str:
    """Return the note for the log of a service; "" if the stream has a WAL."""
    if settings.has_wal:
        return ""
    if settings.receiver.copies == 1:
        held, lost = "only on the disk of its receiver's host", "that host or its disk is"
    else:
        held, lost = "on the disks of two hosts", "both hosts or their disks are"
    return (
        f'there is no WAL (wal.url = "none", receiver.copies = {settings.receiver.copies}): each block is stored '
        f"{held}, and synced before offsets are committed to Kafka. If {lost} lost, records that no batch has completed and that "
        "Kafka no longer holds are lost too: their batch stops and names the exact range. A lost journal can't be rebuilt, and "
        "completed batches can't be replayed"
    )
