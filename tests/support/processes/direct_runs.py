"""Direct streams over one checkpoint, with a real Kafka and jobs in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from direct.parameters import checked_options
from direct.stream.commits import DirectCommits
from direct.stream.settings import StreamSettings
from direct.stream.strategies import ConsumerStrategy
from direct.stream.stream import DirectStream
from driver.batches.job.batch import Batch
from driver.batches.job.work import BatchWork
from forebay.kafka.consume.range_reader import Reading, read_range
from forebay.kafka.options.access import KafkaAccess
from forebay.model.values import TopicPartition
from tests.support.kafka.polling import PATIENCE_SECONDS
from tests.support.processes.direct_process import InProcess
from tests.support.state.columns import column_values


class Runs:
    """Streams over one checkpoint, one after the other, and the batches that their jobs were given."""

    def __init__(self, options: Mapping[str, str], checkpoint: Path) -> None:
        self.options = options
        self.checkpoint = checkpoint
        self.works: list[BatchWork] = []
        self.came = threading.Condition()
        self.streams: list[DirectStream] = []
        self.commits = DirectCommits("")

    def job(self, work: Batch) -> None:
        with self.came:
            self.works.append(work)  # type: ignore[arg-type]
            self.came.notify_all()

    def start(
        self,
        strategy: ConsumerStrategy,
        job: Callable[[Batch], None] | None = None,
        params: Mapping[str, object] | None = None,
        timeout_seconds: float = 20.0,
        **settings: object,
    ) -> DirectStream:
        stream = self.make(strategy, params, timeout_seconds, **settings)
        stream.foreach_batch(job or self.job).start()
        return stream

    def make(
        self,
        strategy: ConsumerStrategy,
        params: Mapping[str, object] | None = None,
        timeout_seconds: float = 20.0,
        **settings: object,
    ) -> DirectStream:
        """Return a stream without a job that is not started."""
        safe = checked_options({**self.options, "auto.offset.reset": "earliest", **(params or {})})
        own = {"interval_seconds": 0.05, "retry_seconds": 0.01, **settings}
        self.commits = DirectCommits(safe.group)
        stream = DirectStream(
            safe=safe,
            strategy=strategy,
            settings=StreamSettings("s", self.checkpoint.as_uri(), **own),  # type: ignore[arg-type]
            engine=InProcess(),
            commits=self.commits,
            timeout_seconds=timeout_seconds,
        )
        self.streams.append(stream)
        return stream

    def stop(self, stream: DirectStream) -> None:
        stream.stop()
        assert stream.await_termination(PATIENCE_SECONDS)

    def await_records(self, count: int) -> None:
        with self.came:
            assert self.came.wait_for(lambda: self.records >= count, PATIENCE_SECONDS), self.works

    @property
    def records(self) -> int:
        return sum(span.size for work in self.works for span in work.spans)

    def spans(self, tp: TopicPartition) -> list[tuple[int, int]]:
        return [(s.from_offset, s.until_offset) for work in self.works for s in work.spans if s.tp == tp]

    def once(self, tp: TopicPartition) -> tuple[int, int]:
        """Where the partition's spans begin and end, which touch (INV-2)."""
        found = self.spans(tp)
        assert [begin for begin, _ in found[1:]] == [end for _, end in found[:-1]], found
        return found[0][0], found[-1][1]


class RowsRead:
    """A job that reads what it is given: the partition and offset of each record, in order."""

    def __init__(self, runs: Runs, reading: Reading, timeout_seconds: float = PATIENCE_SECONDS) -> None:
        self.runs = runs
        self.reading = reading
        self.access = KafkaAccess(dict(runs.options), "g", timeout_seconds)
        self.read: list[tuple[int, int]] = []

    def __call__(self, work: Batch) -> None:
        read = [
            (span.partition, offset)
            for span in work.spans  # type: ignore[attr-defined]
            for rows in read_range(self.access, span, self.reading)
            for offset in column_values(rows, "offset")
        ]
        self.read += read  # an attempt that fails leaves nothing
        self.runs.job(work)
