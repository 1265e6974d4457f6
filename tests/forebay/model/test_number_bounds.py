"""Numbers have the bounds of Kafka and of the journal's format, whatever their source."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from driver.journal.events import IncarnationStart, UnwritableEvent, WindowChanged, refuse_unwritable
from forebay import messages as m
from forebay.kafka.consume.spans import OffsetRange, parse_span
from forebay.model import values
from forebay.model.bounds import OFFSET_MAX
from forebay.model.errors import CorruptionError, UsageError
from forebay.model.values import SHARED_LENGTH_MAX, Block, BlockRange, Gap, Handle
from tests.support.state.rows import block, filler
from wal.blocks import decode_meta, encode_meta

LAST = 2**63 - 1
BEYOND = (2**63, 2**64 - 1, 2**64, 10**30)


def reported() -> dict[str, Any]:
    """A report of one empty range, as sent."""
    meta, _ = block({("a", 0): filler(0)})
    whole = Block(meta, Handle("s/blocks/r1/0000010000000001/00000001.seg", 0, 1000, 7), local=False)
    tree: dict[str, Any] = msgspec.to_builtins(m.ReportRequest(receiver_id="r1", epoch=meta.epoch, blocks=(whole,)))
    return tree


def decoded(tree: object) -> m.ReportRequest:
    return msgspec.json.decode(msgspec.json.encode(tree), type=m.ReportRequest)


def range_of(tree: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = tree["blocks"][0]["meta"]["ranges"][0]
    return found


def test_range_may_end_at_the_last_offset() -> None:
    """The last record that Kafka can number is at 2^63 - 2 then."""
    tree = reported()
    range_of(tree)["until"] = LAST
    assert decoded(tree).blocks[0].meta.ranges[0].until_offset == LAST == OFFSET_MAX


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("until", BEYOND),
        ("from", (-1, *BEYOND)),
        ("leader_epoch", (-2, 2**31, 2**40, *BEYOND)),
        ("partition", (-1, 2**31, *BEYOND)),
        ("records", (-1, 2**31, *BEYOND)),
        ("life", (-1, 2**53, *BEYOND)),
        ("token", (-1, 2**53, *BEYOND)),
        ("bytes", (-1, *BEYOND)),
        ("max_timestamp_ms", (-(2**63) - 1, *BEYOND)),
    ],
)
def test_range_with_a_number_beyond_its_bounds_is_refused_on_the_wire_and_in_the_wal(
    field: str, values: tuple[int, ...]
) -> None:
    for value in values:
        tree = reported()
        range_of(tree)[field] = value
        with pytest.raises(msgspec.ValidationError, match=rf"at `\$\.blocks\[0\]\.meta\.ranges\[0\]\.{field}`"):
            decoded(tree)
        if -(2**63) <= value < 2**64:  # what msgpack can hold
            with pytest.raises(CorruptionError, match="not the metadata of a block"):
                decode_meta(msgspec.msgpack.encode(tree["blocks"][0]["meta"]), "p", 0)


@pytest.mark.parametrize(
    ("field", "values"),
    [("offset", (-1, 2**49)), ("length", (-1, 2**32)), ("checksum", (-1, 2**32)), ("path", ("p" * 1_001,))],
)
def test_handle_beyond_what_a_file_can_have_is_refused(field: str, values: tuple[Any, ...]) -> None:
    for value in values:
        tree = reported()
        tree["blocks"][0]["handle"][field] = value
        with pytest.raises(msgspec.ValidationError, match=f"handle.{field}"):
            decoded(tree)


@pytest.mark.parametrize("value", [*BEYOND, -1])
def test_values_are_refused_where_they_are_made(value: int) -> None:
    """No decoder checks values that a custom source or this code computes."""
    good = range_of(reported())
    with pytest.raises(ValueError, match="from must be below until"):
        BlockRange("t", 0, 1, 0, value, 0, -1, good["digest"], 1)
    with pytest.raises(ValueError, match="from must be below until"):
        Gap(0, value, "c")
    with pytest.raises(UsageError):
        IncarnationStart("t", 0, value)
    with pytest.raises(UsageError):
        OffsetRange("t", 0, 0, value)
    with pytest.raises(ValueError, match=r"leader epoch .* is not from|from must be below until"):
        BlockRange("t", 0, 1, 0, 1, 0, value - 1 if value < 0 else value, good["digest"], 1)


def test_spans_of_nineteen_digits_are_read_back() -> None:
    span = OffsetRange("t", 0, LAST - 1, LAST)
    assert parse_span(str(span)) == span


@pytest.mark.parametrize("number", BEYOND)
def test_claim_number_fault_and_heartbeat_beyond_bounds_are_refused(number: int) -> None:
    fault = {"topic": "t", "partition": 0, "token": 1, "kind": "recreated", "position": 0, "low": 0, "high": 0}
    beat = {"state": "", "detail": "", "acknowledged": 0, "buffered_bytes": 0, "records": 0}
    for type_, fields, changed in (
        (m.ClaimRequest, {"claims": []}, {"number": number}),
        (m.Fault, fault, {"leader_epoch": number}),
        (m.Fault, fault, {"position": number}),
        (m.Fault, fault, {"low": number}),
        (m.HeartbeatRequest, beat, {"claims_done": number}),
        (m.HeartbeatRequest, beat, {"records": number}),
        (m.HeartbeatRequest, beat, {"counters": {"a": number}}),
        (m.HeartbeatRequest, beat, {"rate": 1e16}),
    ):
        sent = {"receiver_id": "r1", "epoch": 1, **fields}
        msgspec.json.decode(msgspec.json.encode(sent), type=type_)
        with pytest.raises(msgspec.ValidationError, match="<="):
            msgspec.json.decode(msgspec.json.encode({**sent, **changed}), type=type_)


def test_event_is_writable_or_refused() -> None:
    refuse_unwritable(WindowChanged(2**64 - 1))
    with pytest.raises(UnwritableEvent, match="WindowChanged can't be written to the journal"):
        refuse_unwritable(WindowChanged(2**64))


def test_metadata_within_bounds_is_read_back() -> None:
    meta, _ = block({("a", 0): filler(3)})
    assert decode_meta(encode_meta(meta), "p", 0) == meta


def test_long_texts_of_blocks_are_not_kept_to_be_shared() -> None:
    """INV-6: short texts stay in memory. A sender may name any host, also in a report that the driver refuses."""
    tree = reported()
    (first,), (second,) = decoded(tree).blocks, decoded(tree).blocks
    assert first.meta.host is second.meta.host
    kept = values._kept.cache_info().currsize
    for number in range(20):
        host = f"{number}".rjust(SHARED_LENGTH_MAX + 1, "h")
        tree["blocks"][0]["meta"]["host"] = host
        (whole,) = decoded(tree).blocks
        assert whole.meta.host == host
    assert values._kept.cache_info().currsize == kept
