"""Decodes JSON with a JSON Schema: an object's properties become fields with their names.

Values must have the types of the reader's schema. Other constraints (lengths, patterns, required properties) are not checked.
"""

from __future__ import annotations

import json
import re
import typing
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.json as pa_json

from forebay.kafka.registry.client import RegisteredSchema
from forebay.model.errors import UsageError
from forebay.schemas.bodies import COLUMNS_MAX, TOO_MANY_COLUMNS, Bodies, Decoded, built, parsing, rows_of

#: JSON Schema's type → Arrow's type, and the Python type for checking a value
_SCALARS: dict[str, tuple[pa.DataType, Any]] = {
    "string": (pa.string(), str),
    "integer": (pa.int64(), int),
    "number": (pa.float64(), float),
    "boolean": (pa.bool_(), bool),
}
_Octets = npt.NDArray[np.uint8]
_Numbers = npt.NDArray[np.int64]
_NULL = "null"
_CHOICES = ("oneOf", "anyOf")
_DEPTH_MAX = 100
#: maximum bytes between adjacent bodies: a prefix
_GAP_MAX = 16
#: maximum documents that Arrow reads in one call
_DOCUMENTS_MAX = 32_768


class JsonFormat:
    """Implements ``forebay.schemas.bodies.Format``."""

    def __init__(self, schema: RegisteredSchema) -> None:
        """Raises UsageError for a property that can't be a column, with its path, and for an invalid JSON Schema."""
        with parsing(schema):
            reading = _Types(schema)
            self.type, checked = reading.of(reading.root, reading.base, "", ())
            self._decode = msgspec.json.Decoder(_or_null(checked)).decode
            self._together = _Together(self.type) if _readable_together(self.type) else None

    def writer(self, schema: RegisteredSchema) -> Callable[[Bodies], Decoded]:
        return self._bodies  # a document names its own properties

    def _bodies(self, bodies: Bodies) -> Decoded:
        read = self._together.read(bodies) if self._together is not None else None
        if read is not None:
            return Decoded(read, {})
        rows, causes = rows_of(bodies, self._row)
        return built(rows, causes, self._array)

    def _row(self, body: memoryview) -> Any:
        """Decode one document. Try both readers: the result must not depend on neighbouring documents."""
        try:
            return self._decode(body)
        except Exception:
            found = self._together.read(Bodies(body, [0], [len(body)])) if self._together is not None else None
            if found is None:
                raise
            return found[0].as_py()

    def _array(self, rows: Any) -> pa.Array[Any]:
        return pa.array(rows, self.type)


def _readable_together(type_: pa.DataType) -> bool:
    return isinstance(type_, pa.StructType) and not _has_map(type_)


def _has_map(type_: pa.DataType) -> bool:
    return isinstance(type_, pa.MapType) or any(_has_map(type_.field(n).type) for n in range(type_.num_fields))


class _Together:
    """Reads many documents with Arrow's reader of JSON lines, which is several times as fast, but can't name an invalid document.

    It also accepts NaN and Infinity as numbers, as Spark does.
    """

    def __init__(self, type_: pa.DataType) -> None:
        self._type = type_
        fields: Any = type_
        self._parsing = pa_json.ParseOptions(
            explicit_schema=pa.schema(list(fields)), unexpected_field_behavior="ignore"
        )

    def read(self, bodies: Bodies) -> pa.Array[Any] | None:
        """Return the array; None if a body may not be an object of the type: then each must be read separately.

        If there are as many documents as bodies, each body is one document: a body that begins with a brace, after a body that
        ends with a brace and a line break, which no JSON string can contain, begins a document.
        """
        starts, ends = np.asarray(bodies.starts, np.int64), np.asarray(bodies.ends, np.int64)
        octets = np.frombuffer(bodies.data, np.uint8)
        if not len(starts) or (ends <= starts).any():
            return None
        if (octets[starts] != ord("{")).any() or (octets[ends - 1] != ord("}")).any():
            return None
        made: list[pa.Array[Any]] = []
        for at in range(0, len(starts), _DOCUMENTS_MAX):
            some = slice(at, at + _DOCUMENTS_MAX)
            found = self._lines(_joined(octets, starts[some], ends[some]), len(starts[some]))
            if found is None:
                return None
            made.append(found)
        return made[0] if len(made) == 1 else pa.concat_arrays(made)

    def _lines(self, text: bytes | bytearray, count: int) -> pa.Array[Any] | None:
        reading = pa_json.ReadOptions(use_threads=False, block_size=len(text) + 1)
        try:
            source: Any = pa.BufferReader(pa.py_buffer(text))
            table: Any = pa_json.read_json(source, reading, self._parsing)
            if table.num_rows != count:
                return None
            made: Any = table.combine_chunks().to_struct_array().combine_chunks()
            made.validate(full=True)  # finds strings that are not UTF-8
        except pa.ArrowException:
            return None
        return made if made.type == self._type else None


def _joined(octets: _Octets, starts: _Numbers, ends: _Numbers) -> bytes | bytearray:
    """Return the bodies with at least one line break after each."""
    data = octets.data
    gaps = np.unique(starts[1:] - ends[:-1])
    if len(gaps) == 1 and 0 < gaps[0] <= _GAP_MAX:  # all records of the batch have one schema
        text = bytearray(b"\n" * (int(ends[-1] - starts[0]) + 1))
        text[:-1] = data[starts[0] : ends[-1]]
        np.frombuffer(text, np.uint8)[(starts[1:] - starts[0])[:, None] - np.arange(1, gaps[0] + 1)] = ord("\n")
        return text
    lines = [data[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    return b"\n".join([*lines, b""])


class _Types:
    """Arrow types of a schema's nodes."""

    def __init__(self, schema: RegisteredSchema) -> None:
        self._schema = schema
        self._columns = 0
        self._documents: dict[str, Any] = {}
        for name, text in (*schema.references, ("", schema.text)):
            try:
                document = json.loads(text)
                own = document.get("$id", "") if isinstance(document, Mapping) else ""
                self.base = urldefrag(str(own)).url
            except (ValueError, RecursionError) as error:
                reason = f"{name or 'it'} is not JSON, or its $id is no URI: {error}"
                raise UsageError(f"cannot parse {schema}: {reason}") from None
            self._documents[name] = document
            if own and isinstance(own, str):
                self._documents.setdefault(self.base, document)
            self.root = document

    def of(self, node: Any, base: str, path: str, inside: tuple[str, ...]) -> tuple[pa.DataType, Any]:
        """Return Arrow's type of ``node``, and the Python type with which msgspec checks its values.

        ``base``: the document to which its references are relative. ``inside``: the references that led to it.
        """
        self._columns += 1
        if self._columns > COLUMNS_MAX:
            raise self._refused(path, TOO_MANY_COLUMNS)
        if len(inside) > _DEPTH_MAX:
            raise self._refused(path, "its references never end")
        if not isinstance(node, Mapping):
            raise self._refused(path, "its schema names no type")
        if "$ref" in node:
            target, found = self._referred(str(node["$ref"]), base, path)
            if target in inside:
                raise self._refused(path, f"{node['$ref']} is recursive, which a column can't be")
            return self.of(found, urldefrag(target).url, path, (*inside, target))
        for choice in _CHOICES:
            if choice in node:
                some = [one for one in node[choice] if not (isinstance(one, Mapping) and one.get("type") == _NULL)]
                if len(some) != 1:
                    raise self._refused(path, f"{choice} with {len(some)} types; only one, and null, is allowed")
                return self.of(some[0], base, path, inside)
        if "allOf" in node:
            return self._together(node, base, path, inside)
        kind = self._kind(node, path)
        if kind in _SCALARS:
            return _SCALARS[kind]
        if kind == "array":
            if not isinstance(node.get("items"), Mapping):
                raise self._refused(path, "an array whose schema does not name a single type for its items")
            arrow, checked = self.of(node["items"], base, f"{path}[]", inside)
            return pa.list_(arrow), list[checked | None]  # type: ignore[valid-type]
        if kind == "object":
            return self._object(node, base, path, inside)
        raise self._refused(path, f"type {kind!r}")

    def _kind(self, node: Mapping[str, Any], path: str) -> str:
        given = node.get("type")
        kinds = [one for one in (given if isinstance(given, list) else [given]) if one not in (_NULL, None)]
        if sorted(kinds) == ["integer", "number"]:
            return "number"
        if len(kinds) == 1:
            return str(kinds[0])
        if kinds:
            raise self._refused(path, f"several types ({', '.join(kinds)}); only one, and null, is allowed")
        values = node.get("enum", [node["const"]] if "const" in node else [])
        if values and all(isinstance(value, str) or value is None for value in values):
            return "string"
        if "properties" in node:
            return "object"
        raise self._refused(path, "only null" if given else "its schema names no type")

    def _object(
        self, node: Mapping[str, Any], base: str, path: str, inside: tuple[str, ...]
    ) -> tuple[pa.DataType, Any]:
        properties = node.get("properties") or {}
        if properties:
            found = {name: self.of(one, base, f"{path}.{name}", inside) for name, one in properties.items()}
            return _struct(found)
        more = node.get("additionalProperties")
        if isinstance(more, Mapping) and more:
            arrow, checked = self.of(more, base, f"{path}[]", inside)
            return pa.map_(pa.string(), arrow), dict[str, checked | None]  # type: ignore[valid-type]
        raise self._refused(path, "an object whose schema names no properties")

    def _together(
        self, node: Mapping[str, Any], base: str, path: str, inside: tuple[str, ...]
    ) -> tuple[pa.DataType, Any]:
        """Return the type of ``allOf``: of objects, an object with all properties; of a single schema, that schema's type."""
        rest = {key: value for key, value in node.items() if key != "allOf"}
        parts = [one for one in [*node["allOf"], rest] if _says_type(one)]
        made = [self.of(one, base, path, inside) for one in parts]
        if len(made) == 1:
            return made[0]
        found: dict[str, tuple[pa.DataType, Any]] = {}
        for arrow, checked in made:
            if not isinstance(arrow, pa.StructType):
                raise self._refused(path, "allOf with a part that is not an object with properties")
            for name, own in typing.get_type_hints(checked).items():
                found[name] = (arrow.field(name).type, own)
        if not found:
            raise self._refused(path, "its schema names no type")
        return _struct(found)

    def _referred(self, reference: str, base: str, path: str) -> tuple[str, Any]:
        """Return the full address of a reference, and the node at it."""
        target = urljoin(base, reference) if base else reference
        address, fragment = urldefrag(target)
        document = next(
            (self._documents[one] for one in (address, urldefrag(reference).url) if one in self._documents), None
        )
        if document is None:
            raise self._refused(path, f"{reference} is not one of the schema's references")
        found = document
        for step in [part for part in unquote(fragment).split("/") if part]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(found, Mapping) and step in found:
                found = found[step]
            elif isinstance(found, list) and re.fullmatch("[0-9]{1,9}", step) and int(step) < len(found):
                found = found[int(step)]
            else:
                raise self._refused(path, f"{reference} does not exist")
        return target, found

    def _refused(self, path: str, what: str) -> UsageError:
        return UsageError(f"{self._schema}: {path.lstrip('.') or 'the whole schema'} can't be a column: {what}")


def _says_type(node: Any) -> bool:
    return isinstance(node, Mapping) and any(
        key in node for key in ("$ref", "type", "properties", "enum", "const", "allOf", *_CHOICES)
    )


def _or_null(checked: Any) -> Any:
    return checked | None


def _struct(found: Mapping[str, tuple[pa.DataType, Any]]) -> tuple[pa.DataType, Any]:
    arrow = pa.struct([pa.field(name, own) for name, (own, _) in found.items()])
    made: Any = typing.TypedDict  # with fields that are known only at run time
    checked = made("Properties", {name: _or_null(own) for name, (_, own) in found.items()}, total=False)
    return arrow, checked
