"""Decoding by a schema registry for jobs: for ``batch.decode_arrow``, with dead letters, and for ``create_rdd``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa

from forebay.kafka.registry.client import FORMATS, PROTOBUF, Registry, RegistryAccess, check_readable
from forebay.model.errors import UsageError
from forebay.model.records import DATAFRAME_SCHEMA
from forebay.schemas.columns import ColumnDecoding, decode_column

COLUMNS = ("key", "value")


class ReaderSchema(msgspec.Struct, frozen=True):
    """The schema by which a column is decoded.

    ``format``: avro, json or protobuf. ``number``: of the schema; or ``subject`` and ``version`` (None: the newest version at the
    time of the request). ``message``: the full name of a Protobuf message; "" for the first one of the file.
    """

    format: str
    subject: str = ""
    version: int | None = None
    number: int | None = None
    message: str = ""


def find_columns(access: RegistryAccess, wanted: Mapping[str, ReaderSchema]) -> tuple[ColumnDecoding, ...]:
    """Request the schemas from the registry, and return how each column is decoded. ``wanted``: column (key or value) → schema.

    Raises UsageError if a schema does not exist or can't be a column, UnreachableError if the registry does not answer.
    """
    with Registry(access) as registry:
        made = tuple(_column(name, schema, access, registry) for name, schema in wanted.items())
    for one in made:
        one.format()
    return made


def _column(name: str, wanted: ReaderSchema, access: RegistryAccess, registry: Registry) -> ColumnDecoding:
    if name not in COLUMNS or wanted.format not in FORMATS:
        raise UsageError(f"cannot decode {name} as {wanted.format}; only key and value, as {', '.join(FORMATS)}")
    if wanted.number is None:
        schema = registry.version(wanted.subject, wanted.version, wanted.format)
    else:
        found = registry.schema(wanted.number, wanted.format)
        if found is None:
            raise UsageError(f"the schema registry has no schema {wanted.number}")
        schema = found
        check_readable(schema, wanted.format)
    return ColumnDecoding(name, schema, access, wanted.message if wanted.format == PROTOBUF else "")


class RegistryDecoder:
    """Decodes keys and values in a job. Can be pickled. The constructor requests the schemas.

    ``batch.decode_arrow(decoder, decoder.schema)``: records that can't be decoded become dead letters.
    ``create_rdd(…, value_deserializer=decoder.value)``: one record at a time.
    """

    def __init__(self, access: RegistryAccess, **columns: ReaderSchema) -> None:
        """``columns``: key, value or both. Raises as :func:`find_columns`."""
        self._columns = {one.column: one for one in find_columns(access, columns)}
        types = {name: one.format().type for name, one in self._columns.items()}
        #: schema of the decoded rows: the columns of a batch without headers
        self.schema = pa.schema(
            [pa.field(field.name, types.get(field.name, field.type)) for field in DATAFRAME_SCHEMA(False)]
        )

    def __call__(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[str | None]]:
        """Return the decoded rows, and for each record the cause if it can't be decoded. Raises UnreachableError."""
        columns: dict[str, Any] = {name: batch.column(name) for name in self.schema.names}
        causes: list[str | None] = [None] * batch.num_rows
        for name, one in self._columns.items():
            columns[name], failed = decode_column(one, batch)
            for row, cause in failed.items():
                causes[row] = "; ".join(filter(None, (causes[row], f"{name}: {cause}")))
        rows: Any = pa.RecordBatch.from_arrays(list(columns.values()), schema=self.schema)
        return rows.filter(pa.array([cause is None for cause in causes], pa.bool_())), causes

    def key(self, data: bytes) -> Any:
        """Return the decoded key, as :meth:`value` does."""
        return self._one("key", data)

    def value(self, data: bytes) -> Any:
        """Return the decoded value in Python's types. Raises ValueError if it can't be decoded; UnreachableError."""
        return self._one("value", data)

    def _one(self, name: str, data: bytes) -> Any:
        found = decode_column(self._columns[name], pa.record_batch({name: pa.array([data], pa.binary())}))
        if found.causes:
            raise ValueError(found.causes[0])
        try:
            return found.array[0].as_py()
        except OverflowError as error:  # a column holds times that Python's types do not
            raise ValueError(f"{name} has no value in Python's types: {error}") from None
