"""Made the golden journal: ``python -m tests.golden.make_v1_journal DIRECTORY``, by the release before batches had several
outputs, windows and jobs side by side.

As ``make_v1``: the files under ``v1-journal`` are never edited and never made again.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from driver.journal import history
from driver.journal.log import opening as journal
from driver.tracker.requests import Archived
from tests.support.state.tracked import STREAM, Tracked
from wal.storage import open_storage

LAST_MS = 4_000


def main(directory: Path) -> None:
    """``directory`` gets ``journal`` and ``wal`` (its markers alone): one batch archived, one unfinished, blocks that wait."""
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise SystemExit(f"{directory} is not empty: golden files are never written over")
    storages = [open_storage(f"file://{directory.resolve()}/{name}") for name in ("journal", "wal")]
    uids = itertools.count(1)
    t = Tracked(partitions=2)
    epoch = t.register()
    token = t.claim(epoch).view.token
    for number in (1, 2, 3):
        t.now_ms = number * 1_000
        t.take_in(epoch, token, number * 10, local=True)
        t.take_in(epoch, token, number * 10 + 5)
        if number == 3:
            break
        batch = t.batch()
        if number == 1:
            t.complete(batch)
            done = history.finished(t.state)
            t.say(Archived(tuple(b.batch_id for b in done)))
    opened, _ = journal.lead(storages[0], STREAM, "golden", LAST_MS, lambda: 4.0, lambda: next(uids), wal=storages[1])
    opened.append(t.events)
    opened.sync()
    opened.close()
    writer = history.HistoryWriter(
        storages[0], STREAM, opened.epoch, segment_bytes=64_000_000, now=lambda: 4.0, new_uid=lambda: next(uids)
    )
    writer.append(done)
    writer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
