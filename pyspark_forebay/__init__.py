"""``format("forebay")`` of Spark. Spark finds it without registration, by the name of this package.

Options, schema and meanings are those of Spark's own ``format("kafka")`` (docs/STREAMING.md).

::

    intake     queries over an intake
    kafka      queries on Kafka itself          sink        queries that write
    schema     the columns                      pacing      how much a trigger reads
    decoding   keys and values as columns       progress    how far a query is behind, for users
    options    the options, checked             offsets     offsets in checkpoints and options
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, NoReturn

import pyspark
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from forebay.model.errors import ForebayError, UsageError
from forebay.process.worker_process import freeze_modules
from pyspark_forebay.options.source import check
from pyspark_forebay.options.values import by_name, column_names

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from pyspark_forebay.decoding import Decoding
    from pyspark_forebay.intake.batch import IntakeBatchReader
    from pyspark_forebay.intake.stream import IntakeStreamReader
    from pyspark_forebay.kafka.batch import BatchReader
    from pyspark_forebay.kafka.stream import StreamReader
    from pyspark_forebay.sink.writers import AtLeastOnceWriter, TransactionalWriter


def _new_id() -> str:
    return secrets.token_hex(4)


class RefusedReader(DataSourceStreamReader):
    """The reader of a streaming query that was refused: its first method raises the reason.

    If ``streamReader`` raised the error itself, Spark would hide it behind an error of its own.
    """

    def __init__(self, error: ForebayError) -> None:
        self._error = error

    def initialOffset(self) -> NoReturn:  # noqa: N802 - Spark's name
        raise self._error.with_traceback(None)

    def latestOffset(self, *_: object) -> NoReturn:  # noqa: N802 - Spark's name; before 4.2 its first call, without arguments
        raise self._error.with_traceback(None)

    def read(self, partition: InputPartition) -> NoReturn:
        raise self._error


class DefaultSource(DataSource):
    """The data source ``forebay``.

    Spark runs each method in a process of its own. ``options``: option name in lower case → value.
    """

    _decoding: Decoding | None = None

    @classmethod
    def name(cls) -> str:
        return "forebay"

    def schema(self) -> StructType:
        """Return the columns. Raises UsageError for options that both kinds of query refuse."""
        from pyspark_forebay.schema import selected, spark_schema

        decoding = self._find_decoding()
        headers = self._headers if decoding is None else decoding.headers
        columns = selected(spark_schema(headers, decoding), column_names(by_name(self.options)))
        freeze_modules()  # each process that plans a query calls this method, and then collects garbage
        return columns

    def reader(self, schema: StructType) -> BatchReader | IntakeBatchReader:
        self._check_schema(schema)  # before the imports: the collections that they cause omit PySpark's modules
        reader: BatchReader | IntakeBatchReader
        if "tracker" in self.options:
            from pyspark_forebay.intake.batch import IntakeBatchReader

            reader = IntakeBatchReader(self.options, self._find_decoding())
        else:
            from pyspark_forebay.kafka.batch import BatchReader

            reader = BatchReader(self.options, self._find_decoding())
        freeze_modules()
        return reader

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        try:
            return self._stream_reader(schema)
        except ForebayError as error:
            return RefusedReader(error)

    def _stream_reader(self, schema: StructType) -> StreamReader | IntakeStreamReader:
        try:
            from pyspark.sql.streaming import datasource as _  # noqa: F401 - since 4.2 Spark passes starts and limits to a source
        except ImportError:
            raise UsageError(
                f"streaming queries need PySpark 4.2 or newer; {pyspark.__version__} is installed"
            ) from None
        self._check_schema(schema)
        if "tracker" in self.options:
            from pyspark_forebay.intake.stream import IntakeStreamReader

            return IntakeStreamReader(self.options, new_id=_new_id, decoding=self._find_decoding())
        from pyspark_forebay.kafka.stream import StreamReader

        return StreamReader(self.options, decoding=self._find_decoding())

    def writer(self, schema: StructType, overwrite: bool) -> AtLeastOnceWriter | TransactionalWriter:
        if overwrite:
            raise UsageError("save mode overwrite is not allowed for Kafka: use append")
        return self._writer(schema, streaming=False)

    def streamWriter(self, schema: StructType, overwrite: bool) -> AtLeastOnceWriter | TransactionalWriter:  # noqa: N802
        """Return the writer. ``overwrite`` is true in the output mode complete, which appends like the other modes."""
        return self._writer(schema, streaming=True)

    def _writer(self, schema: StructType, streaming: bool) -> AtLeastOnceWriter | TransactionalWriter:
        try:
            from pyspark.sql.datasource import DataSourceStreamArrowWriter as _  # noqa: F401 - writers take Arrow since 4.1
        except ImportError:
            raise UsageError(f"writing needs PySpark 4.1 or newer, not {pyspark.__version__}") from None
        from pyspark_forebay.sink.writers import writer_of

        freeze_modules()
        return writer_of(self.options, schema, streaming=streaming)

    @property
    def _headers(self) -> bool:
        return bool(self.options.get("includeHeaders", "false").strip().lower() == "true")

    def _find_decoding(self) -> Decoding | None:
        """Return how to decode. The registry is asked once: Spark passes this object on from ``schema`` to the tasks."""
        subscription = check(self.options)
        if self._decoding is None and {"keyformat", "valueformat"} & {name.lower() for name in self.options}:
            from pyspark_forebay.decoding import find_decoding

            self._decoding = find_decoding(by_name(self.options), subscription, self._headers)
        return self._decoding

    def _check_schema(self, schema: Any) -> None:
        if schema != self.schema():
            raise UsageError(
                "the source has a fixed schema, that of Spark's Kafka source: remove .schema(…), and name the columns that you "
                "need in the option columns"
            )
