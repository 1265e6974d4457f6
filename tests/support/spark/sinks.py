"""Batches of rows into a topic, as Spark's tasks and planner write them, during a test's faults."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from types import TracebackType

import pyarrow as pa
from pyspark.sql.types import StringType, StructType

from pyspark_forebay.sink.rows import pack_rows
from pyspark_forebay.sink.writers import AtLeastOnceWriter, TaskRows, TransactionalWriter, writer_of
from tests.support.kafka.flow import read_topic
from tests.support.kafka.polling import PATIENCE_SECONDS
from tests.support.state.columns import column_values

_SCHEMA = StructType().add("value", StringType())
#: of a batch
ROWS = 20


def sink_of(options: Mapping[str, str], topic: str, **more: str) -> AtLeastOnceWriter | TransactionalWriter:
    """``options``: of Kafka; ``more``: of the sink."""
    kafka = {f"kafka.{name}": value for name, value in options.items()}
    return writer_of({**kafka, "topic": topic, "groupIdPrefix": topic, **more}, _SCHEMA, streaming=True)


def write(sink: AtLeastOnceWriter | TransactionalWriter, topic: str, batch: int) -> None:
    """What Spark's tasks and planner do with one batch, of one task."""
    rows = pa.record_batch({"value": [f"{batch} {place}" for place in range(ROWS)]})
    if isinstance(sink, TransactionalWriter):
        sink.commit([TaskRows("a-query", batch, pack_rows([rows], topic))], batch)
    else:
        sink.write(iter([rows]))


class Sink:
    """``with Sink(…) as sink``: writes until it is left, which raises what failed."""

    def __init__(self, options: Mapping[str, str], topic: str, *, transactional: bool) -> None:
        self._options = options
        self._topic = topic
        self._writer = sink_of(options, topic, transactional=str(transactional).lower())
        self._written = 0
        self._changed = threading.Condition()
        self._ending = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=f"sink-{topic}")

    def await_more(self, batches: int = 2) -> None:
        """Until so many are written that were begun after this, except the first one."""
        with self._changed:
            wanted = self._written + batches
            come = self._changed.wait_for(lambda: self._written >= wanted or self._failure, PATIENCE_SECONDS)
        assert come and self._failure is None, self._failure

    def rows(self) -> tuple[Counter[str], Counter[str]]:
        """What was written, and what a reader of committed records finds."""
        expected = Counter(f"{number} {place}" for number in range(self._written) for place in range(ROWS))
        found = read_topic(self._options, {(self._topic, number): 1 for number in range(2)})
        return expected, Counter(value.decode() for value in column_values(found.table(), "value"))

    def __enter__(self) -> Sink:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join()
        if self._failure is not None and error is None:
            raise AssertionError("a batch was not written") from self._failure

    def _run(self) -> None:
        try:
            while not self._ending.is_set():
                write(self._writer, self._topic, self._written)
                with self._changed:
                    self._written += 1
                    self._changed.notify_all()
        except Exception as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()
