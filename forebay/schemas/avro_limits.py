"""Limits of Avro bodies: nesting, values without bytes, and bytes of a decimal, checked before fastavro does the work.

fastavro reads nested values on the C stack, which a record of a recursive schema can overflow. In a field that the reader
omits, it does not notice the body's end at a boolean, float, double or fixed. An array of these, or of values without bytes,
then takes as long as its count says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Context, Decimal
from typing import Any

#: maximum records, arrays and maps inside one another; fastavro needs about 500 bytes of stack for each. A union directly in a
#: union, which Avro does not allow and fastavro does, also counts as a level
LEVELS_MAX = 1_000
#: bytes of a decimal of 76 digits, Arrow's largest
DECIMAL_BYTES_MAX = 32
#: a body may have this many values, one more for each of the reader's columns, and as many more for each of its bytes as the
#: next constant says
_VALUES_MAX = 1_000
_VALUES_PER_BYTE_MAX = 64
#: deeper than each level of a body
_NOT_OMITTING = 1 << 62
_EXACT = Context(prec=100)

#: types of a constant size
_SIZES = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_VARINTS = ("int", "long", "enum")
_TEXTS = ("bytes", "string")
_RECORDS = ("record", "error")

Schema = Any  # as in JSON: a name, a list or an object


def read_decimal(data: bytes, writer: Schema, reader: Schema = None) -> Decimal:
    """Return the decimal in ``data``. Raises ValueError if it is too long: its conversion would take quadratic time."""
    length = len(data)
    if length > DECIMAL_BYTES_MAX:
        # a wide fixed type repeats the sign in front; one byte more keeps it
        sign = b"\xff" if data[0] & 0x80 else b"\0"
        data = sign + data.lstrip(sign)
    if len(data) > DECIMAL_BYTES_MAX + 1:
        raise ValueError(f"a decimal has {length} bytes; at most {DECIMAL_BYTES_MAX} are allowed")
    return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-writer.get("scale", 0), _EXACT)


def definitions(node: Schema) -> Iterator[dict[str, Any]]:
    """Return the records, enumerations and fixed types that the schema defines, with full names."""
    if isinstance(node, list):
        for one in node:
            yield from definitions(one)
    elif isinstance(node, dict):
        if "name" in node:
            yield node
        for field in node.get("fields", ()):
            yield from definitions(field["type"])
        for key in ("items", "values"):
            if key in node:
                yield from definitions(node[key])


def body_check(writer: Schema, reader: Schema | None) -> Callable[[bytes, int], None] | None:
    """Return the check that a body needs before fastavro reads it; None if its bytes bound the work for every body.

    The check takes the bytes and the body's length. It raises ValueError for a body that is nested too deep, has too many values
    for its bytes, or ends early. ``reader``: None if it equals ``writer``. Raises ValueError for a fixed type of a negative size.
    """
    readers = _Readers(reader)
    types = _Types(readers)
    root = types.of(writer)
    omitted = () if reader is None else _omitted(types)
    bounded = (
        not types.recursive
        and root.levels <= LEVELS_MAX
        and root.values <= _VALUES_MAX + readers.columns + _VALUES_PER_BYTE_MAX * root.bytes_min
        and all(one.values <= _VALUES_PER_BYTE_MAX * (one.bytes_min + more) for one, more in types.parts)
        and not any(one.skipped > _VALUES_MAX or (one.kind == "array" and one.below[0].size >= 0) for one in omitted)
    )
    return None if bounded else _Check(root, readers.columns).check


class _Readers:
    """The records of a reader's schema. ``columns``: fields, branches, items and values with those below them, in each place."""

    def __init__(self, reader: Schema | None) -> None:
        self._by_name: dict[str, list[dict[str, Any]]] = {}
        for one in definitions(reader):
            for name in {one["name"].rpartition(".")[2], *one.get("aliases", ())}:
                self._by_name.setdefault(name, []).append(one)
        self.columns = 0 if reader is None else _columns(reader, {})

    def matching(self, name: str) -> list[dict[str, Any]]:
        """Return those that can match a writer's record: by name without namespace, or by alias."""
        return [one for each in {name, name.rpartition(".")[2]} for one in self._by_name.get(each, ())]

    def known(self, name: str) -> list[set[str]]:
        """Return the names and aliases of the fields of each of them."""
        return [{name for field in one.get("fields", ()) for name in _names(field)} for one in self.matching(name)]

    def added(self, node: dict[str, Any]) -> int:
        """Return the maximum number of fields that one of them adds to a writer's record."""
        has = {field["name"] for field in node["fields"]}
        return max(
            (sum(not _names(field) & has for field in one.get("fields", ())) for one in self.matching(node["name"])),
            default=0,
        )


def _names(field: dict[str, Any]) -> set[str]:
    return {field["name"], *field.get("aliases", ())}


def _columns(node: Schema, named: dict[str, int]) -> int:
    if isinstance(node, list):
        return sum(_columns(one, named) for one in node)
    if isinstance(node, str):
        return named.get(node, 1)
    below = [field["type"] for field in node.get("fields", ())] + [
        node[key] for key in ("items", "values") if key in node
    ]
    found = 1 + sum(_columns(one, named) for one in below)
    if "name" in node:
        named[node["name"]] = found
    return found


class _Type:
    """A type of the writer's schema.

    ``size``: of its values in bytes, if constant; else -1. ``below``: the types of its fields, branches, items or values.
    ``added``: maximum fields of a reader's record that this record lacks. ``omits``: the fields that all readers' records omit.
    ``values``: how many values one of its values consists of, with added fields, without those behind a union, array or map.
    ``skipped``: the same if the reader omits it, so that nothing is added. ``bytes_min``: the minimum bytes of the same parts.
    ``levels``: depth of its nesting. The last four are wrong for a type that contains itself.
    """

    __slots__ = ("added", "below", "bytes_min", "kind", "levels", "omits", "size", "skipped", "values")

    def __init__(self, kind: str, size: int = -1, below: tuple[_Type, ...] = ()) -> None:
        self.kind, self.size, self.below = kind, size, below
        self.added = 0
        self.omits: frozenset[int] = frozenset()
        self.values = self.skipped = 1
        self.bytes_min = size if size >= 0 else 1
        self.levels = 0

    def close(self, below: tuple[_Type, ...]) -> None:
        """Set the types below it."""
        self.below = below
        union = self.kind == "union"
        self.levels = (not union) + max((one.levels + (union and one.kind == "union") for one in below), default=0)
        if self.kind == "record":
            read = sum(one.skipped if at in self.omits else one.values for at, one in enumerate(below))
            self.values = min(1 + self.added + read, 1 << 62)
            self.skipped = min(1 + sum(one.skipped for one in below), 1 << 62)
            self.bytes_min = sum(one.bytes_min for one in below)
            self.size = self.bytes_min if all(one.size >= 0 for one in below) else -1


class _Types:
    """The types of a schema's nodes. ``parts``: each branch, item and value, with the bytes that precede it."""

    def __init__(self, readers: _Readers) -> None:
        self.readers = readers
        self.recursive = False
        self.parts: list[tuple[_Type, int]] = []
        self.records: dict[str, tuple[dict[str, Any], _Type]] = {}
        self._named: dict[str, _Type] = {}
        self._open: set[str] = set()

    def of(self, node: Schema) -> _Type:
        if isinstance(node, list):
            made = _Type("union")
            made.close(tuple(map(self.of, node)))
            self.parts += [(one, 1) for one in made.below]
            return made
        kind = node["type"] if isinstance(node, dict) else node
        if kind in _RECORDS:
            return self._record(node)
        if kind in ("array", "map"):
            made = _Type(kind)
            made.close((self.of(node["items" if kind == "array" else "values"]),))
            self.parts.append((made.below[0], int(kind == "map")))
            return made
        if kind in _SIZES or kind in _VARINTS or kind in _TEXTS or kind == "fixed":
            made = _Type(
                "varint" if kind in _VARINTS else kind, _size(node) if kind == "fixed" else _SIZES.get(kind, -1)
            )
            if isinstance(node, dict) and "name" in node:
                self._named[node["name"]] = made
            return made
        self.recursive |= kind in self._open
        return self._named[kind]

    def _record(self, node: dict[str, Any]) -> _Type:
        name = node["name"]
        made = self._named[name] = _Type("record")
        made.added = self.readers.added(node)
        known = self.readers.known(name)
        made.omits = frozenset(
            at for at, field in enumerate(node["fields"]) if not any(field["name"] in one for one in known)
        )
        self.records[name] = (node, made)
        self._open.add(name)
        made.close(tuple(self.of(field["type"]) for field in node["fields"]))
        self._open.remove(name)
        return made


def _size(node: dict[str, Any]) -> int:
    size = node["size"]
    if not isinstance(size, int) or size < 0:
        raise ValueError(f"the fixed type {node['name']} has the size {size!r}; it must be a number of bytes")
    return size


def _omitted(types: _Types) -> set[_Type]:
    """Return all types in fields that a reader's record may omit."""
    found: set[_Type] = set()
    waiting: list[_Type] = []
    for name, (node, made) in types.records.items():
        known = types.readers.known(name)
        for field, below in zip(node["fields"], made.below, strict=True):
            if not known or not all(field["name"] in one for one in known):
                waiting.append(below)
    while waiting:
        one = waiting.pop()
        if one not in found:
            found.add(one)
            waiting += one.below
    return found


class _Check:
    def __init__(self, root: _Type, columns: int) -> None:
        self._root = root
        self._values_max = _VALUES_MAX + columns

    def check(self, data: bytes, end: int) -> None:
        """Raise ValueError if ``data[:end]`` is nested too deep, has too many values for its bytes, or ends early."""
        at = 0
        values_max = self._values_max + _VALUES_PER_BYTE_MAX * end
        values = 0
        # of a record, the next field's index; of an array or map, the items left in its block, and where the block must end
        # (-1: unknown)
        one, level, position, until = self._root, 0, 0, -1
        # level of the record in whose omitted field the position is; nothing is added to records below it
        omitting = _NOT_OMITTING
        # the open records, arrays and maps; at most one for each level, which bounds the memory
        work: list[tuple[_Type, int, int, int]] = []
        while True:
            kind = one.kind
            if one.size >= 0:
                if level + one.levels > LEVELS_MAX:
                    raise _too_deep()
                at += one.size
                values += one.values if level <= omitting else one.skipped
            elif kind == "varint":
                at = _varint(data, at, end)[1]
                values += 1
            elif kind in _TEXTS:
                at = _after_text(data, at, end)
                values += 1
            elif kind == "union":
                index, at = _varint(data, at, end)
                if not 0 <= index < len(one.below):
                    raise ValueError(f"a union of {len(one.below)} types has no type {index}")
                values += 1
                one = one.below[index]
                level += one.kind == "union"
                continue
            elif level >= LEVELS_MAX:
                raise _too_deep()
            elif kind == "record":
                if not position:
                    values += 1 + one.added if level <= omitting else 1
                if position + 1 < len(one.below):
                    work.append((one, level, position + 1, -1))
                if position in one.omits and level < omitting:
                    omitting = level
                one, level, position = one.below[position], level + 1, 0
                continue
            else:
                item = one.below[0]
                if position:
                    left = position
                else:
                    if until not in (-1, at):
                        raise ValueError(
                            f"a block of its {kind} ends at byte {at}, not at byte {until} as the block says"
                        )
                    left, at = _varint(data, at, end)
                    until = -1
                    if left < 0:
                        size, at = _varint(data, at, end)
                        left, until = -left, at + size
                if not left:
                    values += 1
                elif kind == "array" and item.size >= 0:
                    if level + 1 + item.levels > LEVELS_MAX:
                        raise _too_deep()
                    at += left * item.size
                    values += left * (item.values if level <= omitting else item.skipped)
                    work.append((one, level, 0, until))
                else:
                    if kind == "map":
                        at = _after_text(data, at, end)
                    work.append((one, level, left - 1, until))
                    one, level, position, until = item, level + 1, 0, -1
                    continue
            if at > end:
                raise _ends_early(end)
            if values > values_max:
                raise ValueError(
                    f"it has more than {values_max} values in {end} bytes, such as an array of values without bytes"
                )
            if not work:
                return
            one, level, position, until = work.pop()
            if level <= omitting:
                omitting = _NOT_OMITTING


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return a zigzag varint of at most 64 bits, and the position after it."""
    if at < end and data[at] < 0x80:  # the usual case
        return (data[at] >> 1) ^ -(data[at] & 1), at + 1
    value = shift = 0
    while at < end and shift < 70:
        octet = data[at]
        at += 1
        value |= (octet & 0x7F) << shift
        if octet < 0x80:
            value &= (1 << 64) - 1
            return (value >> 1) ^ -(value & 1), at
        shift += 7
    raise _ends_early(end) if at >= end else ValueError(f"the number before byte {at} has more than 64 bits")


def _after_text(data: bytes, at: int, end: int) -> int:
    size, at = _varint(data, at, end)
    if not 0 <= size <= end - at:
        raise ValueError(f"a text at byte {at} has {size} bytes, but the record has {end - at} more")
    return at + size


def _too_deep() -> ValueError:
    return ValueError(f"its records, arrays and maps are nested more than {LEVELS_MAX} levels deep")


def _ends_early(end: int) -> ValueError:
    return ValueError(f"its schema covers more than its {end} bytes")
