"""Each reader refuses arbitrary bytes with its documented errors, in bounded time and memory (INV-5, INV-6)."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from forebay.model.arrow_sizes import decompressed_sizes
from forebay.model.errors import CorruptionError
from forebay.model.payload import Compression, decode_block
from tests.fuzz.readers import readers
from tests.support.state.rows import Row, block, filler
from wal.blocks import decode_meta, encode_meta
from wal.segments.encoding import encode_frame
from wal.segments.frame import FrameKind, decode_frame
from wal.segments.scan import segment_header

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
    """The same bytes in each run; the long run draws others."""
    run("fixed", 200)


@pytest.mark.long
def test_many_mutated_bytes_are_refused_as_documented() -> None:
    seed = random.SystemRandom().randrange(10**9)
    print(f"\npython -m tests.fuzz {seed} 8000")
    run(seed, 8000)


_NESTED = b"[" * 100_000
_DIGITS = b"9" * 5_000
#: bytes at which a reader once raised something else than it documents
_KNOWN: tuple[tuple[str, bytes], ...] = (
    ("state manifest", b'{"format": 1, "stream": "\xc3("}'),
    ("mark of sent dead letters", b'{"topic": "\x99"}'),
    ("output marker", b'{"stream": "\xff"}'),
    *(
        (name, b"HTTP/1.1 %d X\r\n%btransfer-encoding: chunked\r\n\r\n%b\r\nabc" % (status, more, size))
        for name, status, more in (
            ("answer of a driver", 200, b""), ("stream of a driver", 200, b""), ("answer to a copy", 409, b""),
            ("block of an agent", 206, b"content-range: bytes 0-1/2\r\n"),
            ("blocks of an agent", 200, b"forebay-copy-sizes: 9,9\r\n"),
        )
        for size in (b"-1", b"-5", b"-" + b"f" * 20)
    ),
    ("names of files", b"s/state/a/1-0000000000000001-" + _DIGITS + b"/manifest.json"),
    ("names of files", b"s/dead-letters/1-2-" + _DIGITS + b"/o/0000000000000001-000001/done"),
    ("settings", b"a = " + _NESTED),
    ("settings", b"a = " + _DIGITS),
    ("setting in a variable", b"KAFKA__TOPICS=" + _NESTED),
    ("setting in a variable", b"RECEIVER__HOST=\xff"),
    ("url of a store", b"hdfs://h:x/a"),
    ("url of a store", b"s3://["),
    ("urls of a tracker", b"http://["),
    ("offsets of a query", _NESTED),
    ("offsets in a query's progress", _NESTED),
    ("secrets in a settings file", b"a = " + _NESTED),
    ("Avro schema", b'{"type": "record", "name": "R", "fields": [{"name": 1.5, "type": "int"}]}'),
    ("JSON schema", b'{"$id": "http://[", "type": "string"}'),
    ("JSON schema", b'{"type": "object", "properties": {"\\ud800": {"type": "string"}}}'),
    ("JSON schema", _NESTED),
    ("message /v1/cursors/move", b'{"cursor": "c", "unknown": ' + _NESTED),
    (
        "request",
        b"POST /v1/partitions/claim HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer " + b"t" * 24
        + b"\r\ncontent-type: application/json\r\ncontent-length: 100005\r\n\r\n" + b'{"a":' + _NESTED,
    ),
    (
        "request",
        b"POST /v1/operator/pause HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer " + b"t" * 24
        + b"\r\ncontent-type: application/json\r\ncontent-length: 100005\r\n\r\n" + b'{"a":' + _NESTED,
    ),
)  # fmt: skip


def test_bytes_that_once_caused_another_error_are_refused_as_documented() -> None:
    known = readers()
    for name, data in _KNOWN:
        with contextlib.suppress(*known[name].allowed):
            known[name].read(data)


def test_endlessly_nested_metadata_are_damage() -> None:
    """An unknown key may have any value and is skipped; a value that is nested too deeply to skip is refused."""
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


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("headers", [False, True])
def test_payload_that_decompresses_to_more_than_its_records_is_refused_unread(
    compression: Compression, headers: bool
) -> None:
    """A decompression bomb and a wrong length are refused; the valid block is read."""
    honest, payload = block({("a", 0): filler(500), ("b", 1): filler(3)}, compression=compression, headers=headers)
    counted = tuple(msgspec.structs.replace(r, bytes=n) for r, n in zip(honest.ranges, (500 * 24, 100), strict=True))
    honest = msgspec.structs.replace(honest, ranges=counted)
    assert [sum(b.num_rows for b in batches) for _, batches in decode_block(payload, honest)] == [500, 3]

    meta, bomb = block({("a", 0): [Row(b"k", bytes(50_000_000), 0)]}, compression=compression, headers=headers)
    assert bomb.size < 1_000_000
    small = msgspec.structs.replace(meta, ranges=(msgspec.structs.replace(meta.ranges[0], bytes=100),))
    before = pa.total_allocated_bytes()
    with pytest.raises(CorruptionError, match=r"decompress to 50000[0-9]{3} bytes; its ranges allow 65700"):
        decode_block(bomb, small)
    assert pa.total_allocated_bytes() == before
    true = msgspec.structs.replace(meta, ranges=(msgspec.structs.replace(meta.ranges[0], bytes=50_000_001),))
    assert decode_block(bomb, true)[0][1][0].num_rows == 1

    data = payload.to_pybytes()
    (sizes, *_) = [sizes for sizes in decompressed_sizes(payload) if len(sizes) > 5]
    written = sizes[5].to_bytes(8, "little")  # the values' bytes
    lying = data.replace(written, (1 << 40).to_bytes(8, "little"))
    assert lying != data
    for described in (honest, block({("a", 0): filler(500), ("b", 1): filler(3)}, headers=headers)[0]):
        with pytest.raises(CorruptionError, match="decompress to 1099"):
            decode_block(lying, described)


@pytest.mark.parametrize("at", [0, -40])
def test_column_with_offsets_outside_its_buffer_is_damage_and_never_read(at: int) -> None:
    """A computation over such a column would read or write memory outside of it."""
    meta, payload = block({("a", 0): filler(100)})
    data = bytearray(payload.to_pybytes())
    offsets = b"".join(n.to_bytes(4, "little") for n in (0, 2, 4, 6))  # the keys are k0, k1, …
    begin = data.index(offsets)
    data[begin + 8 : begin + 12] = (0x7FFFFF00 + at).to_bytes(4, "little")
    with pytest.raises(CorruptionError):
        decode_block(bytes(data), meta)
