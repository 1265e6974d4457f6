"""How large the compressed buffers of an Arrow IPC stream say they are, told before anything is decompressed.

Arrow allocates what a buffer claims. Where that is (Arrow's columnar format, *IPC Streaming Format* and *Buffer Compression*):
the flatbuffer of each message lists its buffers as offset and length within the body, and a compressed one begins with its
length when decompressed, 8 bytes, -1 for one that is stored as it is.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

_RECORD_BATCH, _DICTIONARY_BATCH = 3, 2
#: places in the tables of Arrow's Message.fbs
_MESSAGE_HEADER_TYPE, _MESSAGE_HEADER = 1, 2
_DICTIONARY_DATA = 1
_BATCH_BUFFERS, _BATCH_COMPRESSION = 2, 3
_LENGTH = struct.Struct("<q")


def decompressed_sizes(payload: Any) -> Iterator[tuple[int, ...]]:
    """For each compressed message of the stream, what each of its buffers says to hold, in bytes.

    Raises ``pa.ArrowException``, OSError or ValueError for what is no IPC stream.
    """
    for message in pa.ipc.MessageReader.open_stream(payload):
        if message.body is None or not message.body.size:
            continue
        try:
            yield tuple(_sizes(memoryview(message.metadata).cast("B"), memoryview(message.body).cast("B")))
        except struct.error as error:
            raise ValueError(f"a message's description is cut off: {error}") from None


def _sizes(description: memoryview, body: memoryview) -> Iterator[int]:
    root = _offset(description, 0)
    kind_at, header_at = _field(description, root, _MESSAGE_HEADER_TYPE), _field(description, root, _MESSAGE_HEADER)
    if not kind_at or not header_at or description[kind_at] not in (_RECORD_BATCH, _DICTIONARY_BATCH):
        return
    batch = _offset(description, header_at)
    if description[kind_at] == _DICTIONARY_BATCH:
        data_at = _field(description, batch, _DICTIONARY_DATA)
        if not data_at:
            return
        batch = _offset(description, data_at)
    buffers_at = _field(description, batch, _BATCH_BUFFERS)
    if not buffers_at or not _field(description, batch, _BATCH_COMPRESSION):
        return
    vector = _offset(description, buffers_at)
    (count,) = struct.unpack_from("<I", description, vector)
    for number in range(count):
        begin, length = struct.unpack_from("<qq", description, vector + 4 + 16 * number)
        yield _LENGTH.unpack_from(body, begin)[0] if length >= _LENGTH.size else 0


def _offset(description: memoryview, at: int) -> int:
    """Where the thing is that ``at`` refers to."""
    return at + int(struct.unpack_from("<I", description, at)[0])


def _field(description: memoryview, table: int, place: int) -> int:
    """Where field number ``place`` of a table is; 0 if it is absent."""
    (back,) = struct.unpack_from("<i", description, table)
    vtable = table - back
    (size,) = struct.unpack_from("<H", description, vtable)
    entry = 4 + 2 * place
    if entry >= size:
        return 0
    (relative,) = struct.unpack_from("<H", description, vtable + entry)
    return table + relative if relative else 0
