"""``forebay tap``: paths and conditions, which records of a block are looked at, and how a record is printed."""

from __future__ import annotations

import json
import random
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.commands.inspection.tap.command import Tap
from deploy.commands.inspection.tap.paths import parse_condition, parse_path
from deploy.commands.inspection.tap.selection import NO_DOCUMENT, TapFilter, document_of, places
from deploy.commands.inspection.tap.shown import as_hex, as_json, as_text, cut
from deploy.console.invocation import Invocation
from forebay import messages as m
from forebay.client import Event
from forebay.model.errors import RefusedError, UnreachableError
from forebay.process.clock import ManualClock

ORDER = {"id": 3, "lines": [{"price": 1.5}, {"price": 2, "a.b": None}], "paid": True, "text": "3", "": 1}


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("id", [3]), ("$.id", [3]), ("lines[1].price", [2]), ("lines[*].price", [1.5, 2]), ("lines[7]", []), ("id.x", []),
        ('lines[1]["a.b"]', [None]), ("*", [3, ORDER["lines"], True, "3", 1]), ("missing", []), ('[""]', [1]),
    ],
)  # fmt: skip
def test_a_path_leads_to_its_values(path: str, values: list[Any]) -> None:
    assert parse_path(path).values(ORDER) == values


@pytest.mark.parametrize("path", ["", "$", "a..b", "a[", "a[x]", "a]", "[1", 'a["b'])
def test_a_wrong_path_says_what_is_allowed(path: str) -> None:
    with pytest.raises(ValueError, match="write a path as in"):
        parse_path(path)


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("id=3", True), ("id=4", False), ("id=3.0", True), ("text=3", True), ("paid=true", True), ("paid=1", False),
        ("id=true", False), ("lines[*].price=2", True), ("lines[1]", True), ("lines[9]", False), ("id=", False),
        ('lines[1]["a.b"]=null', True), ("lines[0]={\"price\":1.5}", True),
    ],
)  # fmt: skip
def test_a_condition_compares_texts_as_written_and_anything_else_as_json(condition: str, holds: bool) -> None:
    assert parse_condition(condition).holds(ORDER) is holds


def record(offset: int = 1, value: bytes | None = b'{"a": 1}', key: bytes | None = b"k", **more: Any) -> m.RecordEntry:
    sizes = {"key_bytes": len(key or b""), "value_bytes": len(value or b"")}
    return m.RecordEntry(
        **{
            "topic": "t",
            "partition": 0,
            "offset": offset,
            "timestamp_ms": 0,
            "key": key,
            "value": value,
            **sizes,
            **more,
        }
    )


def test_a_selection_is_by_place_key_and_value() -> None:
    chosen = TapFilter("t", 0, "k", (parse_condition("a=1"),))
    assert chosen.wants(record())
    assert not chosen.wants(record(topic="u")) and not chosen.wants(record(partition=1))
    assert not chosen.wants(record(key=None)) and not chosen.wants(record(key=b"x"))
    assert not chosen.wants(record(value=None)) and not chosen.wants(record(value=b"\xff"))
    assert chosen.wants_block(("u/1[0, 5)", "t/0[3, 4)")) and not chosen.wants_block(("t/1[0, 5)", "tt/0[0, 1)"))
    assert TapFilter().wants(record(value=None))
    assert document_of(b"[" * 100_000) is NO_DOCUMENT


def test_a_filter_reads_a_block_in_order_and_a_sample_reads_one_run_of_it() -> None:
    assert list(places(250, 10, True, random.Random(1))) == [(0, 100), (100, 100), (200, 50)]
    seen = {next(iter(places(50, 3, False, random.Random(seed)))) for seed in range(50)}
    assert len(seen) > 5 and all(count == 3 and 0 <= first <= 47 for first, count in seen)
    assert list(places(2, 3, False, random.Random(1))) == [(0, 2)]
    assert list(places(5, 0, False, random.Random(1))) == []


def test_a_record_is_printed_as_one_safe_line() -> None:
    hostile = record(key=b"\x1b[2J\n", value="航空\u202e\r\n".encode(), topic="t\x1b]0;x\x07")
    line = as_text(hostile)
    assert line == "1970-01-01T00:00:00.000Z  t\\x1b]0;x\\x07/0@1  \\x1b[2J\\n  航空\\u202e\\r\\n"
    assert as_text(record(value=b"\xff\x00", key=None)).endswith("  null  0xff00")
    assert as_text(record(value=None, truncated=True)).endswith("  null …")
    assert as_text(record(), (parse_path("a"), parse_path("b"))).endswith("  k  a=1 b=")
    assert as_text(record(value=b"x"), (parse_path("a"),)).endswith("(no JSON) x")


def test_a_record_is_printed_as_one_json_document() -> None:
    headers = (m.HeaderEntry(name="h\x9b", value=b"\xff"), m.HeaderEntry(name="n", value=None))
    line = as_json(record(headers=headers))
    assert "\x9b" not in line and "\n" not in line
    assert json.loads(line) == {
        "topic": "t", "partition": 0, "offset": 1, "timestamp_ms": 0, "key": "k", "value_json": {"a": 1},
        "headers": [{"name": "h\x9b", "value_base64": "/w=="}, {"name": "n", "value": None}],
    }  # fmt: skip
    assert json.loads(as_json(record(), (parse_path("a"),)))["parts"] == {"a": [1]}
    assert json.loads(as_json(record(value=b"x\xff", key=None)))["value_base64"] == "eP8="
    made = json.loads(as_json(cut(record(), 3)))
    assert made["value"] == '{"a' and made["truncated"] and made["value_bytes"] == 8


def test_a_record_is_printed_as_hex() -> None:
    lines = as_hex(cut(record(value=bytes(range(40)), key=None), 20)).splitlines()
    assert lines[1:3] == ["  key: null", "  value: 40 bytes, the first 20 are shown"]
    assert lines[3] == "    00000000  00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f  |................|"
    assert lines[4].startswith("    00000010  10 11 12 13 ") and lines[4].endswith("|....|")


class StubbedClient:
    """A client of a driver that accepts blocks of ten records, and keeps the requests for records."""

    url = "http://driver"

    def __init__(self, clock: ManualClock, blocks: int, seconds_between: float = 0.0) -> None:
        self.requests: list[tuple[str, int, int]] = []
        self._clock, self._blocks, self._between = clock, blocks, seconds_between

    def events(self) -> Any:
        yield Event("overview", None)
        for number in range(self._blocks):
            self._clock.advance(self._between)
            yield Event("block-added", {"block_id": f"b{number}", "records": 10, "ranges": ["t/0[0, 5)", "u/0[0, 5)"]})
        yield Event("end", {"reason": "the driver is stopping"})

    def records(self, block_id: str, *, first: int, limit: int, bytes_max: int) -> m.RecordsAnswer:
        self.requests.append((block_id, first, limit))
        if block_id == "b1":
            raise RefusedError("it is deleted", "not-found")
        made = [record(offset, topic="t" if offset % 2 else "u") for offset in range(first, min(10, first + limit))]
        return m.RecordsAnswer(total=10, records=tuple(made))


def tapped(
    client: StubbedClient, clock: ManualClock, capsys: Any, rate: int, limit: int | None, **chosen: Any
) -> list[str]:
    tap = Tap(
        Invocation(),
        TapFilter(**chosen),
        shown=as_text,
        rate=rate,
        limit=limit,
        bytes_max=100,
        clock=clock,
        choice=random.Random(1),
    )
    made: Any = client
    if limit is None:
        with pytest.raises(UnreachableError, match="the driver is stopping"):
            tap.follow(made)
    else:
        tap.follow(made)
    tap.report()
    return [line for line in capsys.readouterr().out.splitlines() if line]


def test_a_sample_keeps_to_its_rate(capsys: pytest.CaptureFixture[str]) -> None:
    """INV-6: a stream of any rate costs the driver a bounded number of requests for records."""
    clock = ManualClock()
    client = StubbedClient(clock, 100, seconds_between=0.1)
    lines = tapped(client, clock, capsys, 5, None)
    assert 45 <= len(lines) <= 56
    assert sum(limit for _, _, limit in client.requests) <= 66


def test_a_filter_searches_a_block_until_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock()
    client = StubbedClient(clock, 9)
    lines = tapped(client, clock, capsys, 100, 7, topic="t")
    assert len(lines) == 7 and all(" t/0@" in line for line in lines)
    assert [block for block, _, _ in client.requests] == ["b0", "b1", "b2"], "a deleted block is passed over"


def test_blocks_without_wanted_records_are_not_read(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock()
    client = StubbedClient(clock, 5)
    assert tapped(client, clock, capsys, 100, None, topic="other") == []
    assert client.requests == []


class StoredBlocks:
    """A client of a driver with blocks of 80,000 records, and the requests for records."""

    url = "http://driver"

    def __init__(self) -> None:
        self.requests: list[tuple[str, int, int]] = []

    def blocks(self, **_: Any) -> Any:
        entries = tuple(SimpleNamespace(block_id=name, records=80_000) for name in ("newer", "older"))
        return SimpleNamespace(blocks=entries)

    def records(self, block_id: str, *, first: int, limit: int, bytes_max: int) -> m.RecordsAnswer:
        self.requests.append((block_id, first, limit))
        made = tuple(record(offset) for offset in range(first, min(80_000, first + limit)))
        return m.RecordsAnswer(total=80_000, records=made)


def test_newest_records_are_read_from_the_end_of_a_block(capsys: pytest.CaptureFixture[str]) -> None:
    """INV-6: the driver reads a whole block for each request."""
    client: Any = StoredBlocks()
    Tap(Invocation(), TapFilter(), shown=as_text, rate=10, limit=20, bytes_max=100).stored(client)
    assert client.requests == [("newer", 79_980, 20)]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 20 and "t/0@79980" in lines[0] and "t/0@79999" in lines[-1]


def test_filter_searches_the_last_thousand_records_of_each_stored_block() -> None:
    client: Any = StoredBlocks()
    Tap(Invocation(), TapFilter(key="absent"), shown=as_text, rate=10, limit=20, bytes_max=100).stored(client)
    assert client.requests == [
        (block, first, 100) for block in ("newer", "older") for first in range(79_000, 80_000, 100)
    ]
