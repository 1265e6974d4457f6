"""What a stream without a WAL does not survive, in words: said at start, so that nobody learns it from a loss."""

from __future__ import annotations

from forebay.settings.schema import Settings


def without_wal(settings: Settings) -> str:
    """For whoever starts a service; "" where there is a WAL."""
    if settings.has_wal:
        return ""
    if settings.receiver.copies == 1:
        held, lost = "on the disk of its receiver's host alone", "that host or its disk is"
    else:
        held, lost = "on the disks of two hosts", "both hosts or their disks are"
    return (
        f'there is no WAL (wal.url = "none", receiver.copies = {settings.receiver.copies}): a block lies {held}, synced before '
        f"Kafka's offsets are committed. If {lost} lost, so is what no batch has completed and Kafka no longer holds: its batch "
        "stops, with the exact range. A lost journal can't be rebuilt, and completed batches can't be replayed"
    )
