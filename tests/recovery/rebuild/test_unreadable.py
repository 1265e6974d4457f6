"""A rebuild whose WAL can't be read in full: refused before anything is changed, since it would drop accepted blocks."""

from __future__ import annotations

from typing import cast

import pytest

from driver.journal.leadership import timeline
from forebay.model.errors import NewerVersionError, StoreError
from forebay.model.values import Block, Handle
from recovery import rebuild
from tests.support.state.lost_journal import Lost
from tests.support.state.tracked import STREAM, offsets
from tests.support.stores.unreadable import WHOLE, Unreadable
from wal.blocks import encode_meta
from wal.segments.frame import FrameKind
from wal.segments.payload import checksum


def lost_after(copied: int) -> tuple[Lost, list[Block]]:
    """Return a stream of three blocks in three segments, and the blocks. The snapshot copy knows the first ``copied`` ones."""
    lost = Lost()
    epoch = lost.t.register()
    token = lost.t.claim(epoch).view.token
    blocks = []
    for number in range(3):
        if number == copied:
            lost.copy()
        blocks.append(lost.take_in(epoch, offsets(number * 10, number * 10 + 10, token)))
    if copied == len(blocks):
        lost.copy()
    return lost, blocks


def refused(lost: Lost, message: str) -> None:
    before = {path: lost.wal.read(path) for path in lost.wal.list("") if path not in lost.wal.bad}
    with pytest.raises(StoreError, match=message):
        lost.rebuild()
    assert timeline.newest_marker(lost.wal, STREAM) == 1
    assert {path: lost.wal.read(path) for path in lost.wal.list("") if path not in lost.wal.bad} == before
    assert lost.journal.list("") == []


@pytest.mark.parametrize("copied", [0, 3])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_rebuild_beside_an_unreadable_segment_is_refused_before_its_marker(copied: int, number: int) -> None:
    """INV-5: the segment may hold an accepted block that the copy does not know."""
    lost, blocks = lost_after(copied)
    path = blocks[number].handle.path
    lost.wal = Unreadable(lost.wal, {path: WHOLE})
    refused(lost, f"segment {path} of .* Input/output error.* move its file out of the WAL's folder")
    with pytest.raises(StoreError, match=path):
        rebuild.read_evidence(lost.journal, lost.wal, STREAM, lost.topic_ids)
    lost.wal.bad.clear()
    assert lost.rebuild().state.partitions["t/0"].position == 30


def fail_reads_of(lost: Lost, handle: Handle) -> None:
    """Let each read of exactly this frame fail, and none that scans the headers of its segment."""
    lost.wal = Unreadable(lost.wal)
    read = lost.wal.read

    def failing(path: str, offset: int = 0, length: int | None = None) -> bytes:
        if (path, offset, length) == (handle.path, handle.offset, handle.length):
            raise StoreError(f"{path} can't be read: Input/output error")
        return cast(bytes, read(path, offset, length))

    lost.wal.read = failing


def test_rebuild_with_an_unreadable_payload_is_refused_before_its_marker() -> None:
    """INV-5: only a payload that was read and is damaged counts as damaged."""
    lost, blocks = lost_after(0)
    fail_reads_of(lost, blocks[1].handle)
    refused(lost, f"segment {blocks[1].handle.path} of .* Input/output error")


def test_rebuild_without_a_lost_segment_names_the_missing_offsets() -> None:
    """The step that the refusal names."""
    lost, blocks = lost_after(0)
    lost.wal = Unreadable(lost.wal, {blocks[1].handle.path: WHOLE})
    refused(lost, "cannot rebuild")
    lost.wal.delete(blocks[1].handle.path)
    (gap,) = lost.rebuild().missing_offsets
    assert (gap.position, gap.next_from) == (10, 20)


def test_rebuild_does_not_begin_from_an_older_copy_if_the_newest_one_cannot_be_read() -> None:
    """The older one would forget batches that ran."""
    lost, _ = lost_after(1)
    newest = lost.copy()
    lost.wal = Unreadable(lost.wal, {newest: WHOLE})
    refused(lost, f"snapshot copy {newest} of .* Input/output error.* move its file out")


def test_rebuild_takes_the_readable_frame_of_a_block_whose_old_place_cannot_be_read() -> None:
    """A recovery had written the block again, and the copy is older than that."""
    lost, blocks = lost_after(3)
    old = blocks[0]
    (writer,) = lost.writers.values()
    again = writer.append(FrameKind.BLOCK, encode_meta(old.meta), b"payload " * 20)
    writer.sync()
    assert lost.rebuild().state.blocks[old.id].handle == old.handle
    fail_reads_of(lost, old.handle)
    assert lost.rebuild().state.blocks[old.id].handle == again.handle


def test_rebuild_that_a_newer_release_must_do_uses_up_no_timeline() -> None:
    lost, blocks = lost_after(0)
    handle = blocks[0].handle
    whole = bytearray(lost.wal.read(handle.path))
    header = memoryview(whole)[handle.offset : handle.offset + 64]
    header[8:10] = (99).to_bytes(2, "little")  # the format version, under a checksum that holds (docs/FORMAT.md)
    header[60:64] = checksum([bytes(header[:60])]).to_bytes(4, "little")
    lost.wal.replace(handle.path, bytes(whole))
    with pytest.raises(NewerVersionError):
        lost.rebuild()
    assert timeline.newest_marker(lost.wal, STREAM) == 1
