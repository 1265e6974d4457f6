"""Documents with a checksum: the lease and the claims of epochs."""

from __future__ import annotations

import msgspec
import pytest

from driver.journal import checked_json
from driver.journal.claims import Claim
from driver.journal.leadership.lease import Lease
from forebay.model.wire import UNDECODABLE

LEASE = Lease(
    epoch=(1 << 40) + 1, owner="d1", host="h", pid=7, started="boot/1", beat=3, duration_seconds=10.0, url="http://127.0.0.1:1",
    led_epoch=(1 << 40) + 1, led_events=120,
)  # fmt: skip
CLAIM = Claim(epoch=(1 << 40) + 1, owner="d1", time_ms=1_700_000_000_000)
each = pytest.mark.parametrize("value", [LEASE, CLAIM], ids=["lease", "claim"])


@each
def test_every_wrong_bit_is_noticed(value: msgspec.Struct) -> None:
    """A wrong number of durable events in the lease would make every later driver refuse the journal (INV-5)."""
    data = checked_json.encode(value)
    assert checked_json.decode(data, type(value)) == value
    for bit in range(8 * len(data)):
        wrong = bytearray(data)
        wrong[bit // 8] ^= 1 << bit % 8
        with pytest.raises(UNDECODABLE):
            checked_json.decode(bytes(wrong), type(value))


@each
def test_every_missing_end_is_noticed(value: msgspec.Struct) -> None:
    data = checked_json.encode(value)
    for length in range(len(data)):
        with pytest.raises(UNDECODABLE):
            checked_json.decode(data[:length], type(value))


@each
def test_a_document_of_an_older_release_has_no_checksum(value: msgspec.Struct) -> None:
    assert checked_json.decode(msgspec.json.encode(value), type(value)) == value


@each
def test_an_older_release_reads_the_document(value: msgspec.Struct) -> None:
    """It decodes JSON, and ignores fields that it does not know."""
    assert msgspec.json.decode(checked_json.encode(value), type=type(value)) == value


def test_fields_of_a_newer_release_are_ignored_if_the_checksum_matches() -> None:
    class Newer(Claim, frozen=True):
        more: int = 1

    newer = Newer(epoch=CLAIM.epoch, owner=CLAIM.owner, time_ms=CLAIM.time_ms)
    assert checked_json.decode(checked_json.encode(newer), Claim) == CLAIM
    with pytest.raises(msgspec.ValidationError, match="unknown fields: more"):
        checked_json.decode(msgspec.json.encode(newer), Claim)
