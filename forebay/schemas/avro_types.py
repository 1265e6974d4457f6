"""Arrow types of Avro schemas. They are those of Spark's ``from_avro``."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from forebay.model.errors import UsageError
from forebay.schemas.bodies import COLUMNS_MAX, TOO_MANY_COLUMNS

PRIMITIVES: dict[str, Any] = {
    "null": pa.null(), "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "bytes": pa.binary(), "string": pa.string(),
}  # fmt: skip
TIMES = {
    ("int", "date"): pa.date32(),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
DECIMAL = "decimal"
_PRECISION_MAX = 38
#: prefix of the fields of a union, as in Spark's Avro source
MEMBER = "member"
#: Avro type → the Python type by which a union's branch is recognized; two branches of one Python type are ambiguous
KINDS: dict[str, type] = {
    "boolean": bool, "int": int, "long": int, "float": float, "double": float, "bytes": bytes, "string": str,
    "array": list, "map": dict,
}  # fmt: skip
NAMED = ("record", "error", "enum", "fixed")

Schema = Any  # as in JSON: a name, a list or an object


class ColumnTypes:
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
            if node in PRIMITIVES:
                return _primitive(node)
            if node in self._open:
                raise self._refused(path, f"{node} is recursive, which a column can't be")
            return self.of(self._named[node], path, raw)
        kind = node["type"]
        if kind in NAMED:
            self._named[node["name"]] = node
        if node.get("logicalType") == DECIMAL and kind in ("bytes", "fixed"):
            precision, scale = node.get("precision", 0), node.get("scale", 0)
            if not 0 < precision <= _PRECISION_MAX:
                raise self._refused(path, f"a decimal of {precision} digits: at most {_PRECISION_MAX} are allowed")
            return pa.decimal128(precision, scale)
        time: Any = TIMES.get((kind, node.get("logicalType", "")))
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
        some = branches_of(branches)
        if not some:
            return pa.null()
        if len(some) == 1:
            return self.of(some[0], path, raw)
        merged = merged_type(some)
        if merged is not None:
            return merged
        kinds = [kind_of(one) for one in some]
        twice = {kind for kind in kinds if kind in KINDS and sum(KINDS.get(one) is KINDS[kind] for one in kinds) > 1}
        if twice:
            raise self._refused(path, f"a union in which {' and '.join(sorted(twice))} can't be distinguished")
        return pa.struct([pa.field(f"{MEMBER}{n}", self.of(one, path, raw)) for n, one in enumerate(some)])

    def _refused(self, path: str, what: str) -> UsageError:
        return UsageError(f"{self._schema}: {path.lstrip('.') or 'the whole schema'} can't be a column: {what}")


def _primitive(kind: str) -> pa.DataType:
    found: pa.DataType = PRIMITIVES[kind]
    return found


def branches_of(union: list[Schema]) -> list[Schema]:
    """Return the types of ``union`` without null."""
    return [one for one in union if one != "null" and not (isinstance(one, dict) and one["type"] == "null")]


def kind_of(node: Schema) -> str:
    """Return the type of ``node`` in Avro's terms, or the name that it refers to."""
    return str(node["type"]) if isinstance(node, dict) else str(node)


def merged_type(branches: list[Schema]) -> pa.DataType | None:
    """Return the single type of Spark's two unions of numbers; None for any other union."""
    kinds = {kind_of(one) for one in branches}
    if any(isinstance(one, dict) and "logicalType" in one for one in branches):
        return None
    return pa.int64() if kinds == {"int", "long"} else pa.float64() if kinds == {"float", "double"} else None


def has_members(union: list[Schema]) -> bool:
    """Return whether a column of ``union`` is a struct with a field for each type."""
    some = branches_of(union)
    return len(some) > 1 and merged_type(some) is None
