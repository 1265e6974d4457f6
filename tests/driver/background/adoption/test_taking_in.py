"""What an adoption takes in of orphans: the wanted ranges, undamaged, once, and under the current key."""

from __future__ import annotations

import pytest

from driver.journal import events as ev
from driver.journal.state import ADOPTER
from forebay import messages as m
from forebay.model.errors import RefusedError
from forebay.model.payload import decode_block
from tests.support.state.orphans import Stream
from tests.support.state.tracked import TOPIC
from wal.blocks import block_of_frame
from wal.blocks.encryption import KeyRing
from wal.segments.frame import HEADER_LENGTH
from wal.segments.scan import read_frame


@pytest.mark.parametrize("on_gap", ["stop", "record"])
def test_what_an_orphan_holds_of_the_gap_is_taken_in_and_the_rest_is_the_gap(on_gap: str) -> None:
    """INV-2, whatever the policy: the gap begins where the orphan ends."""
    t = Stream(on_gap=on_gap)
    epoch, token = t.dead_writer()
    t.orphan(epoch, (0, 0, 25, token))
    t.faulted(low=40)
    assert t.round() is not None
    assert [(r.from_offset, r.until_offset, r.records) for r in t.adopted()] == [(0, 25, 25)]
    assert (t.partition.position, t.partition.fault, t.partition.owner) == (25, None, "")
    t.faulted(low=40)
    t.round()
    if on_gap == "record":
        assert [(g.gap.from_offset, g.gap.until_offset) for g in t.partition.gaps] == [(25, 40)]
    else:
        t.say(m.AcceptGapRequest(topic=TOPIC, partition=0, from_offset=25, until_offset=40))
    assert t.partition.position == 40


def test_the_adopted_block_can_be_read_and_holds_the_rows_that_lie_before_kafkas_first() -> None:
    """Cut by offset, counted and digested anew."""
    t = Stream()
    epoch, token = t.dead_writer()
    t.orphan(epoch, (0, 0, 60, token))
    t.faulted(low=40)
    t.round()
    (block,) = [b for b in t.state.blocks.values() if b.meta.receiver_id == ADOPTER]
    stored = block_of_frame(read_frame(t.wal, block.handle), block.handle.path)
    ((held, batches),) = decode_block(stored.payload, stored.meta, verify_digests=True)
    assert [row for b in batches for row in b.column("offset").to_pylist()] == list(range(40))
    assert (held.from_offset, held.until_offset, held.token) == (0, 40, t.partition.token)
    assert held.bytes > 0 and held.max_timestamp_ms >= 0
    assert t.partition.position == 40


def test_an_encrypted_orphan_waits_for_its_key_and_is_adopted_under_the_current_one() -> None:
    """No key is a why_not_accepted, never a gap."""
    t = Stream(on_gap="record", sealed_by=KeyRing({"old": b"o" * 32}))
    epoch, token = t.dead_writer()
    t.orphan(epoch, (0, 0, 60, token))
    t.faulted(low=40)
    for t.keys in (None, KeyRing({"new": b"n" * 32})):
        t.round()
        assert (t.partition.position, t.partition.gaps, t.adopted()) == (0, [], [])
    t.keys = KeyRing({"new": b"n" * 32, "old": b"o" * 32})
    t.round()
    (block,) = [b for b in t.state.blocks.values() if b.meta.receiver_id == ADOPTER]
    stored = block_of_frame(read_frame(t.wal, block.handle), block.handle.path)
    assert stored.meta.key_id == block.meta.key_id == "new"
    ((held, _),) = decode_block(t.keys.open(stored.meta, stored.payload, "x"), stored.meta, verify_digests=True)
    assert (held.from_offset, held.until_offset, t.partition.position) == (0, 40, 40)


def test_of_a_block_of_two_partitions_only_the_wanted_range_is_adopted() -> None:
    """INV-2: the other one may have been read again."""
    t = Stream()
    epoch, token = t.dead_writer()
    t.orphan(epoch, (0, 0, 40, token), (1, 0, 9, token + 1))
    again = t.register("r3", "i3")
    t.take_in(again, t.claim(again, 1, receiver="r3").view.token, 5, partition=1, receiver="r3")
    t.faulted(low=40)
    t.round()
    assert [r.label for r in t.adopted()] == ["t/0[0, 40)"]
    assert t.state.partitions["t/1"].position == 5


def test_orphans_that_touch_are_adopted_in_one_go() -> None:
    t = Stream()
    epoch, token = t.dead_writer()
    for start in (0, 10, 20):
        t.orphan(epoch, (0, start, start + 10, token))
    t.faulted(low=30)
    t.round()
    assert [r.from_offset for r in t.adopted()] == [0, 10, 20]
    assert sum(isinstance(e, ev.ClaimGiven) and e.receiver_id == ADOPTER for e in t.events) == 1


def test_an_orphan_that_a_listing_omits_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store's listing may be older than its newest objects."""
    t = Stream()
    epoch, token = t.dead_writer()
    t.orphan(epoch, (0, 0, 20, token))
    newest = t.orphan(epoch, (0, 20, 40, token)).handle.path
    listed = t.wal.list
    monkeypatch.setattr(t.wal, "list", lambda folder: [path for path in listed(folder) if path != newest])
    t.faulted(low=40)
    t.round()
    assert [(r.from_offset, r.until_offset) for r in t.adopted()] == [(0, 20), (20, 40)]


def test_the_gap_that_is_shown_ends_where_the_next_orphan_begins() -> None:
    t = Stream()
    epoch, token = t.dead_writer()
    t.orphan(epoch, (0, 20, 30, token))
    t.faulted(low=40)
    t.round()
    assert "accept-gap t/0 0 20`" in t.tracker.describe_fault(t.partition)
    with pytest.raises(RefusedError, match="exactly what"):
        t.say(m.AcceptGapRequest(topic=TOPIC, partition=0, from_offset=0, until_offset=40))
    t.say(m.AcceptGapRequest(topic=TOPIC, partition=0, from_offset=0, until_offset=20))
    t.faulted(low=40)
    t.round()
    assert [(r.from_offset, r.until_offset) for r in t.adopted()] == [(20, 30)]


def test_a_record_batch_that_fails_its_checksum_is_taken_from_an_orphan_as_far_as_it_reaches() -> None:
    """The end of the damaged batch is unknown."""
    t = Stream()
    epoch, token = t.dead_writer()
    t.orphan(epoch, (0, 0, 30, token))
    t.faulted(kind="corrupt", low=0)
    t.round()
    assert [(r.from_offset, r.until_offset) for r in t.adopted()] == [(0, 30)]


def test_a_block_of_a_topic_created_again_that_does_not_say_it_was_checked_is_not_adopted() -> None:
    t = Stream(on_gap="record", topic_id="id-2")
    epoch, token = t.dead_writer()
    t.orphan(epoch, (0, 0, 70, token))
    t.faulted(kind="recreated", topic_id="id-2", low=0)
    t.round()
    assert not t.adopted()
    assert t.partition.incarnation.number == 2


def test_an_orphan_whose_bytes_are_damaged_is_left_and_another_one_taken() -> None:
    t = Stream()
    epoch, token = t.dead_writer()
    bad = t.orphan(epoch, (0, 0, 40, token))
    t.orphan(epoch, (0, 0, 15, token))
    whole = bytearray(t.wal.read(bad.handle.path))
    whole[bad.handle.offset + bad.handle.length - 1] ^= 0xFF
    t.wal.replace(bad.handle.path, bytes(whole))
    t.faulted(low=40)
    t.round()
    assert [(r.from_offset, r.until_offset) for r in t.adopted()] == [(0, 15)]


@pytest.mark.parametrize(
    ("damaged", "frames", "partition", "is_logged"),
    [
        ("segment header", 1, 0, True),
        ("segment header", 1, 1, True),
        ("block", 1, 0, True),
        ("block", 1, 1, True),  # nothing says any more whose it was
        ("block", 2, 0, True),
        ("block", 2, 1, False),
    ],
)
def test_damage_that_may_hide_an_orphan_is_logged_once_and_changes_no_decision(
    damaged: str, frames: int, partition: int, is_logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """INV-5: else nothing names what a gap's records may have lain in."""
    t = Stream(on_gap="record")
    epoch, token = t.dead_writer()
    orphan = t.orphan(epoch, (partition, 0, 40, token), frames=frames).handle
    offset = 0 if damaged == "segment header" else orphan.offset
    whole = bytearray(t.wal.read(orphan.path))
    whole[offset + HEADER_LENGTH + 2] ^= 0xFF
    t.wal.replace(orphan.path, bytes(whole))
    t.faulted(low=40)
    t.kafka_answers = False
    t.round()  # searches, and decides nothing
    t.kafka_answers = True
    t.round()
    warnings = [
        r.getMessage() for r in caplog.records if r.levelname == "WARNING" and "lost records skips it" in r.getMessage()
    ]
    assert len(warnings) == is_logged
    assert all(message.startswith(f"{orphan.path} is damaged at byte {offset}: ") for message in warnings)
    readable = partition == 0 and (damaged == "segment header" or frames == 2)
    assert [(r.from_offset, r.until_offset) for r in t.adopted()] == [(0, 40)] * readable
    assert bool(t.partition.gaps) != readable
