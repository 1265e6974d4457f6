"""What lies on a disk may say anything: each reader refuses it by the errors it names, in bounded time and memory (INV-5, 6)."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from forebay.errors import CorruptionError
from forebay.records import decode_block
from tests.support.rows import block, filler
from wal.blocks import decode_meta, encode_meta
from wal.frame import FrameKind, decode_frame, encode_frame
from wal.scan import segment_header

_ROOT = Path(__file__).parents[2]


def run(seed: object, attempts: int) -> None:
    child = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", str(seed), str(attempts)],
        cwd=_ROOT, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert child.returncode == 0, (
        f"exit {child.returncode}: python -m tests.fuzz {seed} {attempts}\n{child.stderr[-4000:]}"
    )


def test_mutated_bytes_are_refused_as_documented() -> None:
    """Always the same bytes; the long run draws others."""
    run("fixed", 400)


@pytest.mark.long
def test_many_mutated_bytes_are_refused_as_documented() -> None:
    seed = random.SystemRandom().randrange(10**9)
    print(f"\npython -m tests.fuzz {seed} 8000")
    run(seed, 8000)


def test_metadata_nested_without_end_are_damage() -> None:
    """An unknown key may hold anything, and is skipped; what is too deep to skip is refused."""
    meta, payload = block({("a", 0): filler(3)})
    fields = msgspec.msgpack.decode(encode_meta(meta))
    plain = msgspec.msgpack.encode({**fields, "deep": None})
    for depth in (3, 200_000):
        deep = plain[:-1] + b"\x91" * depth + b"\xc0"
        frame = decode_frame(
            b"".join(encode_frame(FrameKind.BLOCK, uid=0, offset=0, index=0, metadata=deep, payload=payload)), "p", 0
        )
        if depth == 3:
            assert decode_meta(frame.metadata, "p", 0) == meta
        else:
            with pytest.raises(CorruptionError):
                decode_meta(frame.metadata, "p", 0)
    header = decode_frame(
        b"".join(encode_frame(FrameKind.SEGMENT, uid=0, offset=0, index=0, metadata=b"\x91" * 200_000, payload=b"")),
        "p",
        0,
    )
    assert segment_header(header) is None


@pytest.mark.parametrize("at", [0, -40])
def test_a_column_whose_offsets_lie_outside_of_it_is_damage_and_never_read(at: int) -> None:
    """Whoever computes over such a column reads, or writes, memory that is not its own."""
    meta, payload = block({("a", 0): filler(100)})
    data = bytearray(payload.to_pybytes())
    offsets = b"".join(n.to_bytes(4, "little") for n in (0, 2, 4, 6))  # the keys are k0, k1, …
    begin = data.index(offsets)
    data[begin + 8 : begin + 12] = (0x7FFFFF00 + at).to_bytes(4, "little")
    with pytest.raises(CorruptionError):
        decode_block(bytes(data), meta, verify_digests=True)
