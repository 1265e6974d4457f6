"""Made the golden files of encrypted and compressed payloads: ``python -m tests.golden.make_v1_payloads DIRECTORY``.

As ``make_v1``: the files under ``v1-payloads`` are never edited and never made again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from forebay.model.values import BlockMeta
from tests.golden.make_v1 import BLOCKS_PATH, RECEIVER, STREAM, frames_of, with_header, write_segment
from tests.support.state.rows import ODD_ROWS, block, filler
from wal.blocks import encode_meta
from wal.blocks.encryption import KeyRing
from wal.segments.frame import FrameKind

#: of these files alone, and known to everybody
KEYS = {"k-2": bytes(range(32)), "k-1": bytes(range(32, 64))}
NONCE = b"golden-nonce"


def rows(compression: Any, sequence: int) -> tuple[BlockMeta, Any]:
    return block(
        {("flights", 0): ODD_ROWS, ("flights", 1): filler(50, 40)},
        receiver_id=RECEIVER,
        stream=STREAM,
        headers=True,
        compression=compression,
        sequence=sequence,
    )


def ring() -> KeyRing:
    return KeyRing(KEYS, nonce=lambda: NONCE)


def segment(*blocks: tuple[BlockMeta, Any]) -> bytes:
    return write_segment(
        BLOCKS_PATH, [(FrameKind.BLOCK, encode_meta(meta), payload.to_pybytes()) for meta, payload in blocks]
    )


def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise SystemExit(f"{directory} is not empty: golden files are never written over")
    encrypted = segment(ring().seal(*rows("none", 1)), ring().seal(*rows("zstd", 2)), rows("none", 3))
    files = {name: segment(rows(name, 1)) for name in ("lz4", "zstd")}
    files["encrypted"] = encrypted
    # as a release would write it that seals in another way: a second critical flag
    files["newer-flag"] = with_header(encrypted, frames_of(BLOCKS_PATH, encrypted)[1].offset, 12, b"\x03\0\0\0")
    for name, data in files.items():
        (directory / f"{name}.seg").write_bytes(data)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
