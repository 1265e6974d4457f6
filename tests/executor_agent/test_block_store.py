"""A host's block directory: no file outside of it is touched, and leftovers of a crash are deleted."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from executor_agent import store as store_module
from executor_agent.store import COUNT_SECONDS, OLD_BLOCK_MS, BlockStore
from executor_agent.tidying import TEMPORARY_AGE_MS_MAX, TEMPORARY_AGE_MS_MIN
from forebay.model.errors import OutOfSpaceError, StoreError, UsageError
from forebay.process.clock import ManualClock
from tests.support.state.rows import block, filler
from wal.blocks import LocalRoom, cached_path, has_room, local_path
from wal.blocks.local_writing import local_frame, write_local, write_local_frame

START_MS = 1_700_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START_MS)


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> BlockStore:
    return BlockStore(tmp_path / "blocks", quota_bytes=1_000_000, clock=clock)


def write(store: BlockStore, sequence: int = 1) -> Path:
    return write_local(store.directory, *block({("a", 0): filler(50)}, sequence=sequence))


@pytest.mark.parametrize(
    ("stream", "block_id"),
    [
        ("s", "../../etc/passwd"),
        ("..", "r1-1-1"),
        ("s", ".."),
        ("s", "/etc/passwd"),
        ("s/../..", "r1-1-1"),
        ("s", "r1-1-1/x"),
        ("s", ".r1-1-1"),
        ("s", "r1-1-1\n"),
        ("s", "r1-1-1\x00"),
        ("s", "driver-epoch"),
        ("s", "driver-epoch-copy"),
        ("", "r1-1-1"),
        ("s", ""),
    ],
)
def test_names_outside_the_directory_are_refused(store: BlockStore, stream: str, block_id: str) -> None:
    for use in (store.path, store.delete):
        with pytest.raises(ValueError, match=r"stream|block"):
            use(stream, block_id)


@pytest.mark.parametrize("may_delete_copies", [True, False], ids=["wal", "no-wal"])
def test_damaged_blocks_are_set_aside_at_start_and_whole_ones_stay(
    tmp_path: Path, clock: ManualClock, may_delete_copies: bool
) -> None:
    """INV-5: each may be the last copy of its block. An empty file holds nothing."""
    store = BlockStore(tmp_path / "blocks", quota_bytes=1_000_000, clock=clock, may_delete_copies=may_delete_copies)
    whole, short, empty, foreign, flipped = (write(store, n) for n in (1, 2, 3, 4, 5))
    given = cached_path(store.directory, "s", "r1-10000000001-6")
    write(store, 6).rename(given)
    os.truncate(short, short.stat().st_size - 64)
    os.truncate(empty, 0)
    foreign.write_bytes(b"x" * 4096)
    for path in (flipped, given):
        data = bytearray(path.read_bytes())
        data[20] ^= 4
        path.write_bytes(data)
    damaged = {path: path.read_bytes() for path in (short, foreign, flipped, given)}
    done = store.open()
    assert len(done) == 5
    assert whole.exists() and not empty.exists()
    for path, content in damaged.items():
        assert not path.exists()
        assert path.with_name(f"{path.name}.damaged").read_bytes() == content
    assert store.open() == []


def test_damaged_block_counts_against_the_quota_and_only_the_driver_deletes_it(
    store: BlockStore, clock: ManualClock
) -> None:
    """INV-6, INV-8: heartbeats name it as an old block, so that the driver can have it deleted with its block."""
    path = write(store)
    size = path.stat().st_size
    os.truncate(path, size - 64)
    os.utime(path, (0, 0))
    store.open()
    usage = store.usage()
    assert (usage.blocks, usage.used_bytes) == (0, size - 64)
    assert usage.damaged == usage.old_blocks == ("s/r1-10000000001-1",)
    with pytest.raises(FileNotFoundError):
        store.read("s", "r1-10000000001-1")
    lowered = BlockStore(store.directory, quota_bytes=1, clock=clock)
    lowered.open()
    assert lowered.usage().damaged, "it is not deleted for lack of room"
    assert not store.delete("s", "r1-10000000001-1")
    clock.advance(COUNT_SECONDS)
    assert (store.usage().damaged, store.usage().used_bytes) == ((), 0)
    assert [p.name for p in (store.directory / "s").iterdir()] == []


def test_interrupted_deletion_of_damaged_copies_is_finished_by_the_next_command(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies are found by number, up to the first number that is missing."""
    for _ in range(3):
        os.truncate(write(store), 100)
        store.open()
    assert len(list((store.directory / "s").iterdir())) == 3
    unlink = Path.unlink
    left = 1

    def fail_later(path: Path, missing_ok: bool = False) -> None:
        nonlocal left
        if path.exists():
            if not left:
                raise OSError(5, "injected")
            left -= 1
        unlink(path, missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", fail_later)
        with pytest.raises(StoreError, match="injected"):
            store.delete("s", "r1-10000000001-1")
    store.delete("s", "r1-10000000001-1")
    assert list((store.directory / "s").iterdir()) == []


def test_temporary_file_is_deleted_only_when_no_process_can_be_writing_it(
    store: BlockStore, clock: ManualClock
) -> None:
    temporary = write(store).with_name(".r1-1-9.block.tmp")
    temporary.touch()
    os.utime(temporary, (START_MS / 1000, START_MS / 1000))
    assert store.open() == []
    assert temporary.exists()
    clock.advance(TEMPORARY_AGE_MS_MIN / 1000)
    assert len(store.open()) == 1
    assert not temporary.exists()


def test_deleting_twice_is_no_error_and_frees_the_quota(store: BlockStore) -> None:
    store.open()
    path = write(store)
    before = store.usage()
    assert (before.blocks, before.used_bytes) == (1, path.stat().st_size)
    assert store.delete("s", "r1-10000000001-1")
    assert not store.delete("s", "r1-10000000001-1")
    after = store.usage()
    assert (after.blocks, after.used_bytes) == (0, 0)
    assert after.free_bytes == before.free_bytes + before.used_bytes


def test_usage_sees_what_receivers_write_after_a_while(store: BlockStore, clock: ManualClock) -> None:
    store.open()
    assert store.usage().blocks == 0
    path = write(store)
    clock.advance(10)
    usage = store.usage()
    assert (usage.blocks, usage.used_bytes) == (1, path.stat().st_size)
    assert usage.free_bytes == 1_000_000 - usage.used_bytes


@pytest.mark.parametrize("call", ["scandir", "statvfs"])
def test_a_directory_that_cannot_be_counted_refuses_a_copy_by_an_error_of_the_store(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    store.open()

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(StoreError, match=f"cannot count the blocks in .*: {os.strerror(errno.EMFILE)}"):
        store.receive("s", "r1-1-1", 100)
    monkeypatch.undo()
    store.receive("s", "r1-1-1", 100).close()
    assert store.usage().free_bytes == 1_000_000


def test_a_copy_whose_size_cannot_be_read_is_an_error_of_the_store_and_stays(
    store: BlockStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.open()
    given = cached_path(store.directory, "s", "r1-10000000001-1")
    write(store).rename(given)
    assert store.usage().copies == ("s/r1-10000000001-1",)
    with monkeypatch.context() as patched:

        def fail(*_: object, **__: object) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        patched.setattr(Path, "stat", fail)
        with pytest.raises(StoreError, match=r"cannot look at the copies in .*: Input/output error"):
            store.receive("s", "r1-1-2", 999_000)
    assert given.exists()


def test_usage_is_never_negative_when_a_block_is_deleted_that_was_written_after_the_count(store: BlockStore) -> None:
    """The driver refuses a heartbeat with a negative number, and would consider the agent lost."""
    store.open()
    assert store.usage().blocks == 0
    name = write(store).name.removesuffix(".block")
    assert store.delete("s", name)
    usage = store.usage()
    assert (usage.blocks, usage.used_bytes) == (0, 0)


def test_unwritable_directory_is_reported_in_one_message(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "file").touch()
    store = BlockStore(tmp_path / "file" / "blocks", quota_bytes=1_000, clock=clock)
    with pytest.raises(UsageError, match=r"agent\.blocks: cannot write to .*file/blocks"):
        store.open()


def test_highest_epoch_of_a_driver_survives_a_restart(store: BlockStore, clock: ManualClock) -> None:
    """INV-4."""
    store.open()
    assert store.driver_epoch("s") == 0
    store.keep_driver_epoch("s", 1 << 40 | 3)
    again = BlockStore(store.directory, quota_bytes=1_000, clock=clock)
    again.open()
    assert again.driver_epoch("s") == 1 << 40 | 3
    assert again.usage().blocks == 0


EPOCH = 1 << 40 | 3


def damaged_epochs() -> list[bytes]:
    """Return the content of an epoch's file cut at each byte, and with each of its bits wrong once."""
    whole = b"%020d" % EPOCH
    cuts = [whole[:length] for length in range(len(whole))]
    return cuts + [
        bytes(byte ^ (1 << bit) if at == wrong else byte for at, byte in enumerate(whole))
        for wrong in range(len(whole))
        for bit in range(8)
    ]


@pytest.mark.parametrize("name", ["driver-epoch", "driver-epoch-copy"])
def test_one_damaged_file_of_the_epoch_lets_the_agent_obey_no_older_driver(
    store: BlockStore, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """INV-4. The damage is announced."""
    store.open()
    for damaged in damaged_epochs():
        store.keep_driver_epoch("s", EPOCH)
        (store.directory / "s" / name).write_bytes(damaged)
        caplog.clear()
        assert store.driver_epoch("s") >= EPOCH, damaged
        assert name in caplog.text, damaged


@pytest.mark.parametrize("damaged", [b"12x", b"", b"%020d" % EPOCH + b"1", (b"%020d" % EPOCH)[:-1]])
def test_two_damaged_files_of_the_epoch_are_refused(store: BlockStore, damaged: bytes) -> None:
    """INV-4. Without the last digit the number would be lower."""
    store.open()
    store.keep_driver_epoch("s", EPOCH)
    for name in ("driver-epoch", "driver-epoch-copy"):
        (store.directory / "s" / name).write_bytes(damaged)
    with pytest.raises(UsageError, match=r"driver-epoch-copy and .*driver-epoch are damaged"):
        store.driver_epoch("s")


def test_the_epoch_is_read_as_an_older_release_wrote_it_and_as_a_kill_between_the_files_left_it(
    store: BlockStore,
) -> None:
    store.open()
    (store.directory / "s").mkdir()
    (store.directory / "s" / "driver-epoch").write_bytes(b"%d" % EPOCH)
    assert store.driver_epoch("s") == EPOCH
    store.keep_driver_epoch("s", EPOCH)
    assert int((store.directory / "s" / "driver-epoch").read_bytes()) == EPOCH  # as an older release reads it
    (store.directory / "s" / "driver-epoch-copy").write_bytes(b"%020d" % (EPOCH + 1))
    assert store.driver_epoch("s") == EPOCH + 1


def test_files_and_directories_are_for_their_owner_only(store: BlockStore) -> None:
    store.open()
    path = write(store)
    store.keep_driver_epoch("t", 1)
    assert path.stat().st_mode & 0o777 == 0o600
    for directory in (store.directory, path.parent, store.directory / "t"):
        assert directory.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("size", "used", "quota", "free", "total", "room"),
    [
        (10, 0, 10, 1000, 1000, True),
        (10, 1, 10, 1000, 1000, False),  # quota
        (10, 0, 10, 60, 1000, True),
        (10, 0, 10, 59, 1000, False),  # a twentieth of the filesystem is left to the WAL
        (10, 0, 10, 10 * 2**30 + 10, 2**40, True),  # of a large one, 10 GiB
        (10, 0, 10, 10 * 2**30 + 9, 2**40, False),
    ],
)
def test_room_is_bounded_by_quota_and_free_space(
    size: int, used: int, quota: int, free: int, total: int, room: bool
) -> None:
    """INV-6."""
    assert has_room(size, used, quota, free, total) is room


def test_local_copy_beyond_the_quota_is_refused_until_room_is_freed(tmp_path: Path) -> None:
    directory = tmp_path / "blocks"
    size = write_local(directory, *block({("a", 0): filler(50)})).stat().st_size
    room = LocalRoom(directory, 3 * size)
    for sequence in (2, 3):
        write_local(directory, *block({("a", 0): filler(50)}, sequence=sequence), room)
    with pytest.raises(OutOfSpaceError, match="no room"):
        write_local(directory, *block({("a", 0): filler(50)}, sequence=4), room)
    assert len(list((directory / "s").iterdir())) == 3
    local_path(directory, "s", "r1-10000000001-1").unlink()
    for _ in range(64):
        try:
            write_local(directory, *block({("a", 0): filler(50)}, sequence=4), room)
        except OutOfSpaceError:
            continue
        break
    else:
        pytest.fail("room that was made was never seen")


def test_old_blocks_are_named_so_that_strays_can_be_found(store: BlockStore, clock: ManualClock) -> None:
    old, young = write(store, 1), write(store, 2)
    os.utime(old, ns=(0, (START_MS - OLD_BLOCK_MS - 1) * 1_000_000))
    os.utime(young, ns=(0, (START_MS - OLD_BLOCK_MS + 1_000) * 1_000_000))
    assert store.usage().old_blocks == (f"s/{old.stem}",)
    clock.advance(60)
    assert set(store.usage().old_blocks) == {f"s/{old.stem}", f"s/{young.stem}"}


def test_old_blocks_are_named_in_turns_so_that_kept_blocks_hide_no_stray(
    store: BlockStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-6: a heartbeat names a bounded number of blocks."""
    monkeypatch.setattr(store_module, "OLD_BLOCKS_MAX", 2)
    for number in range(1, 6):
        os.utime(write(store, number), (0, 0))
    turns = []
    for _ in range(4):
        turns.append(store.usage().old_blocks)
        clock.advance(COUNT_SECONDS)
    assert [len(turn) for turn in turns] == [2, 2, 1, 2]
    assert len({name for turn in turns for name in turn}) == 5
    assert turns[3] == turns[0]


def test_leftover_of_a_killed_writer_is_deleted_while_the_agent_runs(store: BlockStore, clock: ManualClock) -> None:
    """INV-6: otherwise it would count against the quota for ever."""
    left = write(store).with_name(".r1-1-9.block.tmp")
    left.write_bytes(bytes(1000))
    os.utime(left, (START_MS / 1000, START_MS / 1000))
    whole = store.path("s", "r1-10000000001-1").stat().st_size
    assert store.usage().used_bytes == whole + 1000
    clock.advance(TEMPORARY_AGE_MS_MAX / 1000 + 1)
    assert store.usage().used_bytes == whole
    assert not left.exists()


@pytest.mark.parametrize("durable", [False, True])
def test_clock_set_ahead_fails_one_attempt_of_a_copy_and_loses_no_block(
    store: BlockStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    """The agent takes the temporary file for that of a dead writer.

    Its writer gets an error, has reported nothing, and retries.
    """
    store.open()
    meta, payload = block({("a", 0): filler(50)})
    real = Path.rename

    def late(self: Path, target: Path) -> Path:
        os.utime(self, (START_MS / 1000, START_MS / 1000))  # written when the test began
        clock.advance(30 * 86_400)
        store.usage()
        return real(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", late)
        with pytest.raises(StoreError):
            write_local_frame(store.directory, meta, local_frame(meta, payload), durable=durable)
        given = store.receive("s", meta.id, 100_000)
        given.write(b"".join(bytes(memoryview(part)) for part in local_frame(meta, payload)))
        with pytest.raises(StoreError):
            given.keep(durable)
        given.close()
    assert [p.name for p in (store.directory / "s").iterdir()] == []
    write_local_frame(store.directory, meta, local_frame(meta, payload), durable=durable)
    clock.advance(30 * 86_400)
    assert store.open() == []
    assert store.usage().blocks == 1
