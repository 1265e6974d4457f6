"""The digest by which the records of a range are compared."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from forebay.model.arrow_columns import Column, milliseconds, number_view, slot_lengths, value_slots


def digest(batches: Sequence[pa.RecordBatch]) -> str:
    """Return the digest of the records in ``batches`` (one range, offset order): 16 lower-case hex digits.

    It depends on the values of the columns only, not on how they are cut into batches, sliced, encoded or compressed.
    All integers are little-endian two's complement; XXH3-64 is xxHash's 64-bit XXH3 with seed 0.

    The digest is XXH3-64 over: the number of records (8 bytes), then for each stream below, in this order, the XXH3-64
    of the whole stream (8 bytes, as an unsigned integer). Without records, nothing follows the number.

    1. offsets, 8 bytes per record
    2. timestamps in milliseconds, 8 bytes per record
    3. timestamp types, 4 bytes per record
    4. lengths of the keys in bytes, 4 bytes per record, -1 for null
    5. the bytes of all keys that are not null, joined
    6. and 7. the same two of the values

    and, only if there is a headers column,

    8. the number of headers, 4 bytes per record, -1 for null
    9. lengths of the headers' keys, 4 bytes per header, -1 for null
    10. the bytes of the headers' keys (UTF-8), joined
    11. and 12. the same two of the headers' values

    The batches may be of ``SOURCE_SCHEMA``, ``BLOCK_SCHEMA`` or ``DATAFRAME_SCHEMA`` (whose timestamps are exact unless
    they were out of bounds). Topic and partition are not included: the range names them. Raises ValueError if an offset,
    timestamp or timestampType is null.
    """
    batches = [batch for batch in batches if batch.num_rows]
    total = xxhash.xxh3_64(struct.pack("<q", sum(batch.num_rows for batch in batches)))
    if not batches:
        return str(total.hexdigest())
    offset, timestamp, timestamp_type = xxhash.xxh3_64(), xxhash.xxh3_64(), xxhash.xxh3_64()
    key, value = _BinaryDigest(), _BinaryDigest()
    streams = [offset, timestamp, timestamp_type, *key.streams, *value.streams]
    with_headers = "headers" in batches[0].schema.names
    if with_headers:
        header_count, header_key, header_value = xxhash.xxh3_64(), _BinaryDigest(), _BinaryDigest()
        streams += [header_count, *header_key.streams, *header_value.streams]
    for batch in batches:
        offset.update(number_view(batch.column("offset"), np.int64))
        timestamp.update(number_view(milliseconds(batch.column("timestamp")), np.int64))
        timestamp_type.update(number_view(batch.column("timestampType"), np.int32))
        key.update(batch.column("key"))
        value.update(batch.column("value"))
        if with_headers:
            headers: Column = batch.column("headers")
            header_count.update(slot_lengths(headers, np.asarray(headers.offsets)))
            keys, values = headers.flatten().flatten()
            header_key.update(keys)
            header_value.update(values)
    total.update(struct.pack(f"<{len(streams)}Q", *(stream.intdigest() for stream in streams)))
    return str(total.hexdigest())


class _BinaryDigest:
    """The two streams of a column of strings or bytes: its lengths, and its joined bytes."""

    def __init__(self) -> None:
        self._lengths = xxhash.xxh3_64()
        self._bytes = xxhash.xxh3_64()

    @property
    def streams(self) -> tuple[Any, Any]:
        return self._lengths, self._bytes

    def update(self, column: Column) -> None:
        if not len(column):
            return
        if not (pa.types.is_binary(column.type) or pa.types.is_string(column.type)):
            column = column.cast(pa.binary())
        offsets = value_slots(column)
        lengths = slot_lengths(column, offsets)
        self._lengths.update(lengths)
        if column.null_count and int(offsets[-1] - offsets[0]) != int(lengths[lengths > 0].sum(dtype=np.int64)):
            column = column.drop_null()  # a null may have bytes that are not a value
            offsets = value_slots(column)
        if len(column) and offsets[-1] > offsets[0]:
            self._bytes.update(column.buffers()[2].slice(int(offsets[0]), int(offsets[-1] - offsets[0])))
