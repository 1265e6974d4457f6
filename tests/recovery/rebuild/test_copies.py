"""Snapshot copies: which one a rebuild begins from, when one is due, and how many are kept."""

from __future__ import annotations

from typing import cast

import pytest

from driver.background.snapshot_copies import CopyNeed, copy_due
from driver.journal import events as ev
from driver.journal.leadership import timeline
from driver.journal.state import State
from driver.journal.transitions import apply
from forebay.model.errors import RefusedError
from forebay.model.identifiers import numbered
from recovery import rebuild
from tests.support.state.lost_journal import Lost
from tests.support.state.tracked import STREAM, Tracked, offsets
from tests.support.stores.unlisted import Unlisted
from wal.decisions.retention import RetentionLimits
from wal.segments import layout
from wal.storage import Storage


def test_unreadable_copy_is_reported_and_the_previous_one_used() -> None:
    lost = Lost()
    t = lost.t
    epoch = t.register()
    token = t.claim(epoch).view.token
    lost.take_in(epoch, offsets(0, 10, token))
    older = lost.copy()
    lost.take_in(epoch, offsets(10, 20, token))
    newest = lost.copy()
    whole = lost.wal.read(newest)
    for bad, message in ((whole[:300], "not finished"), (whole[:300] + b"x" + whole[301:], "can't be used")):
        lost.wal.replace(newest, bad)
        evidence = rebuild.read_evidence(lost.journal, lost.wal, STREAM, lost.topic_ids)
        assert evidence.copy_path == older
        assert message in evidence.notes[0]
        state = rebuild.rebuilt(evidence, 2, 9, "test").state
        assert state.partitions["t/0"].position == 20
    lost.wal.delete(newest)
    plan = rebuild.rebuilt(rebuild.read_evidence(lost.journal, lost.wal, STREAM, lost.topic_ids), 2, 9, "test")
    assert (plan.copy_path, plan.state.partitions["t/0"].position) == (older, 20)
    lost.wal.delete(older)
    with pytest.raises(RefusedError, match="holds no snapshot copy"):
        lost.rebuild()
    assert timeline.newest_marker(lost.wal, STREAM) == 1, "refused before anything was changed"


@pytest.mark.parametrize("hidden", [0, 1])
def test_copy_omitted_by_a_listing_is_found(hidden: int) -> None:
    lost = Lost()
    epoch = lost.t.register()
    token = lost.t.claim(epoch).view.token
    lost.take_in(epoch, offsets(0, 10, token))
    copies = [lost.copy()]
    lost.take_in(epoch, offsets(10, 20, token))
    copies.append(lost.copy())
    wal = cast(Storage, Unlisted(lost.wal, {copies[hidden]}))
    evidence = rebuild.read_evidence(lost.journal, wal, STREAM, lost.topic_ids)
    assert evidence.copy_path == copies[1], "the one after those that are listed is asked for by name"
    assert rebuild.rebuilt(evidence, 2, 9, "test").state.partitions["t/0"].position == 20


def test_copy_is_due_immediately_for_new_partitions_and_waiting_clean_up() -> None:
    t = Tracked()
    now = RetentionLimits(retention_ms=0)
    assert copy_due(State(stream=STREAM, timeline=1), now, 0) is CopyNeed.NO
    assert copy_due(t.state, now, 0) is CopyNeed.NOW
    t.copy(1)
    assert copy_due(t.state, now, 0) is CopyNeed.NO, "the event that tells of the copy is no news"
    epoch = t.register()
    t.take_in(epoch, t.claim(epoch).view.token, 10)
    assert copy_due(t.state, now, 0) is CopyNeed.LATER
    batch = t.batch()
    t.complete(batch)
    t.archive(batch)
    for _ in range(2):
        assert copy_due(t.state, now, t.now_ms) is CopyNeed.SOON
        t.copy(1)
    assert copy_due(t.state, now, t.now_ms) is CopyNeed.NO
    apply(t.state, ev.PartitionsAdded((ev.IncarnationStart("t", 9, 0),), 1, "later"))
    assert copy_due(t.state, now, t.now_ms) is CopyNeed.NOW


def test_copy_that_is_not_required_is_left_to_the_clean_up() -> None:
    """INV-8: taken in the middle of its round, it would permit the deletion of some segments of the round and not of others."""
    lost = Lost()
    lost.copies.require()
    assert len(lost.t.state.copies) == 1, "there was none"
    epoch = lost.t.register()
    lost.take_in(epoch, offsets(0, 10, lost.t.claim(epoch).view.token))
    lost.copies.want()
    lost.copies.require()
    assert len(lost.t.state.copies) == 1
    lost.copies.keep_up()
    assert len(lost.t.state.copies) == 2


def test_last_two_copies_are_kept_and_older_remains_deleted() -> None:
    lost = Lost()
    paths = [lost.copy() for _ in range(4)]
    lost.wal.put_new(layout.snapshot_copy(STREAM, numbered(1, 1), 9), b"")
    for _ in range(2):
        lost.copies.prune(lost.t.state.copies)
        kept = lost.wal.list(layout.snapshot_folder(STREAM))
        assert kept == [*paths[2:], layout.snapshot_copy(STREAM, numbered(1, 1), 9)]
