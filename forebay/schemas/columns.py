"""Keys and values of record batches, decoded: which columns, by which schema, and what could not be. What runs in tasks."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from forebay.errors import UsageError
from forebay.kafka.registry import AVRO, JSON, RegisteredSchema, Registry, RegistryAccess, check_format
from forebay.schemas.avro import AvroFormat
from forebay.schemas.bodies import Bodies, Decoded, Format
from forebay.schemas.framing import framed
from forebay.schemas.json_schema import JsonFormat
from forebay.schemas.protobuf import ProtobufFormat

#: writers' schemas that one column keeps ready; of more, it begins anew
_WRITERS_MAX = 1_000


class ColumnDecoding(msgspec.Struct, frozen=True):
    """How one column, ``key`` or ``value``, is decoded, by the reader's ``schema``. ``message``: of Protobuf, which of its
    messages. Can be pickled; shows no password."""

    column: str
    schema: RegisteredSchema
    access: RegistryAccess
    message: str = ""

    def format(self) -> Format:
        """Raises UsageError for a schema that no column can hold."""
        if self.schema.format == AVRO:
            return AvroFormat(self.schema)
        if self.schema.format == JSON:
            return JsonFormat(self.schema)
        return ProtobufFormat(self.schema, self.message)


class DecodedColumn(NamedTuple):
    """``array``: of the reader's type, null where the record is null or ``causes`` says by its index why it can't be decoded."""

    array: pa.Array[Any]
    causes: dict[int, str]


def decode_column(decoding: ColumnDecoding, batch: pa.RecordBatch) -> DecodedColumn:
    """``batch`` has the columns of Spark's Kafka source. A process keeps the schemas that it has asked for.

    Raises UnreachableError if the registry gives no answer, and UsageError if it refuses us: no record is to blame then.
    """
    return _column(decoding, os.getpid()).decode(batch)


@lru_cache(maxsize=16)
def _column(decoding: ColumnDecoding, process: int) -> _Column:
    """``process``: so that a child of a fork makes clients of its own."""
    return _Column(decoding)


class _Column:
    def __init__(self, decoding: ColumnDecoding) -> None:
        self._name = decoding.column
        self._format_name = decoding.schema.format
        self._registry = Registry(decoding.access)
        self._format = decoding.format()
        self._own = decoding.schema
        self._writers: dict[int | str, Callable[[Bodies], Decoded] | str] = {}

    def decode(self, batch: pa.RecordBatch) -> DecodedColumn:
        found = framed(batch, self._name)
        causes = dict(found.causes)
        places = np.full(batch.num_rows, -1, np.int64)  # of each row in the joined arrays
        arrays: list[pa.Array[Any]] = []
        held = 0
        for group in found.groups:
            writer = self._writer(group.key)
            if isinstance(writer, str):
                causes.update(dict.fromkeys(group.rows, writer))
                continue
            made = writer(Bodies(found.data, group.starts, group.ends, group.message))
            causes.update({group.rows[index]: f"schema {group.key}: {cause}" for index, cause in made.causes.items()})
            places[group.rows] = np.arange(held, held + len(group.rows))
            arrays.append(made.array)
            held += len(group.rows)
        if len(arrays) == 1 and held == batch.num_rows:
            return DecodedColumn(arrays[0], causes)
        joined: Any = pa.concat_arrays(arrays or [pa.array([], self._format.type)])
        return DecodedColumn(joined.take(pa.array(places, mask=places < 0)), causes)

    def _writer(self, key: int | str) -> Callable[[Bodies], Decoded] | str:
        """Or why no record by this schema can be decoded."""
        found = self._writers.get(key)
        if found is None:
            found = self._asked(key)
            if len(self._writers) >= _WRITERS_MAX:
                self._writers.clear()
            self._writers[key] = found
        return found

    def _asked(self, key: int | str) -> Callable[[Bodies], Decoded] | str:
        schema = self._own if key == self._own.key else self._registry.schema(key, self._format_name)
        if schema is None:
            return f"the schema registry has no schema {key}"
        try:
            check_format(schema, self._format_name)
            return self._format.writer(schema)
        except (UsageError, ValueError) as error:
            return str(error)
