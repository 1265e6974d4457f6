"""Records as confluent-kafka's serialisers write them, and the schemas that these register in a registry."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2, wrappers_pb2

from forebay.kafka.registry.client import Registry, RegistryAccess
from forebay.schemas.columns import ColumnDecoding

#: Protobuf's own numbers of types and labels
STRING, INT64, MESSAGE, ENUM, UINT64, BOOL = 9, 3, 11, 14, 4, 8
ONE, MANY = 1, 3


class Writers:
    """``url``: of a registry. Serialisers register what they write by."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = SchemaRegistryClient({"url": url, "timeout": 30})

    @property
    def access(self) -> RegistryAccess:
        return RegistryAccess(self.url, timeout_seconds=30.0)

    def close(self) -> None:
        self.client.close()

    def avro(self, subject: str, schema: Any, rows: Sequence[Any], field: str = MessageField.VALUE) -> list[bytes]:
        self.compatible_with_all(subject)
        made = AvroSerializer(self.client, json.dumps(schema), conf=_named(subject))
        return [made(row, SerializationContext("unused", cast(MessageField, field))) for row in rows]

    def json(self, subject: str, schema: Mapping[str, Any], rows: Sequence[Any]) -> list[bytes]:
        made = JSONSerializer(json.dumps(schema), self.client, conf=_named(subject))
        return [made(row, SerializationContext("unused", MessageField.VALUE)) for row in rows]

    def protobuf(self, subject: str, messages: Sequence[Any]) -> list[bytes]:
        """``messages``: all of one class."""
        self.compatible_with_all(subject)
        made = ProtobufSerializer(type(messages[0]), self.client, conf=_named(subject))
        return [made(message, SerializationContext("unused", MessageField.VALUE)) for message in messages]

    def compatible_with_all(self, subject: str) -> None:
        """So that the registry takes any schema there: what it would refuse is for the reader to meet."""
        try:
            self.client._rest_client.put(f"config/{subject}", body={"compatibility": "NONE"})
        except SchemaRegistryError as error:
            if error.http_status_code != 404:  # Apicurio 2 has no rules for a subject without schemas, and takes any
                raise

    def register(self, subject: str, schema: Any, kind: str = "AVRO") -> int:
        return int(self.client.register_schema(subject, Schema(json.dumps(schema), kind)))

    def decoding(self, subject: str, format_: str, version: int | None = None, message: str = "") -> ColumnDecoding:
        """Of the column ``value``."""
        with Registry(self.access) as registry:
            return ColumnDecoding("value", registry.version(subject, version, format_), self.access, message)


def _named(subject: str) -> dict[str, Any]:
    return {"subject.name.strategy": lambda *_: subject}


def send(options: Mapping[str, str], topic: str, values: Sequence[bytes | None], partition: int = 0) -> None:
    producer = Producer(dict(options))
    for value in values:
        producer.produce(topic, value=value, partition=partition)
    assert producer.flush(60) == 0


def message_class(file: descriptor_pb2.FileDescriptorProto, name: str) -> Any:
    """The class of a message of ``file``, as a generated module would have it."""
    pool = descriptor_pool.DescriptorPool()
    for known in (timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def orders_file() -> descriptor_pb2.FileDescriptorProto:
    """Package shop: Order {id, note (optional), at, tags, counts, Line lines, state, oneof card/cash, weight}, Other {text}."""
    file = descriptor_pb2.FileDescriptorProto(name="shop/orders.proto", package="shop", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    state = file.enum_type.add(name="State")
    for number, name in enumerate(("NEW", "PAID")):
        state.value.add(name=name, number=number)
    order = file.message_type.add(name="Order")
    line = order.nested_type.add(name="Line")
    line.field.add(name="sku", number=1, type=STRING, label=ONE)
    line.field.add(name="count", number=2, type=UINT64, label=ONE)
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=STRING, label=ONE)
    entry.field.add(name="value", number=2, type=INT64, label=ONE)
    order.oneof_decl.add(name="paid_by")
    order.oneof_decl.add(name="_note")
    add = order.field.add
    add(name="id", number=1, type=INT64, label=ONE)
    add(name="note", number=2, type=STRING, label=ONE, proto3_optional=True, oneof_index=1)
    add(name="at", number=3, type=MESSAGE, label=ONE, type_name=".google.protobuf.Timestamp")
    add(name="tags", number=4, type=STRING, label=MANY)
    add(name="counts", number=5, type=MESSAGE, label=MANY, type_name=".shop.Order.CountsEntry")
    add(name="lines", number=6, type=MESSAGE, label=MANY, type_name=".shop.Order.Line")
    add(name="state", number=7, type=ENUM, label=ONE, type_name=".shop.State")
    add(name="card", number=8, type=STRING, label=ONE, oneof_index=0)
    add(name="cash", number=9, type=BOOL, label=ONE, oneof_index=0)
    add(name="weight", number=10, type=MESSAGE, label=ONE, type_name=".google.protobuf.Int64Value")
    other = file.message_type.add(name="Other")
    other.field.add(name="text", number=1, type=STRING, label=ONE)
    return file
