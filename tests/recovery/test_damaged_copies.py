"""Damaged copies that an agent set aside: what ``recover`` reports and restores, with a WAL and without."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from deploy.commands.recovery.tables import tables
from deploy.main import main
from driver.journal import history
from executor_agent.store import BlockStore
from forebay.model.errors import CorruptionError, StoreError
from forebay.model.values import Block
from forebay.process.clock import ManualClock
from recovery import damaged_copies
from recovery.plan import sentences
from tests.recovery.test_killed import CONFIGURATION
from tests.recovery.test_recovering import applied, planned, served
from tests.support.state.forged import forged, forged_copy
from tests.support.state.logged import Logged
from tests.support.state.tracked import STREAM
from wal.blocks import StoredBlock, cached_path, encode_meta, local_path, read_local
from wal.blocks.local_writing import local_frame, write_local_frame
from wal.blocks.set_aside import put_back, set_aside
from wal.reading import BlockReference, ReadPlan
from wal.reading.stored_copies import stored_copy
from wal.segments.frame import HEADER_LENGTH, aligned


@pytest.fixture
def logged(tmp_path: Path) -> Logged:
    return Logged(tmp_path)


def directory(logged: Logged) -> str:
    return logged.settings.agent.blocks


def taken_in(logged: Logged) -> Block:
    logged.receiver("r1")
    block = logged.take_in("r1", {0: 5, 1: 3}, local=True)
    logged.receiver("r1")
    logged.keep()
    return block


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def agent_starts(logged: Logged) -> list[str]:
    return BlockStore(directory(logged), quota_bytes=1 << 30, clock=ManualClock(), may_delete_copies=False).open()


def damaged(logged: Logged, at: int = 9) -> tuple[Block, Path]:
    """Return a block whose local copy has one flipped bit at byte ``at``, and the file that the agent sets aside at its start."""
    block = taken_in(logged)
    path = local_path(directory(logged), STREAM, block.id)
    flip(path, at)
    agent_starts(logged)
    return block, path.with_name(f"{path.name}.damaged")


@pytest.mark.parametrize("bit", range(0, 64 * 8, 37))
def test_copy_with_any_flipped_bit_in_its_header_is_restored(logged: Logged, bit: int) -> None:
    """INV-5: without a WAL it may be the last copy."""
    block = taken_in(logged)
    path = local_path(directory(logged), STREAM, block.id)
    before = path.read_bytes()
    data = bytearray(before)
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    (said,) = agent_starts(logged)
    assert "may be the last copy" in said
    aside = path.with_name(f"{path.name}.damaged")
    assert aside.read_bytes() == data and not path.exists()

    plan = damaged_copies.plan_copies(logged.settings, logged.journal)
    assert plan.open and aside.read_bytes() == data, "nothing is changed without --apply"
    (message,) = damaged_copies.sentences(plan)
    assert block.id in message and "forebay recover --apply" in message
    done = damaged_copies.repair_copies(logged.settings, logged.journal)
    assert not done.open
    assert path.read_bytes() == before and not aside.exists()
    assert not damaged_copies.plan_copies(logged.settings, logged.journal).damaged


def test_cached_copy_is_restored_as_cached_copy(logged: Logged) -> None:
    block = taken_in(logged)
    path = local_path(directory(logged), STREAM, block.id)
    given = cached_path(directory(logged), STREAM, block.id)
    path.rename(given)
    before = given.read_bytes()
    flip(given, 9)
    agent_starts(logged)
    damaged_copies.repair_copies(logged.settings, logged.journal)
    assert given.read_bytes() == before and not path.exists()


def test_damaged_metadata_is_restored_and_damaged_records_are_reported(logged: Logged) -> None:
    block, aside = damaged(logged)
    flip(aside, 70)  # metadata
    assert damaged_copies.plan_copies(logged.settings, logged.journal).damaged[0].waits
    flip(aside, block.handle.length - 1)  # payload
    (found,) = damaged_copies.plan_copies(logged.settings, logged.journal).damaged
    assert found.lost and found.needed and "damaged too" in found.finding
    plan = damaged_copies.repair_copies(logged.settings, logged.journal)
    assert plan.open and aside.exists(), "what can't be proved stays as it is"
    (message,) = damaged_copies.sentences(plan)
    assert block.meta.ranges[0].label in message


def test_copy_of_an_unnamed_block_is_not_touched(logged: Logged) -> None:
    _, aside = damaged(logged)
    other = aside.with_name("r1-10000000001-99.block.damaged")
    other.write_bytes(aside.read_bytes())
    found = {c.block_id: c for c in damaged_copies.repair_copies(logged.settings, logged.journal).damaged}
    assert "does not name" in found["r1-10000000001-99"].finding
    assert other.exists()


@pytest.mark.parametrize("call", ["rename", "fsync", "unlink"])
def test_kill_during_restoring_a_copy_loses_nothing(logged: Logged, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The damaged copy is deleted after the whole one is durable."""
    block, aside = damaged(logged)

    class Killed(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(*{"rename": (Path, "rename"), "fsync": (os, "fsync"), "unlink": (Path, "unlink")}[call], die)
        with pytest.raises(Killed):
            damaged_copies.repair_copies(logged.settings, logged.journal)
    assert aside.exists()
    done = damaged_copies.repair_copies(logged.settings, logged.journal)
    assert not done.open and not aside.exists()
    assert read_local(local_path(directory(logged), STREAM, block.id)).checksum == block.handle.checksum


def test_damaged_copy_stays_if_the_restored_one_cant_be_made_durable(
    logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, aside = damaged(logged)

    def fail(_: Path) -> None:
        raise OSError(5, "injected")

    monkeypatch.setattr("wal.blocks.local_writing.sync_names", fail)
    plan = damaged_copies.repair_copies(logged.settings, logged.journal)
    assert plan.open and aside.exists()
    (message,) = damaged_copies.sentences(plan)
    assert "was not restored" in message and "injected" in message and "--apply` again" in message
    (again,) = damaged_copies.repair_copies(logged.settings, logged.journal).damaged
    assert "whole copy of the block too, but" in again.finding and aside.exists(), "the name is still not synced"
    monkeypatch.undo()
    damaged_copies.repair_copies(logged.settings, logged.journal)
    assert not aside.exists()


def test_unreadable_copy_does_not_stop_the_others(logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-5: without a WAL each of them may be the last copy."""
    logged.receiver("r1")
    blocks = [logged.take_in("r1", {0: 5}, local=True) for _ in range(3)]
    logged.keep()
    paths = [local_path(directory(logged), STREAM, block.id) for block in blocks]
    for path in paths:
        flip(path, 9)
    agent_starts(logged)
    bad = paths[0].with_name(f"{paths[0].name}.damaged")
    read = Path.read_bytes

    def failing(path: Path) -> bytes:
        if path == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", failing)
    planned_copies = damaged_copies.plan_copies(logged.settings, logged.journal)
    assert [c.waits for c in planned_copies.damaged] == [False, True, True]
    plan = damaged_copies.repair_copies(logged.settings, logged.journal)
    assert [path.exists() for path in (bad, *paths[1:])] == [True, True, True]
    assert plan.open and plan.damaged[0].lost and "Input/output error" in plan.damaged[0].finding
    (message,) = damaged_copies.sentences(plan)
    assert str(bad) in message and "can't be read" in message


def test_copy_beside_an_unreadable_whole_one_is_restored(logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    block, aside = damaged(logged)
    cached = cached_path(directory(logged), STREAM, block.id)

    def failing(path: Path) -> StoredBlock:
        if path == cached:
            raise StoreError(f"{path} can't be read: Input/output error")
        return read_local(path)

    monkeypatch.setattr(damaged_copies, "read_local", failing)
    assert not damaged_copies.repair_copies(logged.settings, logged.journal).open
    assert not aside.exists()


def test_damaged_copy_that_cannot_be_deleted_is_a_finding(logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    block, aside = damaged(logged)
    write_local_frame(directory(logged), block.meta, local_frame(block.meta, logged.payloads[block.id]))

    def failing(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "unlink", failing)
    (found,) = damaged_copies.repair_copies(logged.settings, logged.journal).damaged
    assert aside.exists() and "can't be deleted: Read-only file system" in found.finding


def no_listing(logged: Logged, monkeypatch: pytest.MonkeyPatch, number: int) -> str:
    """Let each listing of the stream's folder of copies fail; return the folder."""
    folder = Path(directory(logged), STREAM)
    real = os.listdir

    def failing(path: Any = ".") -> Any:
        if Path(path) == folder:
            raise OSError(number, os.strerror(number))
        return real(path)

    monkeypatch.setattr(os, "listdir", failing)
    return str(folder)


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ENOTDIR])
def test_folder_of_copies_that_cannot_be_listed_is_a_finding(
    logged: Logged, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    damaged(logged)
    folder = no_listing(logged, monkeypatch, number)
    plan = damaged_copies.repair_copies(logged.settings, logged.journal)
    (message,) = damaged_copies.sentences(plan)
    assert plan.open and f"{folder} can't be listed: {os.strerror(number)}" in message


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ENOTDIR])
def test_recovery_of_the_wal_is_reported_though_the_copies_cannot_be_listed(
    logged: Logged, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """The report is all that names the losses, and --apply has done its work by then."""
    block = taken_in(logged)
    logged.damage(block)
    folder = no_listing(logged, monkeypatch, number)
    plan = applied(logged)
    assert [(r.block_id, r.done) for r in plan.recoveries] == [(block.id, True)]
    (message,) = sentences(plan)
    assert plan.open and f"{folder} can't be listed: {os.strerror(number)}" in message
    written = StringIO()
    Console(file=written, width=300).print(*tables(plan))
    assert f"{folder} can't be listed" in written.getvalue()


def test_recovery_of_the_wal_is_reported_though_the_history_cannot_be_read(
    logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = taken_in(logged)
    logged.damage(block)

    def failing(*_: object) -> list[object]:
        raise StoreError("history/1.seg can't be read: Input/output error")

    monkeypatch.setattr(history, "read", failing)
    plan = applied(logged)
    assert [r.done for r in plan.recoveries] == [True]
    assert plan.open and "cannot read the history" in sentences(plan)[0]


def test_recover_without_a_wal_names_and_restores_damaged_copies(
    logged: Logged, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    block, aside = damaged(logged)
    config = tmp_path / "forebay.toml"
    text = CONFIGURATION.format(stream=STREAM, folder=tmp_path)
    wal = next(line for line in text.splitlines() if line.startswith("url") and "/wal" in line)
    config.write_text(text.replace(wal, 'url = "none"'))
    assert main(["--config", str(config), "recover"]) == 1
    said = capsys.readouterr()
    assert aside.name in said.out and block.id in said.err
    assert main(["--config", str(config), "recover", "--apply"]) == 0
    assert main(["--config", str(config), "recover"]) == 0
    assert not aside.exists()


def test_recover_with_a_wal_names_a_damaged_copy_and_writes_its_records_into_the_wal(logged: Logged) -> None:
    """The WAL's frame is damaged and Kafka has no records: the copy that the agent set aside is the last one."""
    block, aside = damaged(logged)
    logged.damage(block)
    plan = planned(logged, "away")
    assert plan.copies.damaged == (aside.name,)
    (recovery,) = plan.recoveries
    assert (recovery.source, recovery.exact) == ("damaged copy", True)
    assert not applied(logged, "away").losses
    served(logged, block)
    assert aside.exists()


def test_task_reads_a_restored_copy(logged: Logged) -> None:
    block, _ = damaged(logged)
    plan = ReadPlan(wal_url=logged.settings.wal.url, blocks_directory=directory(logged))
    damaged_copies.repair_copies(logged.settings, logged.journal)
    stored = stored_copy(BlockReference.of(block), plan, "local")
    assert stored is not None and stored.meta == block.meta


def test_second_damaged_copy_does_not_replace_the_first(tmp_path: Path) -> None:
    paths = []
    for content in (b"first", b"second", b"third"):
        path = tmp_path / "r1-1-1.block"
        path.write_bytes(content)
        paths.append(set_aside(path))
    assert [path.read_bytes() for path in paths] == [b"first", b"second", b"third"]
    assert [path.name for path in paths] == ["r1-1-1.block.damaged", "r1-1-1.block.damaged-2", "r1-1-1.block.damaged-3"]


def test_killed_while_a_copy_is_set_aside_it_has_one_name_or_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r1-1-1.block"
    path.write_bytes(b"damaged")

    class Killed(BaseException):
        pass

    def die(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", die)
        with pytest.raises(Killed):
            set_aside(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["r1-1-1.block", "r1-1-1.block.damaged"]
    assert set_aside(path).name == "r1-1-1.block.damaged"
    assert [p.name for p in tmp_path.iterdir()] == ["r1-1-1.block.damaged"]


def test_damaged_copy_with_another_digest_is_not_restored(logged: Logged) -> None:
    """Four bytes fix a CRC-32C; the SHA-256 that the journal names is compared as well."""
    block, aside = damaged(logged)
    named = msgspec.structs.replace(block, meta=msgspec.structs.replace(block.meta, sha256=bytes(32)))
    start = HEADER_LENGTH + aligned(len(encode_meta(named.meta)))
    whole = aside.read_bytes()
    payload = whole[HEADER_LENGTH + aligned(len(encode_meta(block.meta))) : block.handle.length]
    aside.write_bytes(bytes(start) + payload)
    named = msgspec.structs.replace(named, handle=msgspec.structs.replace(block.handle, length=start + len(payload)))
    with pytest.raises(CorruptionError, match="SHA-256"):
        put_back(directory(logged), aside, named)
    assert aside.exists()


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_damaged_copy_is_set_aside_on_a_filesystem_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """INV-5: the agent starts also with its folder on such a filesystem."""

    def no_links(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", no_links)
    for count, name in enumerate(("r1-1-1.block.damaged", "r1-1-1.block.damaged-2")):
        (tmp_path / "r1-1-1.block").write_bytes(b"%d" % count)
        assert set_aside(tmp_path / "r1-1-1.block").name == name
    assert [path.read_bytes() for path in sorted(tmp_path.iterdir())] == [b"0", b"1"]


def test_damaged_copy_stays_where_it_is_when_its_store_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r1-1-1.block"
    path.write_bytes(b"damaged")

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "link", fail)
    with pytest.raises(OSError, match="Input/output error"):
        set_aside(path)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_truncated_damaged_copy_is_reported_as_damaged(logged: Logged) -> None:
    block, aside = damaged(logged)
    os.truncate(aside, block.handle.length - 1)
    (found,) = damaged_copies.repair_copies(logged.settings, logged.journal).damaged
    assert found.lost and f"block {block.id} has {block.handle.length} bytes" in found.finding
    assert aside.exists()


def test_damaged_copy_stays_if_the_disk_damages_the_restored_one(
    logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    block, aside = damaged(logged)

    def damaging(*arguments: Any, **options: Any) -> Path:
        path = write_local_frame(*arguments, **options)
        flip(path, block.handle.length - 1)
        return path

    monkeypatch.setattr("wal.blocks.set_aside.write_local_frame", damaging)
    damaged_copies.repair_copies(logged.settings, logged.journal)
    assert aside.exists()


def test_forged_copy_beside_a_damaged_one_does_not_count_as_whole(logged: Logged) -> None:
    """Four bytes fix a CRC-32C. The damaged copy may be the only one that holds the records."""
    block, aside = damaged(logged)
    payload, value = logged.payloads[block.id], logged.kafka.rows(0, 0, 1)[0].value
    assert value is not None
    lie = forged_copy(block.meta, forged(payload, value, bytes(len(value))))
    cached_path(directory(logged), STREAM, block.id).write_bytes(lie)
    assert damaged_copies.plan_copies(logged.settings, logged.journal).damaged[0].waits
    damaged_copies.repair_copies(logged.settings, logged.journal)
    assert not aside.exists()
    plan = ReadPlan(wal_url=logged.settings.wal.url, blocks_directory=directory(logged))
    stored = stored_copy(BlockReference.of(block), plan, "local")
    assert stored is not None and bytes(memoryview(stored.payload)) == payload


# ---- killed ----------------------------------------------------------------------------------------------------------

#: a process that kills itself at a call of ``sys.argv[1]``, and what it does before
KILLED = """
import os, signal, sys
from pathlib import Path

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

owner, _, name = sys.argv[1].partition(".")
"""
AGENT_STARTS = """
from executor_agent.store import BlockStore
from forebay.process.clock import SystemClock
store = BlockStore(sys.argv[2], quota_bytes=1 << 30, clock=SystemClock(), may_delete_copies=False)
setattr({"os": os, "Path": Path}[owner], name, die)
store.open()
"""
RECOVERY = """
from recovery import damaged_copies
from forebay.settings.reading.load import load
from wal.storage import open_storage
settings = load(Path(sys.argv[2]), {})
setattr({"os": os, "Path": Path}[owner], name, die)
damaged_copies.repair_copies(settings, open_storage(settings.driver.journal))
"""


def killed_at(call: str, code: str, argument: object) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED + code, call, str(argument)],
        cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr


def test_agent_killed_between_two_names_of_a_damaged_copy_loses_neither(logged: Logged) -> None:
    block = taken_in(logged)
    path = local_path(directory(logged), STREAM, block.id)
    flip(path, 9)
    data = path.read_bytes()
    killed_at("os.unlink", AGENT_STARTS, directory(logged))
    aside = path.with_name(f"{path.name}.damaged")
    assert path.read_bytes() == aside.read_bytes() == data
    agent_starts(logged)
    assert sorted(p.name for p in path.parent.iterdir()) == [aside.name]
    assert not damaged_copies.repair_copies(logged.settings, logged.journal).open
    assert not aside.exists() and path.exists()


def test_recovery_killed_while_restoring_a_copy_loses_nothing(logged: Logged, tmp_path: Path) -> None:
    """The kill leaves the whole copy under a temporary name."""
    block, aside = damaged(logged)
    config = tmp_path / "forebay.toml"
    config.write_text(CONFIGURATION.format(stream=STREAM, folder=tmp_path))
    killed_at("Path.rename", RECOVERY, config)
    assert aside.exists()
    agent_starts(logged)
    assert not damaged_copies.repair_copies(logged.settings, logged.journal).open
    assert not aside.exists()
    assert read_local(local_path(directory(logged), STREAM, block.id)).checksum == block.handle.checksum
