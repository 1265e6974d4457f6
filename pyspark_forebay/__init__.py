"""``spark.read.format("forebay")``: found by Spark without registration, because of this package's name.

Options, schema and meanings are those of Spark's own ``format("kafka")`` (docs/STREAMING.md).
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql.datasource import DataSource

from forebay.errors import UsageError
from pyspark_forebay.options import check

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_forebay.batch import BatchReader
    from pyspark_forebay.intake_batch import IntakeBatchReader
    from pyspark_forebay.intake_stream import IntakeStreamReader
    from pyspark_forebay.stream import StreamReader
    from pyspark_forebay.writer import AtLeastOnceWriter, TransactionalWriter


def _new_id() -> str:
    return secrets.token_hex(4)


class DefaultSource(DataSource):
    """Each method runs in a process that Spark starts for it; Spark gives ``options`` with names in lower case."""

    @classmethod
    def name(cls) -> str:
        return "forebay"

    def schema(self) -> StructType:
        """Raises UsageError for options that neither kind of query takes."""
        from pyspark_forebay.schema import spark_schema

        check(self.options)
        return spark_schema(self.options.get("includeHeaders", "false").strip().lower() == "true")

    def reader(self, schema: StructType) -> BatchReader | IntakeBatchReader:
        from pyspark_forebay.batch import BatchReader
        from pyspark_forebay.intake_batch import IntakeBatchReader

        self._check_schema(schema)
        if "tracker" in self.options:
            return IntakeBatchReader(self.options)
        return BatchReader(self.options)

    def streamReader(self, schema: StructType) -> StreamReader | IntakeStreamReader:  # noqa: N802 - Spark's name
        try:
            from pyspark.sql.streaming import datasource as _  # noqa: F401 - since 4.2: starts and limits are told to a source
        except ImportError:
            raise UsageError(f"streaming queries need PySpark 4.2 or newer, not {pyspark.__version__}") from None
        from pyspark_forebay.intake_stream import IntakeStreamReader
        from pyspark_forebay.stream import StreamReader

        self._check_schema(schema)
        if "tracker" in self.options:
            return IntakeStreamReader(self.options, _new_id)
        return StreamReader(self.options)

    def writer(self, schema: StructType, overwrite: bool) -> AtLeastOnceWriter | TransactionalWriter:
        from pyspark_forebay.writer import writer_of

        if overwrite:
            raise UsageError("save mode overwrite is not allowed for Kafka: use append")
        return writer_of(self.options, schema, streaming=False)

    def streamWriter(self, schema: StructType, overwrite: bool) -> AtLeastOnceWriter | TransactionalWriter:  # noqa: N802
        """``overwrite``: of the output mode complete, which appends as every other."""
        from pyspark_forebay.writer import writer_of

        return writer_of(self.options, schema, streaming=True)

    def _check_schema(self, schema: Any) -> None:
        if schema != self.schema():
            raise UsageError("the source has a fixed schema, that of Spark's Kafka source: leave .schema(…) out")
