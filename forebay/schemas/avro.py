"""Decodes Avro. Types are those of Spark's ``from_avro``; fastavro resolves a writer's schema to the reader's."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from itertools import accumulate
from typing import Any

import pyarrow as pa

from forebay.kafka.registry.client import RegisteredSchema, missing_extra
from forebay.model.errors import UsageError
from forebay.schemas.avro_limits import body_check, read_decimal
from forebay.schemas.avro_resolution import BOUNDED_DECIMAL, Resolution, defaults_of, holds_members
from forebay.schemas.avro_types import NAMED, PRIMITIVES, ColumnTypes, Schema
from forebay.schemas.bodies import Bodies, Decoded, built, cause_of, parsing

#: the properties of types, and of fields, by which fastavro reads
_TYPE_KEYS = ("type", "name", "aliases", "symbols", "size", "default")
_FIELD_KEYS = ("name", "aliases", "default")
#: a batch is copied as a whole for one writer's bodies if they are at least this part of it
_COPIED_PART = 1 / 4


class AvroFormat:
    """Implements ``forebay.schemas.bodies.Format``."""

    def __init__(self, schema: RegisteredSchema) -> None:
        """Raises UsageError for a field that can't be a column, with its path, and for an invalid Avro schema."""
        with parsing(schema):
            self._schema = _whole(schema)
            self.type = ColumnTypes(str(schema)).of(self._schema, "", raw=False)
            self._raw_type = ColumnTypes(str(schema)).of(self._schema, "", raw=True)
            self._plain = _Types(self._schema).content
            self._types = _Types(self._schema, defaults=defaults_of(self._schema))
            self._own = Resolution(self._schema, self._schema)
            self._named = holds_members(self._schema)

    def writer(self, schema: RegisteredSchema) -> Callable[[Bodies], Decoded]:
        with parsing(schema):
            written = _whole(schema)
            alike = _Types(written).content == self._plain
            both_records = _is_record(self._schema) and _is_record(written)
            resolution = Resolution(written, self._schema, self._own, alike=alike)
            if both_records and not resolution.matches(written, self._schema):
                raise UsageError(
                    f"{schema} has the record {written['name']}, but the reader's is {self._schema['name']}"
                )
            return _BodyReader(
                _Types(written, logical=resolution.logical()).parsed(boxed=not both_records),
                None if alike else self._types.parsed(boxed=not both_records, reader=True),
                boxed=not both_records,
                check=body_check(written, None if alike else self._schema),
                made=self._raw_type,
                wanted=self.type,
                convert=resolution.convert if self._named else None,
                named=self._named,
            ).decode


class _BodyReader:
    """Decodes bodies of one writer's schema."""

    def __init__(
        self,
        writer: Schema,
        reader: Schema | None,
        *,
        boxed: bool,
        check: Callable[[bytes, int], None] | None,
        made: pa.DataType,
        wanted: pa.DataType,
        convert: Callable[[Any], Any] | None,
        named: bool,
    ) -> None:
        self._read = _library().schemaless_reader
        self._writer, self._reader = writer, reader
        self._check = check
        self._made, self._wanted = made, wanted
        self._named = named
        self._convert = _unboxed(convert) if boxed else convert

    def decode(self, bodies: Bodies) -> Decoded:
        read, writer, reader, convert, check = self._read, self._writer, self._reader, self._convert, self._check
        named = self._named
        data, starts, ends = _followed(bodies)
        rows: list[Any] = []
        causes: dict[int, str] = {}
        for start, end in zip(starts, ends, strict=True):
            body = data[start : end + 1]  # the byte after it shows that fastavro skips a field beyond the end
            stream = BytesIO(body)
            try:
                if check is not None:
                    check(body, end - start)
                row = read(stream, writer, reader, return_named_type=named)
                if stream.tell() != end - start:
                    raise ValueError(f"its schema covers {stream.tell()} of its {end - start} bytes")
                rows.append(row if convert is None else convert(row))
            except MemoryError:
                raise
            except Exception as error:
                causes[len(rows)] = cause_of(error)
                rows.append(None)
        return built(rows, causes, self._array)

    def _array(self, rows: Any) -> pa.Array[Any]:
        made: pa.Array[Any] = pa.array(rows, self._made)
        return made if self._made == self._wanted else made.cast(self._wanted)


def _followed(bodies: Bodies) -> tuple[bytes, Sequence[int], Sequence[int]]:
    """Return the bodies with a byte after each, and where each one starts and ends."""
    last = max(bodies.ends, default=0)
    if sum(bodies.ends) - sum(bodies.starts) >= last * _COPIED_PART:
        return b"".join((bodies.data[:last], b"\0")), bodies.starts, bodies.ends
    found = [bodies.data[start:end] for start, end in zip(bodies.starts, bodies.ends, strict=True)]
    ends = [end - 1 for end in accumulate(len(one) + 1 for one in found)]
    return b"\0".join((*found, b"")), [0, *(end + 1 for end in ends[:-1])], ends


# ---- schemas ---------------------------------------------------------------------------------------------------------


def _library() -> Any:
    try:
        import fastavro.schema
    except ImportError as error:
        raise missing_extra(error) from None
    for kind in ("bytes", "fixed"):
        fastavro.read.LOGICAL_READERS[f"{kind}-{BOUNDED_DECIMAL}"] = read_decimal
    return fastavro


def _is_record(schema: Schema) -> bool:
    return isinstance(schema, dict) and schema["type"] in ("record", "error")


def _unboxed(convert: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    return lambda row: row["body"] if convert is None else convert(row["body"])


def _whole(schema: RegisteredSchema) -> Schema:
    """Return the schema with full names, and with the schemas that it refers to inserted at first use.

    Each node of bytes is an object of its own, which can have a logical type.
    """
    library = _library()
    named: dict[str, Any] = {}
    for _, text in schema.references:
        library.parse_schema(json.loads(text), named)
    parsed = library.parse_schema(json.loads(schema.text), named)
    return _inlined(parsed, named, set())


def _inlined(node: Schema, named: Mapping[str, Any], defined: set[str]) -> Schema:
    if isinstance(node, list):
        return [_inlined(one, named, defined) for one in node]
    if isinstance(node, str):
        if node == "bytes":
            return {"type": "bytes"}
        if node in PRIMITIVES or node in defined or node not in named:
            return node
        return _inlined(named[node], named, defined)
    kind = node["type"]
    if isinstance(kind, (dict, list)):
        return _inlined(kind, named, defined)
    if kind in named and kind not in PRIMITIVES and "name" not in node:
        return _inlined(kind, named, defined)
    if kind in NAMED:
        if node["name"] in defined:
            return node["name"]
        defined.add(node["name"])
    made = {key: value for key, value in node.items() if not key.startswith("__")}
    if made.get("aliases", ()) is None:  # as fastavro allows
        del made["aliases"]
    if kind in ("record", "error"):
        made["fields"] = [{**field, "type": _inlined(field["type"], named, defined)} for field in node["fields"]]
    for key in ("items", "values"):
        if key in node:
            made[key] = _inlined(node[key], named, defined)
    return made


#: kinds of types, which may also be names of types
_KIND_NAMES = frozenset(("record", "error", "enum", "fixed", "array", "map", "union", "error_union", "request"))


class _Types:
    """A schema as fastavro takes it. Named types are defined in a table and have their names elsewhere.

    fastavro resolves a definition to a name wrongly, and the same type can be defined at different places of two schemas.
    """

    def __init__(
        self,
        schema: Schema,
        logical: Mapping[int, dict[str, Any]] | None = None,
        defaults: Mapping[tuple[str, str], Any] | None = None,
    ) -> None:
        """``logical``: id of a node → properties of its logical type. ``defaults``: (record, field) → other default."""
        self._logical, self._defaults = logical or {}, defaults or {}
        self._named: dict[str, Any] = {}
        self._root = self._of(schema)
        #: equal for schemas that fastavro reads alike
        self.content = (self._root, self._named)

    def parsed(self, boxed: bool, reader: bool = False) -> dict[str, Any]:
        """Return what fastavro takes without parsing it for each body. ``boxed``: a record with one field of the schema.

        fastavro parses a schema that is not a record. The bodies of the record are those of the schema. It also compares the
        writer's with the reader's for each body; the latter has one key more, so that their sizes differ.
        """
        box = {"type": "record", "name": "ForebayBody", "fields": [{"name": "body", "type": self._root}]}
        root = box if boxed else self._named[self._root]
        hints = {"__fastavro_parsed": True, "__named_schemas": self._named}
        return {**root, **hints, "__reader": True} if reader else {**root, **hints}

    def _of(self, node: Schema) -> Schema:
        if isinstance(node, list):
            return [self._of(one) for one in node]
        if isinstance(node, str):
            return node if node in PRIMITIVES else _key(node)
        made = {key: node[key] for key in _TYPE_KEYS if key in node} | self._logical.get(id(node), {})
        for key in ("items", "values"):
            if key in node:
                made[key] = self._of(node[key])
        if "name" not in made:
            return made if len(made) > 1 else made["type"]
        name = made["name"]
        self._named[_key(name)] = made
        if "fields" in node:
            made["fields"] = [
                {key: field[key] for key in _FIELD_KEYS if key in field} | {"type": self._of(field["type"])}
                for field in node["fields"]
            ]
            for field in made["fields"]:
                if (name, field["name"]) in self._defaults:
                    field["default"] = self._defaults[name, field["name"]]
        return _key(name)


def _key(name: str) -> str:
    """Return the key of a named type: its name, or one that no type has if fastavro would take the name for a word of Avro."""
    return f".{name}" if name in _KIND_NAMES else name
