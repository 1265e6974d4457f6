"""The deletion of superseded segments, beside the journal's writer."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from driver.journal.events import ReceiverRegistered
from driver.journal.files import claim_path, epoch_folder
from driver.journal.log import opening, reading, writing
from driver.journal.log.writing import Journal
from driver.journal.state import State
from driver.journal.transitions import apply
from forebay.model.errors import StoreError
from forebay.model.identifiers import numbered
from tests.support.state.tracked import STREAM
from wal.storage import MemoryStorage, Storage

uids = itertools.count(1)


class Deleting(MemoryStorage):
    """A store that deletes ``left`` files and then none: ``error`` is raised, or the deletion waits for ``go_on``."""

    left = 1_000_000
    error: Exception | None = None

    def __init__(self, name: str, appendable: bool) -> None:
        super().__init__(name, appendable)
        self.waits = threading.Event()
        self.go_on = threading.Event()

    def delete(self, path: str) -> None:
        if self.left == 0:
            if (error := self.error) is not None:
                raise error
            self.waits.set()
            assert self.go_on.wait(30)
        else:
            self.left -= 1
        super().delete(path)


@pytest.fixture(params=[True, False], ids=["files", "objects"])
def storage(request: pytest.FixtureRequest) -> Iterator[Deleting]:
    store = Deleting(f"deletion-{next(uids)}", request.param)
    yield store
    store.go_on.set()


def lead(storage: Storage) -> tuple[Journal, State]:
    return opening.lead(storage, STREAM, "test", 1_000, lambda: 1.0, lambda: next(uids), segment_bytes=1)


def write(led: Journal, state: State, events: int = 3) -> None:
    """Write events, each of them into a segment of its own."""
    for _ in range(events):
        event = ReceiverRegistered(f"r{state.epochs}", "h", "i", numbered(1, state.epochs + 1))
        apply(state, event)
        led.append([event])
        led.sync()
        led.check()


def snapshot(led: Journal) -> None:
    led.snapshot()
    led.check()
    led.drop_superseded()


def segments(storage: Storage, epoch: int) -> list[str]:
    return storage.list(epoch_folder(STREAM, epoch))


def grown(storage: Storage) -> tuple[Journal, State]:
    """Return the journal of a driver that wrote two snapshots, with superseded segments of its own and of two older epochs."""
    for _ in range(2):
        led, state = lead(storage)
        write(led, state)
        led.close()
    led, state = lead(storage)
    led.await_deletion()
    write(led, state)
    led.snapshot()
    led.check()
    write(led, state)
    return led, state


def test_a_journal_is_opened_and_written_while_superseded_segments_are_deleted(storage: Deleting) -> None:
    """On a store of objects each deletion is a request, and there may be hundreds."""
    for _ in range(2):
        led, state = lead(storage)
        write(led, state)
        led.close()
    storage.left = 0
    led, state = lead(storage)
    assert storage.waits.wait(30)
    write(led, state)
    snapshot(led)
    write(led, state)
    assert reading.read(storage, STREAM).state == state
    storage.go_on.set()
    led.await_deletion()
    assert segments(storage, numbered(1, 1)) == segments(storage, numbered(1, 2)) == []
    assert reading.read(storage, STREAM).state == state


def test_wherever_a_deletion_ends_the_journal_reads_the_same_and_the_next_leader_deletes_the_rest(
    storage: Deleting, caplog: pytest.LogCaptureFixture
) -> None:
    """INV-5. A driver killed between two deletions leaves what a store leaves that refuses the next one."""
    for left in itertools.count():
        store = Deleting(f"{storage.url}-{left}", storage.appendable)
        led, state = grown(store)
        store.left, store.error = left, StoreError("the store does not answer")
        snapshot(led)
        led.await_deletion()
        assert reading.read(store, STREAM).state == state
        if store.left:
            break
        assert "superseded segments of the journal" in caplog.text
        store.error = None
        store.left = 1_000_000
        for _ in range(2):  # the epoch just before the leading one keeps its segments
            led, read = lead(store)
            led.await_deletion()
            assert read == state
        assert [segments(store, numbered(1, epoch)) for epoch in (1, 2, 3)] == [[], [], []]
    assert left >= 9


def test_after_an_error_of_the_store_the_next_snapshot_deletes_the_rest(storage: Deleting) -> None:
    led, state = grown(storage)
    storage.left, storage.error = 1, StoreError("the store does not answer")
    snapshot(led)
    led.await_deletion()
    before = segments(storage, led.epoch)
    storage.left, storage.error = 1_000_000, None
    write(led, state)
    snapshot(led)
    led.await_deletion()
    assert segments(storage, led.epoch)[0] == before[-1]
    assert segments(storage, numbered(1, 2)) == []
    assert reading.read(storage, STREAM).state == state


def test_if_no_thread_can_be_started_the_next_snapshot_deletes(
    storage: Deleting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As at the limit of a user's threads. The decision loop goes on."""
    led, state = grown(storage)
    led._deleter.shutdown()
    led._deleter = ThreadPoolExecutor(1)  # without the thread of the first deletion
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", _no_thread)
        snapshot(led)
        led.await_deletion()
    assert "until the next snapshot: can't start new thread" in caplog.text
    assert segments(storage, numbered(1, 2)) != []
    write(led, state)
    snapshot(led)
    led.await_deletion()
    assert [segments(storage, numbered(1, epoch)) for epoch in (1, 2)] == [[], []]
    assert reading.read(storage, STREAM).state == state
    led.close()


def _no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_another_error_is_raised_with_the_next_deletion_and_at_the_end(storage: Deleting) -> None:
    led, state = grown(storage)
    storage.left, storage.error = 0, MemoryError("no memory")
    snapshot(led)
    with pytest.raises(MemoryError):
        led.await_deletion()
    write(led, state)
    with pytest.raises(MemoryError):
        snapshot(led)
    with pytest.raises(MemoryError):
        led.close()


def test_a_driver_that_is_fenced_after_the_snapshot_deletes_nothing(storage: Deleting) -> None:
    """INV-4."""
    led, _ = grown(storage)
    led.snapshot()
    led.check()
    storage.put_new(claim_path(STREAM, led.epoch + 1), b"{}")
    before = storage.list("")
    led.drop_superseded()
    led.await_deletion()
    assert storage.list("") == before


def test_the_end_does_not_wait_for_all_deletions(storage: Deleting) -> None:
    led, _ = grown(storage)
    before = len(storage.list(""))
    storage.left = 0
    snapshot(led)
    assert storage.waits.wait(30)
    closing = threading.Thread(target=led.close)
    closing.start()
    assert led._closing.wait(30)
    storage.go_on.set()
    closing.join(30)
    assert not closing.is_alive()
    assert len(storage.list("")) == before  # one more, the snapshot, and one fewer


def test_a_gap_of_many_epochs_hides_no_older_ones(storage: Deleting) -> None:
    """An interrupted deletion leaves the newest of the epochs, so that the next leader finds them."""
    epochs = 2 * writing.EMPTY_EPOCHS
    storage.left, storage.error = 0, StoreError("the store does not answer")
    for _ in range(epochs):
        led, state = lead(storage)
        write(led, state, 1)
        led.close()
    storage.left = (writing.EMPTY_EPOCHS + 4) * len(segments(storage, numbered(1, 1)))
    led, _ = lead(storage)
    led.await_deletion()
    led.close()
    storage.left = 1_000_000
    led, _ = lead(storage)
    led.await_deletion()
    assert [epoch for epoch in range(1, epochs) if segments(storage, numbered(1, epoch))] == []
