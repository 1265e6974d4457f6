"""Decode functions of whole record batches, and how the records that they can't take are found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from driver.batches.tasks.decoding import Decoder
from forebay.model.errors import UsageError
from forebay.model.records import DATAFRAME_SCHEMA
from tests.driver.batches.tasks.test_decoding import NUMBERS, Decoding, decode, numbers
from tests.support.state.columns import schema_of
from tests.support.state.rows import Row


def arrow_numbers(batch: pa.RecordBatch) -> pa.RecordBatch:
    values = batch.column("value").cast(pa.string()).cast(pa.int64())
    return pa.RecordBatch.from_arrays([batch.column("offset"), values], schema=NUMBERS)


def test_where_a_function_of_record_batches_raises_the_very_records_are_found_by_halving(tmp_path: Path) -> None:
    decoding = Decoding(tmp_path)
    rows: list[Any] = []
    calls: list[int] = []

    def counted(batch: pa.RecordBatch) -> pa.RecordBatch:
        calls.append(batch.num_rows)
        return arrow_numbers(batch)

    decoding.run(decoding.work({("a", 0): numbers(1000, bad=(17, 800))}), decode(rows, counted, arrow=True))
    assert [row["offset"] for row in rows] == [n for n in range(1000) if n not in (17, 800)]
    assert [row["offset"] for row in decoding.rows()] == [17, 800]
    assert len(calls) < 60


def test_a_function_of_record_batches_may_say_itself_which_records_it_can_not_take(tmp_path: Path) -> None:
    decoding = Decoding(tmp_path)
    rows: list[Any] = []

    def judging(batch: pa.RecordBatch) -> Any:
        values = batch.column("value").to_pylist()
        kept = batch.filter(pa.array([value != b"bad" for value in values]))
        return arrow_numbers(kept), [None if value != b"bad" else "no number" for value in values]

    decoding.run(decoding.work({("a", 0): numbers(6, bad=(0, 5))}), decode(rows, judging, arrow=True))
    assert [row["offset"] for row in rows] == [1, 2, 3, 4]
    assert [(row["offset"], row["cause"]) for row in decoding.rows()] == [(0, "no number"), (5, "no number")]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (lambda batch: batch, "return a record batch with the columns offset, number"),
        (lambda batch: None, "returned NoneType"),
        (lambda batch: (arrow_numbers(batch), ["x"]), "returned 1 causes of errors for 2 records"),
    ],
)
def test_a_function_of_record_batches_that_returns_something_else_is_refused(
    tmp_path: Path, given: Any, message: str
) -> None:
    decoding = Decoding(tmp_path)
    with pytest.raises(UsageError, match=message):
        decoding.run(decoding.work({("a", 0): numbers(2)}), decode([], given, arrow=True))


def test_the_example_s_function_takes_flights_and_leaves_the_rest_to_the_dead_letters(tmp_path: Path) -> None:
    from deploy.examples.dead_letters import jobs

    schema = schema_of(carrier=pa.string(), flight=pa.int64(), dep_delay=pa.float64(), origin=pa.string())
    good = {"carrier": "AA", "flight": 7, "dep_delay": 5.5, "origin": "JFK", "dest": "LAX"}
    values = [
        json.dumps(good).encode(), None, b"{", json.dumps({**good, "dep_delay": None}).encode(),
        json.dumps({**good, "flight": "seven"}).encode(), json.dumps({"dep_delay": 1}).encode(),
    ]  # fmt: skip
    decoding = Decoding(tmp_path)
    rows: list[Any] = []
    work = decoding.work({("flights", 0): [Row(None, value, n) for n, value in enumerate(values)]})
    decoding.run(
        work, lambda batch: [rows.extend(part.to_pylist()) for part in batch.read_decoded(jobs.flight, schema)]
    )
    assert [row["carrier"] for row in rows] == ["AA"]
    assert {row["offset"]: row["cause"].partition(":")[0] for row in decoding.rows()} == {
        2: "JSONDecodeError", 4: "ArrowInvalid", 5: "KeyError",
    }  # fmt: skip
    assert [field.strip().split()[0] for field in jobs.SCHEMA.split(",")] == schema.names


@pytest.mark.parametrize("arrow", [False, True])
def test_the_cause_of_a_dead_letter_is_bounded(arrow: bool) -> None:
    """INV-6: it may hold what the record does."""
    batch = pa.RecordBatch.from_pylist([{"value": b"x" * 5_000, "offset": 0}], schema=DATAFRAME_SCHEMA(False))

    def raising(given: Any) -> Any:
        raise ValueError(given.value if not arrow else given.column("value")[0].as_py())

    def telling(given: pa.RecordBatch) -> Any:
        return arrow_numbers(given.slice(1)), ["x" * 5_000]

    for function in (raising, telling)[: 1 + arrow]:
        assert len(Decoder(function, NUMBERS, arrow).decode(batch).causes[0]) == 1_000
