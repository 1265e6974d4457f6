"""Columns made of Python's bytes and numpy's numbers, without pandas."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.model.arrow_columns import bytes_column, numbers_column, value_lengths


@settings(deadline=None, derandomize=True)
@given(st.lists(st.none() | st.binary(max_size=9), max_size=40), st.integers(0, 5))
def test_column_of_bytes_equals_arrows_and_distinguishes_nulls_from_empty_values(
    values: list[bytes | None], skipped: int
) -> None:
    column = bytes_column(values)
    column.validate(full=True)
    assert column.equals(pa.array(values, pa.binary()))
    part = column.slice(min(skipped, len(values)))
    assert value_lengths(part).tolist() == [-1 if value is None else len(value) for value in values[skipped:]]


def test_a_column_of_numbers_shares_their_memory() -> None:
    numbers = np.arange(5)
    assert numbers_column(numbers, pa.int64()).to_pylist() == [0, 1, 2, 3, 4]
    assert numbers_column(numbers, pa.int64()).buffers()[1].address == numbers.ctypes.data


def test_column_beyond_32_bit_offsets_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Long(bytes):
        def __len__(self) -> int:
            return 1 << 31

    with pytest.raises(ValueError, match="at most 2 GiB"):
        bytes_column([Long(b"x")])


_RECEIVER_AT_WORK = """
import sys
import numpy as np, pyarrow as pa
import receiver.main
from forebay.model.arrow_columns import bytes_column, numbers_column
from forebay.model.digest import digest
from forebay.model.payload import encode_block
from forebay.model.records import SOURCE_SCHEMA, RangeRows
from forebay.model.values import TopicPartition
from receiver.blocks.encoded_block import _row_bytes
columns = [bytes_column([None, b"x"]), bytes_column([b"y", b"z"])]
columns += [numbers_column(np.arange(2), pa.int64())] * 2 + [numbers_column(np.zeros(2, np.int32), pa.int32())]
rows = pa.RecordBatch.from_arrays(columns, schema=SOURCE_SCHEMA(False))
encode_block([RangeRows(TopicPartition("t", 0), [rows.slice(0, 1), rows.slice(1)])], False)
digest([rows]), _row_bytes(rows)
print("pandas" in sys.modules)
"""

_TASK_AT_WORK = """
import sys
from pathlib import Path
import numpy as np, pyarrow as pa
import pyspark.worker
from benchmarks.stored_blocks import store
from driver.batches.tasks.reading import read_in_task
from forebay.model.arrow_columns import bytes_column, numbers_column
from forebay.model.payload import block_rows
from forebay.model.records import SOURCE_SCHEMA, RangeRows, to_dataframe
from forebay.model.values import TopicPartition
from wal.reading import BlockReference, ReadPlan
blocks = store(Path(sys.argv[1]), 400)
plan = ReadPlan(wal_url=blocks.settings.wal.url, blocks_directory=blocks.settings.agent.blocks)
counts = []
read = list(read_in_task([BlockReference.of(block) for block in blocks.blocks], plan, counts.append))
assert sum(batch.num_rows for batch in read) == 400 and counts[0].ranges == {"local": 4}
assert set(read[0].column("topic").to_pylist()) == {"records"}
columns = [bytes_column([None, b"x"])] * 2 + [numbers_column(np.arange(2), pa.int64())] * 2
columns += [numbers_column(np.zeros(2, np.int32), pa.int32())]
rows = RangeRows(TopicPartition("t", 0), [pa.RecordBatch.from_arrays(columns, schema=SOURCE_SCHEMA(False))])
assert [to_dataframe(batch, "t").num_rows for batch in block_rows(rows, False)] == [2]
print("pandas" in sys.modules)
"""


@pytest.mark.parametrize("code", [_RECEIVER_AT_WORK, _TASK_AT_WORK], ids=["receiver", "task"])
def test_neither_a_receiver_nor_a_task_imports_pandas(code: str, tmp_path: Path) -> None:
    """It would cost each of their processes up to a second of CPU and 56 MB."""
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, timeout=120)
    assert done.stdout == b"False\n"
