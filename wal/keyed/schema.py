"""Columns of a keyed state: those of the user, and those that its files have in addition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.types as types

from forebay.model.errors import UsageError
from forebay.model.identifiers import check_name

UPDATED = "__updated_ms"
DELETED = "__deleted"
#: prefix of columns that the user can't have
_RESERVED = "__"
#: maximum numbers of columns and of key columns
COLUMNS_MAX = 1_000
KEYS_MAX = 16


@dataclass(frozen=True, slots=True)
class StateSchema:
    """Name and columns of a keyed state. ``key``: names of the key columns, in order. ``columns``: all columns of the user."""

    name: str
    key: tuple[str, ...]
    columns: pa.Schema

    @classmethod
    def checked(cls, name: str, key: str | Sequence[str], columns: pa.Schema) -> StateSchema:
        """Return the schema. Raises UsageError if a state can't have it."""
        names = (key,) if isinstance(key, str) else tuple(key)
        try:
            check_name("state", name)
        except ValueError as error:
            raise UsageError(str(error)) from None
        where = f"state {name!r}"
        if not 1 <= len(names) <= KEYS_MAX or len(set(names)) != len(names):
            raise UsageError(f"{where}: key must name 1 to {KEYS_MAX} different columns, not {list(names)}")
        if len(columns) > COLUMNS_MAX or len(set(columns.names)) != len(columns.names):
            raise UsageError(f"{where}: the schema must have at most {COLUMNS_MAX} columns, with different names")
        for column in columns.names:
            if column.startswith(_RESERVED):
                raise UsageError(f"{where}: column {column!r}: names that begin with {_RESERVED!r} are reserved")
        for column in names:
            if column not in columns.names:
                raise UsageError(
                    f"{where}: the key column {column!r} is not in the schema ({', '.join(columns.names)})"
                )
            if not is_key_type(columns.field(column).type):
                raise UsageError(
                    f"{where}: the key column {column!r} has type {columns.field(column).type}: a key can be an integer, "
                    "text, bytes, a boolean, a date or a timestamp"
                )
        kept: list[tuple[str, pa.DataType]] = []
        for f in columns:
            type_ = _plain(f.type)
            if type_ is None:
                raise UsageError(
                    f"{where}: column {f.name!r} has type {f.type}, which a state can't keep: use a plain type, such as string "
                    "for a dictionary of strings, or list for a list view"
                )
            kept.append((f.name, type_))
        return cls(name, names, pa.schema(kept))

    @property
    def keys(self) -> pa.Schema:
        """The key columns alone."""
        return pa.schema([self.columns.field(name) for name in self.key])

    @property
    def of_files(self) -> pa.Schema:
        """The columns of the state's files."""
        return pa.schema([*self.columns, pa.field(UPDATED, pa.int64()), pa.field(DELETED, pa.bool_())])

    def conform(self, rows: Any, wanted: pa.Schema, what: str) -> pa.Table:
        """Return ``rows`` with exactly the columns ``wanted``, cast where that loses nothing. Raises UsageError."""
        table = as_table(rows, what)
        missing = [name for name in wanted.names if name not in table.column_names]
        if missing:
            raise UsageError(f"state {self.name!r}: {what} lack the columns {', '.join(missing)}")
        try:
            return table.select(wanted.names).cast(wanted)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
            raise UsageError(f"state {self.name!r}: {what} do not fit its schema: {error}") from None

    def evolved(self, table: pa.Table) -> pa.Table:
        """Return rows of a file, perhaps of an older schema: new columns are null, removed ones are left out."""
        wanted = self.of_files
        if table.schema.equals(wanted):
            return table
        arrays = [
            table.column(f.name).cast(f.type) if f.name in table.column_names else pa.nulls(table.num_rows, f.type)
            for f in wanted
        ]
        return pa.table(arrays, schema=wanted)

    def left_out_of(self, columns: pa.Schema, left_out: Sequence[str]) -> tuple[str, ...]:
        """Return the names of columns that a state with ``columns`` and ``left_out`` has had and this schema does not have."""
        return tuple(sorted({*columns.names, *left_out} - set(self.columns.names)))

    def check_successor_of(self, key: Sequence[str], columns: pa.Schema, left_out: Sequence[str]) -> None:
        """Raise UsageError if a state with ``key`` and ``columns``, and earlier the columns ``left_out``, can't continue with
        this schema."""
        if tuple(key) != self.key:
            raise UsageError(f"state {self.name!r} has the key {list(key)}, not {list(self.key)}: use another name")
        for f in self.columns:
            at = columns.get_field_index(f.name)
            # states of older releases may have dictionaries and views in their schema; evolved() casts their rows
            if at >= 0 and f.type not in (columns.field(at).type, _plain(columns.field(at).type)):
                raise UsageError(
                    f"state {self.name!r}: column {f.name!r} has type {columns.field(at).type}, not {f.type}: "
                    "use another name for the column"
                )
            if f.name in left_out:
                raise UsageError(
                    f"state {self.name!r}: column {f.name!r} was left out by an earlier batch, and files may still have its old "
                    "values: use another name for the column"
                )


def as_table(rows: Any, what: str) -> pa.Table:
    """Return a Table, RecordBatch, RecordBatchReader or iterable of record batches as a Table. Raises UsageError."""
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if isinstance(rows, pa.RecordBatchReader):
        return rows.read_all()
    try:
        batches = list(rows)
        return pa.Table.from_batches(batches)
    except (TypeError, ValueError, pa.ArrowInvalid) as error:
        raise UsageError(
            f"{what} must be a DataFrame, a pyarrow Table or record batches of one schema: {error}"
        ) from None


def is_key_type(type_: pa.DataType) -> bool:
    return (
        types.is_integer(type_)
        or types.is_boolean(type_)
        or types.is_date(type_)
        or types.is_timestamp(type_)
        or is_variable(type_)
    )


def is_variable(type_: pa.DataType) -> bool:
    """Whether values of the type have different lengths in bytes."""
    return (
        types.is_string(type_) or types.is_large_string(type_) or types.is_binary(type_) or types.is_large_binary(type_)
    )


def without_views(table: pa.Table, what: str) -> pa.Table:
    """Return the table with its views as plain types: Arrow can't select rows of a view. Raises UsageError."""
    for at, field in enumerate(table.schema):
        if any(_is_view(type_) or types.is_run_end_encoded(type_) for type_ in _parts(field.type)):
            plain = _plain(field.type)
            if plain is None:
                raise UsageError(
                    f"{what}: Arrow can't select rows of the column {field.name!r} of type {field.type}: cast it to a plain "
                    "type, or leave it out"
                )
            table = table.set_column(at, field.name, table.column(at).cast(plain))
    return table


def _plain(type_: pa.DataType) -> pa.DataType | None:
    """Return the type with which a state keeps values of ``type_``; None if it can't keep them.

    A file can have only one dictionary for a column, and Arrow can't select rows of a view. So both become the type of their
    values, in lists, structs and maps too.
    """
    if types.is_large_string(type_):
        return pa.string()
    if types.is_large_binary(type_):
        return pa.binary()
    return _without_dictionaries(type_)


def _without_dictionaries(type_: Any) -> pa.DataType | None:
    if types.is_string_view(type_):
        return pa.string()
    if types.is_binary_view(type_):
        return pa.binary()
    if types.is_dictionary(type_):
        # Arrow can't cast a dictionary of nested values to them
        return None if _is_view(type_.value_type) or types.is_nested(type_.value_type) else _plain(type_.value_type)
    if not any(_is_view(part) or types.is_dictionary(part) or types.is_run_end_encoded(part) for part in _parts(type_)):
        kept: pa.DataType = type_
        return kept
    fields = [_plain_field(field) for field in _children(type_)]
    if any(field is None for field in fields):
        return None
    make: Any = pa  # its stubs know no fields in a map or a list
    made: pa.DataType | None = None  # Arrow can't cast list views, unions and extensions to others
    if types.is_struct(type_):
        made = make.struct(fields)
    elif types.is_map(type_):
        made = make.map_(*fields, type_.keys_sorted)
    elif types.is_fixed_size_list(type_):
        made = make.list_(fields[0], type_.list_size)
    elif types.is_large_list(type_):
        made = make.large_list(fields[0])
    elif types.is_list(type_):
        made = make.list_(fields[0])
    return made


def _plain_field(field: pa.Field[Any]) -> pa.Field[Any] | None:
    type_ = _without_dictionaries(field.type)
    return None if type_ is None else field.with_type(type_)


def _parts(type_: Any) -> Iterator[pa.DataType]:
    """Yield the type and all types in it."""
    yield type_
    for field in _children(type_):
        yield from _parts(field.type)


def _children(type_: Any) -> list[pa.Field[Any]]:
    if isinstance(type_, pa.BaseExtensionType):
        return [pa.field("storage", type_.storage_type)]
    if types.is_map(type_):
        return [type_.key_field, type_.item_field]
    if types.is_struct(type_) or types.is_union(type_):
        return [type_.field(at) for at in range(type_.num_fields)]
    if types.is_run_end_encoded(type_) or types.is_dictionary(type_):
        return [pa.field("values", type_.value_type)]
    items = getattr(type_, "value_field", None)  # of each kind of list
    return [] if items is None else [items]


def _is_view(type_: pa.DataType) -> bool:
    return types.is_string_view(type_) or types.is_binary_view(type_)
