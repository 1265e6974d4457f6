"""Encrypted and compressed payloads of format version 1, read by the current code."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from forebay.model.errors import NewerVersionError
from forebay.model.payload import decode_block
from forebay.model.values import Handle
from tests.golden import make_v1_payloads as made
from tests.golden.make_v1 import BLOCKS_PATH
from tests.support.state.columns import column_values
from tests.support.state.rows import ODD_ROWS
from wal.blocks import StoredBlock, block_of_frame, encode_meta
from wal.blocks.encryption import KeyRing, plain_payload
from wal.segments.frame import CRITICAL_FLAGS, FLAG_ENCRYPTED, Frame
from wal.segments.scan import Newer, Scanned, read_frame, scan_segment
from wal.storage import MemoryStorage

FOLDER = Path(__file__).parent / "v1-payloads"
_names = itertools.count()


def scan(name: str) -> list[Scanned]:
    storage = MemoryStorage(f"golden-payloads-{next(_names)}")
    storage.replace(BLOCKS_PATH, (FOLDER / f"{name}.seg").read_bytes())
    return list(scan_segment(storage, BLOCKS_PATH))


def blocks(name: str) -> list[StoredBlock]:
    return [block_of_frame(item, BLOCKS_PATH) for item in scan(name)[1:] if isinstance(item, Frame)]


def offsets(stored: StoredBlock, keys: KeyRing | None) -> list[int]:
    payload = plain_payload(stored.meta, stored.payload, keys, "golden")
    decoded = decode_block(payload, stored.meta, verify_digests=True)
    return [offset for _, batches in decoded for batch in batches for offset in column_values(batch, "offset")]


WANTED = [row.offset for row in ODD_ROWS] + list(range(40, 90))


@pytest.mark.parametrize("name", ["lz4", "zstd"])
def test_compressed_payloads_are_read(name: str) -> None:
    (stored,) = blocks(name)
    assert offsets(stored, None) == WANTED


def test_encrypted_and_plain_payloads_are_read() -> None:
    found = blocks("encrypted")
    assert [stored.meta.key_id for stored in found] == ["k-2", "k-2", None]
    frames = [item.header for item in scan("encrypted")[1:] if isinstance(item, Frame)]
    assert [header.flags for header in frames] == [FLAG_ENCRYPTED, FLAG_ENCRYPTED, 0]
    for stored in found:
        assert offsets(stored, made.ring()) == WANTED
    assert bytes(found[0].payload)[:12] == made.NONCE


def test_current_writer_encrypts_to_the_golden_bytes() -> None:
    """From the plain payloads in the files, since Arrow's own bytes may change with its release."""
    for stored in blocks("encrypted")[:2]:
        plain = plain_payload(stored.meta, stored.payload, made.ring(), "golden")
        meta, sealed = made.ring().seal(stored.meta, plain)
        assert (encode_meta(meta), sealed.to_pybytes()) == (encode_meta(stored.meta), stored.payload.to_pybytes())


def test_unknown_critical_flag_means_a_newer_release() -> None:
    """A frame with an unknown critical flag is stepped over and never dropped, as older releases do with the encrypted flag."""
    first, second, *rest = scan("newer-flag")
    assert isinstance(second, Newer)
    assert second.feature == "flags 0x0002"
    assert [type(item) for item in (first, *rest)] == [Frame] * 3
    sealed = scan("encrypted")[1]
    assert isinstance(sealed, Frame)
    storage = MemoryStorage(f"golden-payloads-{next(_names)}")
    storage.replace(BLOCKS_PATH, (FOLDER / "newer-flag.seg").read_bytes())
    with pytest.raises(NewerVersionError, match="flags 0x0002"):
        read_frame(storage, Handle(BLOCKS_PATH, sealed.offset, sealed.length, sealed.header.payload_checksum))
    assert FLAG_ENCRYPTED & CRITICAL_FLAGS


def test_there_is_no_golden_file_without_a_test() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == {"lz4", "zstd", "encrypted", "newer-flag"}
