"""The types with which a state keeps its columns."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest

from forebay.model.errors import UsageError
from wal.keyed.schema import StateSchema

TEXT, VIEW, BYTES = pa.string(), pa.string_view(), pa.binary_view()
LABELS = pa.dictionary(pa.int32(), pa.string())
LISTS = cast(Any, pa).dictionary(pa.int32(), pa.list_(pa.string()))


def kept_as(type_: pa.DataType) -> pa.DataType:
    kept: pa.DataType = (
        StateSchema.checked("s", "k", pa.schema([("k", pa.int64()), ("v", type_)])).columns.field("v").type
    )
    return kept


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (LABELS, TEXT),
        (pa.dictionary(pa.int8(), pa.int64()), pa.int64()),
        (VIEW, TEXT),
        (BYTES, pa.binary()),
        (pa.large_string(), TEXT),
        (pa.list_(LABELS), pa.list_(TEXT)),
        (pa.list_(pa.field("item", VIEW, nullable=False)), pa.list_(pa.field("item", TEXT, nullable=False))),
        (pa.large_list(BYTES), pa.large_list(pa.binary())),
        (pa.list_(LABELS, 2), pa.list_(TEXT, 2)),
        (pa.struct([("a", LABELS), ("b", pa.int8())]), pa.struct([("a", TEXT), ("b", pa.int8())])),
        (pa.map_(VIEW, pa.list_(pa.struct([("a", LABELS)]))), pa.map_(TEXT, pa.list_(pa.struct([("a", TEXT)])))),
        # files of older releases have these
        (pa.list_(pa.large_string()), pa.list_(pa.large_string())),
        (pa.list_view(pa.int32()), pa.list_view(pa.int32())),
        (pa.uuid() if hasattr(pa, "uuid") else TEXT, pa.uuid() if hasattr(pa, "uuid") else TEXT),
    ],
    ids=str,
)
def test_dictionaries_and_views_are_kept_as_the_type_of_their_values(given: pa.DataType, kept: pa.DataType) -> None:
    assert kept_as(given) == kept


@pytest.mark.parametrize(
    "given",
    [
        pa.list_view(LABELS),
        pa.struct([("a", pa.list_view(VIEW))]),
        pa.run_end_encoded(pa.int32(), pa.string()),
        LISTS,
        pa.sparse_union([pa.field("a", VIEW)]),
    ],
    ids=str,
)
def test_type_that_arrow_can_not_make_plain_is_refused(given: pa.DataType) -> None:
    with pytest.raises(
        UsageError, match=r"state 's': column 'v' has type .*, which a state can't keep: use a plain type"
    ):
        kept_as(given)


@pytest.mark.parametrize("stored", [LABELS, pa.list_(VIEW)], ids=str)
def test_state_of_an_older_release_with_dictionaries_or_views_goes_on(stored: pa.DataType) -> None:
    columns = pa.schema([("k", pa.int64()), ("v", stored)])
    schema = StateSchema.checked("s", "k", columns)
    schema.check_successor_of(("k",), columns, ())
    values: list[Any] = ["a", None] if stored == LABELS else [["a"], None]
    of_file = pa.table({"k": [1, 2], "v": pa.array(values, stored)})
    assert schema.evolved(of_file).column("v").to_pylist() == values
    with pytest.raises(UsageError, match="has type"):
        StateSchema.checked("s", "k", pa.schema([("k", pa.int64()), ("v", pa.int64())])).check_successor_of(
            ("k",), columns, ()
        )
