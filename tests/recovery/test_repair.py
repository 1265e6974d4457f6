"""``wal repair``: segments repaired in place get their original bytes back, and nothing else changes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from deploy.commands.wal.repair import RepairReport, repaired
from deploy.commands.wal.verification import verified
from driver.journal.files import newest_claim
from driver.journal.state import REPAIR_WRITER
from forebay.model.values import Block
from tests.recovery.test_recovering import Alone, served
from tests.support.state.logged import Logged
from tests.support.state.tracked import STREAM
from wal.blocks import encode_meta
from wal.segments.frame import FrameKind
from wal.segments.layout import block_segment
from wal.segments.writer import LogWriter, SegmentIdentity, SegmentLimits
from wal.storage import MemoryStorage
from wal.storage.local import LocalStorage


def repair(logged: Logged, *, yes: bool = True) -> RepairReport:
    return repaired(STREAM, logged.journal, logged.wal, Alone(logged), yes=yes)


@pytest.fixture(params=[False, True], ids=["file", "objects"])
def logged(request: pytest.FixtureRequest, tmp_path: Path) -> Logged:
    return Logged(tmp_path, objects=request.param)


def some_blocks(logged: Logged) -> list[Block]:
    logged.receiver("r1")
    blocks = [logged.take_in("r1", {0: 5, 1: 2}, local=True) for _ in range(3)]
    logged.receiver("r1")
    logged.keep()
    return blocks


@pytest.mark.parametrize("part", ["header", "metadata", "payload"])
def test_repair_restores_a_frames_bytes_from_the_local_copy(logged: Logged, part: str) -> None:
    block = some_blocks(logged)[1]
    before = logged.segments()
    at = {"header": 20, "metadata": 70, "payload": block.handle.length - 3}[part]
    logged.flip(block.handle.path, block.handle.offset + at)
    damaged = logged.wal.read(block.handle.path)
    looked = repair(logged, yes=False)
    assert looked.repaired[0].blocks == (block.id,) and logged.wal.read(block.handle.path) == damaged
    done = repair(logged)
    assert logged.segments() == before
    assert logged.wal.read(done.repaired[0].aside) == damaged
    assert not repair(logged).repaired


@pytest.mark.parametrize(
    ("step", "done"), [("put_new", False), ("put_new", True), ("replace", False), ("replace", True)]
)
def test_next_call_finishes_a_killed_repair(
    logged: Logged, step: str, done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-1: the damaged bytes are set aside before they are replaced, and kept once."""

    class Killed(BaseException):
        pass

    block = some_blocks(logged)[1]
    before = logged.segments()
    logged.flip(block.handle.path, block.handle.offset + 70)
    damaged = logged.wal.read(block.handle.path)
    real = getattr(logged.wal, step)

    def die(*arguments: Any) -> None:
        if done:
            real(*arguments)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(logged.wal, step, die)
        with pytest.raises(Killed):
            repair(logged)
    repair(logged)
    assert logged.segments() == before
    assert [logged.wal.read(path) for path in logged.wal.list(f"{STREAM}/aside")] == [damaged]


def test_repair_restores_all_accepted_blocks_of_a_cut_segment(logged: Logged) -> None:
    """INV-1: an accepted tail is never taken for torn."""
    block = some_blocks(logged)[0]
    before = logged.segments()
    logged.overwrite(block.handle.path, before[block.handle.path][: block.handle.offset + 100])
    repair(logged)
    for path, data in before.items():  # padding after the last payload may be missing or there
        assert logged.wal.read(path).rstrip(b"\0") == data.rstrip(b"\0")


def test_a_damaged_segment_header_is_written_again(logged: Logged) -> None:
    block = some_blocks(logged)[0]
    logged.flip(block.handle.path, 70)
    assert [m.header for m in repair(logged).repaired] == [True]
    assert verified(logged.wal, STREAM, logged.journal).findings == ()
    served(logged, block)


def test_torn_tail_is_cut_off_only_if_unnamed_and_without_a_writer(tmp_path: Path) -> None:
    logged = Logged(tmp_path)
    logged.receiver("r1")
    block = logged.take_in("r1", {0: 5})
    orphan = logged.orphan("r1", {0: 5})
    logged.keep()
    path = block.handle.path
    torn = logged.wal.read(path)[: orphan.handle.offset + 200]
    logged.overwrite(path, torn)
    assert not repair(logged).repaired  # its writer may be in the middle of it
    assert logged.wal.read(path) == torn
    logged.receiver("r1")
    logged.keep()
    assert [m.cut for m in repair(logged).repaired] == [200]
    assert logged.wal.read(path) == torn[: orphan.handle.offset]
    served(logged, block)


def test_repair_does_not_replace_the_segment_of_a_running_recovery(tmp_path: Path) -> None:
    """INV-4: otherwise the recovery would write and journal frames in a file that has no name any more."""
    logged = Logged(tmp_path)
    some_blocks(logged)
    leads = newest_claim(logged.journal, STREAM)
    path = block_segment(STREAM, REPAIR_WRITER, leads, 1)
    drafts = MemoryStorage("a-recovery-at-work")
    identity = SegmentIdentity(STREAM, REPAIR_WRITER, leads, 1)
    writer = LogWriter(
        drafts,
        lambda _: path,
        identity=identity,
        limits=SegmentLimits(size_bytes=1 << 20, age_seconds=1e9),
        now=lambda: 1.0,
        new_uid=lambda: 7,
    )
    block = next(iter(logged.accepted.values()))
    writer.append(FrameKind.BLOCK, encode_meta(block.meta), logged.payloads[block.id])
    writer.sync()
    whole = drafts.read(path)
    file = logged.wal.create(path)
    file.append(whole[:-200])
    assert not repair(logged).repaired
    file.append(whole[-200:])
    file.sync()
    assert logged.wal.read(path) == whole
    file.close()
    logged.overwrite(path, whole[:-200])
    logged.keep()  # another one leads
    assert [m.path for m in repair(logged).repaired] == [path]


def test_a_segment_that_its_receiver_may_still_write_is_not_replaced(tmp_path: Path) -> None:
    logged = Logged(tmp_path)
    logged.receiver("r1")
    block = logged.take_in("r1", {0: 5}, local=True)
    logged.keep()
    logged.damage(block)
    report = repair(logged)
    assert not report.repaired and block.id in report.left[0]


def test_block_without_a_copy_is_reported_and_its_segment_stays(logged: Logged) -> None:
    """INV-5."""
    block = some_blocks(logged)[1]
    logged.damage(block)
    logged.local_file(block).unlink()
    before = logged.segments()
    report = repair(logged)
    assert report.left == (
        f"block {block.id} with {', '.join(r.label for r in block.meta.ranges)} is not whole in {block.handle.path}",
    )
    assert logged.segments() == before


def test_temporary_files_that_a_kill_left_are_removed_and_those_being_written_are_not(tmp_path: Path) -> None:
    logged = Logged(tmp_path)
    some_blocks(logged)
    folder = tmp_path / "wal" / STREAM
    old, new = folder / f".x.seg.{'a' * 16}.tmp", folder / f".y.seg.{'b' * 16}.tmp"
    strange = folder / ".hidden"
    for file in (old, new, strange):
        file.write_bytes(b"half")
    for file in (old, strange):
        os.utime(file, (1, 1))
    assert repair(logged, yes=False).temporaries == (f"{STREAM}/{old.name}",)
    assert old.exists()
    repair(logged)
    assert not old.exists() and new.exists() and strange.exists()
    assert isinstance(logged.wal, LocalStorage)
    for path in (f"../{old.name}", f"{STREAM}/../../{old.name}", f"{STREAM}/lineage-00000001"):
        with pytest.raises(ValueError, match=r"each part must consist of letters|no temporary file"):
            logged.wal.remove_left_over(path)
