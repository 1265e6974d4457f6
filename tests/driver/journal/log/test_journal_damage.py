"""A journal that lost a segment, its end or a claim: opening refuses, or loses nothing (INV-5).

One module, because each test opens a journal that the same driver left, on files and on objects, and lacks one part of it.
"""

from __future__ import annotations

import copy
import itertools
from random import Random
from typing import Any, cast

import msgspec
import pytest

from driver.journal import events as ev
from driver.journal.claims import Claim
from driver.journal.files import claim_path, epoch_folder, newest_claim
from driver.journal.leadership import evidence
from driver.journal.leadership.evidence import mark_path
from driver.journal.leadership.lease import Lease, LeaseKeeper, lease_path, read_lease, stored_lease
from driver.journal.leadership.timeline import TimelineFound
from driver.journal.log import opening
from driver.journal.log import reading as journal
from driver.journal.log.opening import opening_steps
from driver.journal.log.writing import Journal
from driver.journal.state import State
from driver.journal.transitions import apply
from forebay.model.errors import CorruptionError, FencedError
from forebay.model.identifiers import numbered
from tests.support.stores.forgetful import Crash, ForgetfulStorage
from tests.support.stores.unlisted import Unlisted
from wal.segments import layout
from wal.storage import MemoryStorage, Storage

STREAM = "s"
uids = itertools.count(1)
owners = itertools.count(1)


class Driver:
    """Leads the journal and keeps the lease, as the service does; its lease is renewed by hand."""

    def __init__(self, storage: Storage, segment_bytes: int = 64_000_000) -> None:
        self._storage = storage
        self.journal, self.state = opening.lead(
            storage,
            STREAM,
            "test",
            1_000,
            lambda: 1.0,
            lambda: next(uids),
            segment_bytes=segment_bytes,
            claimed=self._keep,
        )
        self.lease.follow(lambda: self.journal.confirmed)

    def _keep(self, epoch: int) -> None:
        self.lease = LeaseKeeper(
            self._storage, STREAM, epoch, owner=f"owner-{next(owners)}", url="http://d", duration_seconds=600.0
        )
        self.lease.begin()

    def write(self, events: int = 1) -> None:
        for _ in range(events):
            registered = ev.ReceiverRegistered(f"r{self.state.epochs}", "h", "i", numbered(1, self.state.epochs + 1))
            apply(self.state, registered)
            self.journal.append([registered])
            self.journal.sync()
            self.journal.check()

    def snapshot(self) -> None:
        self.journal.snapshot()
        self.journal.check()
        self.journal.drop_superseded()
        self.journal.await_deletion()

    def stop(self) -> None:
        self.journal.close()
        self.lease.end()


@pytest.fixture(params=[True, False], ids=["files", "objects"])
def storage(request: pytest.FixtureRequest) -> Storage:
    return MemoryStorage(f"damage-{next(uids)}", appendable=request.param)


def segments(storage: Storage, epoch: int) -> list[str]:
    return storage.list(epoch_folder(STREAM, epoch))


def cut(storage: Storage, path: str, length: int) -> None:
    whole = storage.read(path)
    storage.delete(path)
    storage.put_new(path, whole[:length])


# ---- an epoch that led without its snapshot ---------------------------------------------------------------------------


@pytest.mark.parametrize("length", [None, 0, 10, 64, 200])
def test_an_epoch_that_led_is_not_skipped_when_its_first_segment_is_missing_or_cut(
    storage: Storage, length: int | None
) -> None:
    """The epoch before it would lead on without its events, and give its batch ids again."""
    first = Driver(storage)
    first.write(3)
    first.stop()
    second = Driver(storage)
    second.write(3)
    path = segments(storage, second.journal.epoch)[0]
    if length is None:
        storage.delete(path)
    else:
        cut(storage, path, length)
    storage.delete(lease_path(STREAM))  # the mark alone proves it
    is_cut_object = length is not None and not storage.appendable
    message = "the object ends" if is_cut_object else "led, and none of its snapshots is found"
    with pytest.raises(CorruptionError, match=message):
        Driver(storage)
    with pytest.raises(CorruptionError, match=message):
        journal.read(storage, STREAM)


def test_the_lease_alone_proves_that_an_epoch_led(storage: Storage) -> None:
    Driver(storage).stop()
    second = Driver(storage)
    second.lease.renew()
    storage.delete(segments(storage, second.journal.epoch)[0])
    storage.delete(mark_path(STREAM, second.journal.epoch))
    with pytest.raises(CorruptionError, match="led, and none of its snapshots is found"):
        journal.read(storage, STREAM)


def test_later_segments_alone_prove_that_an_epoch_led() -> None:
    """Of a journal of an older release, which has no marks and no count in its lease."""
    storage = MemoryStorage(f"damage-{next(uids)}", appendable=False)
    Driver(storage).stop()
    second = Driver(storage)
    second.write(2)
    for path in (
        segments(storage, second.journal.epoch)[0],
        mark_path(STREAM, second.journal.epoch),
        lease_path(STREAM),
    ):
        storage.delete(path)
    with pytest.raises(CorruptionError, match="led, and none of its snapshots is found"):
        journal.read(storage, STREAM)


@pytest.mark.parametrize("hidden", [1, 2, 3])
def test_the_first_segments_that_a_listing_omits_are_found_by_name(hidden: int) -> None:
    """The base of recovery is below the names that the listing shows."""
    storage = MemoryStorage(f"damage-{next(uids)}", appendable=False)
    Driver(storage).stop()
    second = Driver(storage)
    second.write(4)
    paths = segments(storage, second.journal.epoch)
    found = journal.read(cast(Storage, Unlisted(storage, paths[:hidden])), STREAM)
    assert (found.epoch, found.state) == (second.journal.epoch, second.state)


def test_an_epoch_that_a_listing_omits_is_not_skipped() -> None:
    """Its first segments were superseded, so none is found by name."""
    storage = MemoryStorage(f"damage-{next(uids)}", appendable=False)
    driver = Driver(storage)
    for _ in range(3):
        driver.write(2)
        driver.snapshot()
    paths = segments(storage, driver.journal.epoch)
    assert not paths[0].endswith("/00000001.seg")
    with pytest.raises(CorruptionError, match="led, and none of its snapshots is found"):
        journal.read(cast(Storage, Unlisted(storage, paths)), STREAM)


def test_a_driver_killed_before_it_led_is_skipped(storage: Storage) -> None:
    """At each of its steps, also beside the lease that it keeps from its claim on."""
    driver = Driver(storage)
    driver.write(3)
    driver.lease.renew()
    for steps in (1, 2, 3):
        begun = opening_steps(storage, STREAM, "dies", 1, lambda: 1.0, lambda: next(uids), claimed=driver._keep)
        for _ in range(steps):
            next(begun)
        assert journal.read(storage, STREAM).state == driver.state
    storage.delete(segments(storage, driver.journal.epoch + 3)[0])  # its snapshot was not durable after all
    assert journal.read(storage, STREAM).state == driver.state


def test_a_reader_sees_no_damage_while_drivers_open_the_journal(storage: Storage) -> None:
    """While it reads, the epoch that it found without a snapshot begins to lead, and the next one deletes those before."""
    first = Driver(storage)
    first.write(2)

    class Meanwhile(Unlisted):
        opened = 0

        def list(self, prefix: str) -> Any:
            found = super().list(prefix)
            if "/epoch-" in prefix and self.opened < 4:
                self.opened += 1
                opening.lead(storage, STREAM, "next", 1, lambda: 1.0, lambda: next(uids))
            return found

    claimed = opening_steps(storage, STREAM, "dies", 1, lambda: 1.0, lambda: next(uids))
    next(claimed)
    assert journal.read_beside_a_writer(cast(Storage, Meanwhile(storage, ())), STREAM).state == first.state


# ---- a lost end --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ended", [True, False])
def test_events_that_the_lease_calls_durable_are_reported_missing(storage: Storage, ended: bool) -> None:
    """Renewed while the driver runs, and written for the last time when it ends."""
    driver = Driver(storage)
    driver.write(5)
    if ended:
        driver.stop()
    else:
        driver.lease.renew()
    last = segments(storage, driver.journal.epoch)[-1]
    if storage.appendable:
        cut(storage, last, storage.size(last) - 100)
    else:
        storage.delete(last)
    with pytest.raises(
        CorruptionError, match="the journal ends after 4 events, but the lease says that 5 were durable"
    ):
        Driver(storage)


def test_the_count_in_the_lease_is_a_lower_bound(storage: Storage) -> None:
    """Events after its last renewal can be lost silently, if the very end of the journal is cut."""
    driver = Driver(storage)
    driver.write(3)
    driver.lease.renew()
    known = copy.deepcopy(driver.state)
    driver.write(1)
    last = segments(storage, driver.journal.epoch)[-1]
    if storage.appendable:
        cut(storage, last, storage.size(last) - 100)
    else:
        storage.delete(last)
    assert journal.read(storage, STREAM).state == known


def test_the_newest_object_of_a_journal_is_refused_if_its_end_is_cut_off() -> None:
    """INV-5. No crash leaves a part of an object, so its events were answered; without a lease nothing else counts them."""
    storage = MemoryStorage(f"damage-{next(uids)}", appendable=False)
    driver = Driver(storage)
    driver.write(3)
    storage.delete(lease_path(STREAM))
    last = segments(storage, driver.journal.epoch)[-1]
    whole = storage.read(last)
    content = whole.rstrip(b"\0")  # the rest only fills the last line
    for length in range(len(content)):
        storage.replace(last, whole[:length])
        with pytest.raises(CorruptionError, match=r"the object ends|is damaged"):
            journal.read(storage, STREAM)
    for length in range(len(content), len(whole) + 1):
        storage.replace(last, whole[:length])
        assert journal.read(storage, STREAM).state == driver.state


def test_only_events_of_a_driver_that_still_led_are_counted(storage: Storage) -> None:
    """INV-4: what a superseded driver made durable is in no journal, and must not be missed."""
    old = Driver(storage)
    new = Driver(storage)
    with pytest.raises(FencedError):
        old.write(1)
    assert old.journal.confirmed == 0
    old.lease.renew()  # it does not know yet
    assert journal.read(storage, STREAM).state == new.state


def test_a_rebuilt_journal_is_not_measured_by_the_lease_of_the_lost_one(storage: Storage) -> None:
    driver = Driver(storage)
    driver.write(5)
    driver.stop()
    second_timeline = numbered(2, 1)
    storage.put_new(claim_path(STREAM, second_timeline), b"{}")
    rebuilt = Journal(
        storage,
        stream=STREAM,
        epoch=second_timeline,
        state=State(stream=STREAM, timeline=2),
        segment_bytes=1_000,
        now=lambda: 1.0,
        new_uid=lambda: next(uids),
    )
    rebuilt.snapshot()
    assert journal.read(storage, STREAM).epoch == second_timeline


# ---- claims, marks and leases -------------------------------------------------------------------------------------------


def test_a_mark_may_be_made_again(storage: Storage) -> None:
    """A store may create it and not answer; the storage then repeats the request, or the driver does."""
    for _ in range(2):
        evidence.mark(storage, STREAM, 7, b"{}")
    assert evidence.is_marked(storage, STREAM, 7)
    assert storage.read(mark_path(STREAM, 7)) == b"{}"


def test_a_lost_claim_is_made_again_and_its_driver_is_fenced(storage: Storage) -> None:
    """INV-4: a driver that took its number would lead at the same time."""
    driver = Driver(storage)
    driver.write(3)
    storage.delete(claim_path(STREAM, driver.journal.epoch))
    again = Driver(storage)
    assert again.journal.epoch == driver.journal.epoch + 1
    assert again.state == driver.state
    with pytest.raises(FencedError):
        driver.write(1)


def test_a_lost_claim_of_an_older_release_is_refused_once_and_created_again(storage: Storage) -> None:
    """It made no mark, so that the claim was lost shows only in its segments."""
    driver = Driver(storage)
    driver.write(3)
    for path in (claim_path(STREAM, driver.journal.epoch), mark_path(STREAM, driver.journal.epoch), lease_path(STREAM)):
        storage.delete(path)
    with pytest.raises(CorruptionError, match="the claim of this epoch was missing, and the driver created it again"):
        Driver(storage)
    assert Driver(storage).state == driver.state


def test_a_reader_refuses_a_journal_whose_newest_claim_is_lost(storage: Storage) -> None:
    Driver(storage).stop()
    driver = Driver(storage)
    driver.stop()
    storage.delete(claim_path(STREAM, driver.journal.epoch))
    with pytest.raises(CorruptionError, match="the claim is missing, but the lease names this epoch"):
        journal.read(storage, STREAM)
    assert Driver(storage).state == driver.state


@pytest.mark.parametrize("name", ["README", "1", "00000100000000010", "00000100000000ZZ"])
def test_a_foreign_file_beside_the_claims_is_ignored(storage: Storage, name: str) -> None:
    driver = Driver(storage)
    driver.write(3)
    driver.stop()
    storage.put_new(f"{STREAM}/epochs/{name}", b"x")
    assert journal.read(storage, STREAM).state == driver.state
    again = Driver(storage)
    assert again.journal.epoch == driver.journal.epoch + 1


def lead_with(storage: Storage, wal: Storage) -> Journal:
    return opening.lead(storage, STREAM, "test", 1_000, lambda: 1.0, lambda: next(uids), wal=wal)[0]


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_a_damaged_first_claim_is_read_from_its_mark(storage: Storage, caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise the WAL would seem to belong to another journal, and no driver would ever lead again."""
    wal = MemoryStorage(f"damage-{next(uids)}")
    first = lead_with(storage, wal)
    path = claim_path(STREAM, first.epoch)
    whole = storage.read(path)
    marker = layout.timeline_marker(STREAM, 1)
    for damaged in (b"", whole[:-10], *(flipped(whole, at) for at in range(len(whole)))):
        storage.replace(path, damaged)
        caplog.clear()
        lead_with(storage, wal)
        assert f"{path} is damaged at byte 0" in caplog.text
        assert wal.read(marker) == whole
        wal.delete(marker)  # who creates it takes the whole claim
        opening.begin_wal(storage, wal, STREAM)
        assert wal.read(marker) == whole


def test_a_wal_without_a_marker_is_refused_once_a_driver_has_led(storage: Storage) -> None:
    """INV-1: it is not mounted or was lost. A driver that began a new one would find no block of the journal there."""
    wal, empty = (MemoryStorage(f"damage-{next(uids)}") for _ in range(2))
    begun = opening_steps(storage, STREAM, "dies before it leads", 1, lambda: 1.0, lambda: next(uids), wal=wal)
    next(begun)
    first = lead_with(storage, empty)  # no block can be in another WAL
    dies = opening_steps(storage, STREAM, "dies before it leads", 1, lambda: 1.0, lambda: next(uids), wal=empty)
    next(dies)
    with pytest.raises(
        TimelineFound, match=f"has no file {layout.timeline_marker(STREAM, 1)}, but drivers have led the journal"
    ):
        lead_with(storage, wal)
    assert newest_claim(storage, STREAM) == first.epoch + 1, "refused before a claim"
    assert not wal.list(STREAM)
    opening.begin_wal(storage, wal, STREAM)
    opening.begin_wal(storage, wal, STREAM)
    lead_with(storage, wal)
    assert wal.read(layout.timeline_marker(STREAM, 1)) == storage.read(claim_path(STREAM, numbered(1, 1)))


def test_a_new_wal_gets_the_marker_of_each_timeline(storage: Storage) -> None:
    """With the claim of that timeline: a later rebuild compares them. A kill in between is repeated."""
    for number in (2, 3):
        epoch = numbered(number, 1)
        storage.put_new(claim_path(STREAM, epoch), Claim(epoch, f"rebuild {number}", 1).encode())
    wal = MemoryStorage(f"damage-{next(uids)}")
    put_new, left = wal.put_new, [2]

    def killed(path: str, data: Any) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        put_new(path, data)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(wal, "put_new", killed)
        with pytest.raises(KeyboardInterrupt):
            opening.begin_wal(storage, wal, STREAM)
    with pytest.raises(TimelineFound, match="If `forebay recover --lost-wal --apply` was interrupted, repeat it"):
        lead_with(storage, wal)
    opening.begin_wal(storage, wal, STREAM)
    assert wal.read(layout.timeline_marker(STREAM, 2)) == storage.read(claim_path(STREAM, numbered(2, 1)))
    assert wal.read(layout.timeline_marker(STREAM, 3)) == storage.read(claim_path(STREAM, numbered(3, 1)))
    assert wal.exists(layout.timeline_marker(STREAM, 1)) and not wal.exists(layout.timeline_marker(STREAM, 4))


def test_a_damaged_first_claim_without_a_copy_is_refused_by_its_name(storage: Storage) -> None:
    """INV-5. Its bytes are put into no marker, where they would stay."""
    wal = MemoryStorage(f"damage-{next(uids)}")
    begun = opening_steps(storage, STREAM, "dies", 1, lambda: 1.0, lambda: next(uids), wal=wal)
    next(begun)
    path = claim_path(STREAM, numbered(1, 1))
    whole = storage.read(path)
    storage.replace(path, flipped(whole, 12))
    with pytest.raises(CorruptionError, match=f"{path} is damaged at byte 0: it is no whole claim"):
        lead_with(storage, wal)
    assert not wal.list(STREAM)
    storage.replace(path, whole)
    lead_with(storage, wal)
    assert wal.read(layout.timeline_marker(STREAM, 1)) == whole


def test_a_damaged_marker_is_not_taken_for_another_journals(storage: Storage) -> None:
    wal = MemoryStorage(f"damage-{next(uids)}")
    lead_with(storage, wal)
    marker = layout.timeline_marker(STREAM, 1)
    whole = wal.read(marker)
    wal.replace(marker, flipped(whole, 12))
    with pytest.raises(CorruptionError, match=f"{marker} is damaged"):
        lead_with(storage, wal)
    wal.replace(marker, Claim(numbered(1, 1), "another", 1).encode())
    with pytest.raises(TimelineFound, match="belongs to another journal"):
        lead_with(storage, wal)


@pytest.mark.parametrize("content", [None, b"", b'{"epoch": 1', b"[]", b'{"led_events": -1}'])
def test_without_a_lease_that_can_be_read_the_journal_opens_as_it_is(storage: Storage, content: bytes | None) -> None:
    driver = Driver(storage)
    driver.write(3)
    driver.stop()
    if content is None:
        storage.delete(lease_path(STREAM))
    else:
        storage.replace(lease_path(STREAM), content)
    assert Driver(storage).state == driver.state


def test_a_wrong_bit_in_the_lease_makes_no_driver_refuse_the_journal(
    storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    """The next driver passes on what the lease proves: a wrong number would stay, and every later driver would refuse."""
    driver = Driver(storage)
    driver.write(3)
    driver.stop()
    whole = storage.read(lease_path(STREAM))
    for at in (
        whole.index(b'"led_events":3') + len(b'"led_events":'),
        whole.index(b'"led_epoch":') + len(b'"led_epoch":'),
    ):
        for bit in range(4):
            wrong = bytearray(whole)
            wrong[at] ^= 1 << bit
            storage.replace(lease_path(STREAM), bytes(wrong))
            caplog.clear()
            assert Driver(storage).state == driver.state
            assert "the lease s/lease is damaged and counts as none" in caplog.text
            assert Driver(storage).state == driver.state


def test_a_lease_of_an_older_release_proves_nothing(storage: Storage) -> None:
    driver = Driver(storage)
    driver.write(3)
    lease = stored_lease(storage, STREAM)
    assert lease is not None
    older = {key: value for key, value in msgspec.to_builtins(lease).items() if not key.startswith("led_")}
    storage.replace(lease_path(STREAM), msgspec.json.encode({**older, "host": "h"}))
    assert evidence.witness(storage, STREAM) == evidence.Witness(0, 0)
    assert Driver(storage).state == driver.state


def test_an_ended_lease_blocks_no_driver_and_keeps_its_count(storage: Storage) -> None:
    driver = Driver(storage)
    driver.write(3)
    driver.stop()
    assert read_lease(storage, STREAM) is None
    ended = stored_lease(storage, STREAM)
    assert ended is not None
    assert (ended.is_ended, ended.led_epoch, ended.led_events) == (True, driver.journal.epoch, 3)


def test_a_driver_passes_on_what_the_lease_before_proves_until_it_leads(storage: Storage) -> None:
    """Killed between its claim and its snapshot, it must not have wiped out what was known."""
    driver = Driver(storage)
    driver.write(3)
    driver.lease.renew()
    before = evidence.witness(storage, STREAM)
    begun = opening_steps(storage, STREAM, "dies", 1, lambda: 1.0, lambda: next(uids), claimed=driver._keep)
    next(begun)
    lease = stored_lease(storage, STREAM)
    assert isinstance(lease, Lease)
    assert lease.epoch == driver.journal.epoch + 1
    assert evidence.witness(storage, STREAM) == before == evidence.Witness(driver.journal.epoch, 3)


@pytest.mark.parametrize("appendable", [True, False], ids=["files", "objects"])
def test_a_kill_between_any_two_writes_leaves_a_journal_that_opens_with_all_that_was_confirmed(
    appendable: bool,
) -> None:
    """Leading, renewing and ending write claim, lease, snapshot and mark; each kill is followed by a power loss."""
    confirmed = 0

    def run(storage: Storage) -> None:
        nonlocal confirmed
        confirmed = 0
        for _ in range(3):
            driver = Driver(storage)
            for after in (driver.lease.renew, driver.snapshot, driver.lease.renew, driver.snapshot, driver.stop):
                driver.write(1)
                confirmed += 1
                after()

    whole = ForgetfulStorage(appendable=appendable)
    run(whole)
    assert whole.steps > 100
    for step in range(1, whole.steps + 1):
        storage = ForgetfulStorage(appendable=appendable)
        storage.crash_at_step = step
        with pytest.raises(Crash):
            run(storage)
        storage.crash_host(Random(step))
        read = journal.read(storage, STREAM).state
        assert confirmed <= (0 if read is None else read.events) <= confirmed + 1, step
        _, state = opening.lead(storage, STREAM, "next", 1, lambda: 1.0, lambda: next(uids))
        assert confirmed <= state.events <= confirmed + 1, step
        while storage.late:
            storage.land(0)
        assert journal.read(storage, STREAM).state == state, step


# ---- clean-up ----------------------------------------------------------------------------------------------------------


def test_clean_up_deletes_no_claim_and_no_mark_and_nothing_that_the_newest_epoch_needs(storage: Storage) -> None:
    """Openers that were killed at any step lie between the epochs that led."""
    random = Random(1)
    driver = Driver(storage)
    for _ in range(40):
        driver.write(1)
        match random.randrange(4):
            case 0:
                driver.snapshot()
            case 1:
                driver.stop()
                driver = Driver(storage)
            case _:
                begun = opening_steps(storage, STREAM, "dies", 1, lambda: 1.0, lambda: next(uids))
                for _ in range(random.randrange(1, 4)):
                    next(begun)
                assert journal.read(storage, STREAM).state == driver.state
                driver = Driver(storage)
        found = journal.read(storage, STREAM)
        assert found.state == driver.state
    claims = {path.rpartition("/")[2] for path in storage.list(f"{STREAM}/epochs")}
    led = {path.rpartition("/")[2] for path in storage.list(f"{STREAM}/led")}
    assert len(claims) == driver.journal.epoch - numbered(1, 0)
    assert led < claims and len(led) > 10
