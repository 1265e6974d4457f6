"""Requests to S3 for opening a stream with 100,000 waiting blocks: an old stream against a young one.

Both are opened at the worst moment, just before a snapshot is due. The old stream has some epochs more, and the segments of a
thousand more batches in its history. Ours: requests of the old stream. Peer: requests of the young one. They must not grow.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

from benchmarks.journal_opening import BLOCKS, STREAM, first_events, waiting_block
from benchmarks.measured import Measured, Threshold, ratio
from benchmarks.setup import Setup
from driver.journal import events as ev
from driver.journal.log import opening, writing
from driver.journal.log.writing import Journal
from driver.journal.transitions import apply
from forebay.model.identifiers import numbered
from tests.support.stores.s3 import BUCKET, ENVIRONMENT, options, s3_server
from wal.segments import layout
from wal.storage import Storage, open_storage

GROUP_EVENTS = 1_000
HISTORY_SEGMENTS = 1_100  # more than one page of a listing
LATER_EPOCHS = 3


def measure(setup: Setup) -> Iterator[Measured]:
    blocks = setup.records(BLOCKS)
    with setup.folder() as folder, s3_server(folder) as server:
        os.environ.update(ENVIRONMENT)
        kept = open_storage(f"s3://{BUCKET}/journal", options(server.url))
        wal = open_storage(f"s3://{BUCKET}/wal", options(server.url))
        for _ in range(writing.EMPTY_EPOCHS + 2):
            _open(kept, wal)
        _write(kept, wal, blocks)
        young = _requests(kept, wal)
        for number in range(1, setup.records(HISTORY_SEGMENTS) + 1):
            kept.put_new(layout.history_segment(STREAM, numbered(1, 1), number), b"")
        for _ in range(LATER_EPOCHS):
            _open(kept, wal)
        old = _requests(kept, wal)
    note = f"{blocks:,} waiting blocks"
    yield ratio("opening", "requests, old / young", [(old, young)], "requests", Threshold(1.0, at_least=False), note)


def _open(kept: Storage, wal: Storage) -> Journal:
    uids = itertools.count(1)
    opened, _ = opening.lead(kept, STREAM, "bench", 0, lambda: 0.0, lambda: next(uids), wal=wal)
    return opened


def _write(kept: Storage, wal: Storage, blocks: int) -> None:
    uids = itertools.count(1)
    opened, state = opening.lead(kept, STREAM, "bench", 0, lambda: 0.0, lambda: next(uids), wal=wal)
    events = itertools.chain(first_events(), (ev.BlockAdded(waiting_block(number)) for number in range(blocks)))
    while group := list(itertools.islice(events, GROUP_EVENTS)):
        for event in group:
            apply(state, event)
        opened.append(group)
        opened.sync()
        if opened.snapshot_due():
            opened.snapshot()
            opened.drop_superseded()
            opened.await_deletion()
    opened.close()


def _requests(kept: Storage, wal: Storage) -> float:
    """Return the requests of an opening when a snapshot is due with the next write."""
    opened = _open(kept, wal)
    for _ in range(writing.SNAPSHOT_SEGMENTS - 1):
        opened.append([])
        opened.sync()
    opened.close()
    before = _count(kept)
    _open(kept, wal).close()
    return float(_count(kept) - before)


def _count(kept: Storage) -> int:
    """Return the requests of this process to both stores, which share a client."""
    return sum(number for kind, number in kept.requests.items() if not kind.startswith("bytes"))
