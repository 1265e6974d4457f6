"""Batches that surviving histories or a copy prove to be finished are not repeated."""

from __future__ import annotations

import msgspec

from driver.journal import history
from forebay.model.identifiers import numbered
from recovery import audit
from recovery.plan import HistoryView, history_view
from tests.support.state.lost_journal import Lost, numbers
from tests.support.state.tracked import STREAM, offsets


def test_batch_finished_in_a_surviving_history_is_not_repeated() -> None:
    for survives in (True, False):
        lost = Lost()
        t = lost.t
        epoch = t.register()
        token = t.claim(epoch).view.token
        lost.take_in(epoch, offsets(0, 10, token))
        first = t.batch()
        lost.copy()
        t.complete(first)
        lost.take_in(epoch, offsets(10, 20, token))
        second = t.batch()
        t.complete(second)
        done = history.finished(t.state)
        t.archive(first, second)
        lost.take_in(epoch, offsets(20, 30, token))
        if survives:
            writer = history.HistoryWriter(
                lost.journal,
                STREAM,
                numbered(1, 1),
                segment_bytes=1 << 20,
                now=lambda: 1.0,
                new_uid=lambda: next(numbers),
            )
            writer.append(done)
            writer.close()
        plan = lost.rebuild()
        named = {batch.batch_id: batch.ranges for batch in plan.rebuild.repeated}
        if survives:
            assert named == {0: ("t/0[20, 30)",)}
        else:
            assert named == {first: ("t/0[0, 10)",), 0: ("t/0[10, 30)",)}
        assert plan.state.next_batch_id() > second
        assert plan.state.partitions["t/0"].completed == (20 if survives else 0)
        assert audit.report(plan.state, history.read(lost.journal, STREAM)).clean
        # a driver that slept archives its batches after the rebuild: they don't count any more
        assert audit.report(plan.state, done).clean
        assert not history_view(plan.state, history.read(lost.journal, STREAM)).finding
        assert bool(history_view(plan.state, ()).finding) == survives  # it was there when the rebuild read it


def test_offsets_finished_only_by_the_copy_are_attested() -> None:
    lost = Lost()
    t = lost.t
    epoch = t.register()
    token = t.claim(epoch).view.token
    block = lost.take_in(epoch, offsets(0, 10, token))
    batch = t.batch()
    t.complete(batch)
    t.archive(batch)
    lost.copy()
    lost.wal.delete(block.handle.path)  # by a clean-up that the copy does not know of
    lost.take_in(epoch, offsets(10, 20, token))
    plan = lost.rebuild()
    report = audit.report(plan.state, ())
    assert report.clean
    assert (report.incarnations[0].attested, report.incarnations[0].waiting) == (10, 10)
    assert report.rebuilds[0].attested == 10
    assert block.id not in plan.state.blocks
    assert not plan.missing
    assert history_view(plan.state, ()) == HistoryView(0)
    later = msgspec.structs.replace(plan.state, archived_number=2)  # of the new timeline
    assert history_view(later, ()).finding == "the history lacks 1 finished batches, from number 2 to 2"
    cut = msgspec.structs.replace(plan.state.partitions["t/0"], position=30)
    plan.state.partitions["t/0"] = cut
    assert [f.kind for f in audit.report(plan.state, ()).findings] == ["missing"]


def test_batches_archived_after_the_loss_count_only_without_a_missing_one_before() -> None:
    """INV-3: the history's batches 1 and 2 were lost with the journal; the running driver archived the third."""
    lost = Lost()
    t = lost.t
    epoch = t.register()
    token = t.claim(epoch).view.token
    lost.copy()
    for until in (10, 20, 30):
        lost.take_in(epoch, offsets(until - 10, until, token))
        t.complete(t.batch())
    done = history.finished(t.state)
    writer = history.HistoryWriter(
        lost.journal, STREAM, numbered(1, 1), segment_bytes=1 << 20, now=lambda: 1.0, new_uid=lambda: next(numbers)
    )
    writer.append(done[2:])
    writer.close()
    plan = lost.rebuild()
    assert len(plan.state.waiting) == 3
    (named,) = plan.rebuild.repeated
    assert named.ranges == ("t/0[0, 30)",)
    assert audit.report(plan.state, history.read(lost.journal, STREAM)).clean
