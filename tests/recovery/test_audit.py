"""The audit finds every fault, and none in a correct journal."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import msgspec
import pytest

from deploy.commands.inspection.audit import exceptions, sentence
from driver.decisions.replay import RewindTo
from driver.journal import history
from driver.journal.events import Event
from driver.journal.history import FinishedBatch, FinishedRange, HistoryWriter
from driver.journal.log import opening as journal
from driver.journal.transitions import apply
from driver.tracker.requests import BeginReplay, SkipBatch
from forebay import messages as m
from forebay.model.errors import CorruptionError, UsageError
from forebay.model.identifiers import numbered
from recovery import audit
from tests.support.state.tracked import STREAM, Tracked, offsets
from wal.storage import MemoryStorage, Storage

numbers = itertools.count(1)


def worked() -> Tracked:
    """Two batches completed and archived, one unfinished, one block waiting, a gap, and a range without records."""
    t = Tracked(on_gap="record")
    epoch = t.register()
    token = t.claim(epoch).view.token
    for until in (10, 25):
        t.take_in(epoch, token, until)
        t.complete(t.batch())
    t.archived = history.finished(t.state)  # type: ignore[attr-defined]
    t.archive(*(b.batch_id for b in t.archived))  # type: ignore[attr-defined]
    t.report(epoch, t.block(epoch, [offsets(25, 30, token, records=0)]))
    t.batch()
    t.take_in(epoch, token, 40)
    return t


def archived(t: Tracked) -> tuple[FinishedBatch, ...]:
    return t.archived  # type: ignore[attr-defined, no-any-return]


def test_stream_without_faults_is_clean_and_counted() -> None:
    t = worked()
    report = audit.report(t.state, archived(t))
    assert report.clean
    incarnation = report.incarnations[0]
    assert (
        incarnation.start,
        incarnation.until,
        incarnation.batches,
        incarnation.records,
        incarnation.waiting,
        incarnation.skipped,
    ) == (0, 40, 3, 35, 10, 5)
    assert (incarnation.duplicates, incarnation.missing) == (0, 0)
    assert (report.batches_completed, report.batches_unfinished, report.records_completed) == (2, 1, 25)


def test_a_batch_still_in_the_state_and_already_in_the_history_counts_once() -> None:
    """A kill between the history's append and the journal's event leaves exactly this."""
    t = Tracked()
    epoch = t.register()
    t.take_in(epoch, t.claim(epoch).view.token, 10)
    t.complete(t.batch())
    report = audit.report(t.state, history.finished(t.state))
    assert report.clean
    assert (report.batches_completed, report.records_completed) == (1, 10)


def test_loss_that_was_accepted_after_the_history_got_the_batch_is_shown() -> None:
    """A batch that a window contains stays in the state, and can lose ranges there."""
    from forebay import messages as m

    t = Tracked()
    epoch = t.register()
    t.take_in(epoch, t.claim(epoch).view.token, 10)
    batch = t.batch()
    t.say(m.AcceptLossRequest(batch_id=batch, ranges=("t/0[0, 10)",)))
    t.complete(batch)
    before = [msgspec.structs.replace(finished, lost=()) for finished in history.finished(t.state)]
    report = audit.report(t.state, before)
    assert report.incarnations[0].accepted_losses == ("t/0[0, 10)",)
    assert report.batches_completed == 1


def test_batch_in_no_record_is_missing_with_its_exact_range() -> None:
    t = worked()
    report = audit.report(t.state, archived(t)[1:])
    assert [(f.kind, f.from_offset, f.until_offset) for f in report.findings] == [("missing", 0, 10)]
    assert report.incarnations[0].missing == 10


def test_offsets_in_two_batches_are_duplicates_and_name_both() -> None:
    t = worked()
    twice = FinishedBatch(
        batch_id=numbered(1, 99),
        number=99,
        time_ms=1,
        completed_ms=2,
        attempts=1,
        records=4,
        ranges=(FinishedRange("t", 0, 1, 8, 12, 4),),
        tasks=(),
    )
    report = audit.report(t.state, (*archived(t), twice))
    assert {(f.kind, f.from_offset, f.until_offset) for f in report.findings} >= {("duplicate", 8, 10)}
    assert any(numbered(1, 99) in f.batches for f in report.findings)
    assert report.incarnations[0].duplicates == 4


def test_offsets_past_the_position_are_found() -> None:
    t = worked()
    t.state.partitions["t/0"].position = 33
    assert [f.kind for f in audit.report(t.state, archived(t)).findings] == ["beyond"]


def test_ranges_of_an_unknown_incarnation_are_found() -> None:
    t = worked()
    strange = msgspec.structs.replace(
        archived(t)[0], batch_id=numbered(1, 98), ranges=(FinishedRange("t", 0, 7, 0, 3, 3),)
    )
    assert [f.kind for f in audit.report(t.state, (*archived(t), strange)).findings] == ["beyond"]


def test_a_gap_and_an_accepted_loss_are_shown_with_their_causes_and_are_no_finding() -> None:
    from forebay import messages as m

    t = Tracked(on_gap="record")
    epoch = t.register()
    token = t.claim(epoch).view.token
    t.take_in(epoch, token, 10)
    batch = t.batch()
    t.say(m.AcceptLossRequest(batch_id=batch, ranges=("t/0[0, 10)",)))
    t.complete(batch)
    t.say(
        m.Fault(
            receiver_id="r1",
            epoch=epoch,
            topic="t",
            partition=0,
            token=token,
            kind="out-of-range",
            position=10,
            low=40,
            high=90,
        )
    )
    t.search_finding_nothing(epoch)
    report = audit.report(t.state, ())
    assert report.clean
    incarnation = report.incarnations[0]
    assert [(g.from_offset, g.until_offset) for g in incarnation.gaps] == [(10, 40)]
    assert incarnation.accepted_losses == ("t/0[0, 10)",)


def test_the_audit_reads_journal_and_history_from_their_store() -> None:
    storage = MemoryStorage(f"memory://audit-{next(numbers)}")
    with pytest.raises(UsageError, match="holds no journal"):
        audit.audit(storage, STREAM)
    t = worked()
    led, state = journal.lead(storage, STREAM, "test", 1, lambda: 1.0, lambda: next(numbers))
    for event in t.events:
        apply(state, event)
    led.append(t.events)
    led.sync()
    writer = HistoryWriter(
        storage, STREAM, led.epoch, segment_bytes=1000, now=lambda: 1.0, new_uid=lambda: next(numbers)
    )
    assert not audit.audit(storage, STREAM).clean
    for batch in archived(t):
        writer.append((batch,))
    assert audit.audit(storage, STREAM) == audit.report(t.state, archived(t))
    path = storage.list(f"{STREAM}/history")[0]
    whole = bytearray(storage.read(path))
    whole[-80] ^= 1
    storage.delete(path)
    storage.create(path).append(bytes(whole))
    with pytest.raises(CorruptionError):
        audit.audit(storage, STREAM)


@pytest.mark.parametrize("is_known", [True, False], ids=["beside a driver", "after the journal lost its end"])
def test_batches_that_a_running_driver_finishes_meanwhile_are_no_finding(
    is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history is read after the journal. A batch that the journal still does not know then is one that it lost."""
    storage = MemoryStorage(f"memory://audit-{next(numbers)}")
    t = worked()
    led, state = journal.lead(storage, STREAM, "test", 1, lambda: 1.0, lambda: next(numbers))
    writer = HistoryWriter(
        storage, STREAM, led.epoch, segment_bytes=1000, now=lambda: 1.0, new_uid=lambda: next(numbers)
    )

    def record(events: Sequence[Event], batches: Sequence[FinishedBatch]) -> None:
        for event in events:
            apply(state, event)
        led.append(events)
        led.sync()
        for batch in batches:
            writer.append((batch,))

    record(t.events, archived(t))
    before = len(t.events)
    read = history.read

    def read_later(storage: Storage, stream: str) -> Iterator[FinishedBatch]:
        """The driver completes the batch of the waiting block, and one of new records, in the meantime."""
        for number in sorted(t.state.batches):
            t.complete(number)
        epoch, token = t.state.receivers["r1"].epoch, t.state.partitions["t/0"].token
        t.take_in(epoch, token, 60)
        t.complete(t.batch())
        done = history.finished(t.state)
        t.archive(*(batch.batch_id for batch in done))
        record(t.events[before:] if is_known else (), done)
        yield from read(storage, stream)

    monkeypatch.setattr(history, "read", read_later)
    found = audit.audit(storage, STREAM)
    assert found.clean == is_known
    if not is_known:
        assert {"duplicate", "beyond"} <= {finding.kind for finding in found.findings}


@pytest.mark.parametrize("hidden", [1, 2, 4], ids=["first", "between", "last"])
def test_a_listing_that_hides_a_segment_of_the_history_hides_no_batch(
    hidden: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-5: a missing segment between others is noticed too."""
    storage = MemoryStorage(f"audit-{next(numbers)}")
    t = worked()
    done = archived(t)[0]
    writer = HistoryWriter(
        storage, STREAM, numbered(1, 1), segment_bytes=1, now=lambda: 1.0, new_uid=lambda: next(numbers)
    )
    batches = [msgspec.structs.replace(done, number=number) for number in range(1, 5)]
    for batch in batches:
        writer.append((batch,))
    paths = storage.list(f"{STREAM}/history")
    assert len(paths) == 4
    monkeypatch.setattr(storage, "list", lambda _: [path for path in paths if path != paths[hidden - 1]])
    assert list(history.read(storage, STREAM)) == batches
    monkeypatch.undo()
    storage.delete(paths[1])
    with pytest.raises(CorruptionError, match="missing"):
        list(history.read(storage, STREAM))


def test_the_audit_notices_each_segment_that_the_history_loses() -> None:
    """Removed or cut: found as damage, or by offsets that are in no batch any more."""
    storage = MemoryStorage(f"audit-{next(numbers)}")
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    for until in (10, 20, 30, 40):
        t.take_in(epoch, token, until)
        t.complete(t.batch())
    done = history.finished(t.state)
    for journal_epoch, batches in ((1, done[:3]), (2, done[3:])):
        writer = HistoryWriter(
            storage, STREAM, numbered(1, journal_epoch), segment_bytes=1, now=lambda: 1.0, new_uid=lambda: next(numbers)
        )
        for batch in batches:
            writer.append((batch,))
    t.archive(*(batch.batch_id for batch in done))
    assert audit.report(t.state, history.read(storage, STREAM)).clean
    paths = storage.list(f"{STREAM}/history")
    assert len(paths) == 4
    for number, path in enumerate(paths):
        whole = storage.read(path)
        for kept in (None, whole[:0], whole[:100], whole[:-64]):
            storage.delete(path)
            if kept is not None:
                storage.put_new(path, kept)
            if kept is None and number == 1:
                with pytest.raises(CorruptionError, match="missing"):
                    list(history.read(storage, STREAM))
                continue
            (finding,) = audit.report(t.state, history.read(storage, STREAM)).findings
            assert (finding.kind, finding.from_offset) == ("missing", 10 * number)
        storage.delete(path)
        storage.put_new(path, whole)


def test_each_exception_is_reported_with_its_decider() -> None:
    """Gaps, accepted losses and replays are no findings, and each is reported with its cause (INV-2, INV-3, INV-5)."""
    t = Tracked(partitions=1, on_gap="stop")
    epoch = t.register()
    token = t.claim(epoch).view.token
    t.take_in(epoch, token, 10)
    first = t.batch()
    t.say(m.AcceptLossRequest(batch_id=first, ranges=("t/0[0, 10)",), cause="ann@desk: disk died"))
    t.complete(first)
    t.say(
        m.Fault(
            receiver_id="r1", epoch=epoch, topic="t", partition=0, token=token, kind="out-of-range", position=10, low=15,
            high=20,
        )
    )  # fmt: skip
    t.search_finding_nothing(epoch)
    t.say(m.AcceptGapRequest(topic="t", partition=0, from_offset=10, until_offset=15, cause="bob@desk"))
    t.say(BeginReplay(RewindTo(first), (), 0, "eve@desk: fixed the job"))
    report = audit.report(t.state, ())
    assert report.clean
    listed = exceptions(report)
    assert ("t/0[10, 15)", "out-of-range, accepted by bob@desk") in [row[1:] for row in listed]
    assert ("t/0[0, 10)", "ann@desk: disk died") in [row[1:] for row in listed]
    assert (f"batches {first} to {first}", "eve@desk: fixed the job") in [row[1:] for row in listed]
    assert any("0 of 1 done" in what for what, *_ in listed)


@pytest.mark.parametrize("blocks", [1, 2])
def test_skipped_batch_lists_each_range_once_with_its_decider(blocks: int) -> None:
    """A loss that was accepted before the skip keeps its own cause. INV-3."""
    t = Tracked(partitions=1)
    epoch = t.register()
    token = t.claim(epoch).view.token
    for until in (10, 25)[:blocks]:
        t.take_in(epoch, token, until)
    batch = t.batch()
    t.say(m.AcceptLossRequest(batch_id=batch, ranges=("t/0[0, 10)",), cause="ann@desk: disk died"))
    t.say(SkipBatch(batch, 5, 3, "bob@desk: corrupt order"))
    what = f"accepted loss: batch {batch} was skipped: no further output got this range"
    expected = [
        (what, "t/0[0, 10)", "ann@desk: disk died"),
        (what, "t/0[10, 25)", "the batch was skipped by bob@desk: corrupt order"),
    ][:blocks]
    finished = history.finished(t.state)
    for archive in ((), finished):  # in the state, and in the history
        report = audit.report(t.state, archive)
        assert report.clean
        assert exceptions(report) == expected
        assert report.incarnations[0].accepted_losses == tuple(label for _, label, _ in expected)


def test_a_replay_with_another_packing_is_a_finding() -> None:
    """INV-3."""
    t = Tracked(partitions=1)
    epoch = t.register()
    t.take_in(epoch, t.claim(epoch).view.token, 10)
    batch = t.batch()
    t.complete(batch)
    t.say(BeginReplay(RewindTo(batch), (), 0, ""))
    t.state.replaying[batch] = msgspec.structs.replace(t.state.replaying[batch], tasks=())
    report = audit.report(t.state, ())
    assert [finding.kind for finding in report.findings] == ["replay"]
    assert "a different packing" in sentence(report.findings[0])


def test_loss_belongs_to_the_incarnation_in_its_label() -> None:
    t = Tracked(partitions=1)
    lost = "t/0[0, 5) life 2"
    t.state.partitions["t/0"].incarnations.append(
        msgspec.structs.replace(t.state.partitions["t/0"].incarnations[0], number=2)
    )
    t.state.partitions["t/0"].incarnations[0].end = 5
    t.state.partitions["t/0"].position = 5
    ranges = tuple(FinishedRange("t", 0, incarnation, 0, 5, 5) for incarnation in (1, 2))
    batches = [FinishedBatch(numbered(1, 1), 1, 1, 2, 1, 10, ranges, (), (lost,))]
    assert [incarnation.accepted_losses for incarnation in audit.report(t.state, batches).incarnations] == [(), (lost,)]
