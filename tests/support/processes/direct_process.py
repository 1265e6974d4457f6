"""A direct stream in a separate process that tests kill; it writes the ranges of each batch to a file named by the batch id.

The started process forks one child after the other, each when the previous one was killed, so that modules are imported once.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import traceback
from pathlib import Path

from direct.parameters import checked_options
from direct.stream.commits import DirectCommits
from direct.stream.settings import StreamSettings
from direct.stream.strategies import Subscribe
from direct.stream.stream import DirectStream
from driver.batches.job.batch import Batch
from driver.batches.job.engine import Job
from driver.batches.job.work import BatchWork
from wal.reading import TierCounts


class InProcess:
    """An engine that gives the job what it was given."""

    parallelism = 1
    application = ("", "")
    ui_url = ""

    def start(self) -> None: ...

    def warm(self) -> None: ...

    def await_ready(self, work: BatchWork) -> bool:
        return False

    def check(self) -> None: ...

    def run(self, work: BatchWork, job: Job) -> TierCounts:
        job(work)  # type: ignore[arg-type]
        return TierCounts()

    def cancel(self) -> None: ...

    def stop(self) -> None: ...


def main(address: str, topics: str, folder: Path, tracker: str, concurrent_jobs: int) -> None:
    safe = checked_options({"bootstrap.servers": address, "auto.offset.reset": "earliest"})
    settings = StreamSettings(
        "s",
        (folder / "checkpoint").as_uri(),
        0.05,
        on_vanished="record",
        tracker=tracker,
        concurrent_jobs=concurrent_jobs,
    )
    stream = DirectStream(
        safe=safe,
        strategy=Subscribe(topics.split(",")),
        settings=settings,
        engine=InProcess(),
        commits=DirectCommits(""),
    )

    def write(work: Batch) -> None:
        spans = [[span.topic, span.partition, span.from_offset, span.until_offset] for span in work.spans]  # type: ignore[attr-defined]
        path = folder / "out" / f"{work.batch_id}.json"  # type: ignore[attr-defined]
        if path.exists() and json.loads(path.read_text()) != spans:
            (folder / "out" / f"other-{path.name}").write_text(json.dumps(spans))  # INV-3 is broken
        half = path.with_suffix(".half")
        half.write_text(json.dumps(spans))
        os.replace(half, path)

    stream.foreach_batch(write).start()
    stream.await_termination()


def forks(address: str, topics: str, folder: Path, tracker: str = "") -> None:
    for number in itertools.count():  # every second process runs two jobs at the same time
        child = os.fork()
        if not child:
            try:
                main(address, topics, folder, tracker, concurrent_jobs=1 + number % 2)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            raise SystemExit(1)


if __name__ == "__main__":
    forks(sys.argv[1], sys.argv[2], Path(sys.argv[3]), *sys.argv[4:])
