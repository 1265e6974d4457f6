"""Decodes Avro. Types are those of Spark's ``from_avro``; fastavro resolves a writer's schema to the reader's."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Set
from io import BytesIO
from typing import Any

import pyarrow as pa

from forebay.kafka.registry.client import RegisteredSchema, missing_extra
from forebay.model.errors import UsageError
from forebay.schemas.avro_limits import body_check, definitions, read_decimal
from forebay.schemas.bodies import COLUMNS_MAX, TOO_MANY_COLUMNS, Bodies, Decoded, built, cause_of, parsing

_PRIMITIVES: dict[str, Any] = {
    "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(),
}  # fmt: skip
_TIMES = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
_DECIMAL = "decimal"
#: the logical type by which fastavro calls Forebay's conversion, which bounds a decimal's bytes
_BOUNDED_DECIMAL = "forebay-decimal"
_PRECISION_MAX = 38
#: prefix of the fields of a union, as in Spark's Avro source
_MEMBER = "member"
#: Avro type → the Python type by which a union's branch is recognized; two branches of one Python type are ambiguous
_KINDS = {
    "boolean": bool, "int": int, "long": int, "float": float, "double": float, "bytes": bytes, "string": str,
    "array": list, "map": dict,
}  # fmt: skip
_NAMED = ("record", "error", "enum", "fixed")

Schema = Any  # as in JSON: a name, a list or an object


class AvroFormat:
    """Implements ``forebay.schemas.bodies.Format``."""

    def __init__(self, schema: RegisteredSchema) -> None:
        """Raises UsageError for a field that can't be a column, with its path, and for an invalid Avro schema."""
        with parsing(schema):
            self._schema = _whole(schema)
            self.type = _Types(str(schema)).of(self._schema, "", raw=False)
            self._raw_type = _Types(str(schema)).of(self._schema, "", raw=True)
            self._paths, self._logical = _times(self._schema, None)
            self._convert = _converter(self._schema)

    def writer(self, schema: RegisteredSchema) -> Callable[[Bodies], Decoded]:
        with parsing(schema):
            written = _whole(schema)
            _, theirs = _times(written, self._paths)
            # if both schemas give every number the same meaning, Arrow converts numbers to times
            same = all(theirs.get(path) == self._logical.get(path) for path in theirs.keys() | self._logical.keys())
            keep = frozenset({_DECIMAL} if same else {_DECIMAL, *(name for _, name in _TIMES)})
            read_by, written_by = (_stripped(one, keep) for one in (self._schema, written))
            alike = read_by == written_by
            # fastavro parses a schema that is not a record again for each body
            boxed = not (_is_record(read_by) and _is_record(written_by))
            parsed = _parsed_in_record if boxed else _parsed
            return _BodyReader(
                parsed(written_by),
                None if alike else parsed(read_by),
                boxed=boxed,
                check=body_check(written, None if alike else self._schema),
                made=self._raw_type,
                wanted=self.type,
                convert=self._convert,
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
    ) -> None:
        self._read = _library().schemaless_reader
        self._writer, self._reader = writer, reader
        self._check = check
        self._made, self._wanted = made, wanted
        self._named = convert is not None
        self._convert = _unboxed(convert) if boxed else convert

    def decode(self, bodies: Bodies) -> Decoded:
        read, writer, reader, convert, check = self._read, self._writer, self._reader, self._convert, self._check
        named = self._named
        data = bytes(bodies.data) + b"\0"
        rows: list[Any] = []
        causes: dict[int, str] = {}
        for start, end in zip(bodies.starts, bodies.ends, strict=True):
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


# ---- schemas ---------------------------------------------------------------------------------------------------------


def _library() -> Any:
    try:
        import fastavro.schema
    except ImportError as error:
        raise missing_extra(error) from None
    for kind in ("bytes", "fixed"):
        fastavro.read.LOGICAL_READERS[f"{kind}-{_BOUNDED_DECIMAL}"] = read_decimal
    return fastavro


def _parsed(schema: Schema) -> Schema:
    return _library().parse_schema(schema)


def _is_record(schema: Schema) -> bool:
    return isinstance(schema, dict) and schema["type"] in ("record", "error")


def _parsed_in_record(schema: Schema) -> Schema:
    """Return a record with one field of ``schema``. Its bodies are those of ``schema``."""
    return _parsed({"type": "record", "name": "ForebayBody", "fields": [{"name": "body", "type": schema}]})


def _unboxed(convert: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    return lambda row: row["body"] if convert is None else convert(row["body"])


def _whole(schema: RegisteredSchema) -> Schema:
    """Return the schema with full names, and with the schemas that it refers to inserted at first use."""
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
        if node in _PRIMITIVES or node in defined or node not in named:
            return node
        return _inlined(named[node], named, defined)
    kind = node["type"]
    if isinstance(kind, (dict, list)):
        return _inlined(kind, named, defined)
    if kind in named and kind not in _PRIMITIVES and "name" not in node:
        return _inlined(kind, named, defined)
    if kind in _NAMED:
        if node["name"] in defined:
            return node["name"]
        defined.add(node["name"])
    made = {key: value for key, value in node.items() if not key.startswith("__")}
    if kind in ("record", "error"):
        made["fields"] = [{**field, "type": _inlined(field["type"], named, defined)} for field in node["fields"]]
    for key in ("items", "values"):
        if key in node:
            made[key] = _inlined(node[key], named, defined)
    return made


def _stripped(node: Schema, keep: frozenset[str]) -> Schema:
    """Return the schema for fastavro: without documentation, and without logical types except those in ``keep``."""
    if isinstance(node, list):
        return [_stripped(one, keep) for one in node]
    if isinstance(node, str):
        return node
    drop = {"doc", "connect.version", "connect.name"} | (set() if node.get("logicalType") in keep else {"logicalType"})
    made = {key: value for key, value in node.items() if key not in drop}
    if made.get("logicalType") == _DECIMAL:
        made["logicalType"] = _BOUNDED_DECIMAL
    if "fields" in made:
        made["fields"] = [
            {**{key: value for key, value in field.items() if key != "doc"}, "type": _stripped(field["type"], keep)}
            for field in node["fields"]
        ]
    for key in ("items", "values"):
        if key in made:
            made[key] = _stripped(made[key], keep)
    return made


def _times(schema: Schema, among: Set[str] | None) -> tuple[Set[str], dict[str, str]]:
    """Return the paths of the schema's fields, and path → logical type of each number that is a time.

    ``among``: the paths that count; None: all. A named type can be in many places, so that only these bound the work.
    """
    named = {node["name"]: node for node in definitions(schema)}
    found: dict[str, str] = {}
    paths: set[str] = set()
    seen: set[tuple[str, str]] = set()

    def visit(node: Schema, path: str) -> None:
        if isinstance(node, list):
            for one in node:
                visit(one, path)
            return
        if isinstance(node, str):
            node = named.get(node, {"type": node})
        if (among is not None and path not in among) or (path, node.get("name", "")) in seen:
            return
        paths.add(path)
        if "name" in node:
            seen.add((path, node["name"]))
        if (node["type"], node.get("logicalType")) in _TIMES:
            found[path] = node["logicalType"]
        for field in node.get("fields", ()):
            visit(field["type"], f"{path}.{field['name']}")
        for key in ("items", "values"):
            if key in node:
                visit(node[key], f"{path}[]")

    visit(schema, "")
    return paths, found


class _Types:
    """Arrow types of a schema's nodes."""

    def __init__(self, schema: str) -> None:
        self._schema = schema
        self._named: dict[str, Any] = {}
        self._open: list[str] = []
        self._columns = 0

    def of(self, node: Schema, path: str, raw: bool) -> pa.DataType:
        """Return the type of ``node``. ``raw``: with times in Avro's unit."""
        self._columns += 1
        if self._columns > COLUMNS_MAX:
            raise self._refused(path, TOO_MANY_COLUMNS)
        if isinstance(node, list):
            return self._union(node, path, raw)
        if isinstance(node, str):
            if node in _PRIMITIVES:
                return _primitive(node)
            if node in self._open:
                raise self._refused(path, f"{node} is recursive, which a column can't be")
            return self.of(self._named[node], path, raw)
        kind = node["type"]
        if kind in _NAMED:
            self._named[node["name"]] = node
        if node.get("logicalType") == _DECIMAL and kind in ("bytes", "fixed"):
            precision, scale = node.get("precision", 0), node.get("scale", 0)
            if not 0 < precision <= _PRECISION_MAX:
                raise self._refused(path, f"a decimal of {precision} digits: at most {_PRECISION_MAX} are allowed")
            return pa.decimal128(precision, scale)
        time: Any = _TIMES.get((kind, node.get("logicalType", "")))
        if time is not None:
            found: pa.DataType = time if raw or kind == "int" else pa.timestamp("us", time.tz)
            return found
        if kind in ("record", "error"):
            if not node["fields"]:
                raise self._refused(path, f"the record {node['name']} has no fields")
            self._open.append(node["name"])
            fields = [
                pa.field(one["name"], self.of(one["type"], f"{path}.{one['name']}", raw)) for one in node["fields"]
            ]
            self._open.pop()
            return pa.struct(fields)
        if kind == "array":
            return pa.list_(self.of(node["items"], f"{path}[]", raw))
        if kind == "map":
            return pa.map_(pa.string(), self.of(node["values"], f"{path}[]", raw))
        if kind == "enum":
            return pa.string()
        if kind == "fixed":
            return pa.binary()
        return _primitive(kind)

    def _union(self, branches: list[Schema], path: str, raw: bool) -> pa.DataType:
        some = _branches(branches)
        if not some:
            return pa.null()
        if len(some) == 1:
            return self.of(some[0], path, raw)
        merged = _merged(some)
        if merged is not None:
            return merged
        kinds = [_kind(one) for one in some]
        twice = {kind for kind in kinds if kind in _KINDS and sum(_KINDS.get(one) is _KINDS[kind] for one in kinds) > 1}
        if twice:
            raise self._refused(path, f"a union in which {' and '.join(sorted(twice))} can't be distinguished")
        return pa.struct([pa.field(f"{_MEMBER}{n}", self.of(one, path, raw)) for n, one in enumerate(some)])

    def _refused(self, path: str, what: str) -> UsageError:
        return UsageError(f"{self._schema}: {path.lstrip('.') or 'the whole schema'} can't be a column: {what}")


def _primitive(kind: str) -> pa.DataType:
    found: pa.DataType = _PRIMITIVES[kind]
    return found


def _branches(union: list[Schema]) -> list[Schema]:
    return [one for one in union if one != "null" and not (isinstance(one, dict) and one["type"] == "null")]


def _kind(node: Schema) -> str:
    return str(node["type"]) if isinstance(node, dict) else str(node)


def _merged(branches: list[Schema]) -> pa.DataType | None:
    """Return the single type of Spark's two unions of numbers; None for any other union."""
    kinds = {_kind(one) for one in branches}
    if any(isinstance(one, dict) and "logicalType" in one for one in branches):
        return None
    return pa.int64() if kinds == {"int", "long"} else pa.float64() if kinds == {"float", "double"} else None


# ---- unions of several types ------------------------------------------------------------------------------------------


def _converter(node: Schema) -> Callable[[Any], Any] | None:
    """Return the function that converts fastavro's values, with named union members as pairs, to the types; None if none is
    needed."""
    named: dict[str, Any] = {}
    return _convert_by(node, named) if _has_members(node) else None


def _has_members(node: Schema) -> bool:
    if isinstance(node, list):
        some = _branches(node)
        return (len(some) > 1 and _merged(some) is None) or any(map(_has_members, some))
    if isinstance(node, str):
        return False
    below = [field["type"] for field in node.get("fields", ())] + [
        node[key] for key in ("items", "values") if key in node
    ]
    return any(map(_has_members, below))


def _convert_by(node: Schema, named: dict[str, Any]) -> Callable[[Any], Any]:
    if isinstance(node, list):
        some = _branches(node)
        if len(some) == 1:
            return _convert_by(some[0], named)
        if not some or _merged(some) is not None:
            return _plain
        return _Members(some, named).convert
    if isinstance(node, str):
        found: Callable[[Any], Any] = named.get(node, _plain)
        return found
    kind = node["type"]
    if kind in ("record", "error"):
        fields = {field["name"]: _convert_by(field["type"], named) for field in node["fields"]}

        def record(value: Any) -> Any:
            value = _plain(value)
            return None if value is None else {name: convert(value.get(name)) for name, convert in fields.items()}

        named[node["name"]] = record
        return record
    if kind == "array":
        item = _convert_by(node["items"], named)
        return lambda value: None if value is None else [item(one) for one in value]
    if kind == "map":
        held = _convert_by(node["values"], named)
        return lambda value: None if value is None else {key: held(one) for key, one in value.items()}
    if kind in ("enum", "fixed"):
        named[node["name"]] = _plain
    return _plain


def _plain(value: Any) -> Any:
    return value[1] if isinstance(value, tuple) else value


class _Members:
    """Converts a union of several types to a struct with a field for each type. One field is set."""

    def __init__(self, branches: list[Schema], named: dict[str, Any]) -> None:
        self._by_name: dict[str, tuple[str, Callable[[Any], Any]]] = {}
        self._by_kind: dict[type, tuple[str, Callable[[Any], Any]]] = {}
        for number, branch in enumerate(branches):
            member = (f"{_MEMBER}{number}", _convert_by(branch, named))
            kind = _kind(branch)
            if kind in _KINDS:
                self._by_kind[_KINDS[kind]] = member
            else:
                self._by_name[branch["name"] if isinstance(branch, dict) else branch] = member
            if isinstance(branch, dict) and branch.get("logicalType"):
                self._by_kind.update(dict.fromkeys(_logical_kinds(branch["logicalType"]), member))

    def convert(self, value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, tuple):
            member, convert = self._by_name[value[0]]
            return {member: convert(value[1])}
        found = self._by_kind.get(type(value))
        if found is None:
            raise ValueError(f"the reader's union has no branch for a value of type {type(value).__name__}")
        member, convert = found
        return {member: convert(value)}


def _logical_kinds(logical: str) -> tuple[type, ...]:
    import datetime
    import decimal

    if logical == _DECIMAL:
        return (decimal.Decimal,)
    return (datetime.date,) if logical == "date" else (datetime.datetime,)
