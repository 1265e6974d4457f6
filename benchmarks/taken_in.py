"""A whole topic taken in by a real receiver and driver; its blocks are then on this host, for other readers."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.receiving import settings_text
from benchmarks.stored_blocks import PROCESSES
from driver.batches.job.batch import Batch
from driver.batches.job.work import BatchWork
from driver.context import IngestContext
from driver.decisions.packing import pack
from forebay.model.identifiers import numbered
from forebay.model.values import Block
from forebay.security.access import NO_ACCESS
from forebay.settings.reading.load import load
from forebay.settings.schema import Settings
from pyspark_forebay.intake.client import Intake, partitions_of
from pyspark_forebay.intake.planning import first_place, next_end, spans_between
from wal.reading import BlockReference, ReadPlan, read_block

_PATIENCE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class TakenIn:
    """The blocks. ``url``: of the driver, which still answers. ``blocks``: in the order of acceptance."""

    settings: Settings
    url: str
    blocks: tuple[Block, ...]

    @property
    def work(self) -> BatchWork:
        """Return all blocks as one batch, packed as the driver packs them."""
        by_id = {block.id: BlockReference.of(block) for block in self.blocks}
        tasks = tuple(tuple(by_id[name] for name in task) for task in pack(self.blocks, PROCESSES))
        return BatchWork(numbered(1, 1), 1, 0, False, tasks)


@contextmanager
def taken_in(directory: Path, options: dict[str, str], topic: str, records: int) -> Iterator[TakenIn]:
    """Take in a topic, and yield when the receiver has exited, the batches are completed, and all blocks are retained."""
    directory.mkdir()
    config = directory / "forebay.toml"
    text = settings_text(directory, options, topic, "http://127.0.0.1:0").replace('host = "bench"\n', "")
    text = text.replace("[wal]", '[wal]\nretention = "1h"').replace("[agent]", 'engine = "local"\n[agent]')
    config.write_text(f'{text}\n[spark]\n"spark.master" = "local[{PROCESSES}]"\n"spark.driver.memory" = "2g"\n')
    left = [records]
    done = threading.Event()

    def count(batch: Batch) -> None:
        left[0] -= batch.records
        if left[0] <= 0:
            done.set()

    with IngestContext(None, load(config)) as intake:
        intake.foreach_batch(count)
        config.write_text(config.read_text().replace("http://127.0.0.1:0", intake.url))
        log = directory / "receiver.log"
        with log.open("wb") as file:
            receiver = subprocess.Popen(
                [sys.executable, "-m", "deploy.main", "--config", str(config), "receiver", "--id", "r1"],
                stdout=file, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            if not done.wait(_PATIENCE_SECONDS):
                raise RuntimeError(f"{left[0]} of {records} records were not taken in: {log.read_text()[-3000:]}")
        finally:
            receiver.terminate()
            receiver.wait(60)
        settings = load(config)
        blocks = _blocks(intake.url)
        found = sum(block.meta.records for block in blocks)
        plan = ReadPlan(wal_url=settings.wal.url, blocks_directory=settings.agent.blocks)
        tier = read_block(BlockReference.of(blocks[0]), plan).tier
        if (found, tier) != (records, "local"):
            raise RuntimeError(f"{found} of {records} records are in blocks, which are read from {tier}")
        yield TakenIn(settings, intake.url, blocks)


def _blocks(url: str) -> tuple[Block, ...]:
    intake = Intake([url], NO_ACCESS, _PATIENCE_SECONDS)
    try:
        partitions = partitions_of(intake.describe())
        begin = {tp: first_place(one) for tp, one in partitions.items()}
        end = {tp: next_end(begin[tp], one) for tp, one in partitions.items()}
        return intake.blocks(spans_between(begin, end, partitions)).blocks
    finally:
        intake.close()
