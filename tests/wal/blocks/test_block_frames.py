"""A block as a frame: its metadata and its local copy."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forebay.model.errors import CorruptionError, OutOfSpaceError, StoreError
from forebay.model.values import Gap
from tests.support.state.rows import ODD_ROWS, block, filler
from wal.blocks import block_of_frame, decode_meta, encode_meta, read_local
from wal.blocks.local_writing import write_local
from wal.segments.encoding import encode_frame
from wal.segments.frame import FrameKind, decode_frame


def test_metadata_comes_back_whole() -> None:
    meta, _ = block({("a", 0): ODD_ROWS, ("b", 0): []}, headers=True)
    with_gap = msgspec.structs.replace(meta.ranges[0], preceding_gap=Gap(1, 3, "retention"))
    meta = msgspec.structs.replace(meta, ranges=(with_gap, meta.ranges[1]), key_id="k1")
    assert decode_meta(encode_meta(meta), "p", 0) == meta


def test_fields_of_a_newer_release_are_ignored() -> None:
    meta, _ = block({("a", 0): ODD_ROWS})
    raw = msgspec.msgpack.decode(encode_meta(meta))
    assert decode_meta(msgspec.msgpack.encode({**raw, "colour": "red"}), "p", 0) == meta


@pytest.mark.parametrize(
    "change",
    [
        {"id": "../../x"},
        {"ranges": []},
        {"records": 99},
        {"stream": "../up"},
        {"epoch": "one"},
        {"sequence": None},
    ],
)
def test_metadata_that_contradicts_itself_is_damage(change: dict[str, Any]) -> None:
    meta, _ = block({("a", 0): ODD_ROWS})
    raw = msgspec.msgpack.decode(encode_meta(meta))
    with pytest.raises(CorruptionError) as caught:
        decode_meta(msgspec.msgpack.encode({**raw, **change}), "wal/x.seg", 64)
    assert (caught.value.path, caught.value.offset) == ("wal/x.seg", 64)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x93\x01\x02", b"\xff" * 40])
def test_bytes_that_are_no_metadata_are_damage(data: bytes) -> None:
    with pytest.raises(CorruptionError):
        decode_meta(data, "p", 0)


def test_a_frame_of_another_kind_is_no_block() -> None:
    frame = decode_frame(
        b"".join(encode_frame(FrameKind.EVENTS, uid=0, offset=0, index=0, metadata=b"", payload=b"")), "p", 0
    )
    with pytest.raises(CorruptionError, match="expected a block"):
        block_of_frame(frame, "p")


def test_a_local_copy_is_the_block_and_can_be_written_again(tmp_path: Path) -> None:
    meta, payload = block({("a", 0): ODD_ROWS, ("a", 1): filler(10)})
    path = write_local(tmp_path, meta, payload)
    assert write_local(tmp_path, meta, [payload]) == path == tmp_path / "s" / f"{meta.id}.block"
    stored = read_local(path)
    assert stored.meta == meta
    assert stored.payload.to_pybytes() == payload.to_pybytes()
    assert os.listdir(path.parent) == [path.name]


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, OutOfSpaceError), (errno.EDQUOT, OutOfSpaceError), (errno.EIO, StoreError)]
)
def test_a_failed_copy_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[StoreError]
) -> None:
    def fail(path: Path, *_: object) -> None:
        path.write_bytes(b"half")
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("wal.blocks.local_writing._write_file", fail)
    with pytest.raises(StoreError) as caught:
        write_local(tmp_path, *block({("a", 0): ODD_ROWS}))
    assert type(caught.value) is kind
    assert os.listdir(tmp_path / "s") == []


def test_a_payload_of_many_parts_is_one_file(tmp_path: Path) -> None:
    meta, payload = block({("a", 0): filler(100)})
    data = payload.to_pybytes()
    path = write_local(tmp_path, meta, [data[:10], b"", memoryview(data)[10:4000], data[4000:]])
    assert read_local(path).payload.to_pybytes() == data
