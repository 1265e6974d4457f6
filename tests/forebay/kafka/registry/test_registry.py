"""The client of a schema registry, against a real one."""

from __future__ import annotations

import base64
import builtins
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import RegisteredSchema as KnownSchema
from confluent_kafka.schema_registry import Rule, RuleKind, RuleMode, RuleSet, Schema, SchemaReference
from confluent_kafka.schema_registry.error import SchemaRegistryError

from forebay.kafka.registry import client as registry_client
from forebay.kafka.registry.client import (
    AVRO,
    JSON,
    PROTOBUF,
    RegisteredSchema,
    Registry,
    RegistryAccess,
    SchemaError,
    check_readable,
)
from forebay.model.errors import UnreachableError, UsageError
from forebay.model.records import DATAFRAME_SCHEMA
from forebay.schemas.columns import decode_column
from pyspark_forebay.decoding import find_decoding
from pyspark_forebay.options.subscription import Subscription
from tests.support.kafka.registered import Writers, message_class, orders_file
from tests.support.run.ports import free_port
from tests.support.servers.certificates import Authority
from tests.support.servers.registry_front import RegistryFront

SECRET = "s3cret-of-nobody"
BASIC = "Basic " + base64.b64encode(f"reader:{SECRET}".encode()).decode()
INNER = {"type": "record", "name": "Inner", "fields": [{"name": "y", "type": "int"}]}


def access(url: str, attempts: int = 3, **options: str) -> RegistryAccess:
    named = {name.replace("_", "."): value for name, value in options.items()}
    return RegistryAccess(url, tuple(sorted(named.items())), 30.0, attempts)


def ask(with_: RegistryAccess, number: int) -> RegisteredSchema | None:
    with Registry(with_) as registry:
        return registry.schema(number, AVRO)


@pytest.fixture
def number(writers: Writers) -> int:
    return writers.register("inner-value", INNER)


def test_schema_is_read_by_number_and_by_version(writers: Writers, number: int) -> None:
    """With all referenced schemas, each before those that refer to it."""
    client = writers.client
    middle = '{"type": "record", "name": "Middle", "fields": [{"name": "i", "type": "Inner"}]}'
    client.register_schema("middle-value", Schema(middle, "AVRO", [SchemaReference("Inner", "inner-value", 1)]))
    outer = '{"type": "record", "name": "Outer", "fields": [{"name": "m", "type": "Middle"}]}'
    made = client.register_schema("outer-value", Schema(outer, "AVRO", [SchemaReference("Middle", "middle-value", 1)]))
    with Registry(writers.access) as registry:
        newest = registry.version("outer-value", None, AVRO)
        assert (newest.key, newest.format, newest.subject, newest.version) == (made, AVRO, "outer-value", 1)
        assert [name for name, _ in newest.references] == ["Inner", "Middle"]
        assert registry.version("outer-value", 1, AVRO) == newest
        found = registry.schema(made, AVRO)
        assert found is not None and (found.text, found.references) == (newest.text, newest.references)
        assert str(newest) == f"schema {made} (version 1 of outer-value)" and str(found) == f"schema {made}"


def test_missing_schema_or_other_format_is_reported(writers: Writers, number: int) -> None:
    with Registry(writers.access) as registry:
        assert registry.schema(987654, AVRO) is None
        with pytest.raises(UsageError, match="has no subject 'missing-value'"):
            registry.version("missing-value", None, AVRO)
        with pytest.raises(UsageError, match="has no version 99 of subject 'inner-value'"):
            registry.version("inner-value", 99, AVRO)
        with pytest.raises(UsageError, match="has format avro, not json"):
            registry.version("inner-value", None, JSON)


def test_protobuf_descriptor_is_read_from_registry_that_can_make_none(writers: Writers) -> None:
    """This registry fails if it is asked to serialise what it holds serialised."""
    file = orders_file()
    writers.protobuf("orders-proto-value", [message_class(file, "shop.Order")()])
    with Registry(writers.access) as registry:
        found = registry.version("orders-proto-value", None, PROTOBUF)
        assert b"shop/orders.proto" in base64.b64decode(found.text)
        assert registry.schema(found.key, PROTOBUF) == RegisteredSchema(found.key, PROTOBUF, found.text)


def test_credentials_are_sent_only_to_the_registry(writers: Writers, number: int, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    files = authority.issue("registry")
    with RegistryFront(writers.url, BASIC, files) as front:
        own = access(front.url, basic_auth_user_info=f"reader:{SECRET}", ssl_ca_location=str(authority.ca_file))
        assert ask(own, number) is not None
        in_url = access(front.url.replace("://", f"://reader:{SECRET}@"), ssl_ca_location=str(authority.ca_file))
        assert ask(in_url, number) is not None
        for one in (own, in_url):
            assert SECRET not in repr(one) + str(one) + repr(pickle.loads(pickle.dumps(one)))
        wrong = access(front.url, basic_auth_user_info=f"other:{SECRET}", ssl_ca_location=str(authority.ca_file))
        with pytest.raises(UsageError, match=r"refused access \(401\)") as refused:
            ask(wrong, number)
        asked = len(front.asked)
        with pytest.raises(UnreachableError, match="CERTIFICATE_VERIFY_FAILED") as untrusted:
            ask(access(front.url.replace("://", f"://reader:{SECRET}@"), attempts=1), number)
        assert len(front.asked) == asked
    assert SECRET not in str(refused.value) + str(untrusted.value)
    with RegistryFront(writers.url, f"Bearer {SECRET}") as front:
        assert ask(access(front.url, bearer_auth_token=SECRET), number) is not None


def test_registry_gets_no_credentials_of_kafka_or_of_forebay(
    writers: Writers, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither from the planner of a query nor from its tasks."""
    kafka = {"sasl.username": "kafkas-user", "sasl.password": "kafkas-password", "ssl.key.password": "kafkas-key"}
    kafka |= {"sasl.oauthbearer.client.id": "kafkas-id", "sasl.oauthbearer.client.secret": "kafkas-client"}
    options = {f"kafka.{name}": value for name, value in kafka.items()}
    monkeypatch.setenv("FOREBAY_TOKENS", "query forebays-token-of-queries")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "stores-key")
    with RegistryFront(writers.url) as front:
        options |= {"kafka.bootstrap.servers": "h:1", "schema.registry.url": front.url}
        options |= {"valueformat": "avro", "valuesubject": "inner-value"}
        decoding = find_decoding(options, Subscription(topics=("inner",)), False)
        assert decoding is not None
        planned = len(front.asked)
        other = writers.register("inner-other-value", {"type": "record", "name": "Other", "fields": []})
        fields: Any = [{"value": b"\0" + other.to_bytes(4, "big"), "topic": "inner", "partition": 0, "offset": 0}]
        decode_column(decoding.columns[0], pa.RecordBatch.from_pylist(fields, schema=DATAFRAME_SCHEMA(False)))
        assert 0 < planned < len(front.asked) == len(front.headers)
    secrets = [*kafka.values(), "forebays-token-of-queries", "stores-key"]
    secrets.append(base64.b64encode(b"kafkas-user:kafkas-password").decode())
    sent = repr(front.headers) + repr(front.asked)
    assert not [secret for secret in secrets if secret in sent], sent
    assert not [
        headers for headers in front.headers if {"authorization", "cookie", "proxy-authorization"} & headers.keys()
    ]


def test_failing_registry_is_retried_within_attempts(writers: Writers, number: int) -> None:
    with RegistryFront(writers.url) as front:
        front.failures = [503, 429]
        assert ask(access(front.url), number) is not None
        front.failures = [404, 404]  # another server of the registry, which does not know it yet
        assert ask(access(front.url), number) is not None
        front.asked.clear()
        front.failures = [503] * 9
        with pytest.raises(UnreachableError, match="answered with status 503: out of order"):
            ask(access(front.url), number)
        assert len(front.asked) == 3
    nowhere = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(UnreachableError, match=f"the schema registry {nowhere} did not answer"):
        ask(access(nowhere, attempts=2), number)
    assert ask(access(f"{nowhere}, {writers.url}"), number) is not None


@pytest.mark.parametrize(
    ("url", "options", "why"),
    [
        ("registry:8081", {}, "schema.registry.url: 'registry:8081': allowed are one or more URLs"),
        (f"ftp://u:{SECRET}@registry", {}, "schema.registry.url: 'registry': allowed are one or more URLs"),
        ("http://registry", {"basic_auth_user_info": SECRET}, "must be in the form"),
        ("http://registry", {"ssl_key_location": "/key"}, "ssl.certificate.location required"),
        ("https://registry", {"ssl_ca_location": "/nowhere.pem"}, "No such file"),
    ],
)
def test_invalid_options_are_refused_before_any_request(url: str, options: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why) as refused:
        ask(access(url, **options), 1)
    assert SECRET not in str(refused.value)


def test_missing_library_error_names_package(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *more: Any, **named: Any) -> Any:
        if name == "confluent_kafka.schema_registry.common._httpx_compat":
            raise ImportError("No module named 'httpx2'", name="httpx2")
        return real(name, *more, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(
        UsageError, match=r"libraries that are not installed \(httpx2\): pip install 'forebay\[registry\]'"
    ):
        ask(access("http://registry"), 1)


class Answering:
    """A client of the library. ``answers``: subject → its schema, or the exception."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[str | None] = []

    def get_version(self, subject: str, version: Any, deleted: bool = False, fmt: str | None = None) -> Any:
        self.asked.append(fmt)
        found = self.answers[subject]
        found = found.pop(0) if isinstance(found, list) else found
        if isinstance(found, Exception):
            raise found
        return KnownSchema(subject, 1, 7, None, found)

    def close(self) -> None:
        pass

    def newest(self, subject: str, monkeypatch: pytest.MonkeyPatch, format_: str = AVRO) -> RegisteredSchema:
        monkeypatch.setattr(registry_client, "_client", lambda *_: self)
        with Registry(access("http://none")) as asked:
            return asked.version(subject, None, format_)


def referring(name: str, *others: str) -> Schema:
    return Schema(name, "AVRO", [SchemaReference(other, other, 1) for other in others])


def test_references_of_schemas_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6."""
    client = Answering(a=referring("A", "b", "c"), b=referring("B", "c"), c=referring("C", "b"))
    assert client.newest("a", monkeypatch).references == (("c", "C"), ("b", "B"))
    monkeypatch.setattr(registry_client, "_REFERENCES_MAX", 1)
    with pytest.raises(UsageError, match="a schema refers to more than 1 other schemas"):
        client.newest("a", monkeypatch)


def test_chain_of_references_may_be_as_long_as_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6."""
    last = 999
    client = Answering(**{f"s{n}": referring(f"S{n}", *([f"s{n + 1}"] if n < last else [])) for n in range(last + 1)})
    found = client.newest("s0", monkeypatch)
    assert found.references == tuple((f"s{number}", f"S{number}") for number in range(last, 0, -1))


def test_characters_of_a_schema_with_its_references_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6."""
    client = Answering(a=referring("A", "b"), b=referring("B" * 10))
    monkeypatch.setattr(registry_client, "_LENGTH_MAX", 10)
    with pytest.raises(SchemaError, match="has, with those it refers to, more than 10 characters"):
        client.newest("a", monkeypatch)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (
            SchemaRegistryError(404, 40402, "no"),
            "has no version 1 of subject 'b', which another schema refers to as 'b'",
        ),
        (
            SchemaRegistryError(422, 42202, "y" * 5_000),
            "refused the request: y*; another schema refers to this one as 'b'",
        ),
    ],
)
def test_reference_that_the_registry_refuses_is_an_error_of_the_schema(
    error: Exception, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-6: not one that ends each attempt of a batch."""
    with pytest.raises(SchemaError, match=why) as refused:
        Answering(a=referring("A", "b"), b=error).newest("a", monkeypatch)
    assert len(str(refused.value)) < 1_200


def test_registry_without_descriptors_is_asked_for_one_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6: each attempt may take the whole timeout."""
    client = Answering(a=[SchemaRegistryError(500, 50001, "can't"), Schema("syntax", "PROTOBUF")])
    assert client.newest("a", monkeypatch, PROTOBUF).text == "syntax"
    assert client.asked == ["serialized", None]


@pytest.mark.parametrize(
    ("error", "kind", "why"),
    [
        (SchemaRegistryError(422, 42201, "what?"), UsageError, "refused the request: .*what"),
        (TypeError("a fault of ours"), TypeError, "a fault of ours"),
    ],
)
def test_lasting_registry_error_is_not_retried(
    error: Exception, kind: type[Exception], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Answering(a=error)
    with pytest.raises(kind, match=why):
        client.newest("a", monkeypatch)
    assert len(client.asked) == 1


@pytest.mark.parametrize(
    ("kind", "mode", "disabled", "counts"),
    [
        ("TRANSFORM", "READ", False, True),
        ("TRANSFORM", "WRITEREAD", None, True),
        ("TRANSFORM", "WRITE", False, False),
        ("TRANSFORM", "READ", True, False),
        ("CONDITION", "READ", False, False),
    ],
)
def test_only_rules_for_readers_count(
    kind: str, mode: str, disabled: bool | None, counts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = Rule("r", None, RuleKind(kind), RuleMode(mode), "T", None, None, None, None, None, disabled)
    client = Answering(a=Schema('"int"', "AVRO", [], None, RuleSet(None, [rule])))
    if counts:
        with pytest.raises(UsageError, match=r"has rules for readers \(r\)"):
            client.newest("a", monkeypatch)
    else:
        assert client.newest("a", monkeypatch).rules == ()


def test_schema_with_rules_for_readers_is_refused() -> None:
    """Otherwise encrypted fields would be read as values."""
    with pytest.raises(UsageError, match=r"schema 7 has rules for readers \(encrypt\), which are not supported"):
        check_readable(RegisteredSchema(7, AVRO, "", rules=("encrypt",)), AVRO)
