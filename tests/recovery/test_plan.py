"""The plan's findings about Kafka and the history, and those of ``wal verify`` with and without a journal; no processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deploy.commands.wal.verification import sentences, verified
from deploy.main import main
from driver.journal import history
from driver.journal.state import State
from forebay.kafka.client.admin import Committed
from forebay.model.errors import UsageError
from forebay.model.values import TopicPartition
from recovery.plan import KafkaFacts, forgettable, history_view, kafka_view
from tests.recovery.test_killed import CONFIGURATION
from tests.support.state.logged import Logged
from tests.support.state.tracked import STREAM, Tracked

TP = TopicPartition("t", 0)


def at_ten() -> State:
    t = Tracked(partitions=1)
    epoch = t.register()
    t.take_in(epoch, t.claim(epoch).view.token, 10)
    return t.state


def facts(**changes: Any) -> KafkaFacts:
    fine = {"committed": {TP: Committed(10, 0, "forebay:1:1")}, "watermarks": {TP: (0, 12)}, "topic_ids": {"t": "id-1"}}
    return KafkaFacts(**{**fine, **changes})


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({}, ""),
        ({"committed": {}}, ""),
        ({"topic_ids": {"t": ""}}, ""),  # the broker can't tell
        ({"committed": {TP: Committed(11, 0, "another tool")}}, ""),
        ({"committed": {TP: Committed(11, 0, "forebay:1:1")}}, "the journal has lost events"),
        ({"committed": {TP: Committed(1, 0, "forebay:2:1")}}, "the journal has lost events"),
        ({"watermarks": {}}, "Kafka has no such partition"),
        ({"topic_ids": {"t": "id-2"}}, "deleted and created again"),
        ({"watermarks": {TP: (11, 12)}}, "no longer holds offsets 10 to 11"),
        ({"watermarks": {TP: (0, 9)}}, "ends at 9, below the position 10"),
    ],
)
def test_kafkas_offsets_are_compared_with_the_position(changes: dict[str, Any], part: str) -> None:
    """INV-1, INV-5."""
    (found,) = kafka_view(at_ten(), "group", facts(**changes)).partitions
    assert found.position == 10
    assert part in found.finding and bool(part) == bool(found.finding)


def test_a_history_that_lacks_batches_is_a_finding_with_their_numbers() -> None:
    """INV-5: the audit can't prove what the history has lost."""
    t = Tracked(partitions=1)
    epoch = t.register()
    token = t.claim(epoch).view.token
    kept: list[history.FinishedBatch] = []
    for until in (10, 20, 30):
        t.take_in(epoch, token, until)
        batch = t.batch()
        t.complete(batch)
        kept += history.finished(t.state)
        t.archive(batch)
    assert history_view(t.state, kept).finding == ""
    lacking = history_view(t.state, kept[:1])
    assert lacking.finding == "the history lacks 2 finished batches, from number 2 to 3"


def test_only_unneeded_lost_blocks_are_forgotten() -> None:
    """INV-8."""
    t = Tracked(partitions=1)
    epoch = t.register()
    token = t.claim(epoch).view.token
    first, second = (t.take_in(epoch, token, until, path=f"{STREAM}/blocks/r1/{epoch:016x}/0000000{n}.seg")
                     for n, until in ((1, 10), (2, 20)))  # fmt: skip
    gone = {first.handle.path, second.handle.path}
    assert forgettable(t.state, gone, {first.id, second.id}) == []
    batch = t.batch()
    t.complete(batch)
    t.archive(batch)
    assert forgettable(t.state, gone, {first.id, second.id}) == sorted(gone)
    assert forgettable(t.state, gone, {first.id}) == [first.handle.path]
    t.state.cleaning_blocks[first.id] = True
    assert forgettable(t.state, gone, {first.id, second.id}) == [second.handle.path]


# ---- wal verify ------------------------------------------------------------------------------------------------------


def some(tmp_path: Path) -> Logged:
    logged = Logged(tmp_path)
    logged.receiver("r1")
    for _ in range(3):
        logged.take_in("r1", {0: 5})
        logged.roll("r1")
    logged.keep()
    return logged


def test_missing_segments_and_torn_tails_are_findings_without_the_journal(tmp_path: Path) -> None:
    logged = some(tmp_path)
    paths = sorted(logged.segments())
    logged.wal.delete(paths[1])
    found = verified(logged.wal, STREAM, None)
    assert found.findings == () and [(h.first, h.last) for h in found.missing_segments] == [(2, 2)]
    assert any("segments 2 to 2 are missing" in message for message in sentences(found, wal_only=True))
    logged.overwrite(paths[2], logged.wal.read(paths[2])[:-200])
    assert [p.path for p in verified(logged.wal, STREAM, None).findings] == [paths[2]]


def test_missing_blocks_are_named_with_their_ranges_from_the_journal(tmp_path: Path) -> None:
    logged = some(tmp_path)
    paths = sorted(logged.segments())
    logged.wal.delete(paths[1])
    (finding,) = verified(logged.wal, STREAM, logged.journal).findings
    assert (finding.path, finding.decision, finding.ranges) == (paths[1], "missing", ("t/0[5, 10)",))


def test_unreadable_journal_is_reported_and_the_wal_verified_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """INV-5: less than a whole verification never exits with 0."""
    logged = some(tmp_path)
    config = tmp_path / "forebay.toml"
    config.write_text(CONFIGURATION.format(stream=STREAM, folder=tmp_path))
    for path in logged.journal.list(f"{STREAM}/epoch-{1 << 40 | 1:016x}"):
        file = tmp_path / "journal" / path
        data = bytearray(file.read_bytes())
        data[len(data.rstrip(b"\0")) - 1] ^= 1
        file.write_bytes(data)
    assert main(["--config", str(config), "--json", "wal", "verify"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["segments"] == 3 and "cannot read the journal" in err
    assert main(["--config", str(config), "wal", "verify", "--wal-only"]) == 0


def test_unknown_stream_is_a_usage_error(tmp_path: Path) -> None:
    logged = Logged(tmp_path)
    with pytest.raises(UsageError, match="holds no journal"):
        verified(logged.wal, STREAM, logged.journal)


def test_unfinished_frame_of_a_running_writer_is_no_finding(tmp_path: Path) -> None:
    logged = Logged(tmp_path)
    logged.receiver("r1")
    block = logged.take_in("r1", {0: 5})
    orphan = logged.orphan("r1", {0: 5})
    logged.keep()
    logged.overwrite(block.handle.path, logged.wal.read(block.handle.path)[: orphan.handle.offset + 90])
    assert verified(logged.wal, STREAM, logged.journal).findings == ()
