"""The columns of ``format("forebay")``: those of Spark's own Kafka source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from forebay.model.errors import UsageError

if TYPE_CHECKING:
    from pyspark_forebay.decoding import Decoding


def spark_schema(headers: bool, decoding: Decoding | None = None) -> StructType:
    """Return ``forebay.model.records.DATAFRAME_SCHEMA`` as a schema of Spark. Decoded columns have their reader's schema."""
    fields = [
        StructField("key", BinaryType()),
        StructField("value", BinaryType()),
        StructField("topic", StringType()),
        StructField("partition", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("timestampType", IntegerType()),
    ]
    if headers:
        header = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
        fields.append(StructField("headers", ArrayType(header)))
    if decoding is not None:
        from pyspark.sql.pandas.types import from_arrow_type

        from pyspark_forebay.decoding import ERROR_COLUMN

        made = {one.column: from_arrow_type(one.format().type, prefer_timestamp_ntz=True) for one in decoding.columns}
        fields = [StructField(field.name, made.get(field.name, field.dataType)) for field in fields]
        if decoding.permissive:
            fields.append(StructField(ERROR_COLUMN, StringType()))
    return StructType(fields)


def selected(schema: StructType, columns: Sequence[str]) -> StructType:
    """Return the fields of ``schema`` that ``columns`` name, in their order; all if there are none.

    Raises UsageError for a name without a field.
    """
    fields = {field.name: field for field in schema.fields}
    unknown = [name for name in columns if name not in fields]
    if unknown:
        hint = "; set includeHeaders to true for headers" if unknown == ["headers"] else ""
        raise UsageError(f"option columns: the query has no column {unknown[0]}, only {', '.join(fields)}{hint}")
    return StructType([fields[name] for name in columns]) if columns else schema
