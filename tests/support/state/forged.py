"""Bytes changed so that their CRC-32C stays the same: four bytes of the forger's choice are enough for any change."""

from __future__ import annotations

from typing import Any

import google_crc32c

from forebay.model.values import BlockMeta
from wal.blocks.digests import completed
from wal.blocks.local_writing import local_frame


def forged(payload: Any, old: bytes, new: bytes) -> bytes:
    """``payload`` with ``new`` in place of the first ``old``, of the same length, whose last four bytes make the checksum fit."""
    data = bytearray(memoryview(payload))
    assert len(old) == len(new) > 4
    at = data.index(old)
    wanted = google_crc32c.value(bytes(data))
    data[at : at + len(new)] = new[:-4] + bytes(4)
    place = at + len(new) - 4
    plain = int(google_crc32c.value(bytes(data)))

    def effect(bit: int) -> int:
        """What of the checksum changes with one bit of the four bytes: a checksum is linear."""
        data[place : place + 4] = (1 << bit).to_bytes(4, "little")
        return plain ^ int(google_crc32c.value(bytes(data)))

    rows = [(effect(bit), 1 << bit) for bit in range(32)]
    missing, chosen = wanted ^ plain, 0
    for bit in reversed(range(32)):
        pivot = next((row for row in rows if row[0] >> bit & 1), None)
        if pivot is None:
            continue
        rows = [(r[0] ^ pivot[0], r[1] ^ pivot[1]) if r[0] >> bit & 1 else r for r in rows if r is not pivot]
        if missing >> bit & 1:
            missing, chosen = missing ^ pivot[0], chosen ^ pivot[1]
    assert not missing
    data[place : place + 4] = chosen.to_bytes(4, "little")
    assert google_crc32c.value(bytes(data)) == wanted
    return bytes(data)


def forged_copy(meta: BlockMeta, payload: bytes) -> bytes:
    """A whole copy of a block with that payload, which says in its own metadata that the payload is the right one."""
    meta, _ = completed(meta, payload, None)
    return b"".join(bytes(memoryview(part)) for part in local_frame(meta, payload))
