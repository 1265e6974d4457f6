"""The output to a Kafka topic: each batch is one transaction, with the output marker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Any

import pyarrow as pa

from driver.batches.job.batch import Batch
from driver.batches.job.work import Written
from driver.outputs.output import noted
from driver.outputs.rows import pieces
from driver.outputs.run import OutputRun, check_output_name, decoded, reason_to_skip, run_of
from forebay.kafka.produce.rows import Record
from forebay.kafka.produce.transactions import TransactionalSender, transactional_group
from forebay.model.errors import UsageError
from forebay.process import failpoints

_ROWS_AT_ONCE = 5_000
_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_string, pa.types.is_large_string)


class KafkaOutput:
    """``KafkaOutput({"bootstrap.servers": "…"}, "delays")``: each batch in one transaction.

    ``options``: librdkafka's, as in ``[kafka]``. The rows have a column ``value`` and may have ``key`` (both bytes or text)
    and ``headers`` (as in the Kafka source). With ``same_partitions`` the column ``partition`` names each row's partition;
    otherwise the key determines it. Other columns are not sent. The topic must exist, and its readers must read committed
    records only. A replay sends its rows again, because records can't be removed from a topic.

    A transaction belongs to one producer, so rows go through the driver's process, in pieces; at most 64 MiB wait for the
    brokers. The transaction must end within ``timeout_seconds`` (at most the broker's ``transaction.max.timeout.ms``, 15
    minutes by default).

    The transactional id is ``forebay/<stream>/<name>``; opening it aborts a transaction that an earlier driver left open. The
    marker is an offset's metadata in the group ``forebay/<stream>/<name>/marker``, committed in the transaction. It is read
    when the id is opened and after an error, so a batch needs no request for it.

    **Crash window**: the broker forgets the marker after ``offsets.retention.minutes`` (7 days) without a batch. If a driver is
    killed between the commit and the batch's completion **and** is down for that long, the batch is sent twice.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        topic: str,
        *,
        name: str | None = None,
        same_partitions: bool = False,
        timeout_seconds: float = 60.0,
    ) -> None:
        """Connect to nothing yet. ``name``: the output's name; default: the topic's name."""
        self.name = check_output_name(name or topic)
        self._options = dict(options)
        self._topic = topic
        self._same_partitions = same_partitions
        self._timeout = timeout_seconds
        self._sender: TransactionalSender | None = None
        self._last: OutputRun | None = None

    def write(self, batch: Batch, data: Any) -> Written:
        """Write as ``Output.write``."""
        run = run_of(batch, self.name)
        sender = self._opened(run)
        skipped = reason_to_skip(run, self._last)
        if skipped:
            return noted(batch, Written(self.name, 0, skipped))
        failpoints.hit("output.before-write")
        try:
            sender.begin()
            rows = 0
            for piece in pieces(data, _ROWS_AT_ONCE):
                sender.put(self._records(piece))
                rows += piece.num_rows
                failpoints.hit("output.mid-write")
            failpoints.hit("output.before-commit")
            marker = run.after(self._last)
            sender.commit(marker.encoded(), run.number)
        except BaseException:
            sender.abort()
            self.close()  # the next attempt learns from the marker whether the transaction was committed
            raise
        failpoints.hit("output.after-commit")
        self._last = marker
        return noted(batch, Written(self.name, rows))

    def close(self) -> None:
        """Close the producer. The output can be used again."""
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()

    # ---- inner parts -------------------------------------------------------------------------------------------------

    def _opened(self, run: OutputRun) -> TransactionalSender:
        if self._sender is None:
            transactional_id = f"forebay/{run.stream}/{run.output}"
            group = transactional_group(transactional_id)
            sender = TransactionalSender(
                self._options,
                self._topic,
                transactional_id=transactional_id,
                group=group,
                timeout_seconds=self._timeout,
            )
            marker = sender.open()
            try:
                self._last = decoded(marker.text, f"the metadata of group {group}") if marker else None
            except BaseException:
                sender.close()
                raise
            self._sender = sender
        return self._sender

    def _records(self, rows: pa.RecordBatch) -> Iterator[Record]:
        names = rows.schema.names
        if "value" not in names:
            raise UsageError(f"output {self.name!r}: the rows need a column value; they have {', '.join(names)}")
        keys = self._bytes(rows, "key") if "key" in names else [None] * rows.num_rows
        values = self._bytes(rows, "value")
        partitions: list[int | None] = [None] * rows.num_rows
        if self._same_partitions:
            if "partition" not in names:
                raise UsageError(f"output {self.name!r}: same_partitions needs a column partition")
            partitions = rows.column("partition").to_pylist()
        lists = rows.column("headers").to_pylist() if "headers" in names else [None] * rows.num_rows
        headers = [own and [(header["key"], header["value"]) for header in own] for own in lists]
        return zip(repeat(self._topic, rows.num_rows), keys, values, partitions, headers, strict=True)

    def _bytes(self, rows: pa.RecordBatch, name: str) -> list[bytes | None]:
        column = rows.column(name)
        if not any(fits(column.type) for fits in _BYTES):
            raise UsageError(f"output {self.name!r}: column {name} is {column.type}: cast it to bytes or text")
        values: list[bytes | None] = column.cast(pa.large_binary()).to_pylist()
        return values
