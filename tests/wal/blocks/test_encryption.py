"""Keys and encrypted payloads: which payloads can be decrypted, and that no key is ever shown."""

from __future__ import annotations

import base64
import os
import traceback
from pathlib import Path

import msgspec
import pytest

from forebay.model.errors import CorruptionError, MissingKeyError, NewerVersionError, SettingsError
from tests.support.state.rows import block, filler
from wal.blocks import block_of_frame, encode_meta
from wal.blocks.encryption import KEYS_VARIABLE, KeyRing, load_keys, plain_payload
from wal.segments.encoding import encode_frame
from wal.segments.frame import FLAG_ENCRYPTED, Frame, FrameKind, decode_frame
from wal.segments.payload import checksum

ONE, TWO = bytes(range(32)), bytes(range(100, 132))
WRITTEN_ONE, WRITTEN_TWO = (base64.b64encode(key).decode() for key in (ONE, TWO))
META, PAYLOAD = block({("a", 0): filler(20)})


def test_encrypted_payload_is_decrypted_only_by_its_key() -> None:
    meta, sealed = KeyRing({"one": ONE}).seal(META, PAYLOAD)
    assert meta.key_id == "one"
    assert sealed.size == PAYLOAD.size + 28
    assert b"ARROW" not in sealed.to_pybytes() and b"value" not in sealed.to_pybytes()
    for ring in (KeyRing({"one": ONE}), KeyRing({"two": TWO, "one": ONE})):
        opened = plain_payload(meta, sealed, ring, "x")
        assert opened.to_pybytes() == PAYLOAD.to_pybytes()
        assert opened.address % 64 == 0  # mapped without a copy
    with pytest.raises(CorruptionError, match=r"the bytes of key 'one' were"):
        plain_payload(meta, sealed, KeyRing({"one": TWO}), "x")
    for keys in (None, KeyRing({"two": TWO})):
        with pytest.raises(MissingKeyError, match=r"encrypted with key 'one'.*put the key's line back"):
            plain_payload(meta, sealed, keys, "x")
    assert plain_payload(META, PAYLOAD, None, "x") is PAYLOAD


def test_every_flipped_byte_and_every_cut_is_noticed() -> None:
    ring = KeyRing({"one": ONE})
    meta, sealed = ring.seal(META, PAYLOAD)
    data = sealed.to_pybytes()
    for at in [*range(40), *range(40, len(data), 61), *range(len(data) - 20, len(data))]:
        changed = bytearray(data)
        changed[at] ^= 1
        with pytest.raises(CorruptionError):
            ring.open(meta, bytes(changed), "x")
    for length in (0, 11, 27, 28, len(data) - 1):
        with pytest.raises(CorruptionError):
            ring.open(meta, data[:length], "x")


@pytest.mark.parametrize("change", [{"stream": "other"}, {"id": "r1-10000000001-2", "sequence": 2}])
def test_payload_cant_be_decrypted_under_another_blocks_metadata(change: dict[str, object]) -> None:
    ring = KeyRing({"one": ONE})
    meta, sealed = ring.seal(META, PAYLOAD)
    with pytest.raises(CorruptionError, match="can't be decrypted"):
        ring.open(msgspec.structs.replace(meta, **change), sealed, "x")


def test_no_two_blocks_share_a_nonce() -> None:
    ring = KeyRing({"one": ONE})
    assert len({ring.seal(META, PAYLOAD)[1].to_pybytes()[:12] for _ in range(100)}) == 100


def test_frames_encrypted_flag_follows_its_metadata() -> None:
    """A process that writes a block again passes metadata and payload on, so the flag can't be forgotten."""
    meta, sealed = KeyRing({"one": ONE}).seal(META, PAYLOAD)

    def frame_of(kind: FrameKind, metadata: bytes, payload: object) -> Frame:
        parts = encode_frame(kind, uid=0, offset=0, index=0, metadata=metadata, payload=payload)  # type: ignore[arg-type]
        return decode_frame(b"".join(parts), "p", 0)

    frame = frame_of(FrameKind.BLOCK, encode_meta(meta), sealed)
    assert frame.header.flags == FLAG_ENCRYPTED
    assert block_of_frame(frame, "p").meta == meta
    events = bytearray(b"".join(encode_frame(FrameKind.EVENTS, uid=0, offset=0, index=0, metadata=b"", payload=b"")))
    events[12] = FLAG_ENCRYPTED
    events[60:64] = checksum([bytes(events[:60])]).to_bytes(4, "little")
    with pytest.raises(NewerVersionError, match="flags 0x0001"):  # only blocks are encrypted
        decode_frame(bytes(events), "p", 0)
    for kind, metadata in (
        (FrameKind.BLOCK, encode_meta(META)),
        (FrameKind.BLOCK, b"opaque"),
        (FrameKind.HISTORY, b""),
    ):
        assert frame_of(kind, metadata, PAYLOAD).header.flags == 0


def test_keys_come_from_a_file_or_the_environment_and_the_first_one_encrypts(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"# newest first\n\n two {WRITTEN_TWO}\none\t{WRITTEN_ONE}  \n")
    path.chmod(0o640)
    ring = load_keys(str(path), {})
    assert ring is not None
    assert (ring.current, ring.ids, "one" in ring, "three" in ring) == ("two", ("two", "one"), True, False)
    named = load_keys(str(path), {KEYS_VARIABLE: f"one {WRITTEN_ONE}"})
    assert named is not None and named.ids == ("one",)
    assert load_keys(None, {KEYS_VARIABLE: " \n"}) is None
    assert load_keys(None, {}) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no key"),
        ("# nothing\n", "has no key"),
        (WRITTEN_ONE, "line 1: write a key's id, a space"),
        (f"one {WRITTEN_ONE} two", "line 1: write a key's id, a space"),
        (f"one {WRITTEN_ONE}\none {WRITTEN_TWO}", "line 2: the key id 'one' is used twice"),
        (f"one {WRITTEN_ONE[:-5]}", "line 1: key 'one' is not valid base64"),
        ("one " + base64.b64encode(ONE[:16]).decode(), "line 1: key 'one' has 16 bytes, not 32"),
        (f"one !{WRITTEN_ONE}", "line 1: key 'one' is not valid base64"),
        (f"{WRITTEN_ONE} one", "line 1: the id of a key: a name has"),
        (f"../one {WRITTEN_ONE}", "line 1: the id of a key: a name has"),
        ("one ключ", "is not ASCII text"),
    ],
)
def test_bad_keys_are_refused_in_one_sentence_that_shows_none(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(SettingsError, match=message) as caught:
        load_keys(str(path), {})
    shown = "".join(traceback.format_exception(caught.value))
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    for secret in (WRITTEN_ONE, WRITTEN_TWO, WRITTEN_ONE[:-5], base64.b64encode(ONE[:16]).decode()):
        assert secret not in shown


def test_key_file_that_is_missing_or_readable_by_all_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    with pytest.raises(SettingsError, match=r"cannot read .*: No such file"):
        load_keys(str(path), {})
    path.write_text(f"one {WRITTEN_ONE}\n")
    for mode in (0o604, 0o602):
        path.chmod(mode)
        with pytest.raises(SettingsError, match=r"all users can read or write .*: run `chmod o= "):
            load_keys(str(path), {})
    with pytest.raises(SettingsError, match="is not a file"):
        load_keys(str(tmp_path), {})


def test_key_ring_shows_only_ids() -> None:
    ring = KeyRing({"one": ONE, "two": TWO})
    assert repr(ring) == "<KeyRing: one, two>"
    assert not hasattr(ring, "__dict__")
    assert os.fsencode(repr(ONE)) not in os.fsencode(repr(ring))
