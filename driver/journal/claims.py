"""The content of an epoch's claim. People read it, and the first claim of a timeline identifies the journal in the WAL."""

from __future__ import annotations

import msgspec

from driver.journal import checked_json
from forebay.model.errors import CorruptionError
from forebay.model.wire import UNDECODABLE


class Claim(msgspec.Struct, frozen=True):
    """The process that claimed an epoch, and when."""

    epoch: int
    owner: str
    time_ms: int

    def encode(self) -> bytes:
        """Return the content of the claim's file."""
        return checked_json.encode(self)


def decode(data: bytes, path: str, step: str = "") -> Claim:
    """Return the claim in ``data``, which was read from ``path``. Raises CorruptionError, which ends with ``step``."""
    try:
        return checked_json.decode(data, Claim)
    except UNDECODABLE as error:
        raise CorruptionError(path, 0, f"it is no whole claim: {error}{step}") from None
