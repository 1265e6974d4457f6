"""The journal: opening, fencing, snapshots, what survives."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from driver.journal import events as ev
from driver.journal.files import EventsMeta, claim_path, segment_paths
from driver.journal.leadership.timeline import TimelineFound
from driver.journal.log import opening, writing
from driver.journal.log import reading as journal
from driver.journal.log.opening import opening_steps
from driver.journal.log.writing import Journal
from driver.journal.state import State
from driver.journal.transitions import apply
from forebay.model.errors import CorruptionError, FencedError, OutOfSpaceError
from forebay.model.identifiers import numbered
from tests.support.state.tracked import STREAM, Tracked
from tests.support.stores.forgetful import ForgetfulStorage
from wal.segments import layout
from wal.storage import MemoryStorage, Storage

uids = itertools.count(1)


@pytest.fixture
def storage(request: pytest.FixtureRequest) -> Storage:
    return MemoryStorage(f"memory://{request.node.name}-{next(uids)}")


def lead(storage: Storage) -> tuple[Journal, State]:
    return opening.lead(storage, STREAM, "test", 1_000, lambda: 1.0, lambda: next(uids))


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


def test_an_empty_journal_opens_with_timeline_one(storage: Storage) -> None:
    led, state = lead(storage)
    assert (state.timeline, led.epoch) == (1, numbered(1, 1))
    assert not state.created


def test_decided_events_are_in_the_state_after_reopening(storage: Storage) -> None:
    """INV-7."""
    led, state = lead(storage)
    write(led, state, *some_events())
    again, read = lead(storage)
    assert read == state
    assert again.epoch == led.epoch + 1


@pytest.mark.parametrize(("frames", "size"), [(1, 1 << 20), (2, 1 << 20), (100, 1), (100, 500)])
def test_the_events_are_the_same_in_groups_of_any_size(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, frames: int, size: int
) -> None:
    led, state = lead(storage)
    for event in some_events():
        write(led, state, event)
    monkeypatch.setattr(journal, "GROUP_FRAMES", frames)
    monkeypatch.setattr(journal, "GROUP_BYTES", size)
    found = journal.read(storage, STREAM)
    assert found.state == state
    assert found.events_after_snapshot == len(some_events())


def test_events_that_a_failed_sync_left_in_two_segments_are_applied_once() -> None:
    storage = ForgetfulStorage()
    led, state = lead(storage)
    events = some_events()
    for event in events:
        apply(state, event)
    led.append(events[:2])
    led.append(events[2:])
    storage.fail("sync", 1, OutOfSpaceError("full"))
    with pytest.raises(OutOfSpaceError):
        led.sync()
    led.sync()
    reading = journal.read(storage, STREAM)
    assert (reading.state, reading.events_after_snapshot) == (state, len(events))


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


def test_of_two_drivers_that_open_at_the_same_time_only_the_newer_leads(storage: Storage) -> None:
    led, state = lead(storage)
    write(led, state, *some_events())

    def open_journal() -> Iterator[str]:
        return opening_steps(storage, STREAM, "test", 1_000, lambda: 1.0, lambda: next(uids))

    first, second = open_journal(), open_journal()
    assert next(first) == "claimed"
    assert next(second) == "claimed"
    assert [next(first), next(first), next(second), next(second)] == ["read", "snapshot"] * 2
    with pytest.raises(FencedError):
        next(first)
    with pytest.raises(StopIteration) as end:
        next(second)
    assert end.value.value[1] == state


def test_a_driver_killed_before_its_snapshot_does_not_count(storage: Storage) -> None:
    led, state = lead(storage)
    write(led, state, *some_events())
    dying = opening_steps(storage, STREAM, "test", 1_000, lambda: 1.0, lambda: next(uids))
    assert next(dying) == "claimed"
    _, read = lead(storage)
    assert read == state


def test_a_driver_killed_within_its_snapshot_does_not_count(storage: Storage) -> None:
    led, state = lead(storage)
    write(led, state, *some_events())
    dying = opening_steps(storage, STREAM, "test", 1_000, lambda: 1.0, lambda: next(uids))
    assert [next(dying), next(dying), next(dying)] == ["claimed", "read", "snapshot"]
    path = f"{STREAM}/epoch-{led.epoch + 1:016x}/00000001.seg"
    whole = storage.read(path)
    for length in (0, 10, 100, 300, len(whole) - 70):
        storage.delete(path)
        storage.create(path).append(whole[:length])
        assert journal.read(storage, STREAM).state == state, length


def test_a_damaged_snapshot_is_never_skipped_for_an_older_epoch(storage: Storage) -> None:
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
    whole[whole.index(b"block-added")] ^= 1
    storage.delete(path)
    storage.create(path).append(bytes(whole))
    with pytest.raises(CorruptionError):
        journal.read(storage, STREAM)


def test_a_segment_missing_in_the_middle_is_noticed(storage: Storage) -> None:
    led, state = opening.lead(storage, STREAM, "test", 1_000, lambda: 1.0, lambda: next(uids), segment_bytes=1)
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


@pytest.mark.parametrize("kept_bytes_max", [0, 1 << 20], ids=["in pieces", "whole"])
def test_a_snapshot_that_a_killed_driver_left_torn_does_not_count(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, kept_bytes_max: int
) -> None:
    """INV-1. A snapshot that is made in pieces is written in the order of its bytes, as one that is in memory as a whole."""
    monkeypatch.setattr("wal.segments.payload.KEPT_BYTES_MAX", kept_bytes_max)
    monkeypatch.setattr("driver.journal.log.encoding.TOGETHER", 1)
    led, state = lead(storage)
    write(led, state, *some_events())
    led.snapshot()
    path = f"{STREAM}/epoch-{led.epoch:016x}/00000002.seg"
    whole = storage.read(path)
    for length in range(0, len(whole) - 64, 97):
        storage.delete(path)
        storage.create(path).append(whole[:length])
        assert journal.read(storage, STREAM).state == state
    storage.delete(path)
    storage.create(path).append(whole)
    found = journal.read(storage, STREAM)
    assert (found.state, found.events_after_snapshot) == (state, 0)


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
    led.await_deletion()
    write(led, state, *events[5:])
    reading = journal.read(storage, STREAM)
    assert reading.state == state
    assert reading.events_after_snapshot == len(events[5:])
    assert len([p for p in storage.list(STREAM) if p.endswith(".seg")]) == 2


def test_reading_fences_no_driver_and_changes_nothing(storage: Storage) -> None:
    led, state = lead(storage)
    write(led, state, *some_events())
    before = {path: storage.read(path) for path in storage.list("")}
    journal.read(storage, STREAM)
    assert {path: storage.read(path) for path in storage.list("")} == before
    led.check()


def test_an_event_of_a_newer_release_is_refused_with_the_way_out(storage: Storage) -> None:
    from forebay.model.errors import ForebayError
    from wal.segments.frame import FrameKind

    led, state = lead(storage)
    write(led, state, *some_events())
    import msgspec

    meta = EventsMeta(first=state.events, count=1, epoch=led.epoch)
    assert led._writer is not None
    led._writer.append(FrameKind.EVENTS, msgspec.msgpack.encode(meta), msgspec.msgpack.encode([{"event": "novelty"}]))
    led.sync()
    with pytest.raises(ForebayError, match="newer release"):
        journal.read(storage, STREAM)


class Objects(MemoryStorage):
    """Whole objects, each request counted; a listing may not show what was put last."""

    def __init__(self, name: str) -> None:
        super().__init__(name, appendable=False)
        self.asked: Counter[str] = Counter()
        self.hidden: Callable[[str], bool] = lambda path: False

    def put_new(self, path: str, data: Any) -> None:
        self.asked["put"] += 1
        super().put_new(path, data)

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        self.asked["get"] += 1
        return super().read(path, offset, length)

    def size(self, path: str) -> int:
        self.asked["head"] += 1
        return super().size(path)

    def exists(self, path: str) -> bool:
        self.asked["head"] += 1
        return super().exists(path)

    def list(self, prefix: str) -> list[str]:
        found = [path for path in super().list(prefix) if not self.hidden(path)]
        self.asked["list"] += max(1, -(-len(found) // 1000))  # a page holds a thousand names
        return found

    def delete(self, path: str) -> None:
        self.asked["delete"] += 1
        super().delete(path)


@pytest.fixture
def objects(request: pytest.FixtureRequest) -> Objects:
    return Objects(f"{request.node.name}-{next(uids)}")


def test_reading_finds_what_a_listing_does_not_show_yet(objects: Objects) -> None:
    """The last segments of the newest epoch, the claim and the first segment of a newer one, and a missing segment."""
    led, state = lead(objects)
    for event in some_events():
        write(led, state, event)
    segments = [path for path in MemoryStorage.list(objects, STREAM) if path.endswith(".seg")]
    assert len(segments) > 6
    for hidden in (segments[-1:], segments[-3:], segments[2:4], segments):
        objects.hidden = set(hidden).__contains__
        assert journal.read(objects, STREAM).state == state
    objects.hidden = lambda path: True
    again, read = lead(objects)
    assert (again.epoch, read) == (led.epoch + 1, state)
    with pytest.raises(FencedError):
        led.check()


def test_segments_are_read_in_the_order_of_their_numbers_beyond_eight_digits(objects: Objects) -> None:
    for sequence in (1_000_000_00, 99_999_999, 100_000_002):
        objects.put_new(layout.journal_segment(STREAM, numbered(1, 1), sequence), b"x")
    names = [path.rpartition("/")[2] for path in segment_paths(objects, STREAM, numbered(1, 1))]
    assert names == ["99999999.seg", "100000000.seg", "100000002.seg"]


def test_on_whole_objects_a_snapshot_is_due_after_so_many_segments(objects: Objects) -> None:
    led, state = lead(objects)
    t = Tracked()
    write(led, state, *t.events)
    registered = len(t.events)
    for number in range(writing.SNAPSHOT_SEGMENTS - 1):
        assert not led.snapshot_due()
        t.register(f"r{number}")
        write(led, state, *t.events[registered + number :])
    assert led.snapshot_due()
    led.snapshot()
    assert not led.snapshot_due()


def test_requests_of_opening_do_not_grow_with_the_journals_age(objects: Objects) -> None:
    """Requests of an opening in the worst moment, just before a snapshot is due: after few epochs and batches, and after
    many. Finished batches and claims only ever grow."""
    wal = Objects(f"{objects.url}-wal")

    def open_journal() -> Journal:
        led, _ = opening.lead(objects, STREAM, "test", 1, lambda: 1.0, lambda: next(uids), wal=wal)
        led.await_deletion()
        return led

    def requests(led: Journal) -> Counter[str]:
        for _ in range(writing.SNAPSHOT_SEGMENTS - 1):
            led.append([])
            led.sync()
        objects.asked.clear()
        wal.asked.clear()
        open_journal()
        return objects.asked + wal.asked

    for _ in range(writing.EMPTY_EPOCHS + 2):
        open_journal()
    young = requests(open_journal())
    for number in range(500):
        objects.put_new(layout.history_segment(STREAM, numbered(1, 1), number), b"")
    for _ in range(60):
        open_journal()
    assert requests(open_journal()) == young
    assert young.total() < writing.SNAPSHOT_SEGMENTS + 60


def test_a_driver_is_fenced_by_the_first_claim_of_a_rebuilt_journal(storage: Storage) -> None:
    """INV-4: also one that was suspended during several rebuilds, since each claims every timeline up to its own."""
    led, state = lead(storage)
    storage.put_new(claim_path(STREAM, numbered(2, 1)), b"{}")
    with pytest.raises(FencedError, match="rebuilt"):
        write(led, state, *some_events())


def test_a_rebuild_that_was_not_finished_leaves_no_journal_to_lead(storage: Storage) -> None:
    """Claimed or only marked, with any rest of the old timeline: no driver continues it, and none starts a new journal."""
    wal = MemoryStorage(f"{storage.url}-wal")

    def open_journal() -> None:
        opening.lead(storage, STREAM, "test", 1, lambda: 1.0, lambda: next(uids), wal=wal)

    open_journal()
    open_journal()
    wal.put_new(layout.timeline_marker(STREAM, 2), b"{}")
    before = storage.list("")
    with pytest.raises(TimelineFound, match="rebuild was not finished"):
        open_journal()
    assert storage.list("") == before
    storage.put_new(claim_path(STREAM, numbered(2, 1)), b"{}")
    with pytest.raises(TimelineFound, match="rebuild was not finished"):
        open_journal()
    assert journal.read(storage, STREAM).state is None


def test_claims_without_a_snapshot_beside_a_marked_wal_are_a_lost_journal(storage: Storage) -> None:
    """Of an older release, too, which makes no marks of epochs that led."""
    wal = MemoryStorage(f"{storage.url}-wal")

    def open_journal() -> None:
        opening.lead(storage, STREAM, "test", 1, lambda: 1.0, lambda: next(uids), wal=wal)

    open_journal()
    for path in storage.list(STREAM):
        if path.endswith(".seg"):
            storage.delete(path)
    with pytest.raises(CorruptionError, match="led, and none of its snapshots is found"):
        open_journal()
    for path in storage.list(f"{STREAM}/led"):
        storage.delete(path)
    with pytest.raises(TimelineFound, match="it was lost"):
        open_journal()


@pytest.mark.parametrize("appendable", [True, False])
@pytest.mark.parametrize("room", [0, 400, 5_000])
def test_a_snapshot_without_space_blocks_no_events_and_takes_no_space(appendable: bool, room: int) -> None:
    """What frees space (completions, clean-up) goes on in the old segment; the snapshot comes when there is room."""
    storage = ForgetfulStorage(appendable=appendable)
    led, state = lead(storage)
    events = registered(60)
    write(led, state, *events[:-3])
    used = sum(storage.size(path) for path in storage.list(""))
    storage.capacity_bytes = used + room
    with pytest.raises(OutOfSpaceError):
        led.snapshot()
    assert sum(storage.size(path) for path in storage.list("")) == used
    storage.capacity_bytes = used + 1_000
    write(led, state, events[-3])
    assert journal.read(storage, STREAM).state == state
    storage.capacity_bytes = None
    write(led, state, events[-2])
    led.snapshot()
    write(led, state, events[-1])
    reading = journal.read(storage, STREAM)
    assert reading.state == state
    assert reading.events_after_snapshot == 1


def test_a_snapshot_that_fills_the_disk_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the store reports no free space, or another program took it: half a snapshot must not keep what completions need."""
    storage = ForgetfulStorage()
    led, state = lead(storage)
    events = some_events()
    write(led, state, *events[:-1])
    used = sum(storage.size(path) for path in storage.list(""))
    monkeypatch.setattr(Journal, "_check_room", lambda *_: None)
    storage.capacity_bytes = used + 350
    with pytest.raises(OutOfSpaceError):
        led.snapshot()
    assert sum(storage.size(path) for path in storage.list("")) == used
    write(led, state, events[-1])
    storage.crash_host(Random(1))
    assert journal.read(storage, STREAM).state == state


def test_a_snapshot_without_space_is_not_tried_again_with_every_group(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = ForgetfulStorage()
    led, state = lead(storage)
    monkeypatch.setattr(writing, "SNAPSHOT_EVENTS", 20)
    write(led, state, *registered(20))
    used = sum(storage.size(path) for path in storage.list(""))
    storage.capacity_bytes = used + 3_000
    assert led.snapshot_due()
    with pytest.raises(OutOfSpaceError):
        led.snapshot()
    due = []
    for one in registered(4, state.epochs):
        due.append(led.snapshot_due())
        write(led, state, one)
    assert due == [False, False, True, True]


def registered(count: int, after: int = 0) -> list[ev.Event]:
    """Events that need no others, with the next ``count`` epochs."""
    return [ev.ReceiverRegistered(f"r{n}" * 20, "h", "i", numbered(1, after + n)) for n in range(1, count + 1)]
