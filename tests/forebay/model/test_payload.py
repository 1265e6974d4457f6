"""The payload of a block: records are read back unchanged, and a payload that does not match its metadata is refused."""

from __future__ import annotations

import random
from datetime import datetime, timezone

import msgspec
import pyarrow as pa
import pytest

from forebay.model.digest import digest
from forebay.model.errors import CorruptionError
from forebay.model.payload import Compression, decode_block, encode_block
from forebay.model.records import (
    BLOCK_SCHEMA,
    DATAFRAME_SCHEMA,
    SOURCE_SCHEMA,
    RangeRows,
    as_source,
    extent,
    to_dataframe,
)
from forebay.model.values import BlockMeta, BlockRange, TopicPartition
from tests.support.state.rows import ODD_ROWS, Row, block, filler, source_batch


def changed(meta: BlockMeta, **fields: object) -> BlockMeta:
    """``meta`` with its only range changed."""
    range_ = msgspec.structs.replace(meta.ranges[0], **fields)
    return msgspec.structs.replace(meta, ranges=(range_,), records=range_.records)


@pytest.mark.parametrize("headers", [False, True])
@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_odd_values_are_read_back_unchanged(headers: bool, compression: str) -> None:
    meta, payload = block({("a", 1): ODD_ROWS, ("b", 0): ODD_ROWS}, headers=headers, compression=compression)  # type: ignore[arg-type]
    decoded = decode_block(payload, meta, verify_digests=True)
    assert [range_ for range_, _ in decoded] == list(meta.ranges)
    for range_, (batch,) in decoded:
        assert batch.schema == BLOCK_SCHEMA(headers)
        seen = to_dataframe(batch, range_.topic).drop_columns(["timestamp"]).to_pydict()
        assert seen["key"] == [row.key for row in ODD_ROWS]
        assert seen["value"] == [row.value for row in ODD_ROWS]
        assert seen["offset"] == [row.offset for row in ODD_ROWS]
        assert seen["timestampType"] == [row.timestamp_type for row in ODD_ROWS]
        assert set(seen["topic"]) == {range_.topic}
        assert set(seen["partition"]) == {range_.partition}
        assert batch.column("timestamp").view(pa.int64()).to_pylist() == [row.timestamp for row in ODD_ROWS]
        if headers:
            expected = [
                None if row.headers is None else [{"key": k, "value": v} for k, v in row.headers] for row in ODD_ROWS
            ]
            assert seen["headers"] == expected


def test_ranges_and_blocks_without_records_are_read_back() -> None:
    meta, payload = block({("a", 0): [], ("a", 1): filler(3), ("b", 0): []})
    decoded = decode_block(payload, meta, verify_digests=True)
    assert [sum(batch.num_rows for batch in batches) for _, batches in decoded] == [0, 3, 0]
    meta, payload = block({("a", 0): []})
    assert decode_block(payload, meta, verify_digests=True) == [(meta.ranges[0], [])]


def test_many_small_polls_become_few_record_batches() -> None:
    meta, payload = block({("a", 0): filler(10_000)}, rows_per_batch=100)
    ((_, batches),) = decode_block(payload, meta, verify_digests=True)
    assert len(batches) == 3


def test_an_uncompressed_payload_is_read_without_a_copy() -> None:
    meta, payload = block({("a", 0): filler(5_000, size=400)})
    before = pa.total_allocated_bytes()
    ((_, (batch,)),) = decode_block(payload, meta)
    assert pa.total_allocated_bytes() - before < payload.size // 10
    value = batch.column("value").buffers()[2]
    assert value is not None
    assert payload.address <= value.address < payload.address + payload.size


def test_timestamps_become_what_spark_shows() -> None:
    rows = [Row(None, None, n, timestamp) for n, timestamp in enumerate((-1, 0, 1_700_000_000_123, 2**63 - 1))]
    meta, payload = block({("a", 0): rows})
    ((_, (batch,)),) = decode_block(payload, meta)
    stamps = to_dataframe(batch, "a").column("timestamp")
    assert stamps.type == pa.timestamp("us", "UTC") == DATAFRAME_SCHEMA(False).field("timestamp").type
    assert stamps[0].as_py() == datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=timezone.utc)
    assert stamps.view(pa.int64()).to_pylist()[1:3] == [0, 1_700_000_000_123_000]
    assert stamps.view(pa.int64()).to_pylist()[3] == (2**63 - 1) // 1000 * 1000


def test_a_source_batch_of_another_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="schema"):
        encode_block([RangeRows(TopicPartition("a", 0), [source_batch(filler(1), headers=True)])], headers=False)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"records": 2}, "has 3 records"),
        ({"records": 4}, "has 3 records"),
        ({"from_offset": 1}, "out of bounds"),
        ({"until_offset": 12}, "out of bounds"),
        ({"topic": "other"}, "another topic"),
        ({"partition": 7}, "another partition"),
        ({"digest": "0" * 16}, "digest"),
    ],
)
def test_rows_that_do_not_fit_the_metadata_are_damage(fields: dict[str, object], reason: str) -> None:
    """INV-5: rows that are not exactly the range's are never returned."""
    rows = [Row(b"k", b"v", offset) for offset in (0, 5, 12)]
    meta, payload = block({("a", 0): rows})
    meta = changed(meta, until_offset=20)
    decode_block(payload, meta, verify_digests=True)
    with pytest.raises(CorruptionError, match=reason):
        decode_block(payload, changed(meta, **fields), verify_digests=True)


def test_rows_beyond_the_last_range_are_damage() -> None:
    meta, payload = block({("a", 0): filler(3), ("a", 1): filler(3)})
    short = msgspec.structs.replace(meta, ranges=meta.ranges[:1], records=3)
    with pytest.raises(CorruptionError, match="more records"):
        decode_block(payload, short)


def test_offsets_out_of_order_are_damage() -> None:
    rows = [Row(b"k", b"v", offset) for offset in (0, 2, 1, 3)]
    meta, payload = block({("a", 0): rows})
    with pytest.raises(CorruptionError, match="out of order"):
        decode_block(payload, meta)


def test_two_partitions_in_one_record_batch_are_damage() -> None:
    sink = pa.BufferOutputStream()
    columns = source_batch(filler(2)).columns
    topic = pa.array(["a", "a"]).dictionary_encode()
    batch = pa.RecordBatch.from_arrays(
        [columns[0], columns[1], topic, pa.array([0, 1], pa.int32()), columns[2],
         columns[3].view(pa.timestamp("ms", "UTC")), columns[4]],
        schema=BLOCK_SCHEMA(False),
    )  # fmt: skip
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    meta, _ = block({("a", 0): filler(2)})
    with pytest.raises(CorruptionError, match="another partition"):
        decode_block(sink.getvalue(), meta)


def test_null_timestamp_is_damage() -> None:
    meta, payload = block({("a", 0): filler(2)})
    with pa.ipc.open_stream(payload) as reader:
        (batch,) = list(reader)
    columns = batch.columns
    columns[5] = pa.array([None, 1], pa.timestamp("ms", "UTC"))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=batch.schema))
    with pytest.raises(CorruptionError, match="a timestamp is null"):
        decode_block(sink.getvalue(), meta)


def test_bytes_that_are_no_arrow_stream_are_damage() -> None:
    meta, payload = block({("a", 0): filler(3)})
    for bad in (b"", b"rubbish" * 10, payload.to_pybytes()[:200], payload.to_pybytes()[:-300]):
        with pytest.raises(CorruptionError) as caught:
            decode_block(bad, meta, path="wal/x.seg", offset=17)
        assert (caught.value.path, caught.value.offset) == ("wal/x.seg", 17)


def test_another_set_of_columns_is_damage() -> None:
    meta, payload = block({("a", 0): filler(3)}, headers=True)
    with pytest.raises(CorruptionError, match="columns"):
        decode_block(payload, msgspec.structs.replace(meta, headers=False))


def test_schemas_have_the_columns_of_sparks_kafka_source() -> None:
    names = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    for schema in (BLOCK_SCHEMA, DATAFRAME_SCHEMA):
        assert schema(False).names == names
        assert schema(True).names == [*names, "headers"]
    assert SOURCE_SCHEMA(True).names == ["key", "value", "offset", "timestamp", "timestampType", "headers"]


def test_a_range_knows_its_partition() -> None:
    meta, _ = block({("a", 3): filler(1)})
    assert isinstance(meta.ranges[0], BlockRange)
    assert meta.ranges[0].tp == TopicPartition("a", 3)


@pytest.mark.parametrize("headers", [False, True])
def test_decoded_rows_can_be_encoded_once_more_and_are_the_same(headers: bool) -> None:
    """A whole adopted range keeps its digest."""
    meta, payload = block({("a", 1): ODD_ROWS}, headers=headers)
    ((held, batches),) = decode_block(payload, meta)
    source = [as_source(batch) for batch in batches]
    assert [batch.schema for batch in source] == [SOURCE_SCHEMA(headers)]
    again = encode_block([RangeRows(held.tp, source)], headers)
    decode_block(again, meta, verify_digests=True)
    size = sum(len(row.key or b"") + len(row.value or b"") for row in ODD_ROWS)
    assert extent(source) == (size, max(row.timestamp for row in ODD_ROWS))


def test_the_extent_of_no_records_is_nothing() -> None:
    assert extent([]) == (0, -1)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("headers", [False, True])
def test_no_valid_block_is_refused_as_too_large(compression: Compression, headers: bool) -> None:
    """Slices of larger batches, empty keys and values, nulls, large records: what a range's bytes allow is always enough."""
    draw = random.Random(7)
    for size in (0, 1, 7, 300, 40_000):
        rows = [
            Row(
                draw.choice((None, b"", b"k" * draw.randrange(9))),
                draw.choice((None, bytes(size), b"x")),
                n,
                headers=[("h", b"")],
            )
            for n in range(draw.choice((1, 50, 5000 if size < 10 else 60)))
        ]
        meta, _ = block({("a", 0): rows}, headers=headers)
        whole = source_batch(rows, headers)
        begin = draw.randrange(len(rows))
        part = whole.slice(begin)
        bytes_, _ = extent([part])
        held = msgspec.structs.replace(
            meta.ranges[0], from_offset=begin, records=part.num_rows, digest=digest([part]), bytes=bytes_
        )
        meta = msgspec.structs.replace(meta, ranges=(held,), records=part.num_rows)
        steps = [part.slice(at, 7) for at in range(0, part.num_rows, 7)]
        payload = encode_block([RangeRows(TopicPartition("a", 0), steps)], headers, compression)
        assert decode_block(payload, meta, verify_digests=True)[0][0] == held
