"""The columns of ``format("forebay")``: those of Spark's own Kafka source."""

from __future__ import annotations

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
