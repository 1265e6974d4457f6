"""Decodes keys and values of record batches by registered schemas. Runs in tasks."""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from forebay.kafka.registry.client import (
    AVRO,
    JSON,
    RegisteredSchema,
    Registry,
    RegistryAccess,
    SchemaError,
    check_readable,
)
from forebay.model.errors import UsageError
from forebay.process.clock import Clock, SystemClock
from forebay.schemas.avro import AvroFormat
from forebay.schemas.bodies import Bodies, Decoded, Format
from forebay.schemas.framing import Framed, framed
from forebay.schemas.json_schema import JsonFormat
from forebay.schemas.protobuf import ProtobufFormat

#: maximum decoders of writers' schemas that a column keeps; beyond it, all are dropped
_WRITERS_MAX = 1_000
#: maximum characters of the cause that a writer's schema can't be used, which may contain a part of it
_CAUSE_LENGTH_MAX = 1_000
#: how long a schema that is unknown to the registry, or refers to an unknown one, is not requested again
_UNKNOWN_SECONDS = 30.0


class ColumnDecoding(msgspec.Struct, frozen=True):
    """How a column, ``key`` or ``value``, is decoded. Can be pickled; ``repr`` shows no password.

    ``schema``: the reader's. ``message``: for Protobuf, the full name of the message in it.
    """

    column: str
    schema: RegisteredSchema
    access: RegistryAccess
    message: str = ""

    def format(self) -> Format:
        """Return the format of the reader's schema. Raises UsageError for a schema that can't be a column."""
        if self.schema.format == AVRO:
            return AvroFormat(self.schema)
        if self.schema.format == JSON:
            return JsonFormat(self.schema)
        return ProtobufFormat(self.schema, self.message)


class DecodedColumn(NamedTuple):
    """``array``: of the reader's type, null for null and undecodable records. ``causes``: index → why it can't be decoded."""

    array: pa.Array[Any]
    causes: dict[int, str]


def decode_column(decoding: ColumnDecoding, batch: pa.RecordBatch) -> DecodedColumn:
    """Decode one column of ``batch``, which has the columns of Spark's Kafka source. A process keeps the requested schemas.

    Raises UnreachableError if the registry does not answer, and UsageError if it refuses access: no record is the cause of these.
    """
    return _column(decoding).decode(batch)


@lru_cache(maxsize=16)
def _column(decoding: ColumnDecoding) -> _Column:
    return _Column(decoding)


class _Column:
    def __init__(self, decoding: ColumnDecoding, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        #: schema → until when it counts as unknown, and the cause; in the order of these times
        self._unknown: OrderedDict[int | str, tuple[float, str]] = OrderedDict()
        self._name = decoding.column
        self._format_name = decoding.schema.format
        self._access = decoding.access
        self._format = decoding.format()
        self._own = decoding.schema
        self._writers: dict[int | str, Callable[[Bodies], Decoded] | str] = {}

    def decode(self, batch: pa.RecordBatch) -> DecodedColumn:
        collecting = gc.isenabled()
        gc.disable()  # a collection would traverse thousands of rows, and none is part of a cycle
        try:
            with Registry(self._access) as registry:
                return self._decode(framed(batch, self._name), batch.num_rows, registry)
        finally:
            if collecting:
                gc.enable()

    def _decode(self, found: Framed, rows: int, registry: Registry) -> DecodedColumn:
        causes = dict(found.causes)
        places = np.full(rows, -1, np.int64)  # index of each row in the joined arrays
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
        """Return the decoder for a writer's schema, or the reason why its records can't be decoded."""
        found = self._writers.get(key)
        if found is not None:
            return found
        now = self._clock.monotonic()
        while self._unknown and next(iter(self._unknown.values()))[0] <= now:
            self._unknown.popitem(last=False)
        if key in self._unknown:
            return self._unknown[key][1]
        schema, cause = self._requested(key, registry)
        if schema is None:
            self._unknown[key] = now + _UNKNOWN_SECONDS, cause
            return cause
        if len(self._writers) >= _WRITERS_MAX:
            self._writers.clear()
        made = self._writers[key] = self._reads(schema)
        return made

    def _requested(self, key: int | str, registry: Registry) -> tuple[RegisteredSchema | None, str]:
        """Return the schema, or None and the cause that there is none."""
        if key == self._own.key:
            return self._own, ""
        try:
            schema = registry.schema(key, self._format_name, patient=not self._unknown)
        except SchemaError as error:
            return None, f"schema {key}: {error}"[:_CAUSE_LENGTH_MAX]
        return schema, f"the schema registry has no schema {key}"

    def _reads(self, schema: RegisteredSchema) -> Callable[[Bodies], Decoded] | str:
        try:
            check_readable(schema, self._format_name)
            return self._format.writer(schema)
        except (UsageError, ValueError) as error:
            return str(error)[:_CAUSE_LENGTH_MAX]
