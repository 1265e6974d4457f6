"""JSON documents whose last field is a checksum, so that a wrong bit in them is noticed.

Older releases wrote the same documents without a checksum, and ignore the field when they read it.
"""

from __future__ import annotations

import re
from typing import TypeVar

import google_crc32c
import msgspec

S = TypeVar("S", bound=msgspec.Struct)

_CHECKSUM = re.compile(rb',"checksum":"([0-9a-f]{8})"\}')
_CHECKSUM_BYTES = len(b',"checksum":"00000000"}')


def encode(value: msgspec.Struct) -> bytes:
    """Return ``value`` as JSON; its last field is the CRC32C of all bytes before this field."""
    data = msgspec.json.encode(value)[:-1]
    return b'%s,"checksum":"%08x"}' % (data, google_crc32c.value(data))


def decode(data: bytes, kind: type[S]) -> S:
    """Return the value in ``data``. Raises ``forebay.model.wire.UNDECODABLE``, also if the checksum does not match.

    A document without a checksum is of an older release. It has no field that this release does not know, so a wrong bit in
    the checksum's name is noticed too.
    """
    until = max(0, len(data) - _CHECKSUM_BYTES)
    checksum = _CHECKSUM.fullmatch(data, until)
    if checksum is None:
        fields = msgspec.json.decode(data, type=dict[str, object])
        unknown = fields.keys() - set(kind.__struct_encode_fields__)
        if unknown:
            raise msgspec.ValidationError(f"it has no checksum, and unknown fields: {', '.join(sorted(unknown))}")
    elif int(checksum[1], 16) != google_crc32c.value(data[:until]):
        raise msgspec.ValidationError("its checksum does not match")
    return msgspec.json.decode(data, type=kind)
