"""The journal: opening, fencing, snapshots, what survives."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from driver import events as ev
from driver import journal
from driver.journal import Journal
from driver.state import State, apply
from forebay.errors import CorruptionError, FencedError
from forebay.values import numbered
from tests.support.tracked import STREAM, Tracked
from wal.storage import MemoryStorage, Storage

uids = itertools.count(1)


@pytest.fixture
def storage(request: pytest.FixtureRequest) -> Storage:
    return MemoryStorage(f"memory://{request.node.name}-{next(uids)}")


def lead(storage: Storage) -> tuple[Journal, State]:
    return journal.lead(storage, STREAM, "test", 1_000, lambda: 1.0, lambda: next(uids))


def write(led: Journal, state: State, *events: ev.Event) -> None:
    for event in events:
        apply(state, event)
    led.append(events)
    led.sync()
    led.check()


def some_events(partitions: int = 2) -> list[ev.Event]:
    t = Tracked(partitions)
    epoch = t.register()
    token = t.claim(epoch).view.token
    t.take_in(epoch, token, 10)
    t.take_in(epoch, token, 20)
    t.complete(t.batch())
    return t.events


def test_an_empty_journal_opens_with_lineage_one(storage: Storage) -> None:
    led, state = lead(storage)
    assert (state.lineage, led.epoch) == (1, numbered(1, 1))
    assert not state.created


def test_what_was_decided_is_there_after_opening_again(storage: Storage) -> None:
    """INV-7."""
    led, state = lead(storage)
    write(led, state, *some_events())
    again, read = lead(storage)
    assert read == state
    assert again.epoch == led.epoch + 1


def test_a_superseded_driver_finds_out_before_it_answers(storage: Storage) -> None:
    """INV-4: its write may reach the disk; its answer never leaves."""
    old, state = lead(storage)
    lead(storage)
    with pytest.raises(FencedError, match="another driver leads"):
        write(old, state, *some_events())


def test_what_a_superseded_driver_writes_is_never_replayed(storage: Storage) -> None:
    old, state = lead(storage)
    events = some_events()
    write(old, state, *events[:2])
    _, new_state = lead(storage)
    with pytest.raises(FencedError):
        write(old, state, *events[2:])
    _, third = lead(storage)
    assert third == new_state
    assert third != state


def test_of_two_that_open_at_once_only_the_newer_leads(storage: Storage) -> None:
    led, state = lead(storage)
    write(led, state, *some_events())

    def opening() -> Iterator[str]:
        return journal.opening(storage, STREAM, "test", 1_000, lambda: 1.0, lambda: next(uids))

    first, second = opening(), opening()
    assert next(first) == "claimed"
    assert next(second) == "claimed"
    assert [next(first), next(first), next(second), next(second)] == ["read", "snapshot"] * 2
    with pytest.raises(FencedError):
        next(first)
    with pytest.raises(StopIteration) as end:
        next(second)
    assert end.value.value[1] == state


def test_an_opener_that_died_before_its_snapshot_does_not_count(storage: Storage) -> None:
    led, state = lead(storage)
    write(led, state, *some_events())
    dying = journal.opening(storage, STREAM, "test", 1_000, lambda: 1.0, lambda: next(uids))
    assert next(dying) == "claimed"
    _, read = lead(storage)
    assert read == state


def test_an_opener_that_died_within_its_snapshot_does_not_count(storage: Storage) -> None:
    led, state = lead(storage)
    write(led, state, *some_events())
    second, _ = lead(storage)
    path = f"{STREAM}/epoch-{second.epoch:016x}/00000001.seg"
    whole = storage.read(path)
    for length in (0, 10, 100, 300, len(whole) - 70):
        storage.delete(path)
        storage.create(path).append(whole[:length])
        assert journal.read(storage, STREAM).state == state, length


def test_a_damaged_snapshot_is_never_passed_over_for_an_older_epoch(storage: Storage) -> None:
    """INV-5: what was answered under it would be lost in silence."""
    led, state = lead(storage)
    write(led, state, *some_events())
    second, state = lead(storage)
    path = f"{STREAM}/epoch-{second.epoch:016x}/00000001.seg"
    whole = bytearray(storage.read(path))
    whole[len(whole) // 2] ^= 1
    storage.delete(path)
    storage.create(path).append(bytes(whole))
    with pytest.raises(CorruptionError):
        lead(storage)


def test_events_missing_in_the_middle_are_noticed(storage: Storage) -> None:
    led, state = lead(storage)
    events = some_events()
    for event in events:
        write(led, state, event)
    path = f"{STREAM}/epoch-{led.epoch:016x}/00000001.seg"
    whole = bytearray(storage.read(path))
    whole[len(whole) // 2] ^= 1
    storage.delete(path)
    storage.create(path).append(bytes(whole))
    with pytest.raises(CorruptionError):
        journal.read(storage, STREAM)


def test_a_segment_missing_in_the_middle_is_noticed(storage: Storage) -> None:
    led, state = journal.lead(storage, STREAM, "test", 1_000, lambda: 1.0, lambda: next(uids), segment_bytes=1)
    for event in some_events():
        write(led, state, event)
    paths = [p for p in storage.list(STREAM) if p.endswith(".seg")]
    assert journal.read(storage, STREAM).state == state
    storage.delete(paths[len(paths) // 2])
    with pytest.raises(CorruptionError, match="are missing"):
        journal.read(storage, STREAM)


def test_a_torn_last_group_was_never_answered_and_is_dropped(storage: Storage) -> None:
    led, state = lead(storage)
    events = some_events()
    write(led, state, *events[:3])
    expected = journal.read(storage, STREAM).state
    path = f"{STREAM}/epoch-{led.epoch:016x}/00000001.seg"
    before = storage.size(path)
    write(led, state, *events[3:])
    whole = storage.read(path)
    for length in range(before, len(whole) - 64, 97):
        storage.delete(path)
        storage.create(path).append(whole[:length])
        assert journal.read(storage, STREAM).state == expected


def test_a_snapshot_makes_what_is_before_it_unnecessary(storage: Storage) -> None:
    led, state = lead(storage)
    events = some_events()
    write(led, state, *events[:3])
    led.snapshot()
    led.check()
    write(led, state, *events[3:5])
    led.snapshot()
    led.check()
    led.drop_superseded()
    write(led, state, *events[5:])
    reading = journal.read(storage, STREAM)
    assert reading.state == state
    assert reading.events_after_snapshot == len(events[5:])
    assert len([p for p in storage.list(STREAM) if p.endswith(".seg")]) == 2


def test_reading_fences_nobody_and_changes_nothing(storage: Storage) -> None:
    led, state = lead(storage)
    write(led, state, *some_events())
    before = {path: storage.read(path) for path in storage.list("")}
    journal.read(storage, STREAM)
    assert {path: storage.read(path) for path in storage.list("")} == before
    led.check()


def test_an_event_of_a_newer_release_is_refused_with_the_way_out(storage: Storage) -> None:
    from forebay.errors import ForebayError
    from wal.frame import FrameKind

    led, state = lead(storage)
    write(led, state, *some_events())
    import msgspec

    meta = journal.EventsMeta(first=state.events, count=1, epoch=led.epoch)
    assert led._writer is not None
    led._writer.append(FrameKind.EVENTS, msgspec.msgpack.encode(meta), msgspec.msgpack.encode([{"event": "novelty"}]))
    led.sync()
    with pytest.raises(ForebayError, match="newer release"):
        journal.read(storage, STREAM)
