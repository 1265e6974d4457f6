"""The modules that docs/architecture/ways.md names are on the ways that it describes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.layout.ways import WAYS

PAGE = Path(__file__).parents[2] / "docs/architecture/ways.md"
#: modules of the page that the followed values do not pass
NOT_FOLLOWED = {
    # the source is a Kafka of lists, and there is no local copy
    "An offset range": {
        "forebay.kafka.consume.consumer",
        "forebay.kafka.consume.selection",
        "wal.blocks.local_writing",
    },
    # the job runs in the driver's process; what gets blocks and not their batch; nothing cleans up
    "A batch": {
        "driver.background.cleaner",
        "driver.decisions.allocation",
        "driver.decisions.packing",
        "driver.journal.history",
        "driver.spark.engine",
        "driver.spark.rows",
        "driver.tracker.requests",
    },
    "A setting": {"forebay.settings.schema.driver"},  # it declares the key
    "A reading task": {"forebay.kafka.consume.block_ranges", "wal.reading.agents"},  # other tiers
}
NAMES = {
    "An offset range": ("offset-range",),
    "A batch": ("batch",),
    "A setting": ("setting",),
    "A reading task": ("reading-copy", "reading-wal", "reading-small-blocks"),
}


def named(section: str) -> set[str]:
    """Return the modules that the section of the page names."""
    _, text = PAGE.read_text().split(f"\n## {section}\n")
    return set(re.findall(r"\[`([a-z_.]+)`\]\(", text.split("\n## ")[0]))


@pytest.mark.parametrize("section", NAMES)
def test_value_passes_the_modules_that_the_page_names(section: str, tmp_path: Path) -> None:
    passed: set[str] = set()
    for name in NAMES[section]:
        folder = tmp_path / name
        folder.mkdir()
        passed.update(step.module for step in WAYS[name](folder).steps)
    assert named(section) - passed == NOT_FOLLOWED[section]
