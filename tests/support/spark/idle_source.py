"""A streaming source in Python that does nothing beyond Spark's interface, to measure Spark's own time for a trigger.

Each trigger is one task with a row made of nothing. Needs pyspark 4.2, which passes starts and limits to sources.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import StructType

from forebay.model.records import DATAFRAME_SCHEMA
from pyspark_forebay.schema import spark_schema


class IdleSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "idle"

    def schema(self) -> StructType:
        return spark_schema(False)

    def streamReader(self, schema: StructType) -> IdleReader:  # noqa: N802 - Spark's names, here and below
        return IdleReader()


class IdleReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"at": 0}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        return {"at": start["at"] + 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(None)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        row = {"key": b"k", "value": b"v", "topic": "idle", "partition": 0, "offset": 0, "timestamp": 0}
        yield pa.RecordBatch.from_pylist([{**row, "timestampType": 0}], DATAFRAME_SCHEMA(False))
