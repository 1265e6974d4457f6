"""The golden files of format version 1, read by the current code and compared with the current writer's bytes."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from forebay.model.errors import CorruptionError, NewerVersionError
from forebay.model.payload import decode_block
from forebay.model.values import Handle
from tests.golden import make_v1
from tests.golden.make_v1 import BLOCKS_PATH, JOURNAL_PATH, SWAPPED_PATH
from tests.support.state.rows import ODD_ROWS
from wal.blocks import block_of_frame
from wal.segments.frame import Frame, FrameKind
from wal.segments.scan import Damage, Newer, Scanned, TornTail, read_frame, scan_segment, segment_header
from wal.storage import MemoryStorage

FOLDER = Path(__file__).parent / "v1"
_names = itertools.count()


def golden(name: str) -> bytes:
    return (FOLDER / f"{name}.seg").read_bytes()


def scan(data: bytes, path: str = BLOCKS_PATH) -> list[Scanned]:
    storage = MemoryStorage(f"golden-{next(_names)}")
    storage.replace(path, data)
    return list(scan_segment(storage, path))


def test_current_writer_makes_the_golden_bytes() -> None:
    assert make_v1.write_segment(BLOCKS_PATH, make_v1.block_contents()) == golden("good")
    assert make_v1.write_segment(JOURNAL_PATH, make_v1.journal_contents()) == golden("journal")
    (_, arrow) = (item for item in scan(golden("arrow")) if isinstance(item, Frame))
    content = (
        FrameKind.BLOCK,
        arrow.metadata,
        arrow.payload.to_pybytes(),
    )  # Arrow's own bytes may change with its release
    assert make_v1.write_segment(BLOCKS_PATH, [content]) == golden("arrow")


def test_the_bad_files_are_the_good_one_with_the_damage_their_name_says() -> None:
    for name, data in make_v1.variants(golden("good")):
        assert data == golden(name), name


def test_the_good_segments_are_read_whole() -> None:
    for name, path, contents in (
        ("good", BLOCKS_PATH, make_v1.block_contents()),
        ("journal", JOURNAL_PATH, make_v1.journal_contents()),
    ):
        first, *frames = scan(golden(name), path)
        assert isinstance(first, Frame)
        header = segment_header(first)
        assert header is not None
        assert (header.path, header.stream, header.epoch, header.sequence) == (path, "flights", make_v1.EPOCH, 1)
        assert (header.uid, header.timeline, header.created_ms) == (make_v1.UID, 1, 1_700_000_000_250)
        assert [
            (item.header.kind, item.metadata, item.payload.to_pybytes()) for item in frames if isinstance(item, Frame)
        ] == contents


def test_block_metadata_of_this_version_is_understood() -> None:
    frames = [item for item in scan(golden("good"))[1:] if isinstance(item, Frame)]
    metas = [block_of_frame(frame, BLOCKS_PATH).meta for frame in frames]
    assert [meta.sequence for meta in metas] == [1, 2, 3, 4]
    gap = metas[2].ranges[0].preceding_gap
    assert gap is not None
    assert (gap.from_offset, gap.until_offset, gap.cause) == (12, 50, "deleted by retention")
    assert metas[1].ranges[0].records == 0


def test_an_arrow_block_of_this_version_is_decoded_record_by_record() -> None:
    frame = scan(golden("arrow"))[1]
    assert isinstance(frame, Frame)
    block = block_of_frame(frame, BLOCKS_PATH)
    decoded = decode_block(block.payload, block.meta, verify_digests=True)
    assert [held.label for held, _ in decoded] == ["flights/0[3, 13)", "flights/1[40, 45)"]
    rows = [row for batch in decoded[0][1] for row in batch.select(["key", "value", "offset"]).to_pylist()]
    assert [(row["key"], row["value"], row["offset"]) for row in rows] == [row[:3] for row in ODD_ROWS]


#: file → what a scan gives beside whole frames: (type, frame it begins at, message), and the frames that are still served
OUTCOMES: dict[str, tuple[type, int, str, list[int]]] = {
    "torn-in-header": (TornTail, 4, "", [0, 1, 2, 3]),
    "torn-in-payload": (TornTail, 4, "", [0, 1, 2, 3]),
    "torn-zeros": (TornTail, 4, "", [0, 1, 2, 3]),
    "flipped-segment-header": (Damage, 0, "the frame header's checksum does not match", [1, 2, 3, 4]),
    "flipped-header": (Damage, 2, "the frame header's checksum does not match", [0, 1, 3, 4]),
    "flipped-metadata": (Damage, 2, "the metadata's checksum does not match", [0, 1, 3, 4]),
    "flipped-payload": (Damage, 1, "the payload's checksum does not match", [0, 2, 3, 4]),
    "flipped-last-payload": (Damage, 4, "the payload's checksum does not match", [0, 1, 2, 3]),
    "newer-version": (Newer, 2, "format 2", [0, 1, 3, 4]),
}


def test_a_block_that_is_flagged_as_encrypted_and_names_no_key_is_refused() -> None:
    """``newer-flag`` was made when the flag was still reserved: the current release reads the frame, which contradicts itself."""
    good = [item for item in scan(golden("good")) if isinstance(item, Frame)]
    frames = [item for item in scan(golden("newer-flag")) if isinstance(item, Frame)]
    assert [frame.offset for frame in frames] == [frame.offset for frame in good]
    for number, frame in enumerate(frames[1:], start=1):
        if number != 2:
            assert block_of_frame(frame, BLOCKS_PATH)
    with pytest.raises(CorruptionError, match="disagree about whether the payload is encrypted"):
        block_of_frame(frames[2], BLOCKS_PATH)


@pytest.mark.parametrize("name", OUTCOMES)
def test_each_bad_file_is_read_as_the_format_says(name: str) -> None:
    wanted, at, message, served = OUTCOMES[name]
    good = [item for item in scan(golden("good")) if isinstance(item, Frame)]
    found = scan(golden(name))
    frames = [item for item in found if isinstance(item, Frame)]
    assert [(f.offset, f.metadata, f.payload.to_pybytes()) for f in frames] == [
        (good[n].offset, good[n].metadata, good[n].payload.to_pybytes()) for n in served
    ]
    (other,) = (item for item in found if not isinstance(item, Frame))
    assert isinstance(other, wanted)
    assert other.offset == good[at].offset
    if isinstance(other, Damage):
        assert other.reason == message
        assert (other.metadata is not None) == ("payload" in name)
    elif isinstance(other, Newer):
        assert other.feature == message


@pytest.mark.parametrize("name", OUTCOMES)
def test_each_bad_file_refuses_the_handle_of_its_bad_frame(name: str) -> None:
    wanted, at, _, _ = OUTCOMES[name]
    frame = [item for item in scan(golden("good")) if isinstance(item, Frame)][at]
    storage = MemoryStorage(f"golden-{next(_names)}")
    storage.replace(BLOCKS_PATH, golden(name))
    handle = Handle(BLOCKS_PATH, frame.offset, frame.length, frame.header.payload_checksum)
    with pytest.raises(NewerVersionError if wanted is Newer else CorruptionError):
        read_frame(storage, handle)


def test_the_good_segment_under_another_name_is_not_served() -> None:
    (found,) = scan(golden("good"), SWAPPED_PATH)
    assert isinstance(found, Damage)
    assert found.reason == f"the segment's header names another path, {BLOCKS_PATH}"


def test_there_is_no_golden_file_without_a_test() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == {"good", "journal", "arrow", "newer-flag", *OUTCOMES}
