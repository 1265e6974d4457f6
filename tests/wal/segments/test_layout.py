"""Names of the log's files."""

from __future__ import annotations

import pytest

from wal.segments import layout

EPOCH = 0x10000000001


def test_names_can_be_parsed_again() -> None:
    assert layout.block_segment("s", "r-1", EPOCH, 3) == "s/blocks/r-1/0000010000000001/00000003.seg"
    assert layout.parse_block("s/blocks/r-1/0000010000000001/00000003.seg") == ("s", "r-1", EPOCH, 3)
    assert layout.journal_segment("s", EPOCH, 3) == "s/epoch-0000010000000001/00000003.seg"
    assert layout.parse_journal("s/epoch-0000010000000001/00000003.seg") == ("s", EPOCH, 3)
    assert layout.history_segment("s", EPOCH, 3) == "s/history/0000010000000001/00000003.seg"
    assert layout.parse_history("s/history/0000010000000001/00000003.seg") == ("s", EPOCH, 3)
    assert layout.timeline_marker("s", 1) == "s/lineage-00000001"
    assert layout.block_folder("s", "r", EPOCH) == "s/blocks/r/0000010000000001"
    assert layout.block_folder("s") == "s/blocks"


def test_names_sort_as_their_epochs_and_sequences_do() -> None:
    names = [layout.block_segment("s", "r", epoch, sequence) for epoch in (9, 10, 1 << 40) for sequence in (9, 10)]
    assert names == sorted(names)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "s/blocks/r/0000010000000001/00000003.seg.tmp",
        "s/blocks/r/0000010000000001/3.seg",
        "s/blocks/r/0000010000000001/000000003.seg",
        "s/blocks/r/0000010000000001/1000000000000.seg",
        "s/blocks/r/000001000000000A/00000003.seg",
        "s/blocks/r/10000000001/00000003.seg",
        "s/blocks/../0000010000000001/00000003.seg",
        "s/blocks/r/x/0000010000000001/00000003.seg",
        "/s/blocks/r/0000010000000001/00000003.seg",
        "s/blocks/r/0000010000000001/00000003.seg\n",
        "s/epoch-10000000001/00000003.seg",
        "s/epochs/0000010000000001",
        "s/history/00000003.seg",
    ],
)
def test_every_other_name_is_refused(path: str) -> None:
    for parse in (layout.parse_block, layout.parse_journal, layout.parse_history):
        assert parse(path) is None


@pytest.mark.parametrize("name", ["..", "a/b", "", ".a", "a" * 65, "a\n"])
def test_names_that_lead_out_of_the_root_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a name has"):
        layout.block_segment(name, "r", 1, 1)
    with pytest.raises(ValueError, match="a name has"):
        layout.block_segment("s", name, 1, 1)
    with pytest.raises(ValueError, match="a name has"):
        layout.timeline_marker(name, 1)


def test_numbers_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="64 bits"):
        layout.journal_segment("s", 1 << 64, 1)
    with pytest.raises(ValueError, match="12 digits"):
        layout.journal_segment("s", 1, 10**12)
    with pytest.raises(ValueError, match="8 digits"):
        layout.timeline_marker("s", 10**8)


def test_a_sequence_grows_beyond_eight_digits() -> None:
    """An object for each flush: 8 digits would last for less than a year of four a second."""
    path = layout.block_segment("s", "r", EPOCH, 10**8)
    assert path == "s/blocks/r/0000010000000001/100000000.seg"
    assert layout.parse_block(path) == ("s", "r", EPOCH, 10**8)
    longest = layout.journal_segment("s", EPOCH, 10**12 - 1)
    assert layout.parse_journal(longest) == ("s", EPOCH, 10**12 - 1)
