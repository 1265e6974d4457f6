"""Decodes Protobuf: a message's fields become fields, matched by number.

The reader's message parses bodies, in C. The writer's file only identifies the message of a body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import chain, count, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from forebay.kafka.registry.client import RegisteredSchema, descriptor_bytes, missing_extra
from forebay.model.errors import UsageError
from forebay.schemas.bodies import COLUMNS_MAX, TOO_MANY_COLUMNS, Bodies, Decoded, built, cause_of, parsing
from forebay.schemas.framing import message_indexes
from forebay.schemas.proto_source import compiled, imports_of

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor

#: type in a .proto file → Arrow's type
_SCALARS: dict[str, pa.DataType] = {
    "double": pa.float64(), "float": pa.float32(), "int32": pa.int32(), "sint32": pa.int32(), "sfixed32": pa.int32(),
    "int64": pa.int64(), "sint64": pa.int64(), "sfixed64": pa.int64(), "uint32": pa.int64(), "fixed32": pa.int64(),
    "uint64": pa.decimal128(20, 0), "fixed64": pa.decimal128(20, 0), "bool": pa.bool_(), "string": pa.string(),
    "bytes": pa.binary(),
}  # fmt: skip
#: google.protobuf's wrapper messages → type of their value
_WRAPPED = {
    "DoubleValue": "double", "FloatValue": "float", "Int64Value": "int64", "UInt64Value": "uint64", "Int32Value": "int32",
    "UInt32Value": "uint32", "BoolValue": "bool", "StringValue": "string", "BytesValue": "bytes",
}  # fmt: skip
_GOOGLE = "google.protobuf."
#: indexes of the first message
_FIRST = (0,)
#: maximum values of repeated fields that exist in Python at a time; among hundreds of thousands, protobuf finds a message slowly
_VALUES_MAX = 8_192

Build = Callable[[Sequence[Any]], "pa.Array[Any]"]


class ProtobufFormat:
    """Implements ``forebay.schemas.bodies.Format``. ``message``: full name of the reader's; "" for the first one of the file."""

    def __init__(self, schema: RegisteredSchema, message: str = "") -> None:
        """Raises UsageError for a field that can't be a column, with its path, and for an invalid file."""
        file = _file(schema)
        self._message = _named(file, message, schema)
        self._schema = schema
        from google.protobuf import message_factory

        with parsing(schema):
            self._parse = message_factory.GetMessageClass(self._message).FromString
            self.type, self._build = _Types(schema).message(self._message, "", ())

    def writer(self, schema: RegisteredSchema) -> Callable[[Bodies], Decoded]:
        try:
            file = _file(schema)
        except UsageError as error:
            raise ValueError(str(error)) from None
        checked: set[tuple[int, ...]] = set()
        messages = list(file.message_types_by_name.values())

        def check(indexes: tuple[int, ...]) -> None:
            if indexes not in checked:
                name = _at(messages, indexes).full_name
                if name != self._message.full_name:
                    raise ValueError(f"it is a {name}, not a {self._message.full_name}")
                checked.add(indexes)

        return lambda bodies: self._decode(bodies, check)

    def _decode(self, bodies: Bodies, check: Callable[[tuple[int, ...]], None]) -> Decoded:
        """``check``: raises ValueError if another message than the reader's is at these indexes."""
        rows: list[Any] = []
        causes: dict[int, str] = {}
        parse, data, given = self._parse, bodies.data, bodies.message
        for place, end in zip(bodies.starts, bodies.ends, strict=True):
            try:
                if given is not None:
                    check(given)
                elif place < end and data[place] == 0:  # the file's first message, the usual case
                    check(_FIRST)
                    place += 1
                else:
                    indexes, place = message_indexes(data[:end], place)
                    check(indexes)
                rows.append(parse(data[place:end]))
            except MemoryError:
                raise
            except Exception as error:
                causes[len(rows)] = cause_of(error)
                rows.append(None)
        return built(rows, causes, self._array)

    def _array(self, rows: Sequence[Any]) -> pa.Array[Any]:
        return _where_present(rows, self._build, self.type)


def _file(schema: RegisteredSchema) -> FileDescriptor:
    """Return the file's descriptor. Raises UsageError; UnreachableError if a text can't be compiled now."""
    try:
        from google.protobuf import descriptor_pool
    except ImportError as error:
        raise missing_extra(error) from None
    pool = descriptor_pool.DescriptorPool()
    added: set[str] = set()
    try:
        for file in _files(schema):
            for known in chain.from_iterable(map(_known, file.dependency)):
                if known.name not in added:
                    added.add(known.name)
                    pool.AddSerializedFile(known.serialized_pb)
            added.add(file.name)
            pool.Add(file)
        return pool.FindFileByName(file.name)
    except (TypeError, KeyError, ValueError) as error:  # the pool's exceptions for inconsistent files
        raise UsageError(f"cannot parse {schema}: {cause_of(error)}") from None


def _files(schema: RegisteredSchema) -> list[Any]:
    """Return the FileDescriptorProtos of the schemas that it refers to, in that order, and its own.

    Texts are compiled. They may import each other, the descriptors, and files of the libraries.
    """
    from google.protobuf import descriptor_pb2

    taken = {name for name, _ in schema.references}
    own = next(name for name in (f"schema{'-' * number}.proto" for number in count()) if name not in taken)
    texts: dict[str, str] = {}
    found: dict[str, Any] = {}
    for name, text in (*schema.references, (own, schema.text)):
        data = descriptor_bytes(text)
        found[name] = None  # keeps the order
        if data is None:
            texts[name] = text
        else:
            found[name] = _parsed(schema, data)
            found[name].name = name if name != own else found[name].name or own
    if texts:
        held = [file for file in found.values() if file is not None]
        imports = [*chain.from_iterable(map(imports_of, texts.values()))]
        imports += chain.from_iterable(file.dependency for file in held)
        known = {file.name: file.serialized_pb for one in imports for file in _known(one) if file.name not in found}
        try:
            made = compiled(tuple(texts.items()), (*known.values(), *(file.SerializeToString() for file in held)))
        except UsageError as error:
            raise UsageError(f"cannot parse {schema}: {error}") from None
        for name, data in zip(texts, made, strict=True):
            found[name] = descriptor_pb2.FileDescriptorProto.FromString(data)
    return list(found.values())


def _parsed(schema: RegisteredSchema, data: bytes) -> Any:
    from google.protobuf import descriptor_pb2, message

    try:
        return descriptor_pb2.FileDescriptorProto.FromString(data)
    except message.DecodeError:
        raise UsageError(f"{schema}: the registry's answer is not the descriptor of a Protobuf file") from None


def _known(name: str) -> list[FileDescriptor]:
    """Return a file of the libraries after its imports; [] for any other file."""
    if not name.endswith(".proto") or not name.startswith(("google/", "confluent/")):
        return []
    module = name.removesuffix(".proto").replace("/", ".") + "_pb2"
    if name.startswith("confluent/"):
        module = f"confluent_kafka.schema_registry.{module}"
    try:
        file = import_module(module).DESCRIPTOR
    except (ImportError, RecursionError):  # the second one for a name with thousands of folders
        return []  # who imports it will name it
    return [*(one for dependency in file.dependencies for one in _known(dependency.name)), file]


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


def _at(messages: Sequence[Descriptor], indexes: tuple[int, ...]) -> Descriptor:
    """Return the message at these indexes. The first index counts ``messages``. Raises ValueError."""
    found: Any = None
    below = messages
    for index in indexes:
        if not 0 <= index < len(below):
            raise ValueError(f"its schema has no message at {list(indexes)}")
        found = below[index]
        below = found.nested_types
    return found


# ---- columns ---------------------------------------------------------------------------------------------------------


class _Types:
    """Arrow types, and functions that build arrays of them from values of C messages, a column at a time and without None."""

    def __init__(self, schema: RegisteredSchema) -> None:
        self._schema = schema
        self._columns = 0

    def message(self, message: Descriptor, path: str, inside: tuple[str, ...]) -> tuple[pa.DataType, Build]:
        name = message.full_name
        if name in inside or name in (f"{_GOOGLE}Struct", f"{_GOOGLE}Value", f"{_GOOGLE}ListValue"):
            raise self._refused(path, f"{name} is recursive, which a column can't be")
        if name.startswith(_GOOGLE) and name.removeprefix(_GOOGLE) in _WRAPPED:
            arrow = _SCALARS[_WRAPPED[name.removeprefix(_GOOGLE)]]
            return arrow, _each(arrow, attrgetter("value"))
        if name == f"{_GOOGLE}Timestamp":
            arrow = pa.timestamp("us", "UTC")
            return arrow, _each(arrow, _microseconds)
        if name == f"{_GOOGLE}Duration":
            arrow = pa.duration("us")
            return arrow, _each(arrow, _microseconds)
        fields: list[tuple[pa.Field[Any], Build]] = []
        for field in message.fields:
            if not _is_empty(field):  # a column needs a field
                below, build = self._field(field, f"{path}.{field.name}", (*inside, name))
                fields.append((pa.field(field.name, below), build))
        if not fields:
            raise self._refused(path, f"the message {name} has no fields")
        return pa.struct([field for field, _ in fields]), _struct(fields)

    def _field(self, field: FieldDescriptor, path: str, inside: tuple[str, ...]) -> tuple[pa.DataType, Build]:
        """Return the type of a field, and the function that builds its column from messages."""
        self._columns += 1
        if self._columns > COLUMNS_MAX:
            raise self._refused(path, TOO_MANY_COLUMNS)
        get = attrgetter(field.name)
        if _is_map(field):
            entry = field.message_type
            if not {"key", "value"} <= set(entry.fields_by_name):
                raise self._refused(path, f"the map's entry {entry.full_name} has no key or no value")
            key, keys = self._value(entry.fields_by_name["key"], path, inside)
            held, values = self._value(entry.fields_by_name["value"], f"{path}[]", inside)
            arrow = pa.map_(key, held)
            return arrow, lambda messages: _map_of(list(map(get, messages)), keys, values, arrow)
        below, build = self._value(field, f"{path}[]" if _repeated(field) else path, inside)
        if _repeated(field):
            listed = pa.list_(below)
            return listed, lambda messages: _list_of(list(map(get, messages)), build, listed)
        if field.has_presence:
            name = field.name
            return below, lambda messages: _where_present(
                [get(one) if one.HasField(name) else None for one in messages], build, below
            )
        return below, lambda messages: build(list(map(get, messages)))

    def _value(self, field: FieldDescriptor, path: str, inside: tuple[str, ...]) -> tuple[pa.DataType, Build]:
        if field.message_type is not None:
            return self.message(field.message_type, path, inside)
        if field.enum_type is not None:
            return pa.string(), _Names(field.enum_type).build
        arrow = _SCALARS[_KINDS[field.type]]
        return arrow, lambda values: pa.array(values, arrow)

    def _refused(self, path: str, what: str) -> UsageError:
        return UsageError(f"{self._schema}: {path.lstrip('.') or 'the whole schema'} can't be a column: {what}")


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


class _Names(dict[int, str]):
    """The names of an enumeration's numbers; a number without a name becomes its digits."""

    def __init__(self, enumeration: EnumDescriptor) -> None:
        super().__init__({number: one.name for number, one in enumeration.values_by_number.items()})

    def __missing__(self, number: int) -> str:
        return str(number)

    def build(self, numbers: Sequence[int]) -> pa.Array[Any]:
        return pa.array(list(map(self.__getitem__, numbers)), pa.string())


def _each(arrow: pa.DataType, value: Callable[[Any], Any]) -> Build:
    return lambda values: pa.array(list(map(value, values)), arrow)


def _microseconds(value: Any) -> int:
    return int(value.seconds * 1_000_000 + value.nanos // 1_000)


def _where_present(values: Sequence[Any], build: Build, arrow: pa.DataType) -> pa.Array[Any]:
    """Build a column with a null for each None."""
    present = [place for place, value in enumerate(values) if value is not None]
    if len(present) == len(values):
        return build(values)
    if not present:
        return pa.array([None] * len(values), arrow)
    places = np.full(len(values), -1, np.int64)
    places[present] = np.arange(len(present))
    wanted: Any = pa.array(places, mask=places < 0)
    return build([values[place] for place in present]).take(wanted)


def _struct(fields: Sequence[tuple[pa.Field[Any], Build]]) -> Build:
    made: Any = pa.StructArray
    named, builds = [field for field, _ in fields], [build for _, build in fields]
    return lambda messages: made.from_arrays([build(messages) for build in builds], fields=named)


def _offsets(held: Sequence[Any]) -> pa.Array[Any]:
    offsets = np.zeros(len(held) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, held), np.int64, len(held)), out=offsets[1:])
    return pa.array(offsets, pa.int32())


def _list_of(held: Sequence[Any], build: Build, arrow: pa.DataType) -> pa.Array[Any]:
    made: Any = pa.ListArray
    (below,) = _in_parts(chain.from_iterable(held), lambda part: (build(part),))
    return made.from_arrays(_offsets(held), below, type=arrow)  # type: ignore[no-any-return]


def _map_of(held: Sequence[Any], keys: Build, values: Build, arrow: pa.DataType) -> pa.Array[Any]:
    made: Any = pa.MapArray
    pairs = chain.from_iterable(one.items() for one in held)
    names, below = _in_parts(pairs, lambda part: (keys([key for key, _ in part]), values([value for _, value in part])))
    return made.from_arrays(_offsets(held), names, below, type=arrow)  # type: ignore[no-any-return]


def _in_parts(values: Iterator[Any], build: Callable[[list[Any]], tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return the arrays that ``build`` makes of ``values``, a limited number of these at a time."""
    made = [build(list(islice(values, _VALUES_MAX)))]
    while part := list(islice(values, _VALUES_MAX)):
        made.append(build(part))
    return made[0] if len(made) == 1 else tuple(map(pa.concat_arrays, zip(*made, strict=True)))
