"""Records and columns of custom sources become the same rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from forebay.model.records import SOURCE_SCHEMA
from forebay.sources.receiving import Record
from receiver.sources.custom_records import source_batch


def test_records_and_columns_give_the_same_rows() -> None:
    records = [
        Record(b"v", b"k", 5, 1000, (("h", b"1"), ("h", None))),
        Record(None, None, 9),
        Record(b"", b"", 10, 0),
    ]
    columns = pa.RecordBatch.from_pydict(
        {
            "offset": pa.array([5, 9, 10], pa.int32()),
            "value": pa.array([b"v", None, b""], pa.large_binary()),
            "key": pa.array(["k", None, ""]),
            "timestamp": pa.array([1000, -1, 0]),
            "headers": pa.array(
                [[{"key": "h", "value": b"1"}, {"key": "h", "value": None}], None, None],
                SOURCE_SCHEMA(True).field("headers").type,
            ),
        }
    )
    for headers in (False, True):
        batch = source_batch(records, headers)
        assert batch.schema == SOURCE_SCHEMA(headers)
        assert batch.to_pylist() == source_batch(columns, headers).to_pylist()
    assert batch.column("timestampType").to_pylist() == [0, -1, 0]
    bare = pa.RecordBatch.from_pydict({"value": ["x", "y"]})
    assert source_batch(bare, True, 3).column("offset").to_pylist() == [3, 4]
    assert source_batch(records, False, 3).column("offset").to_pylist() == [3, 4, 5]


def test_columns_do_not_change_when_the_source_fills_its_buffers_again() -> None:
    """A block shares memory with its records until it is written, and its checksums are made at different times."""
    values = bytearray(b"old1old2")
    sizes = pa.py_buffer(np.array([0, 4, 8], np.int32).tobytes())
    mine = pa.RecordBatch.from_arrays(
        [pa.Array.from_buffers(pa.binary(), 2, [None, sizes, pa.py_buffer(values)])], names=["value"]
    )
    batch = source_batch(mine, False, 0)
    values[:] = b"new1new2"
    assert batch.column("value").to_pylist() == [b"old1", b"old2"]
