"""Protobuf: a message's fields become fields, by their numbers. Bodies are read by the reader's message, in C; the writer's file
says only which message a body is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from forebay.errors import UsageError
from forebay.kafka.registry import RegisteredSchema, descriptor_bytes, missing_extra
from forebay.schemas.bodies import Bodies, Decoded, built, cause_of
from forebay.schemas.framing import message_indexes

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor

#: by the names that a .proto file has for them
_SCALARS: dict[str, pa.DataType] = {
    "double": pa.float64(), "float": pa.float32(), "int32": pa.int32(), "sint32": pa.int32(), "sfixed32": pa.int32(),
    "int64": pa.int64(), "sint64": pa.int64(), "sfixed64": pa.int64(), "uint32": pa.int64(), "fixed32": pa.int64(),
    "uint64": pa.decimal128(20, 0), "fixed64": pa.decimal128(20, 0), "bool": pa.bool_(), "string": pa.string(),
    "bytes": pa.binary(),
}  # fmt: skip
#: google.protobuf's messages that are one value
_WRAPPED = {
    "DoubleValue": "double", "FloatValue": "float", "Int64Value": "int64", "UInt64Value": "uint64", "Int32Value": "int32",
    "UInt32Value": "uint32", "BoolValue": "bool", "StringValue": "string", "BytesValue": "bytes",
}  # fmt: skip
_GOOGLE = "google.protobuf."

Build = Callable[[Sequence[Any]], "pa.Array[Any]"]


class ProtobufFormat:
    """As ``forebay.schemas.bodies.Format``. ``message``: the full name of the reader's; "" for the first one of the file."""

    def __init__(self, schema: RegisteredSchema, message: str = "") -> None:
        """Raises UsageError for what no column can hold, by its path, and for a file that can't be had."""
        file = _file(schema)
        self._message = _named(file, message, schema)
        self._schema = schema
        from google.protobuf import message_factory

        self._parse = message_factory.GetMessageClass(self._message).FromString
        self.type, self._build = _Types(schema).message(self._message, "", ())

    def writer(self, schema: RegisteredSchema) -> Callable[[Bodies], Decoded]:
        try:
            file = _file(schema)
        except UsageError as error:
            raise ValueError(str(error)) from None
        known: dict[tuple[int, ...], str] = {}

        def name_of(indexes: tuple[int, ...]) -> str:
            if indexes not in known:
                known[indexes] = _at(file, indexes).full_name
            return known[indexes]

        return lambda bodies: self._decode(bodies, name_of)

    def _decode(self, bodies: Bodies, name_of: Callable[[tuple[int, ...]], str]) -> Decoded:
        rows: list[Any] = []
        causes: dict[int, str] = {}
        wanted, parse, data, given = self._message.full_name, self._parse, bodies.data, bodies.message
        for start, end in zip(bodies.starts, bodies.ends, strict=True):
            try:
                indexes, place = (given, start) if given is not None else message_indexes(data[:end], start)
                if name_of(indexes) != wanted:
                    raise ValueError(f"it is a {name_of(indexes)}, not a {wanted}")
                rows.append(parse(bytes(data[place:end])))
            except MemoryError:
                raise
            except Exception as error:
                causes[len(rows)] = cause_of(error)
                rows.append(None)
        return built(rows, causes, self._build)


def _file(schema: RegisteredSchema) -> FileDescriptor:
    """Raises UsageError."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message
    except ImportError as error:
        raise missing_extra(error) from None
    pool = descriptor_pool.DescriptorPool()
    added: set[str] = set()

    def add(name: str, text: str) -> str:
        data = descriptor_bytes(text)
        if data is None:
            raise UsageError(
                f"{schema}: the schema registry has the file {name or 'of this schema'} as text alone, and what reads it is a "
                "registry that answers format=serialized"
            )
        try:
            file = descriptor_pb2.FileDescriptorProto.FromString(data)
        except message.DecodeError:
            raise UsageError(f"{schema}: {name or 'its file'} is no descriptor of a Protobuf file") from None
        file.name = name or file.name or "schema.proto"
        for dependency in file.dependency:
            _add_known(dependency, pool, added)
        added.add(file.name)
        pool.Add(file)
        return str(file.name)

    try:
        for name, text in schema.references:
            add(name, text)
        return pool.FindFileByName(add("", schema.text))
    except (TypeError, KeyError, ValueError) as error:  # as the pool refuses what does not fit together
        raise UsageError(f"{schema} can't be read: {cause_of(error)}") from None


def _add_known(name: str, pool: Any, added: set[str]) -> None:
    """A file that comes with the libraries, and what it needs; nothing for any other."""
    if name in added or not name.endswith(".proto") or not name.startswith(("google/", "confluent/")):
        return
    module = name.removesuffix(".proto").replace("/", ".") + "_pb2"
    if name.startswith("confluent/"):
        module = f"confluent_kafka.schema_registry.{module}"
    try:
        file = import_module(module).DESCRIPTOR
    except ImportError:
        return  # the pool will name it
    added.add(name)
    for dependency in file.dependencies:
        _add_known(dependency.name, pool, added)
    pool.AddSerializedFile(file.serialized_pb)


def _named(file: FileDescriptor, message: str, schema: RegisteredSchema) -> Descriptor:
    if not message:
        if not file.message_types_by_name:
            raise UsageError(f"{schema} has no message")
        return next(iter(file.message_types_by_name.values()))
    if not message.startswith(f"{file.package}.") and file.package:
        message = f"{file.package}.{message}"
    steps = message.removeprefix(f"{file.package}.").split(".")
    found: Any = file.message_types_by_name.get(steps[0])
    for step in steps[1:]:
        found = found and found.nested_types_by_name.get(step)
    if found is None:
        has = ", ".join(one.full_name for one in file.message_types_by_name.values())
        raise UsageError(f"{schema} has no message {message}; it has {has}")
    return found


def _at(file: FileDescriptor, indexes: tuple[int, ...]) -> Descriptor:
    """Raises ValueError."""
    found: Any = None
    below = list(file.message_types_by_name.values())
    for index in indexes:
        if not 0 <= index < len(below):
            raise ValueError(f"its schema has no message at {list(indexes)}")
        found = below[index]
        below = list(found.nested_types)
    return found


# ---- columns ---------------------------------------------------------------------------------------------------------


class _Types:
    """Types, and what builds arrays of them from values of the C messages, whole columns at a time."""

    def __init__(self, schema: RegisteredSchema) -> None:
        self._schema = schema

    def message(self, message: Descriptor, path: str, inside: tuple[str, ...]) -> tuple[pa.DataType, Build]:
        name = message.full_name
        if name in inside or name in (f"{_GOOGLE}Struct", f"{_GOOGLE}Value", f"{_GOOGLE}ListValue"):
            raise self._refused(path, f"{name} holds itself, and a column can't")
        if name.startswith(_GOOGLE) and name.removeprefix(_GOOGLE) in _WRAPPED:
            arrow = _SCALARS[_WRAPPED[name.removeprefix(_GOOGLE)]]
            return arrow, _one_by_one(arrow, attrgetter("value"))
        if name == f"{_GOOGLE}Timestamp":
            arrow = pa.timestamp("us", "UTC")
            return arrow, _one_by_one(arrow, _microseconds)
        if name == f"{_GOOGLE}Duration":
            arrow = pa.duration("us")
            return arrow, _one_by_one(arrow, _microseconds)
        fields: list[tuple[pa.Field[Any], Build]] = []
        for field in message.fields:
            if not _is_empty(field):  # a column with no field is none
                below, build = self._field(field, f"{path}.{field.name}", (*inside, name))
                fields.append((pa.field(field.name, below), build))
        if not fields:
            raise self._refused(path, f"the message {name} has no fields")
        return pa.struct([field for field, _ in fields]), _struct(fields)

    def _field(self, field: FieldDescriptor, path: str, inside: tuple[str, ...]) -> tuple[pa.DataType, Build]:
        """``Build`` of the messages that have the field."""
        get = attrgetter(field.name)
        if _is_map(field):
            entry = field.message_type
            key, keys = self._value(entry.fields_by_name["key"], path, inside)
            held, values = self._value(entry.fields_by_name["value"], f"{path}[]", inside)
            arrow = pa.map_(key, held)
            return arrow, lambda messages: _map_of([m and get(m) for m in messages], keys, values, arrow)
        below, build = self._value(field, f"{path}[]" if _repeated(field) else path, inside)
        if _repeated(field):
            listed = pa.list_(below)
            return listed, lambda messages: _list_of([m and get(m) for m in messages], build, listed)
        if field.has_presence:
            name = field.name
            return below, lambda messages: build(
                [get(m) if m is not None and m.HasField(name) else None for m in messages]
            )
        return below, lambda messages: build([None if m is None else get(m) for m in messages])

    def _value(self, field: FieldDescriptor, path: str, inside: tuple[str, ...]) -> tuple[pa.DataType, Build]:
        if field.message_type is not None:
            return self.message(field.message_type, path, inside)
        if field.enum_type is not None:
            names = {number: one.name for number, one in field.enum_type.values_by_number.items()}
            return pa.string(), _one_by_one(pa.string(), lambda number: names.get(number, str(number)))
        arrow = _SCALARS[_KINDS[field.type]]
        return arrow, lambda values: pa.array(values, arrow)

    def _refused(self, path: str, what: str) -> UsageError:
        return UsageError(f"{self._schema}: {path.lstrip('.') or 'all of it'} can't be a column: {what}")


#: FieldDescriptor.type
_KINDS = {
    1: "double", 2: "float", 3: "int64", 4: "uint64", 5: "int32", 6: "fixed64", 7: "fixed32", 8: "bool", 9: "string",
    12: "bytes", 13: "uint32", 15: "sfixed32", 16: "sfixed64", 17: "sint32", 18: "sint64",
}  # fmt: skip


def _repeated(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated) if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry and _repeated(field)


def _is_empty(field: FieldDescriptor) -> bool:
    return field.message_type is not None and not field.message_type.fields


def _one_by_one(arrow: pa.DataType, value: Callable[[Any], Any]) -> Build:
    return lambda values: pa.array([None if one is None else value(one) for one in values], arrow)


def _microseconds(value: Any) -> int:
    return int(value.seconds * 1_000_000 + value.nanos // 1_000)


def _struct(fields: Sequence[tuple[pa.Field[Any], Build]]) -> Build:
    def build(messages: Sequence[Any]) -> pa.Array[Any]:
        made: Any = pa.StructArray
        return made.from_arrays(  # type: ignore[no-any-return]
            [below(messages) for _, below in fields],
            fields=[field for field, _ in fields],
            mask=pa.array([message is None for message in messages], pa.bool_()),
        )

    return build


def _offsets(held: Sequence[Any]) -> pa.Array[Any]:
    lengths = [0 if one is None else len(one) for one in held]
    return pa.array(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]), pa.int32())


def _list_of(held: Sequence[Any], build: Build, arrow: pa.DataType) -> pa.Array[Any]:
    values = build(list(chain.from_iterable(one for one in held if one is not None)))
    made: Any = pa.ListArray
    return made.from_arrays(_offsets(held), values, type=arrow)  # type: ignore[no-any-return]


def _map_of(held: Sequence[Any], keys: Build, values: Build, arrow: pa.DataType) -> pa.Array[Any]:
    pairs = [pair for one in held if one is not None for pair in one.items()]
    made: Any = pa.MapArray
    return made.from_arrays(  # type: ignore[no-any-return]
        _offsets(held), keys([key for key, _ in pairs]), values([value for _, value in pairs]), type=arrow
    )
