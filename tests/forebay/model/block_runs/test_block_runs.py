"""Blocks that are decoded together: accepted only if each of them is accepted alone, and with the same rows."""

from __future__ import annotations

import random
import struct
from collections.abc import Mapping, Sequence

import msgspec
import pyarrow as pa
import pytest
from msgspec.structs import replace

from forebay.model.arrow_columns import Column
from forebay.model.arrow_sizes import decompressed_sizes
from forebay.model.block_runs import decoding
from forebay.model.block_runs.decoding import OpenBlock, decode_run, open_block
from forebay.model.block_runs.joining import join
from forebay.model.block_runs.messages import Form
from forebay.model.errors import CorruptionError
from forebay.model.payload import Compression, decode_block
from forebay.model.values import BlockMeta
from tests.support.state.rows import ODD_ROWS, Row, block, filler


def alone(payload: object, meta: BlockMeta) -> pa.Table:
    return pa.Table.from_batches([batch for _, own in decode_block(payload, meta) for batch in own])


def two(compression: Compression = "none", headers: bool = False) -> list[tuple[BlockMeta, bytes]]:
    made = [
        block({("a", 0): ODD_ROWS, ("b", 1): filler(4)}, sequence=1, headers=headers, compression=compression),
        block(
            {("a", 0): filler(6, start=20), ("b", 2): filler(4)},
            sequence=2, headers=headers, compression=compression, rows_per_batch=2,
        ),
    ]  # fmt: skip
    return [(meta, payload.to_pybytes()) for meta, payload in made]


def opened(blocks: Sequence[tuple[BlockMeta, bytes]]) -> list[OpenBlock]:
    found: list[OpenBlock] = []
    for meta, payload in blocks:
        found.append(open_block(payload, meta, found[-1] if found else None))
    return found


@pytest.mark.parametrize("headers", [False, True])
@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_blocks_with_equal_heads_are_decoded_as_each_alone(compression: Compression, headers: bool) -> None:
    blocks = two(compression, headers)
    together = opened(blocks)
    assert together[0].head == together[1].head
    expected = pa.concat_tables([alone(payload, meta) for meta, payload in blocks])
    assert pa.Table.from_batches([decode_run(together, verify_digests=True)]).equals(expected)


def by_arrow(blocks: Sequence[OpenBlock]) -> pa.RecordBatch:
    return decode_run([replace(block, form=None) for block in blocks], verify_digests=True)


def test_plain_blocks_are_joined_as_arrow_joins_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of 1 to 5 blocks, with and without nulls, of one to three topics, with 1 to 90 rows of each."""
    draw = random.Random(5)
    joined: list[int] = []

    def counted(form: Form, parts: Sequence[tuple[memoryview, Sequence[int]]], topics: Column) -> pa.RecordBatch:
        joined.append(len(parts))
        return join(form, parts, topics)

    monkeypatch.setattr(decoding, "join", counted)
    for run in range(60):
        nulls = draw.random() if run % 3 else 0.0
        topics = [f"t{number}" for number in range(draw.randrange(1, 4))]
        made = []
        for sequence in range(1, draw.randrange(2, 7)):
            rows = [random_rows(draw, draw.randrange(1, 90), nulls) for _ in topics]
            meta, payload = block(
                {(topic, sequence): own for topic, own in zip(topics, rows, strict=True)},
                sequence=sequence,
            )  # fmt: skip
            made.append((meta, payload.to_pybytes()))
        together = opened(made)
        assert all(block.form is not None for block in together)
        found = decode_run(together, verify_digests=True)
        assert joined.pop() == len(together)
        assert found.equals(by_arrow(together))
        nulls_of = [[batch.column(number).null_count for number in range(7)] for batch in (found, by_arrow(together))]
        assert nulls_of[0] == nulls_of[1]


def random_rows(draw: random.Random, count: int, nulls: float) -> list[Row]:
    def value() -> bytes | None:
        return None if draw.random() < nulls else draw.randbytes(draw.choice((0, 1, 30)))

    return [Row(value(), value(), 2 * number, 1_700_000_000_000 + number) for number in range(count)]


@pytest.mark.parametrize(("compression", "headers"), [("none", True), ("lz4", False)])
def test_other_blocks_are_joined_by_arrow(compression: Compression, headers: bool) -> None:
    assert [one.form for one in opened(two(compression, headers))] == [None, None]


def test_blocks_of_two_forms_are_joined_by_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release of Arrow may describe the same record batch by other bytes."""
    together = opened(two())
    other = opened([two()[1]])[0]
    assert other.form is not None
    monkeypatch.setattr(other.form, "columns_at", 1)
    expected = decode_run(together)
    monkeypatch.delattr(decoding, "join")
    assert decode_run([together[0], other]).equals(expected)


@pytest.mark.parametrize("column", range(7))
def test_no_number_of_a_description_is_accepted_that_arrow_refuses(column: int) -> None:
    """INV-5: each number of the second record batch, with values that lead out of the column, the body or the memory."""
    meta, payload = block({("a", 0): filler(9), ("a", 1): ODD_ROWS})
    data = payload.to_pybytes()
    whole = open_block(data, meta)
    assert whole.form is not None
    second = len(whole.head) + whole.places[1]
    first_buffer = (0, 3, 6, 8, 10, 12, 14)[column]
    places = [second + whole.form.columns_at + 16 * column + at for at in (0, 8)]
    buffers = range(first_buffer, first_buffer + (3 if column < 2 else 2))
    places += [second + whole.form.buffers_at + 16 * buffer + at for buffer in buffers for at in (0, 8)]
    refused = accepted = 0
    for place in places:
        (number,) = struct.unpack_from("<q", data, place)
        for wrong in (
            -1,
            0,
            1,
            3,
            number - 1,
            number + 1,
            number + 8,
            number - 8,
            1 << 20,
            1 << 31,
            1 << 62,
            -(1 << 62),
        ):
            changed = bytearray(data)
            struct.pack_into("<q", changed, place, wrong)
            try:
                rows = decode_run([open_block(bytes(changed), meta, whole)])
            except ValueError:
                refused += 1
                continue
            accepted += 1
            assert pa.Table.from_batches([rows]).equals(alone(bytes(changed), meta))
    assert refused > 15
    assert accepted > 0


def changed_numbers(data: bytes, changes: Mapping[int, tuple[str, int]]) -> bytes:
    changed = bytearray(data)
    for place, (format_, number) in changes.items():
        struct.pack_into(format_, changed, place, number)
    return bytes(changed)


def refused_together(data: bytes, meta: BlockMeta, form_of: OpenBlock) -> None:
    """The damage is refused alone, and by the join."""
    with pytest.raises(CorruptionError):
        alone(data, meta)
    one = open_block(data, meta, form_of)
    assert one.form is not None
    with pytest.raises(ValueError, match=r"value|offset|null"):
        decode_run([one])


@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize("change", ["first below 0", "one lower", "last higher"])
def test_places_of_values_that_lead_out_of_their_column_are_refused(column: int, change: str) -> None:
    meta, payload = block({("a", 0): filler(9), ("a", 1): filler(4)})
    data = payload.to_pybytes()
    whole = open_block(data, meta)
    assert whole.form is not None
    second = len(whole.head) + whole.places[1]
    (offset,) = struct.unpack_from("<q", data, second + whole.form.buffers_at + 16 * (3 * column + 1))
    slots = second + whole.form.length + offset
    place, number = {"first below 0": (slots, -8), "one lower": (slots + 8, 0), "last higher": (slots + 16, 1 << 20)}[
        change
    ]
    refused_together(changed_numbers(data, {place: ("<i", number)}), meta, whole)


def test_numbers_of_nulls_that_only_fit_together_are_refused() -> None:
    """Arrow checks the first record batch, so these are the second and the third."""
    meta, payload = block({("a", 0): filler(4), ("a", 1): ODD_ROWS, ("a", 2): ODD_ROWS})
    data = payload.to_pybytes()
    whole = open_block(data, meta)
    assert whole.form is not None
    places = [len(whole.head) + place + whole.form.columns_at + 8 for place in whole.places[1:]]
    assert [struct.unpack_from("<q", data, place)[0] for place in places] == [2, 2]
    refused_together(changed_numbers(data, {places[0]: ("<q", 1), places[1]: ("<q", 3)}), meta, whole)


@pytest.mark.parametrize("rows", [-1, 1 << 20, (1 << 62) - 1, 1 << 62])
def test_rows_that_all_columns_name_but_their_bytes_lack_are_refused(rows: int) -> None:
    """Multiplied by the width of a column, the largest become small again."""
    meta, payload = block({("a", 0): filler(9), ("a", 1): filler(4)})
    data = payload.to_pybytes()
    whole = open_block(data, meta)
    assert whole.form is not None
    first = len(whole.head) + whole.places[1] + whole.form.columns_at
    changed = changed_numbers(data, {first + 16 * column: ("<q", rows) for column in range(7)})
    one = open_block(changed, meta, whole)
    assert one.form is not None
    with pytest.raises(ValueError, match="number of rows is more"):
        decode_run([one])


def test_null_in_a_column_of_numbers_is_refused() -> None:
    meta, payload = block({("a", 0): filler(4)})
    with pa.ipc.open_stream(payload) as reader:
        (batch,) = list(reader)
    columns = batch.columns
    columns[5] = pa.array([0, None, 0, 0], pa.timestamp("ms", "UTC"))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=batch.schema))
    data = sink.getvalue().to_pybytes()
    refused_together(data, meta, open_block(data, meta))


def test_record_batch_that_says_it_is_empty_or_ends_before_it_begins_is_refused() -> None:
    """A body of negative length would make the search for the next record batch endless."""
    meta, payload = block({("a", 0): filler(9), ("a", 1): filler(4)})
    data = payload.to_pybytes()
    whole = open_block(data, meta)
    assert whole.form is not None
    second = len(whole.head) + whole.places[1]
    description = data[second : second + whole.form.length]
    rows_at = [at for at in range(8, len(description), 4) if description[at : at + 8] == struct.pack("<q", 4)]
    assert len(rows_at) >= 8
    fewer = msgspec.structs.replace(meta.ranges[1], records=0)
    without = msgspec.structs.replace(meta, ranges=(meta.ranges[0], fewer), records=9)
    none = changed_numbers(data, {second + at: ("<q", 0) for at in rows_at})
    with pytest.raises(CorruptionError):
        alone(none, without)
    with pytest.raises(ValueError, match="empty record batch"):
        open_block(none, without, whole)
    length = struct.pack("<q", len(whole.body) - whole.places[1] - whole.form.length)
    back = changed_numbers(data, {second + description.index(length): ("<q", -whole.form.length)})
    with pytest.raises(ValueError, match="another form"):
        open_block(back, meta, whole)


def test_block_without_records_is_not_decoded_with_others() -> None:
    meta, payload = block({("a", 0): []})
    with pytest.raises(ValueError, match="Arrow stream"):
        open_block(payload, meta)


def test_columns_that_decompress_to_more_than_the_ranges_allow_are_refused() -> None:
    """INV-6: before anything is decompressed."""
    meta, payload = block({("a", 0): filler(1000, size=4000)}, compression="zstd")
    assert max(max(sizes) for sizes in decompressed_sizes(payload)) > 1_000_000
    open_block(payload, meta)
    declared = msgspec.structs.replace(meta, ranges=(msgspec.structs.replace(meta.ranges[0], bytes=10_000),))
    with pytest.raises(ValueError, match="decompress to"):
        open_block(payload, declared)


def test_number_of_records_of_each_block_is_checked_before_it_is_joined() -> None:
    """A record that moved from one block to its neighbour is damage of both."""
    meta, payload = block({("a", 0): filler(4)})
    fewer = msgspec.structs.replace(meta.ranges[0], records=3)
    with pytest.raises(ValueError, match="4 records, its metadata says 3"):
        open_block(payload, msgspec.structs.replace(meta, ranges=(fewer,), records=3))


@pytest.mark.parametrize("compression", ["none", "lz4"])
def test_no_damage_is_accepted_together_that_is_refused_alone(compression: Compression) -> None:
    """INV-5: 1,500 streams with flipped bits, cut or joined parts; none leads outside of its memory."""
    draw = random.Random(11)
    blocks = two(compression)
    whole = opened(blocks)
    refused = accepted = 0
    for _ in range(1500):
        which = draw.randrange(2)
        meta, payload = blocks[which]
        changed = bytearray(payload)
        for _ in range(draw.choice((1, 1, 2, 8))):
            changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
        if not draw.randrange(5):
            del changed[draw.randrange(len(changed)) :]
        if not draw.randrange(5):
            begin = draw.randrange(0, len(changed), 8)
            changed[begin:begin] = payload[begin : begin + 8 * draw.randrange(40)]
        damaged = bytes(changed)
        try:
            one = open_block(damaged, meta, draw.choice((None, whole[0])))
            rows = decode_run([whole[0], one] if one.head == whole[0].head else [one])
        except ValueError:
            refused += 1
            continue
        accepted += 1
        own = rows.slice(rows.num_rows - meta.records)
        try:
            expected = alone(damaged, meta)
        except CorruptionError as error:
            raise AssertionError(f"refused alone: {error}") from None
        assert pa.Table.from_batches([own]).equals(expected)
    assert refused > 300
    assert accepted > 100
