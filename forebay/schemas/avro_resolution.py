"""Resolves a writer's schema to a reader's: which logical types fastavro applies, and what is converted after it.

fastavro reads a value as its writer's logical type says, and returns a default as JSON has it. It names a union's type only where
the writer has a union. A resolution decides these for each pair of a writer's and a reader's type, when the decoder is made.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Iterator
from typing import Any

from forebay.schemas.avro_limits import definitions, read_decimal
from forebay.schemas.avro_types import (
    DECIMAL,
    KINDS,
    MEMBER,
    NAMED,
    TIMES,
    Schema,
    branches_of,
    has_members,
    kind_of,
)

#: the logical type by which fastavro calls Forebay's conversion, which bounds a decimal's bytes
BOUNDED_DECIMAL = "forebay-decimal"
#: (writer's type, reader's type) that Avro converts
_PROMOTIONS = {
    ("int", "long"), ("int", "float"), ("int", "double"), ("long", "float"), ("long", "double"), ("float", "double"),
    ("string", "bytes"), ("bytes", "string"),
}  # fmt: skip
_RECORDS = ("record", "error")
#: the key of what an array or a map holds
_HELD = {"array": "items", "map": "values"}
#: values of numbers that JSON has no number for, as fastavro accepts them for a default
_NOT_FINITE = ("NaN", "INF", "-INF", "Infinity", "-Infinity")

Convert = Callable[[Any], Any]


class Resolution:
    """How values of a writer's schema become those of a reader's column. ``convert``: None if fastavro's values fit.

    ``convert`` takes values for which fastavro returns (name, value) in place of a union's named type.
    """

    def __init__(self, writer: Schema, reader: Schema, own: Resolution | None = None, *, alike: bool = True) -> None:
        """``own``: the resolution of ``reader`` to itself; None: this is it. ``reader`` is not recursive. ``alike``: fastavro
        reads both alike, and does not get the reader: a union's type keeps its place."""
        self._own = self if own is None else own
        self._alike = alike
        self._writers = named_types(writer)
        self._readers = named_types(reader)
        self._wanted: dict[int, list[dict[str, Any]]] = {}
        self._found: dict[tuple[str, str], Convert | None] = {}
        self._names: dict[int, dict[str, list[tuple[int, Schema]]]] = {}
        self._fields: dict[str, tuple[dict[str, Any], dict[str, Convert]]] = {}
        for node in reversed(self._readers.values()) if own is None else ():  # the inner ones first: less recursion
            self._plain(node, node)
        self.convert = self.pair(writer, reader)

    def logical(self) -> dict[int, dict[str, Any]]:
        """Return id of a writer's node → properties of the logical type that fastavro applies to its values.

        Other values stay as they are written, as do bytes that two columns have as decimals of different scales.
        """
        return {node: found[0] for node, found in self._wanted.items() if all(one == found[0] for one in found)}

    def matches(self, writer: Schema, reader: Schema) -> bool:
        """Return whether fastavro takes ``reader`` for values of ``writer``."""
        if isinstance(writer, list) or isinstance(reader, list):
            return True
        writer, reader = _node(writer, self._writers), _node(reader, self._readers)
        written, wanted = writer["type"], reader["type"]
        if written == wanted and written in _HELD:
            return self.matches(writer[_HELD[written]], reader[_HELD[written]])
        if written in NAMED and wanted in NAMED:
            name, short = writer["name"], _short(writer)
            sizes_differ = written == wanted == "fixed" and writer["size"] != reader["size"]
            return not sizes_differ and (short == _short(reader) or bool({name, short} & {*reader.get("aliases", ())}))
        return written == wanted or (written, wanted) in _PROMOTIONS

    def pair(self, writer: Schema, reader: Schema) -> Convert | None:
        """Return what converts the values of ``writer`` to the column of ``reader``; None if they fit."""
        if isinstance(writer, list):
            if isinstance(reader, list) and has_members(reader):
                return self._members(writer, reader)
            pairs = [(one, chosen) for one in branches_of(writer) if (chosen := self._chosen(one, reader)) is not None]
            inner = self._same(pairs)
            if inner is not None:
                return _within(inner)
            return _value if any(_is_named(one) for one in writer) else None
        if isinstance(reader, list):
            chosen = self._chosen(writer, reader)
            inner = None if chosen is None else self._plain(writer, chosen)
            index = next((at for at, one in enumerate(branches_of(reader)) if one is chosen), None)
            return inner if index is None or not has_members(reader) else _member(index, inner)
        return self._plain(writer, reader)

    def _plain(self, writer: Schema, reader: Schema) -> Convert | None:
        writer, reader = _node(writer, self._writers), _node(reader, self._readers)
        if writer["type"] not in _RECORDS or reader["type"] not in _RECORDS:
            return self._unnamed(writer, reader)
        key = (writer["name"], reader["name"])
        if key not in self._found:
            self._found[key] = self._record(writer, reader)
        return self._found[key]

    def _chosen(self, writer: Schema, reader: Schema) -> Schema | None:
        """Return the reader's type that values of ``writer`` get: the first of its union that matches."""
        if not isinstance(reader, list):
            return reader if self.matches(writer, reader) else None
        node = _node(writer, self._writers)
        if "name" not in node:
            matching = [one for one in reader if self.matches(writer, one)]
            return self._with_logical(node, matching) if len(matching) > 1 else next(iter(matching), None)
        by_name = self._own.names(reader)  # a union can have thousands of records
        among = sorted(by_name.get(_short(node), []) + by_name.get(node["name"], []), key=lambda one: one[0])
        return next((one for _, one in among if self.matches(writer, one)), None)

    def _with_logical(self, writer: dict[str, Any], matching: list[Schema]) -> Schema:
        """Return the first type whose logical type is of the writer's kind, or the first of all, which fastavro takes.

        fastavro takes a string for the bytes of a decimal, or a double for a time. Its logical type shows the member.
        """
        of_logical = set(_python_types(writer)[1:])
        for one in matching[1:]:
            if isinstance(one, dict) and of_logical.intersection(_python_types(one)):
                self._wanted.setdefault(id(writer), []).append(_applied(writer))
                return one
        return matching[0]

    def names(self, union: list[Schema]) -> dict[str, list[tuple[int, Schema]]]:
        """Return name or alias → index and type of each named type of the reader's union."""
        if id(union) not in self._names:
            found = self._names[id(union)] = {}
            for at, one in enumerate(union):
                node = _node(one, self._readers)
                for name in {_short(node), *node.get("aliases", ())} if "name" in node else ():
                    found.setdefault(name, []).append((at, one))
        return self._names[id(union)]

    def _record(self, writer: dict[str, Any], reader: dict[str, Any]) -> Convert | None:
        by_name, changed = self._own.fields(reader)
        changed = dict(changed)
        for field in writer["fields"]:
            target = by_name.get(field["name"])
            if target is None:
                continue
            convert = self.pair(field["type"], target["type"])
            if convert is not None:
                changed[target["name"]] = convert
            else:
                changed.pop(target["name"], None)
        if not changed:
            return None

        def record(value: Any) -> Any:
            row = dict(value)  # a default is the same object for all records
            for name, convert in changed.items():
                row[name] = convert(row[name])
            return row

        return record

    def fields(self, reader: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Convert]]:
        """Return name or alias → field of the reader's record, and what converts the defaults of these fields."""
        if reader["name"] not in self._fields:
            by_name = {alias: field for field in reader["fields"] for alias in field.get("aliases", ())}
            by_name.update((field["name"], field) for field in reader["fields"])
            made = {field["name"]: self.pair(field["type"], field["type"]) for field in reader["fields"]}
            self._fields[reader["name"]] = (by_name, {name: one for name, one in made.items() if one is not None})
        return self._fields[reader["name"]]

    def _unnamed(self, writer: dict[str, Any], reader: dict[str, Any]) -> Convert | None:
        kind = reader["type"]
        if kind in _HELD and writer["type"] == kind:
            inner = self.pair(writer[_HELD[kind]], reader[_HELD[kind]])
            if inner is None:
                return None
            if kind == "array":
                return lambda value: [inner(one) for one in value]
            return lambda value: {key: inner(one) for key, one in value.items()}
        wanted = _wanted(writer, reader)
        if wanted:
            self._wanted.setdefault(id(writer), []).append(wanted)
        return None

    def _members(self, union: list[Schema], reader: list[Schema]) -> Convert:
        """Return what converts a value of a writer's union to a struct with a field for each type. One of them is set."""
        some = branches_of(reader)
        pairs: dict[int, list[tuple[Schema, Schema]]] = {}
        for at, one in enumerate(union):
            chosen = reader[at] if self._alike else self._chosen(one, reader)
            pairs.setdefault(id(chosen), []).append((one, chosen))
        by_name: dict[str, Convert] = {}
        by_kind: dict[type, Convert] = {}
        for index, branch in enumerate(some):
            convert = _member(index, self._same(pairs.get(id(branch), [])))
            node = _node(branch, self._readers)
            if "name" in node:
                by_name[node["name"]] = convert
            else:
                by_kind.update(dict.fromkeys(_python_types(node), convert))

        def members(value: Any) -> Any:
            if value is None:
                return None
            if isinstance(value, tuple):
                return by_name[value[0]](value[1])
            found = by_kind.get(type(value))
            if found is None:
                raise ValueError(f"the reader's union has no branch for a value of type {type(value).__name__}")
            return found(value)

        return members

    def _same(self, pairs: list[tuple[Schema, Schema]]) -> Convert | None:
        """Return what converts values of each of ``pairs``. If it differs, they count as values of the reader's schema."""
        if len(pairs) == 1:
            return self._plain(*pairs[0])
        made = [self._plain(writer, reader) for writer, reader in pairs]
        if all(one is made[0] for one in made):
            return made[0] if made else None
        return self._own.pair(pairs[0][1], pairs[0][1])


# ---- defaults --------------------------------------------------------------------------------------------------------


def defaults_of(reader: Schema) -> dict[tuple[str, str], Any]:
    """Return (record, field) → default, as fastavro would read it from a body. Omits a default that does not fit its type."""
    named = named_types(reader)
    found: dict[tuple[str, str], Any] = {}
    for node in named.values():
        for field in node.get("fields", ()):
            if "default" in field:
                try:
                    found[node["name"], field["name"]] = _default(field["default"], field["type"], named)
                except (ValueError, OverflowError):
                    continue
    return found


def _default(value: Any, schema: Schema, named: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return _default_of_union(value, schema, named)
    node = _node(schema, named)
    kind = node["type"]
    if kind in _RECORDS and isinstance(value, dict):
        return {field["name"]: _default_of_field(value, field, named) for field in node["fields"]}
    if kind == "array" and isinstance(value, list):
        return [_default(one, node["items"], named) for one in value]
    if kind == "map" and isinstance(value, dict):
        return {key: _default(one, node["values"], named) for key, one in value.items()}
    if kind in ("bytes", "fixed") and isinstance(value, str):
        data = value.encode("latin-1")
        if kind == "fixed" and len(data) != node["size"]:
            raise ValueError(f"a default of {node['name']} has {len(data)} bytes")
        return read_decimal(data, node) if node.get("logicalType") == DECIMAL else data
    if kind in ("float", "double") and (type(value) in (int, float) or value in _NOT_FINITE):
        return float(value)
    fits = (
        (kind == "null" and value is None)
        or (kind == "enum" and value in node["symbols"])
        or (kind == "string" and isinstance(value, str))
        or (kind == "boolean" and isinstance(value, bool))
        or (kind in ("int", "long") and type(value) is int)
    )
    if not fits:
        raise ValueError(f"the default {value!r} is not of the type {kind}")
    return value


def _default_of_union(value: Any, union: list[Schema], named: dict[str, Any]) -> Any:
    for one in union:
        try:
            made = _default(value, one, named)
        except (ValueError, OverflowError):
            continue
        return (_node(one, named)["name"], made) if has_members(union) and _is_named(one) else made
    raise ValueError(f"the default {value!r} is of no type of its union")


def _default_of_field(record: dict[str, Any], field: dict[str, Any], named: dict[str, Any]) -> Any:
    if field["name"] not in record and "default" not in field:
        raise ValueError(f"a default has no value for the field {field['name']}")
    return _default(record.get(field["name"], field.get("default")), field["type"], named)


# ---- types -----------------------------------------------------------------------------------------------------------


def named_types(schema: Schema) -> dict[str, Any]:
    """Return name → definition of the named types in ``schema``."""
    return {node["name"]: node for node in definitions(schema)}


def holds_members(node: Schema) -> bool:
    """Return whether ``node`` has a union somewhere whose column is a struct with a field for each type."""
    if isinstance(node, list):
        return has_members(node) or any(map(holds_members, node))
    return isinstance(node, dict) and any(map(holds_members, _below(node)))


def _below(node: dict[str, Any]) -> Iterator[Schema]:
    yield from (field["type"] for field in node.get("fields", ()))
    yield from (node[key] for key in _HELD.values() if key in node)


def _node(schema: Schema, named: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = schema if isinstance(schema, dict) else named.get(schema) or {"type": schema}
    return found


def _is_named(branch: Schema) -> bool:
    return kind_of(branch) not in KINDS and kind_of(branch) != "null"


def _short(node: dict[str, Any]) -> str:
    return str(node["name"]).rpartition(".")[2]


def _wanted(writer: dict[str, Any], reader: dict[str, Any]) -> dict[str, Any]:
    """Return the properties of the logical type by which a writer's value becomes one of the reader's; none: it is one."""
    written, wanted = writer.get("logicalType"), reader.get("logicalType")
    if (writer["type"], written) in TIMES:
        return _applied(writer) if wanted != written and (reader["type"], wanted) in TIMES else {}
    binary = writer["type"] in ("bytes", "fixed") and reader["type"] in ("bytes", "fixed")
    if not binary or wanted != DECIMAL:
        return {}
    return _applied(writer if written == DECIMAL else reader)


def _applied(node: dict[str, Any]) -> dict[str, Any]:
    """Return the properties by which fastavro applies the logical type of ``node``."""
    if node["logicalType"] == DECIMAL:
        return {"logicalType": BOUNDED_DECIMAL, "scale": node.get("scale", 0)}
    return {"logicalType": node["logicalType"]}


def _python_types(node: dict[str, Any]) -> tuple[type, ...]:
    """Return the types of the values by which a union's unnamed type is recognized, that of its logical type last."""
    logical = node.get("logicalType")
    if logical == DECIMAL and node["type"] == "bytes":
        return (KINDS[node["type"]], decimal.Decimal)
    if (node["type"], logical) in TIMES:
        return (KINDS[node["type"]], datetime.date if logical == "date" else datetime.datetime)
    return (KINDS[node["type"]],)


def _member(index: int, inner: Convert | None) -> Convert:
    name = f"{MEMBER}{index}"
    return (lambda value: {name: value}) if inner is None else (lambda value: {name: inner(value)})


def _value(value: Any) -> Any:
    return value[1] if isinstance(value, tuple) else value


def _within(inner: Convert) -> Convert:
    """Return what converts the values of a writer's union."""
    return lambda value: None if value is None else inner(_value(value))
