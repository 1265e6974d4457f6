"""The check of Avro bodies accepts what fastavro reads, for random schemas, and no body that was cut off."""

from __future__ import annotations

import copy
import io
import random
from typing import Any

import fastavro
import pytest

from forebay.schemas.avro_limits import body_check
from tests.forebay.schemas.test_avro import record
from tests.forebay.schemas.test_avro_limits import array, number

_SCHEMAS = 500
_LEAVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_TEXTS = ("bytes", "string")


class _Made:
    """Random schemas and bodies."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._names = 0
        self._records: dict[str, Any] = {}

    def schema(self) -> Any:
        """Return a record with one field "o" whose array makes the check necessary if a reader omits it."""
        made = self._record(3, ["R"])
        made["fields"].append({"name": "o", "type": array("double")})
        return made

    def _record(self, depth: int, names: list[str]) -> Any:
        one = self.random
        made = record(*((f"f{at}", self._type(depth - 1, names)) for at in range(one.randint(0, 4)))) | {
            "name": names[-1]
        }
        if one.random() < 0.4:
            again: Any = one.choice([["null", names[-1]], array(names[-1]), {"type": "map", "values": names[-1]}])
            made["fields"].append({"name": "again", "type": again})
        self._records[names[-1]] = made
        return made

    def _type(self, depth: int, names: list[str]) -> Any:
        kind = self.random.choice((*_LEAVES, "fixed", "enum", "array", "map", "record", "union"))
        self._names += 1
        name = f"N{self._names}"
        if kind == "fixed":
            return {"type": "fixed", "name": name, "size": self.random.randint(0, 5)}
        if kind == "enum":
            return {"type": "enum", "name": name, "symbols": ["A", "B"]}
        if kind in _LEAVES or depth <= 0:
            return kind if kind in _LEAVES else "int"
        if kind == "array":
            return array(self._type(depth - 1, names))
        if kind == "map":
            return {"type": "map", "values": self._type(depth - 1, names)}
        return (
            self._record(depth, [*names, name])
            if kind == "record"
            else ["null", "long", array(self._type(depth - 1, names))]
        )

    def body(self, node: Any, depth: int) -> bytes:
        """Return a valid body. ``depth``: of its unions, arrays and maps; below, unions have their first type."""
        one = self.random
        if isinstance(node, list):
            index = one.randrange(len(node)) if depth > 0 else 0
            return number(index) + self.body(node[index], depth - 1)
        node = self._records.get(node, node) if isinstance(node, str) else node
        kind = node["type"] if isinstance(node, dict) else node
        if kind in ("null", "boolean", "float", "double", "fixed"):
            return bytes(node["size"] if kind == "fixed" else {"null": 0, "boolean": 1, "float": 4, "double": 8}[kind])
        if kind in ("int", "long", "enum"):
            return number(one.choice((0, 1) if kind == "enum" else (0, 1, -1, 2**31 - 1, -(2**31))))
        if kind in _TEXTS:
            size = one.choice((0, 1, 3, 200))
            return number(size) + b"a" * size
        if kind == "record":
            return b"".join(self.body(field["type"], depth - 1) for field in node["fields"])
        items = [
            number(1) + bytes([97 + at]) + self.body(node["values"], depth - 1)
            if kind == "map"
            else self.body(node["items"], depth - 1)
            for at in range(one.choice((0, 1, 2, 5)) if depth > 0 else 0)
        ]
        return self._blocks(items) + b"\0"

    def _blocks(self, items: list[bytes]) -> bytes:
        made = b""
        while items:
            count = self.random.randint(1, len(items))
            part, items = b"".join(items[:count]), items[count:]
            made += number(count) + part if self.random.random() < 0.5 else number(-count) + number(len(part)) + part
        return made

    def reader(self, writer: Any) -> Any:
        """Return a schema that omits fields of the writer's, and adds others."""
        fields = [
            field for field in writer["fields"] if self.random.random() < 0.5 and not _names_a_type(field["type"])
        ]
        added = [{"name": f"d{at}", "type": "int", "default": at} for at in range(self.random.choice((0, 2, 2_000)))]
        return {**writer, "fields": fields + added}


def _names_a_type(node: Any) -> bool:
    """Whether the node can refer to a record that the reader's schema changes or does not define."""
    if isinstance(node, list):
        return any(map(_names_a_type, node))
    if isinstance(node, dict):
        return any(map(_names_a_type, [field["type"] for field in node.get("fields", ())])) or any(
            _names_a_type(node[key]) for key in ("items", "values") if key in node
        )
    return node not in _LEAVES


def _read(body: bytes, writer: Any, reader: Any) -> tuple[Any, int]:
    stream = io.BytesIO(body)
    return fastavro.schemaless_reader(stream, writer, reader), stream.tell()


@pytest.mark.parametrize("seed", range(3))
def test_check_accepts_what_fastavro_reads(seed: int) -> None:
    made = _Made(seed)
    checked = 0
    for _ in range(_SCHEMAS):
        writer = made.schema()
        reader = made.reader(writer)
        body = made.body(writer, 5)
        parsed = [fastavro.parse_schema(copy.deepcopy(one)) for one in (writer, reader)]
        row, end = _read(body, parsed[0], parsed[1])
        assert end == len(body)
        whole = _read(body, parsed[0], None)[0]
        assert row == {field["name"]: field.get("default", whole.get(field["name"])) for field in reader["fields"]}
        check = body_check(writer, reader)
        if check is None:
            continue
        checked += 1
        check(body + b"\0", len(body))
        cut = made.random.randrange(len(body))
        with pytest.raises(ValueError):  # noqa: PT011 - many texts
            check(body[: cut + 1], cut)
    assert checked > _SCHEMAS // 4
