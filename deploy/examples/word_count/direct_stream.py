"""Counts words by a direct stream, without jars or receivers: ``spark-submit direct_stream.py SERVERS TOPIC FOLDER``.

Each batch writes its counts below FOLDER under its id, so that a rerun replaces them; ``totals`` adds up all counts.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any


class WordCount:
    """The job of a direct stream, or of an intake: batches of both have an ``id`` and an ``rdd``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, batch: Any) -> None:
        from operator import add

        lines = batch.rdd.map(lambda record: (record.value or b"").decode())
        found = lines.flatMap(str.split).map(lambda word: (word, 1)).reduceByKey(add)
        rows = sorted(found.collect())
        self._folder.mkdir(parents=True, exist_ok=True)
        aside = self._folder / f"{batch.id}.part"
        aside.write_text("".join(f"{word} {count}\n" for word, count in rows))
        aside.replace(self._folder / f"{batch.id}.txt")


def totals(folder: Path) -> dict[str, int]:
    """Return for each word its count over all batches."""
    added: dict[str, int] = {}
    for path in folder.glob("*.txt"):
        for line in path.read_text().splitlines():
            word, count = line.rsplit(" ", 1)
            added[word] = added.get(word, 0) + int(count)
    return added


def stream(spark: Any, servers: str, topic: str, folder: Path) -> Any:
    """Return the stream, not started yet. It keeps its offsets in FOLDER/checkpoint."""
    from direct import StreamSettings, Subscribe, create_direct_stream

    params = {"bootstrap.servers": servers, "group.id": "word-count", "auto.offset.reset": "earliest"}
    settings = StreamSettings("word-count", f"file://{folder.resolve()}/checkpoint")
    made = create_direct_stream(spark, params, Subscribe([topic]), settings)
    made.foreach_batch(WordCount(folder / "counts"))
    return made


def main(servers: str, topic: str, folder: str) -> None:
    from pyspark.sql import SparkSession

    logging.basicConfig()
    logging.getLogger("direct").setLevel(logging.INFO)  # logs where each partition begins, and why
    running = stream(SparkSession.builder.appName("word-count").getOrCreate(), servers, topic, Path(folder))
    running.start()
    running.await_termination()


if __name__ == "__main__":
    main(*sys.argv[1:])
