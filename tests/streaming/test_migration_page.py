"""docs/MIGRATION.md names what there is, and leaves no option out."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

import direct
from forebay.kafka.planning import PartitionRates
from forebay.kafka.range_reader import Reading
from forebay.settings import Settings
from pyspark_forebay.options import KNOWN

PAGE = (Path(__file__).parents[2] / "docs" / "MIGRATION.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|\n").split(" | ")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| ---")
]
NAMES = set(re.findall(r"`([^`]+)`", PAGE))


def keys() -> set[str]:
    return {
        f"{section.name}.{own.name}"
        for section in msgspec.structs.fields(Settings)
        if isinstance(section.type, type) and issubclass(section.type, msgspec.Struct)
        for own in msgspec.structs.fields(section.type)
    }


def test_each_option_of_the_source_stands_on_the_page() -> None:
    assert set(KNOWN) - NAMES == set()


def test_each_setting_that_the_page_names_is_one() -> None:
    sections = {key.partition(".")[0] for key in keys()} - {"kafka", "spark"}  # prefixes of Spark's options
    named = {name for name in NAMES if re.fullmatch(r"[a-z]+\.[a-z_]+", name) and name.partition(".")[0] in sections}
    assert len(named) > 20
    assert named - keys() == set()


def test_each_name_of_direct_streams_on_the_page_is_one() -> None:
    owners = {
        "StreamSettings": direct.StreamSettings, "PartitionRates": PartitionRates, "Reading": Reading,
        "DirectBatch": direct.DirectBatch,
    }  # fmt: skip
    named = {name for name in NAMES if name.partition(".")[0] in owners}
    for name in named:
        owner, _, own = name.partition(".")
        assert owner in direct.__all__
        assert not own or hasattr(owners[owner], own), name
    assert {f"StreamSettings.{name}" for name in ("checkpoint", "backpressure", "initial_rate")} <= named


def test_each_row_says_what_stands_for_spark_or_that_nothing_does() -> None:
    for row in ROWS:
        assert len(row) == 3 and row[0] and row[1], row
        if row[1] == "none":
            assert row[2], f"{row[0]}: without a reason"
