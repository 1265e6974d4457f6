"""Values and schemas of Arrow columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def column_values(rows: pa.RecordBatch | pa.Table, name: str) -> list[Any]:
    """Return the values of the column ``name`` as Python objects; null is None."""
    return rows.column(name).to_pylist()


def schema_of(**columns: pa.DataType) -> pa.Schema:
    """Return the schema with these columns, in this order."""
    return pa.schema(columns)
