"""A segment that the store can't read: it stays, its blocks are written again, and all others are verified and repaired."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, cast

import pytest

from deploy.commands.recovery.journal import inspect_journal
from deploy.commands.wal import repair as wal_repair
from deploy.commands.wal.inspection import Filters, inspect_log
from deploy.commands.wal.repair import RepairReport, repaired
from deploy.commands.wal.retention import judge_segments
from deploy.commands.wal.verification import verified
from deploy.main import main
from forebay.model.errors import StoreError
from forebay.model.values import Block
from recovery.examination import listed_segments
from recovery.plan import aside_path, sentences
from tests.recovery.test_killed import CONFIGURATION
from tests.recovery.test_recovering import Alone, applied, planned, served
from tests.support.state.logged import Logged
from tests.support.state.tracked import STREAM
from tests.support.stores.unreadable import WHOLE, Unreadable
from wal.decisions.retention import RetentionLimits
from wal.storage import Storage
from wal.storage.local import LocalStorage


@pytest.fixture(params=[False, True], ids=["file", "objects"])
def logged(request: pytest.FixtureRequest, tmp_path: Path) -> Logged:
    return Logged(tmp_path, objects=request.param)


def three_segments(logged: Logged, *, local: bool = True) -> list[Block]:
    """Return three blocks in three closed segments."""
    logged.receiver("r1")
    blocks = []
    for _ in range(3):
        blocks.append(logged.take_in("r1", {0: 5}, local=local))
        logged.roll("r1")
    logged.receiver("r1")
    logged.keep()
    return blocks


def break_store(
    logged: Logged, bad: dict[str, tuple[int, int]] | None = None, sizes: tuple[str, ...] = ()
) -> Unreadable:
    store = Unreadable(logged.wal, bad, sizes)
    logged.wal = cast(Storage, store)
    return store


def test_blocks_of_an_unreadable_segment_are_written_again_and_it_stays(logged: Logged) -> None:
    """INV-5, INV-8: the disk may return its bytes later."""
    first, second, third = three_segments(logged)
    logged.damage(third)
    path = first.handle.path
    store = break_store(logged, {path: WHOLE})
    plan = planned(logged)
    assert {r.block_id for r in plan.recoveries} == {first.id, third.id} and not plan.losses
    plan = applied(logged)
    assert [(r.block_id, r.source, r.done) for r in plan.recoveries] == [
        (first.id, "local copy", True),
        (third.id, "local copy", True),
    ]
    (kept,) = [d for d in plan.damaged if not d.done]
    assert kept.path == path and kept.unreadable and plan.open
    (message,) = sentences(plan)
    assert path in message and "Input/output error" in message and "stays in place" in message
    for block in (first, second, third):
        served(logged, block)
    assert path in logged.wal.list(STREAM) and logged.wal.list(f"{STREAM}/aside") == [aside_path(third.handle.path)]
    store.bad.clear()
    assert not applied(logged).open and path in logged.wal.list(STREAM)


def test_records_of_an_unreadable_segment_are_read_from_kafka(logged: Logged) -> None:
    first, *_ = three_segments(logged, local=False)
    break_store(logged, {first.handle.path: WHOLE})
    (recovery,) = applied(logged).recoveries
    assert (recovery.block_id, recovery.source, recovery.done) == (first.id, "Kafka", True)
    served(logged, first)


def test_block_that_no_source_has_is_lost_and_stays_in_the_journal(logged: Logged) -> None:
    """INV-5: it is not forgotten as one of a deleted segment, also if only a replay would need it."""
    logged.receiver("r1")
    block = logged.take_in("r1", {0: 5})
    logged.finish_batch()
    logged.receiver("r1")
    logged.take_in("r1", {0: 5})
    logged.keep()
    break_store(logged, {block.handle.path: WHOLE}, sizes=(block.handle.path,))
    logged.kafka.gone |= {(0, 1)}
    for plan in (planned(logged), applied(logged)):
        assert [loss.block_id for loss in plan.losses] == [block.id]
        assert plan.forgotten == () and plan.open
    assert logged.state().blocks[block.id] == block


def test_blocks_before_and_after_an_unreadable_place_are_read_from_the_segment(
    logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-5: one bad sector does not lose the other blocks of its segment."""
    monkeypatch.setattr("wal.segments.scan._CHUNK_BYTES", 64)
    logged.receiver("r1")
    blocks = [logged.take_in("r1", {0: 5}) for _ in range(3)]
    logged.receiver("r1")
    logged.take_in("r1", {1: 5})
    logged.keep()
    logged.kafka.gone |= {(0, 1), (0, 6), (0, 11)}
    handle = blocks[1].handle
    break_store(logged, {handle.path: (handle.offset + 64, handle.offset + 65)})
    unreadable = [place.block_id for place in planned(logged).places if place.decision == "unreadable"]
    after = [blocks[2]] if blocks[2].handle.path == handle.path else []  # an object has one block
    assert unreadable == [blocks[1].id, *(block.id for block in after)]
    plan = applied(logged)
    assert [(r.block_id, r.source) for r in plan.recoveries] == [(block.id, "WAL") for block in after]
    assert [loss.block_id for loss in plan.losses] == [blocks[1].id]
    served(logged, blocks[0])
    served(logged, blocks[2])


def test_store_that_reads_no_segment_ends_the_command(logged: Logged) -> None:
    """It is away: nothing is written again because of that."""
    three_segments(logged)
    broken = dict.fromkeys(listed_segments(logged.wal, STREAM), WHOLE)
    before = logged.segments()
    break_store(logged, broken)
    for call in (planned, applied):
        with pytest.raises(StoreError, match="Input/output error"):
            call(logged)
    with pytest.raises(StoreError, match="Input/output error"):
        verified(logged.wal, STREAM, logged.journal)
    with pytest.raises(StoreError, match="Input/output error"):
        inspect_log(logged.wal, list(broken), Filters())
    cast(Unreadable, logged.wal).bad.clear()
    assert logged.segments() == before


def test_unreadable_place_in_the_only_segment_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is not away: it returned the frames before."""
    monkeypatch.setattr("wal.segments.scan._CHUNK_BYTES", 64)
    logged = Logged(tmp_path)
    logged.receiver("r1")
    blocks = [logged.take_in("r1", {0: 5}) for _ in range(2)]
    logged.keep()
    break_store(logged, {blocks[1].handle.path: (blocks[1].handle.offset, 1 << 62)})
    (recovery,) = applied(logged).recoveries
    assert (recovery.block_id, recovery.source) == (blocks[1].id, "Kafka")


@pytest.mark.parametrize("with_journal", [True, False])
def test_verify_names_the_unreadable_segment_and_verifies_the_others(logged: Logged, with_journal: bool) -> None:
    first, _, third = three_segments(logged)
    logged.damage(third)
    break_store(logged, {first.handle.path: WHOLE})
    found = verified(logged.wal, STREAM, logged.journal if with_journal else None)
    assert [(p.path, p.decision) for p in found.findings] == [
        (first.handle.path, "unreadable"),
        (third.handle.path, "damaged-quarantine"),
    ]
    assert "Input/output error" in found.findings[0].reason
    assert found.segments == len(listed_segments(logged.wal, STREAM))


def test_damaged_segment_whose_second_read_fails_is_not_set_aside(
    logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-8: what it holds beside the journal's blocks is unknown."""
    first, *_ = three_segments(logged)
    logged.damage(first)
    store = break_store(logged)
    sound = store.read
    count = 0

    def failing(path: str, offset: int = 0, length: int | None = None) -> bytes:
        nonlocal count
        if path == first.handle.path:
            count += 1
            if count > 1:
                raise StoreError(f"{path} can't be read: Input/output error")
        return sound(path, offset, length)

    monkeypatch.setattr(store, "read", failing)
    plan = applied(logged)
    assert [(d.path, d.done, d.unreadable) for d in plan.damaged] == [(first.handle.path, False, True)]
    assert [r.done for r in plan.recoveries] == [True]
    assert first.handle.path in logged.wal.list(STREAM)


def repair(logged: Logged) -> RepairReport:
    return repaired(STREAM, logged.journal, logged.wal, Alone(logged), yes=True)


def test_repair_in_place_repairs_the_other_segments(logged: Logged) -> None:
    first, _, third = three_segments(logged)
    before = logged.segments()[third.handle.path]
    logged.damage(third)
    break_store(logged, {first.handle.path: WHOLE})
    report = repair(logged)
    assert [done.path for done in report.repaired] == [third.handle.path]
    assert logged.wal.read(third.handle.path) == before
    assert any(first.id in fault for fault in report.left)
    assert any("stays as it is" in fault and "Input/output error" in fault for fault in report.left)


def test_inspection_shows_the_other_segments(logged: Logged) -> None:
    first, *_ = three_segments(logged)
    break_store(logged, {first.handle.path: WHOLE})
    shown = inspect_log(logged.wal, listed_segments(logged.wal, STREAM), Filters())
    (finding,) = shown.findings
    assert (finding.path, finding.state, finding.offset) == (first.handle.path, "unreadable", 0)
    assert sum(segment.blocks for segment in shown.segments) == 2


def test_retention_report_shows_the_other_segments(logged: Logged) -> None:
    logged.receiver("r1")
    block = logged.take_in("r1", {0: 5})
    logged.finish_batch()
    logged.roll("r1")
    logged.take_in("r1", {0: 5})
    logged.keep()
    break_store(logged, {block.handle.path: WHOLE})
    report = judge_segments(logged.journal, logged.wal, STREAM, RetentionLimits(retention_ms=0), 1 << 50)
    assert [(s.path == block.handle.path, s.goes) for s in report.segments] == [(True, False), (False, False)]
    assert "Input/output error" in report.segments[0].reason


def test_inspection_of_the_journal_shows_its_other_segments(logged: Logged) -> None:
    three_segments(logged)
    (path,) = [path for path in logged.journal.list(STREAM) if path.endswith(".seg")]
    shown = inspect_journal(cast(Storage, Unreadable(logged.journal, {path: WHOLE})), logged.wal, STREAM)
    assert [epoch.damage for epoch in shown.epochs] == [(f"{path} can't be read: Input/output error",)]
    assert "Input/output error" in shown.unreadable


@pytest.mark.parametrize(
    ("command", "code"),
    [(["wal", "verify"], 1), (["recover", "--no-kafka", "--apply"], 1), (["wal", "repair", "--apply"], 1),
     (["wal", "inspect"], 1)],
)  # fmt: skip
def test_commands_name_the_segment_and_exit_with_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str], code: int
) -> None:
    logged = Logged(tmp_path)
    first, *_ = three_segments(logged)
    config = tmp_path / "forebay.toml"
    config.write_text(CONFIGURATION.format(stream=STREAM, folder=tmp_path))
    read = LocalStorage.read

    def failing(store: LocalStorage, path: str, offset: int = 0, length: int | None = None) -> bytes:
        if path == first.handle.path:
            raise StoreError(f"{path} can't be read: Input/output error")
        return read(store, path, offset, length)

    monkeypatch.setattr(LocalStorage, "read", failing)
    assert main(["--config", str(config), *command]) == code
    assert f"{first.handle.path} can't be read: Input/output error" in capsys.readouterr().err


# ---- temporary files -------------------------------------------------------------------------------------------------


def temporaries(folder: Path) -> list[Path]:
    files = [folder / f".{name}.seg.{'a' * 16}.tmp" for name in "xy"]
    for file in files:
        file.write_bytes(b"half")
        os.utime(file, (1, 1))
    return files


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_temporary_file_that_cannot_be_deleted_is_reported_after_the_repairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    logged = Logged(tmp_path)
    first, *_ = three_segments(logged)
    logged.damage(first)
    bad, other = temporaries(tmp_path / "wal" / STREAM)
    unlink = os.unlink

    def failing(path: Any, **options: Any) -> None:
        if Path(path) == bad:
            raise OSError(number, os.strerror(number))
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", failing)
    report = repair(logged)
    assert [done.path for done in report.repaired] == [first.handle.path]
    assert report.temporaries == (f"{STREAM}/{other.name}",) and not other.exists()
    (fault,) = report.not_removed
    assert bad.name in fault and os.strerror(number) in fault


@pytest.mark.parametrize("call", ["stat", "scandir"])
def test_temporary_files_that_cannot_be_listed_are_reported_after_the_repairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    logged = Logged(tmp_path)
    first, *_ = three_segments(logged)
    logged.damage(first)
    temporaries(tmp_path / "wal" / STREAM)
    real = getattr(os, call)

    def failing(path: Any = ".", **options: Any) -> Any:
        if str(path).endswith((".tmp", f"wal/{STREAM}")):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return real(path, **options)

    left_over = LocalStorage.left_over

    def failing_then(*arguments: Any) -> Any:
        with monkeypatch.context() as patched:
            patched.setattr(os, call, failing)
            return left_over(*arguments)

    monkeypatch.setattr(LocalStorage, "left_over", failing_then)
    report = repair(logged)
    assert [done.path for done in report.repaired] == [first.handle.path]
    (fault,) = report.not_removed
    assert "can't be listed: Permission denied" in fault
    assert wal_repair.tables(report)
