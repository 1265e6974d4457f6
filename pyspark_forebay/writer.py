"""Rows into topics, as Spark's Kafka sink writes them: at least once, in every mode as if it were append."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
)

from forebay.errors import UsageError
from forebay.kafka.java_options import translate
from forebay.kafka.sender import send_rows
from pyspark_forebay.options import kafka_options

_REFUSED = {
    "key.serializer": "keys are written as bytes or text: serialise them by DataFrame operations",
    "value.serializer": "values are written as bytes or text: serialise them by DataFrame operations",
    "transactional.id": "records are written at least once, without transactions",
}


class RowsWriter(DataSourceArrowWriter, DataSourceStreamArrowWriter):
    """Made in the planner's process; :meth:`write` runs in the tasks. What a task that failed has sent stays in the topic."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Raises UsageError for options and columns that Spark's Kafka sink refuses."""
        given = {name.lower(): value for name, value in options.items()}
        self._topic = given.get("topic", "").strip() or None
        self._kafka = translate(kafka_options(given, _REFUSED)).options
        check_columns({field.name: field.dataType for field in schema.fields}, self._topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]
        """Returns when every record is acknowledged. Raises UnreachableError, ForebayError, UsageError."""
        send_rows(self._kafka, self._topic, iterator)
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803 - Spark's name
        pass  # acknowledged is written

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int = 0) -> None:  # noqa: N803
        pass  # at least once: nothing is taken back


def check_columns(columns: Mapping[str, Any], topic: str | None) -> None:
    """Raises UsageError unless there are columns that records can be made of; others are not written."""
    if topic is None and "topic" not in columns:
        raise UsageError("the option topic must say where to write, or a column topic for each row")
    if "value" not in columns:
        raise UsageError("a column value is needed")
    for name, allowed in _TYPES.items():
        if name in columns and not any(_is(columns[name], type_) for type_ in allowed):
            raise UsageError(
                f"column {name} is {columns[name].simpleString()}: allowed is "
                f"{' or '.join(type_.simpleString() for type_ in allowed)}"
            )


_TYPES: dict[str, tuple[DataType, ...]] = {
    "topic": (StringType(),),
    "key": (StringType(), BinaryType()),
    "value": (StringType(), BinaryType()),
    "headers": (ArrayType(StructType().add("key", StringType()).add("value", BinaryType())),),
    "partition": (IntegerType(),),
}


def _is(found: Any, wanted: DataType) -> bool:
    """Whether they are the same, whatever may be null in them."""
    return bool(found.simpleString() == wanted.simpleString())
