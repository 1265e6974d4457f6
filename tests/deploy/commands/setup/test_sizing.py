"""``forebay size``: its formulas compared with real blocks and histories, its bounds, and the example of docs/sizing.md."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from deploy.commands.setup import sizing
from deploy.commands.setup.sizing import Load, sizes
from deploy.main import main
from driver.journal.history import FinishedBatch, FinishedRange
from forebay.model.payload import encode_block
from forebay.model.records import RangeRows
from forebay.model.values import TopicPartition, block_id
from forebay.settings.reading.load import load
from tests.support.run.wheel import ROOT
from tests.support.state.rows import Row, source_batch

PAGE = (ROOT / "docs" / "sizing.md").read_text(encoding="utf-8")
SMALL = Load(records_per_second=1000, record_bytes=100, partitions=8)


def test_bytes_of_a_record_in_a_block_are_those_of_an_encoded_block() -> None:
    records, value_bytes = 20_000, 92
    rows = [Row(b"k" * 8, b"v" * value_bytes, offset) for offset in range(records)]
    block = encode_block([RangeRows(TopicPartition("orders", 0), [source_batch(rows)])], headers=False)
    estimated = records * (8 + value_bytes + sizing.RECORD_OVERHEAD_BYTES)
    assert 0.97 <= estimated / block.size <= 1.03


@pytest.mark.parametrize(("partitions", "blocks"), [(1, 10), (10, 10), (100, 100)])
def test_history_is_an_upper_estimate_of_an_encoded_batch(partitions: int, blocks: int) -> None:
    ranges = [FinishedRange("orders", p, 1, 10_000_000, 10_001_000, 1000) for p in range(partitions)]
    batch = FinishedBatch(
        1 << 40, 4000, 1_795_370_531_000, 1_795_370_531_900, 1, 1000, tuple(ranges),
        (tuple(block_id("orders-r1", 1 << 32, number) for number in range(blocks)),),
    )  # fmt: skip
    encoded = len(msgspec.msgpack.encode((batch,)))
    estimated = (
        sizing.HISTORY_BATCH_BYTES + partitions * sizing.HISTORY_PARTITION_BYTES + blocks * sizing.HISTORY_BLOCK_BYTES
    )
    assert encoded <= estimated <= 2 * encoded


def test_receivers_follow_records_bytes_and_hosts_and_are_at_most_the_partitions() -> None:
    def receivers(**changed: int) -> int:
        return sizes(Load(**{"records_per_second": 1000, "record_bytes": 100, "partitions": 8, **changed})).receivers

    assert receivers() == 1
    assert receivers(records_per_second=250_000) == 3
    assert receivers(record_bytes=200_000) == 4
    assert receivers(hosts=5) == 5
    assert receivers(records_per_second=2_000_000) == 8
    note, *_ = sizes(Load(records_per_second=2_000_000, record_bytes=10, partitions=8)).notes
    assert "20 receivers are needed, but 8 partitions" in note


def test_longer_retention_takes_space_and_memory_in_proportion() -> None:
    day = sizes(SMALL)
    week = sizes(Load(records_per_second=1000, record_bytes=100, partitions=8, retention_seconds=7 * 86_400.0))
    ratio = (7 * 24 + 1) / (24 + 1)
    assert week.wal_bytes / day.wal_bytes == pytest.approx(ratio)
    assert week.wal_blocks / day.wal_blocks == pytest.approx(ratio)
    assert week.driver_memory_bytes > day.driver_memory_bytes and week.local_bytes == day.local_bytes


def test_replicas_double_the_local_copies_and_need_another_host() -> None:
    one = replace(SMALL, hosts=2, block_interval_seconds=1.0)
    two = replace(one, copies=2)
    assert sizes(two).local_bytes == pytest.approx(2 * sizes(one).local_bytes, abs=1)
    assert sizes(two).wal_bytes == sizes(one).wal_bytes and sizes(two).notes == ()
    assert "copies = 2" in sizing.settings_of(two, sizes(two))
    (note,) = sizes(replace(two, hosts=1)).notes
    assert "receiver.copies = 2 needs 2 hosts" in note


def test_too_many_blocks_are_named_with_an_interval_that_makes_fewer() -> None:
    many = Load(records_per_second=1000, record_bytes=100, partitions=8, retention_seconds=86_400.0 * 30)
    (note,) = sizes(many).notes
    interval = float(re.findall(r"receiver.block_interval to ([\d.]+)s", note)[0])
    fewer = Load(
        records_per_second=1000, record_bytes=100, partitions=8, retention_seconds=86_400.0 * 30,
        block_interval_seconds=interval,
    )  # fmt: skip
    assert sizes(fewer).wal_blocks <= sizing.BLOCKS_MANY and sizes(fewer).notes == ()


def test_example_of_the_page_prints_what_the_page_shows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command, shown, settings = re.findall(r"^```\w*\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)[:3]
    assert main(command.split()[1:]) == 0
    printed = capsys.readouterr()
    lines = [line.rstrip() for line in printed.out.splitlines()]
    for line in [*shown.splitlines(), *settings.splitlines()]:
        assert line.rstrip() in lines, line
    assert printed.err == ""


def test_printed_keys_are_valid_settings(tmp_path: Path) -> None:
    text = "\n".join(sizing.settings_of(SMALL, sizes(SMALL)))
    whole = text.replace("[wal]", f'[wal]\nurl = "file://{tmp_path}/wal"').replace(
        "[agent]", f'[agent]\nblocks = "{tmp_path}/blocks"'
    )
    path = tmp_path / "forebay.toml"
    path.write_text(
        f'stream = "s"\n[kafka]\ntopics = ["t"]\n"bootstrap.servers" = "127.0.0.1:1"\n[driver]\njob = "jobs:process"\n'
        f'journal = "file://{tmp_path}/journal"\n{whole}\n'
    )
    settings = load(path, {})
    assert settings.receiver.count == 1 and settings.wal.retention == 86_400


def test_json_has_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", "--records", "10", "--bytes", "10", "--partitions", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["receivers"] == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["--records", "0", "--bytes", "1", "--partitions", "1"],
        ["--records", "1", "--bytes", "0", "--partitions", "1"],
        ["--records", "1", "--bytes", "1", "--partitions", "0"],
        ["--records", "1", "--bytes", "1", "--partitions", "1", "--compressed", "0"],
        ["--records", "1", "--bytes", "1", "--partitions", "1", "--block-interval", "0s"],
        ["--records", "1", "--bytes", "1", "--partitions", "1", "--memory", "64"],
        ["--records", "nan", "--bytes", "1", "--partitions", "1"],
        ["--records", "1", "--bytes", "1", "--partitions", "1", "--compressed", "nan"],
    ],
)
def test_impossible_loads_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1
