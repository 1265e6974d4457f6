"""A topic whose offsets are at the end of the range of a long: its log on disk is rewritten while its broker is stopped."""

from __future__ import annotations

import struct
from pathlib import Path

#: at the beginning of each batch of records: its first offset, which its checksum does not cover, and its size after both
_HEAD = struct.Struct(">qi")
_CHECKPOINTS = ("recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "replication-offset-checkpoint")


def move_log(data: Path, topic: str, first: int) -> None:
    """Give the records of partition 0 the offsets from ``first`` on. ``data``: the data folder of the stopped broker."""
    folder = data / f"{topic}-0"
    (log,) = folder.glob("*.log")
    batches = bytearray(log.read_bytes())
    at = 0
    while at < len(batches):
        offset, size = _HEAD.unpack_from(batches, at)
        _HEAD.pack_into(batches, at, offset + first, size)
        at += _HEAD.size + size
    for path in folder.iterdir():
        if path.name != "partition.metadata":
            path.unlink()
    (folder / f"{first:020d}.log").write_bytes(batches)
    for name in _CHECKPOINTS:
        (data / name).unlink(missing_ok=True)  # the broker finds the offsets again
