"""``recover --apply`` as a real process, killed at each of its steps and called again: nothing is lost or left half done."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from driver.decisions.clean_up import CleanSegment, judge
from tests.recovery.test_recovering import applied, planned, served
from tests.support.processes import forked
from tests.support.state.logged import Logged
from tests.support.state.tracked import STREAM
from wal.decisions.retention import RetentionLimits, segment_facts
from wal.segments.layout import parse_block
from wal.segments.scan import scan_segment

PLACES = (
    "journal.opening", "journal.after-snapshot", "wal.mid-write", "wal.before-sync", "wal.after-sync",
    "recovery.after-write", "journal.before-write:BlockMoved", "journal.before-sync:BlockMoved",
    "journal.after-sync:BlockMoved", "recovery.after-journal", "recovery.after-aside", "recovery.after-delete",
)  # fmt: skip

CONFIGURATION = """
stream = "{stream}"
[kafka]
topics = ["t"]
"bootstrap.servers" = "127.0.0.1:1"
[wal]
url = "file://{folder}/wal"
[driver]
url = "http://127.0.0.1:1"
journal = "file://{folder}/journal"
[agent]
url = "http://127.0.0.1:2"
blocks = "{folder}/blocks"
host = "h1"
"""


def recover(folder: Path, failpoints: str) -> subprocess.CompletedProcess[str]:
    (folder / "forebay.toml").write_text(CONFIGURATION.format(stream=STREAM, folder=folder))
    (folder / "failpoints").mkdir()
    environment = {
        **os.environ, "FOREBAY_FAILPOINTS": failpoints, "FOREBAY_FAILPOINT_DIR": str(folder / "failpoints"),
        "FOREBAY_CONFIG": str(folder / "forebay.toml"),
    }  # fmt: skip
    return forked.run(["recover", "--apply", "--no-kafka"], folder=folder, environment=environment, seconds=300)


@pytest.mark.parametrize("place", PLACES)
def test_next_call_finishes_a_killed_recovery(place: str, tmp_path: Path) -> None:
    """INV-1, INV-5, INV-8."""
    logged = Logged(tmp_path)
    logged.receiver("r1")
    damaged = logged.take_in("r1", {0: 5}, local=True)
    whole = logged.take_in("r1", {0: 5})
    orphan = logged.orphan("r1", {1: 4})
    logged.roll("r1")
    missing = logged.take_in("r1", {0: 3}, local=True)
    logged.receiver("r1")
    logged.keep()
    logged.damage(damaged)
    logged.wal.delete(missing.handle.path)
    killed = recover(tmp_path, f"{place}=kill")
    assert killed.returncode == -9, killed.stderr
    assert (tmp_path / "failpoints" / f"{place}.hit").exists()
    served(logged, whole)  # at every moment
    assert not applied(logged).open
    for block in (damaged, whole, missing):
        served(logged, block)
    assert not logged.wal.exists(damaged.handle.path)
    found = planned(logged)
    assert not found.open
    assert orphan.id in [place.block_id for place in found.places if place.decision == "orphan-keep"]


def test_clean_up_keeps_blocks_of_a_killed_recovery_until_the_next_call(tmp_path: Path) -> None:
    """The journal still names the damaged place, so after the local copy was deleted the new frame is the only whole one."""
    logged = Logged(tmp_path)
    logged.receiver("r1")
    damaged = logged.take_in("r1", {0: 5}, local=True)
    logged.receiver("r1")
    logged.keep()
    logged.damage(damaged)
    before = set(logged.segments())
    assert recover(tmp_path, "recovery.after-write=kill").returncode == -9
    (written,) = set(logged.segments()) - before
    place = parse_block(written)
    assert place is not None
    facts = segment_facts(written, scan_segment(logged.wal, written, payloads=False), sealed=True, fenced=True)
    clean = CleanSegment(facts, place.receiver, place.epoch, now_ms=1 << 40)
    assert not judge(logged.state(), clean, RetentionLimits(retention_ms=0)).deletable
    logged.local_file(damaged).unlink()
    logged.kafka.gone |= {(0, n) for n in range(5)}
    assert not applied(logged).open
    served(logged, damaged)
