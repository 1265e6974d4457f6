"""``audit``, ``recover`` and ``wal inspect`` over a journal and a WAL as driver and receiver write them."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from deploy.main import main
from driver.journal.log import opening
from driver.journal.log import reading as journal
from driver.journal.log import reading as journal_reading
from driver.journal.transitions import apply
from forebay.model.values import Block, BlockMeta
from tests.support.state.tracked import STREAM, Tracked, offsets
from wal.blocks import encode_meta
from wal.segments.frame import FrameKind
from wal.segments.layout import block_segment
from wal.segments.writer import LogWriter, SegmentIdentity, SegmentLimits
from wal.storage import Storage, open_storage

uids = itertools.count(5)


@dataclass
class Stream:
    """A stream with one receiver that holds partition t/0; ``take_in`` stores and reports a block."""

    project: Any
    tracked: Tracked = field(default_factory=lambda: Tracked(partitions=1))

    def __post_init__(self) -> None:
        self.journal: Storage = open_storage(f"file://{self.project.folder}/journal")
        self.wal: Storage = open_storage(f"file://{self.project.folder}/wal")
        self.epoch = self.tracked.register()
        self.token = self.tracked.claim(self.epoch).view.token
        self.writer = LogWriter(
            self.wal,
            lambda sequence: block_segment(STREAM, "r1", self.epoch, sequence),
            identity=SegmentIdentity(STREAM, "r1", self.epoch, 1),
            limits=SegmentLimits(size_bytes=10_000_000, age_seconds=1000.0),
            now=lambda: 0.0,
            new_uid=lambda: next(uids),
        )

    def store(self, start: int, until: int) -> Block:
        meta: BlockMeta = self.tracked.block(self.epoch, [offsets(start, until, self.token)]).meta
        pending = self.writer.append(FrameKind.BLOCK, encode_meta(meta), b"rows" * 50)
        self.writer.sync()
        assert pending.handle is not None
        return Block(meta, pending.handle, False)

    def take_in(self, start: int, until: int) -> Block:
        block = self.store(start, until)
        (result,) = self.tracked.report(self.epoch, block)
        assert result.accepted
        return block

    def keep(self) -> None:
        """Writes the journal."""
        led, state = opening.lead(self.journal, STREAM, "test", 1, lambda: 1.0, lambda: next(uids), wal=self.wal)
        for event in self.tracked.events:
            apply(state, event)
        led.append(self.tracked.events)
        led.sync()
        led.close()

    def keep_again(self) -> None:
        """Writes the journal as it is by now."""
        led, state = opening.lead(self.journal, STREAM, "test", 1, lambda: 1.0, lambda: next(uids), wal=self.wal)
        new = self.tracked.events[state.events :]
        for event in new:
            apply(state, event)
        led.append(new)
        led.sync()
        led.close()

    def file(self, block: Block) -> Path:
        return Path(self.project.folder, "wal", block.handle.path)

    def damage(self, block: Block) -> None:
        """Turns one bit of the payload."""
        with self.file(block).open("r+b") as file:
            file.seek(block.handle.offset + block.handle.length - 3)
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 1]))

    def run(self, *arguments: str) -> int:
        return main(["--config", str(self.project.config), *arguments])


@pytest.fixture
def stream(project: Any) -> Iterator[Stream]:
    made = Stream(project)
    yield made
    made.writer.close()


def test_a_clean_stream_passes_all_three(stream: Stream, capsys: pytest.CaptureFixture[str]) -> None:
    stream.take_in(0, 10)
    batch = stream.tracked.batch()
    stream.tracked.complete(batch)
    stream.take_in(10, 25)
    stream.keep()
    for command in (["audit"], ["recover"], ["wal", "inspect"], ["wal", "inspect", "--journal"]):
        assert stream.run(*command) == 0, command
        out, err = capsys.readouterr()
        assert out
        assert err == ""


def test_audit_shows_offsets_batches_and_waiting_records(stream: Stream, capsys: pytest.CaptureFixture[str]) -> None:
    stream.take_in(0, 10)
    stream.tracked.complete(stream.tracked.batch())
    stream.take_in(10, 25)
    stream.keep()
    assert stream.run("audit", "--json") == 0
    (incarnation,) = json.loads(capsys.readouterr().out)["lives"]
    assert (incarnation["start"], incarnation["until"], incarnation["completed_until"]) == (0, 25, 10)
    assert (
        incarnation["batches"],
        incarnation["records"],
        incarnation["waiting"],
        incarnation["duplicates"],
        incarnation["missing"],
    ) == (1, 25, 15, 0, 0)


@pytest.mark.parametrize("command", [["audit"], ["recover"], ["wal", "inspect"], ["wal", "retention"]])
def test_inspection_changes_and_creates_no_file(stream: Stream, command: list[str]) -> None:
    """An inspection opens the journal read-only and fences no process (INV-4)."""

    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in Path(stream.project.folder).rglob("*") if path.is_file()}

    stream.take_in(0, 10)
    stream.store(10, 20)
    stream.keep()
    before = files()
    stream.run(*command)
    assert files() == before


def test_a_finding_of_the_audit_is_a_sentence_and_exit_code_1(
    stream: Stream, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-2, INV-5: offsets missing from the history of a partition are reported with their exact range."""

    stream.take_in(0, 10)
    stream.tracked.complete(stream.tracked.batch())
    stream.keep()
    reading = journal.read(stream.journal, STREAM)
    assert reading.state is not None
    reading.state.partitions["t/0"].position = 12
    monkeypatch.setattr(journal_reading, "read_beside_a_writer", lambda *_: reading)
    assert stream.run("audit") == 1
    err = capsys.readouterr().err
    assert err == "forebay: t/0[10, 12) life 1 is in no batch, is not waiting, and is not a gap\n"


def test_no_journal_is_wrong_use_and_not_an_empty_audit(project: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("audit", "recover"):
        assert main(["--config", str(project.config), command]) == 2
        assert "holds no journal of stream 'flights'" in capsys.readouterr().err


def places(stream: Stream, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[dict[str, Any]], str]:
    code = stream.run("recover", "--json")
    out, err = capsys.readouterr()
    return code, json.loads(out)["places"], err


def test_damaged_block_is_reported_with_its_range_and_batch(stream: Stream, capsys: pytest.CaptureFixture[str]) -> None:
    """INV-5."""
    stream.take_in(0, 10)
    block = stream.take_in(10, 25)
    batch = stream.tracked.batch()
    stream.keep()
    stream.damage(block)
    code, found, err = places(stream, capsys)
    assert code == 1
    (place,) = found
    assert (place["decision"], place["ranges"], place["batch_id"], place["needed"]) == (
        "damaged-quarantine",
        ["t/0[10, 25)"],
        batch,
        True,
    )
    assert f"forebay recover --accept-loss {batch} 't/0[10, 25)' --apply" in err


def test_deleted_segment_is_reported_as_missing(stream: Stream, capsys: pytest.CaptureFixture[str]) -> None:
    """INV-5."""
    block = stream.take_in(0, 10)
    stream.keep()
    stream.file(block).unlink()
    code, found, _ = places(stream, capsys)
    assert code == 1
    assert [(place["decision"], place["ranges"]) for place in found] == [("missing", ["t/0[0, 10)"])]


def test_segment_cleaned_up_during_an_inspection_is_not_missing(
    stream: Stream, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-8: the journal is asked again before a block is called missing."""
    block = stream.take_in(0, 10)
    stream.keep()
    stream.file(block).unlink()
    before = journal.read(stream.journal, STREAM)
    after = journal.read(stream.journal, STREAM)
    assert after.state is not None
    after.state.cleaning_segments[block.handle.path] = True
    readings = iter([before, after])
    monkeypatch.setattr(journal, "read_beside_a_writer", lambda *_: next(readings))
    assert places(stream, capsys)[:2] == (0, [])


def test_unreported_block_is_an_orphan_and_no_finding(stream: Stream, capsys: pytest.CaptureFixture[str]) -> None:
    stream.take_in(0, 10)
    stream.store(10, 20)
    stream.keep()
    code, found, err = places(stream, capsys)
    assert (code, err) == (0, "")
    assert [(place["decision"], place["ranges"]) for place in found] == [("orphan-keep", ["t/0[10, 20)"])]


@pytest.mark.parametrize(("accepted", "decision", "code"), [(True, "damaged-quarantine", 1), (False, "orphan-keep", 0)])
def test_torn_tail_is_a_finding_only_if_it_was_accepted(
    stream: Stream, capsys: pytest.CaptureFixture[str], accepted: bool, decision: str, code: int
) -> None:
    """INV-1: an accepted tail is never taken for torn."""
    stream.take_in(0, 10)
    block = stream.take_in(10, 20) if accepted else stream.store(10, 20)
    stream.keep()
    with stream.file(block).open("r+b") as file:
        file.truncate(block.handle.offset + 100)
    found = places(stream, capsys)
    assert (found[0], found[1][0]["decision"]) == (code, decision)


def test_inspect_shows_frames_ranges_and_filters_by_partition_and_receiver(
    stream: Stream, capsys: pytest.CaptureFixture[str]
) -> None:
    block = stream.take_in(0, 10)
    stream.keep()

    def blocks(*arguments: str) -> list[list[str]]:
        assert stream.run("wal", "inspect", "--json", *arguments) == 0
        return [e["ranges"] for e in json.loads(capsys.readouterr().out)["entries"] if e["kind"] == "block"]

    assert blocks() == [["t/0[0, 10)"]]
    assert blocks("--partition", "t/0") == [["t/0[0, 10)"]]
    assert blocks("--partition", "t/1") == []
    assert blocks("--receiver", "r1") == [["t/0[0, 10)"]]
    assert blocks("--receiver", "r2") == []
    assert blocks(block.handle.path) == [["t/0[0, 10)"]]
    assert blocks(str(stream.file(block))) == [["t/0[0, 10)"]]
    assert blocks(str(stream.file(block).parent)) == [["t/0[0, 10)"]]


def test_inspect_filters_by_epoch_offsets_and_time(stream: Stream, capsys: pytest.CaptureFixture[str]) -> None:
    """A block is sealed at 1 s since 1970 here."""
    stream.take_in(0, 10)
    stream.take_in(10, 20)
    stream.keep()

    def blocks(*arguments: str) -> list[list[str]]:
        assert stream.run("wal", "inspect", "--json", *arguments) == 0
        return [e["ranges"] for e in json.loads(capsys.readouterr().out)["entries"] if e["kind"] == "block"]

    both = [["t/0[0, 10)"], ["t/0[10, 20)"]]
    assert blocks("--epoch", f"{stream.epoch:016x}") == blocks("--epoch", f"{stream.epoch:X}") == both
    assert blocks("--epoch", "1") == []
    assert blocks("--range", "t/0[9, 10)") == both[:1]
    assert blocks("--range", "t/0[9, 11)") == both
    assert blocks("--range", "t/1[0, 50)") == blocks("--range", "t/0[20, 50)") == []
    assert blocks("--since", "1970-01-01T00:00:01Z") == both
    assert blocks("--before", "1970-01-01T00:00:01Z") == blocks("--since", "1970-01-01T00:00:02Z") == []
    for wrong in (["--epoch", "x"], ["--range", "t/0"], ["--since", "yesterday"]):
        assert stream.run("wal", "inspect", *wrong) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_inspect_names_damage_with_the_ranges_that_it_held_even_when_filtered(
    stream: Stream, capsys: pytest.CaptureFixture[str]
) -> None:
    """INV-5."""
    block = stream.take_in(0, 10)
    stream.damage(block)
    for arguments in ([], ["--partition", "t/0"]):
        assert stream.run("wal", "inspect", *arguments) == 1
        err = capsys.readouterr().err
        assert f"forebay: {block.handle.path}, bytes {block.handle.offset} to " in err
        assert "(t/0[0, 10)): the payload's checksum does not match" in err
    assert stream.run("wal", "inspect", "--partition", "t/1") == 0


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("/etc/passwd", "is not in"),
        ("flights/none.seg", "has no flights/none.seg"),
        ("../x", "each part must consist of letters"),
    ],
)
def test_inspect_refuses_what_is_not_in_the_wal(
    project: Any, capsys: pytest.CaptureFixture[str], path: str, part: str
) -> None:
    assert main(["--config", str(project.config), "wal", "inspect", path]) == 2
    assert part in capsys.readouterr().err


def retention(stream: Stream, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert stream.run("wal", "retention", "--dry-run", "--json") == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    return report


def test_retention_shows_each_segment_with_its_size_and_its_reason(
    stream: Stream, capsys: pytest.CaptureFixture[str]
) -> None:
    """INV-8: blocks that a batch needs stay; released blocks are deleted by the settings; a writer's open segment stays."""
    tracked = stream.tracked
    block = stream.take_in(0, 10)
    stream.writer.close()
    batch = tracked.batch()
    stream.keep()
    (segment,) = retention(stream, capsys)["segments"]
    assert (segment["goes"], segment["reason"]) == (False, f"1 blocks of batch {batch}, which is not completed")
    assert segment["bytes"] == stream.file(block).stat().st_size

    tracked.complete(batch)
    tracked.archive(batch)
    tracked.copy()
    stream.keep_again()
    (segment,) = retention(stream, capsys)["segments"]
    assert (segment["goes"], segment["reason"]) == (False, "its writer may still append to it")

    tracked.register(instance="i2")
    stream.keep_again()
    report = retention(stream, capsys)
    (segment,) = report["segments"]
    assert (segment["goes"], segment["reason"]) == (True, "its time has passed")
    assert (report["going_bytes"], report["kept_bytes"]) == (segment["bytes"], 0)


def test_a_replay_is_shown_with_what_would_run_and_from_where_on_it_is_possible(
    stream: Stream, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dry run reads the journal and the history alone, and changes nothing (INV-4)."""
    tracked = stream.tracked
    ids = []
    for until in (10, 20, 30):
        stream.take_in(until - 10, until)
        stream.writer.sync()
        ids.append(tracked.batch())
        tracked.complete(ids[-1])
    stream.keep()
    assert stream.run("recover", "--to-batch", "2", "--json") == 0
    out, err = capsys.readouterr()
    shown = json.loads(out)
    assert [(b["batch_id"], b["ranges"], b["held"]) for b in shown["batches"]] == [
        (ids[1], ["t/0[10, 20)"], True),
        (ids[2], ["t/0[20, 30)"], True),
    ]
    assert (shown["possible"], shown["possible_from"], shown["records"]) == (True, ids[0], 20)
    assert "would run 2 batches with 20 records again" in err
    assert stream.run("recover", "--to-batch", "9") == 1
    assert "no completed batch is batch 9" in capsys.readouterr().err
