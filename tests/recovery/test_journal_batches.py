"""``forebay journal batches`` lists every batch of journal and history with its exact offsets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.commands.recovery.journal_batches import listed
from deploy.main import main
from tests.recovery.test_audit import archived, worked
from tests.support.processes.long_run import PARTITIONS, STREAM, LongRun


def test_batches_of_history_and_state_are_listed_once_each_with_their_offsets() -> None:
    """Two in the history (one of them in the state too, as a kill leaves it), one in work, which has no end yet."""
    t = worked()
    found = listed(t.state, archived(t))
    assert [[(r.from_offset, r.until_offset) for r in batch.ranges] for batch in found] == [
        [(0, 10)],
        [(10, 25)],
        [(25, 30)],
    ]
    assert [batch.number for batch in found] == [1, 2, 3]
    assert [batch.completed_ms is None for batch in found] == [False, False, True]


def test_command_lists_all_batches_or_those_that_hold_an_offset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with LongRun(tmp_path).opened() as run:
        run.run(25)  # rounds of clean-up have moved most of them into the history
    config = tmp_path / "forebay.toml"
    config.write_text(
        f'stream = "{STREAM}"\ndata = "{tmp_path}/data"\n[kafka]\ntopics = ["t"]\n"bootstrap.servers" = "127.0.0.1:1"\n'
        f'[wal]\nurl = "file://{tmp_path}/wal"\n'
        f'[driver]\njournal = "file://{tmp_path}/journal"\njob = "jobs:x"\n'
    )

    def shown(*arguments: str) -> str:
        assert main(["--config", str(config), "journal", "batches", *arguments]) == 0
        return capsys.readouterr().out

    everything = json.loads(shown("--all", "--json"))
    assert [batch["number"] for batch in everything] == list(range(1, 26))
    assert all(batch["records"] == 10 * PARTITIONS and len(batch["ranges"]) == PARTITIONS for batch in everything)
    assert [batch["number"] for batch in json.loads(shown("--json"))] == list(range(6, 26))
    assert [batch["number"] for batch in json.loads(shown("--holding", "t/2:35", "--json"))] == [4]
    assert "t/2[30, 40)" in shown("--holding", "t/2:35")
    assert main(["--config", str(config), "journal", "batches", "--holding", "t:35"]) == 2
    assert "t:35" in capsys.readouterr().err
