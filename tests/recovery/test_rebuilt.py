"""A journal that is lost after a recovery, before the next snapshot copy: moved blocks are found at their new places."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Any, cast

import pytest

from driver.background.snapshot_copies import SnapshotCopies
from driver.journal.log.encoding import EncodedState
from forebay.model.identifiers import numbered
from forebay.process.clock import SystemClock
from recovery.rebuild import rebuild
from tests.recovery.test_recovering import applied, planned, served
from tests.support.state.logged import Logged
from tests.support.state.tracked import STREAM
from wal.decisions.retention import RetentionLimits


@pytest.mark.parametrize("local", [True, False], ids=["from the local copy", "from Kafka"])
def test_a_block_that_recovery_moved_after_the_newest_copy_is_found_by_a_rebuild(local: bool, tmp_path: Path) -> None:
    logged = Logged(tmp_path)
    logged.receiver("r1")
    damaged = logged.take_in("r1", {0: 5}, local=local)
    whole = logged.take_in("r1", {0: 5})
    logged.receiver("r1")
    logged.keep()
    uids = itertools.count(1000)
    copies = SnapshotCopies(
        cast(Any, lambda _: None),
        logged.wal,
        stream=STREAM,
        epoch=numbered(1, 1),
        clock=SystemClock(),
        interval_seconds=0.0,
        limits=RetentionLimits(retention_ms=0),
        new_uid=lambda: next(uids),
    )
    copies.write(EncodedState.of(logged.state()))
    logged.damage(damaged)
    assert not applied(logged).open
    served(logged, damaged)
    shutil.rmtree(tmp_path / "journal")
    logged.local_file(damaged).unlink(missing_ok=True)
    logged.kafka.gone |= {(0, n) for n in range(10)}
    plan = rebuild(
        logged.journal,
        logged.wal,
        stream=STREAM,
        topic_ids=lambda _: {},
        owner="test",
        wall_ms=1,
        now=lambda: 1.0,
        new_uid=lambda: next(uids),
    )
    assert plan.missing == ()
    for block in (damaged, whole):
        served(logged, block)
    assert not planned(logged).open
