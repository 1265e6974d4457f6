"""Reads the decompressed sizes that the buffers of an Arrow IPC stream declare, without decompressing them.

Arrow allocates the declared size. Arrow's columnar format (*IPC Streaming Format* and *Buffer Compression*) stores it as follows:
the flatbuffer of each message lists its buffers as offset and length within the body. A compressed buffer begins with 8 bytes,
its decompressed length; -1 means that the buffer is not compressed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

_RECORD_BATCH, _DICTIONARY_BATCH = 3, 2
#: field numbers in the tables of Arrow's Message.fbs
_MESSAGE_HEADER_TYPE, _MESSAGE_HEADER = 1, 2
_DICTIONARY_DATA = 1
_BATCH_BUFFERS, _BATCH_COMPRESSION = 2, 3
_LENGTH = struct.Struct("<q")


def decompressed_sizes(payload: Any) -> Iterator[tuple[int, ...]]:
    """Return the declared decompressed size of each buffer in bytes, for each compressed message of the stream.

    Raises ``pa.ArrowException``, OSError or ValueError if ``payload`` is not an IPC stream.
    """
    for message in pa.ipc.MessageReader.open_stream(payload):
        if message.body is None or not message.body.size:
            continue
        try:
            yield tuple(declared_sizes(memoryview(message.metadata).cast("B"), memoryview(message.body).cast("B")))
        except struct.error as error:
            raise ValueError(f"the metadata of a message is truncated: {error}") from None


def declared_sizes(description: memoryview, body: memoryview) -> Iterator[int]:
    """Return the declared decompressed size of each buffer of one message; nothing if it is not compressed.

    ``description``: the message's flatbuffer. Raises ``struct.error`` if it is truncated.
    """
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
    """Return the position that the offset at ``at`` refers to."""
    return at + int(struct.unpack_from("<I", description, at)[0])


def _field(description: memoryview, table: int, place: int) -> int:
    """Return the position of field number ``place`` of a table; 0 if the field is absent."""
    (back,) = struct.unpack_from("<i", description, table)
    vtable = table - back
    (size,) = struct.unpack_from("<H", description, vtable)
    entry = 4 + 2 * place
    if entry >= size:
        return 0
    (relative,) = struct.unpack_from("<H", description, vtable + entry)
    return table + relative if relative else 0
