"""Keys and values of record batches, decoded: which columns, by which schema, and what could not be. What runs in tasks."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from forebay.kafka.registry.client import AVRO, JSON, RegisteredSchema, Registry, RegistryAccess, check_readable
from forebay.model.errors import UsageError
from forebay.process.clock import Clock, SystemClock
from forebay.schemas.avro import AvroFormat
from forebay.schemas.bodies import Bodies, Decoded, Format
from forebay.schemas.framing import Framed, framed
from forebay.schemas.json_schema import JsonFormat
from forebay.schemas.protobuf import ProtobufFormat

#: writers' schemas that one column keeps ready; of more, it begins anew
_WRITERS_MAX = 1_000
#: so long a schema that the registry does not know is not asked for again
_UNKNOWN_SECONDS = 30.0


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
    return _column(decoding).decode(batch)


@lru_cache(maxsize=16)
def _column(decoding: ColumnDecoding) -> _Column:
    return _Column(decoding)


class _Column:
    def __init__(self, decoding: ColumnDecoding, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._unknown: dict[int | str, float] = {}  # and until when that counts
        self._name = decoding.column
        self._format_name = decoding.schema.format
        self._access = decoding.access
        self._format = decoding.format()
        self._own = decoding.schema
        self._writers: dict[int | str, Callable[[Bodies], Decoded] | str] = {}

    def decode(self, batch: pa.RecordBatch) -> DecodedColumn:
        collecting = gc.isenabled()
        gc.disable()  # thousands of rows would be walked by every collection, and none of them can be part of a cycle
        try:
            with Registry(self._access) as registry:
                return self._decode(framed(batch, self._name), batch.num_rows, registry)
        finally:
            if collecting:
                gc.enable()

    def _decode(self, found: Framed, rows: int, registry: Registry) -> DecodedColumn:
        causes = dict(found.causes)
        places = np.full(rows, -1, np.int64)  # of each row in the joined arrays
        arrays: list[pa.Array[Any]] = []
        held = 0
        for group in found.groups:
            writer = self._writer(group.key, registry)
            if isinstance(writer, str):
                causes.update(dict.fromkeys(group.rows, writer))
                continue
            made = writer(Bodies(found.data, group.starts, group.ends, group.message))
            causes.update({group.rows[index]: f"schema {group.key}: {cause}" for index, cause in made.causes.items()})
            places[group.rows] = np.arange(held, held + len(group.rows))
            arrays.append(made.array)
            held += len(group.rows)
        if len(arrays) == 1 and held == rows:
            return DecodedColumn(arrays[0], causes)
        joined: Any = pa.concat_arrays(arrays or [pa.array([], self._format.type)])
        return DecodedColumn(joined.take(pa.array(places, mask=places < 0)), causes)

    def _writer(self, key: int | str, registry: Registry) -> Callable[[Bodies], Decoded] | str:
        """Or why no record by this schema can be decoded."""
        found = self._writers.get(key)
        if found is not None:
            return found
        now = self._clock.monotonic()
        self._unknown = {one: until for one, until in self._unknown.items() if until > now}
        schema = self._own if key == self._own.key else None
        if schema is None and key not in self._unknown:
            schema = registry.schema(key, self._format_name, patient=not self._unknown)
        if schema is None:
            self._unknown.setdefault(key, now + _UNKNOWN_SECONDS)
            return f"the schema registry has no schema {key}"
        if len(self._writers) >= _WRITERS_MAX:
            self._writers.clear()
        made = self._writers[key] = self._reads(schema)
        return made

    def _reads(self, schema: RegisteredSchema) -> Callable[[Bodies], Decoded] | str:
        try:
            check_readable(schema, self._format_name)
            return self._format.writer(schema)
        except (UsageError, ValueError) as error:
            return str(error)
