"""The log's writer: groups of frames, and segments that begin by size, by age, and under free names."""

from __future__ import annotations

from random import Random

import pytest

from forebay.model.errors import FencedError, StoreError
from tests.support.state.segments import add, contents, durable, memory, name, served, writer
from tests.support.stores.forgetful import ForgetfulStorage
from wal.segments.frame import MAX_METADATA, FrameKind
from wal.segments.scan import read_frame, scan_segment


def test_one_sync_makes_a_whole_group_durable_and_gives_it_its_handles() -> None:
    storage = ForgetfulStorage()
    log = writer(storage)
    group = [add(log, f"b{n}") for n in range(5)]
    assert [pending.handle for pending in group] == [None] * 5
    assert log.unsynced() == 5
    syncs = storage.calls["sync"]
    assert log.sync() == group
    assert storage.calls["sync"] == syncs + 1
    assert log.unsynced() == 0
    storage.crash_host(Random(1))
    assert [served(storage, pending) for pending in group] == [b"b0", b"b1", b"b2", b"b3", b"b4"]
    assert [pending.tag for pending in group] == ["b0", "b1", "b2", "b3", "b4"]


def test_a_sync_without_frames_does_nothing() -> None:
    storage = ForgetfulStorage()
    log = writer(storage)
    assert log.sync() == []
    assert storage.steps == 0
    assert log.current_path is None


def test_a_new_segment_begins_by_size_and_names_are_dense() -> None:
    storage = memory()
    log = writer(storage, size_bytes=1000)
    for number in range(10):
        add(log, f"b{number}", 200)
        log.sync()
    paths = storage.list("s")
    assert paths == [name(sequence) for sequence in range(1, len(paths) + 1)]
    assert log.sealed == paths[:-1]
    assert log.current_path == paths[-1]
    assert log.next_sequence == len(paths) + 1
    assert all(storage.size(path) <= 1000 for path in paths)
    assert [metadata for metadata, _ in durable(storage)] == [b"b%d" % number for number in range(10)]


def test_a_new_segment_begins_by_age_at_the_next_append() -> None:
    storage = memory()
    now = 100.0
    log = writer(storage, age_seconds=5, now=lambda: now)
    add(log, "a")
    log.sync()
    now = 104.9
    add(log, "b")
    log.sync()
    assert len(storage.list("s")) == 1
    now = 105.0
    add(log, "c")
    log.sync()
    assert [len(contents(list(scan_segment(storage, path)))) for path in storage.list("s")] == [2, 1]


def test_changed_clock_only_changes_when_a_segment_ends() -> None:
    storage = memory()
    now = 1_000_000.0
    log = writer(storage, size_bytes=1000, age_seconds=5, now=lambda: now)
    labels: list[str] = []
    for jump in (0, 0, 2_000_000, 0, -2_000_000, 0, 0, 0, 0, 0, 0):
        now += jump
        labels.append(f"b{len(labels)}")
        add(log, labels[-1], 200)
        log.sync()
    assert [metadata.decode() for metadata, _ in durable(storage)] == labels
    assert all(storage.size(path) <= 1000 for path in storage.list("s"))


def test_group_is_in_one_segment_and_oversized_frame_in_its_own() -> None:
    storage = memory()
    log = writer(storage, size_bytes=1000)
    for number in range(10):
        add(log, f"b{number}", 400)
    log.sync()
    assert len(storage.list("s")) == 1
    big = add(log, "big", 50_000)
    log.sync()
    assert big.handle is not None
    assert big.handle.path == name(2)
    add(log, "next")
    log.sync()
    assert [len(contents(list(scan_segment(storage, path)))) for path in storage.list("s")] == [10, 1, 1]


def test_large_payloads_are_written_buffer_by_buffer_and_small_frames_in_one_call() -> None:
    storage = ForgetfulStorage()
    log = writer(storage)
    add(log, "small")
    appends = storage.calls["append"]
    assert appends == 2  # the segment's header, the frame
    large = log.append(FrameKind.BLOCK, b"large", [memoryview(bytes(200_000)), bytearray(200_000), b"x"])
    log.sync()
    assert storage.calls["append"] == appends + 5  # header and metadata, three buffers, padding
    assert large.handle is not None
    assert read_frame(storage, large.handle).payload.to_pybytes() == bytes(400_000) + b"x"


def test_oversized_frame_is_refused_and_changes_nothing() -> None:
    """INV-6."""
    storage = memory()
    log = writer(storage)
    add(log, "a")
    with pytest.raises(ValueError, match="metadata"):
        log.append(FrameKind.BLOCK, bytes(MAX_METADATA + 1), b"")
    add(log, "b")
    assert [pending.tag for pending in log.sync()] == ["a", "b"]


def test_name_taken_by_another_writer_fences() -> None:
    """INV-4: only one process writes under an epoch."""
    storage = memory()
    storage.put_new(name(1), b"somebody else's")
    log = writer(storage)
    with pytest.raises(FencedError):
        add(log, "a")
    with pytest.raises(FencedError):
        log.sync()
    assert storage.read(name(1)) == b"somebody else's"


def test_name_left_by_failed_create_is_skipped() -> None:
    class HalfCreating(ForgetfulStorage):
        def create(self, path: str):  # type: ignore[no-untyped-def]
            file = super().create(path)
            if path == name(1):
                raise StoreError("the folder's sync failed")
            return file

    storage = HalfCreating()
    log = writer(storage)
    pending = add(log, "a")
    assert log.sync() == [pending]
    assert log.current_path == name(2)
    assert log.sealed == [name(1)]
    assert list(scan_segment(storage, name(1))) == []


def test_failed_create_without_a_file_reuses_its_sequence() -> None:
    """Names are dense within an epoch, so that recovery can probe for the next one."""
    storage = ForgetfulStorage()
    log = writer(storage)
    storage.fail("create", 1)
    pending = add(log, "a")
    assert log.sync() == [pending]
    assert storage.list("s") == [name(1)]


def test_closing_ends_the_writer_and_syncs_nothing() -> None:
    storage = ForgetfulStorage()
    log = writer(storage)
    add(log, "a")
    log.close()
    log.close()
    assert storage.calls["sync"] == 0
    assert log.sealed == [name(1)]
    with pytest.raises(StoreError):
        add(log, "b")
