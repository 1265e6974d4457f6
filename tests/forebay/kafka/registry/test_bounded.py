"""Limits of whole requests at a schema registry and a token endpoint."""

from __future__ import annotations

import gzip
import json

import pytest

from forebay.kafka.registry import bounded
from forebay.kafka.registry.client import AVRO, RegisteredSchema, Registry, RegistryAccess, SchemaError
from forebay.kafka.registry.oauth import ClientCredentials
from forebay.model.errors import UnreachableError, UsageError
from tests.support.servers.raw_service import answering, dripping, service

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
SCHEMA = json.dumps({"schema": '"long"'}).encode()
#: what a server sends byte by byte, for longer than any of these tests may take
DROPS = b"a" * 1_000


def ask(url: str, seconds: float = 30.0) -> RegisteredSchema | None:
    with Registry(RegistryAccess(url, (), seconds, attempts=1)) as registry:
        return registry.schema(2, AVRO)


def whole(body: bytes, *headers: bytes) -> bytes:
    lengths = b"Content-Length: %d\r\n" % len(body)
    return HEAD + lengths + b"".join(header + b"\r\n" for header in headers) + b"\r\n" + body


@pytest.mark.parametrize("begun", [HEAD + b"X-More: ", HEAD + b"Content-Length: 1000\r\n\r\n"], ids=["head", "body"])
def test_answer_that_arrives_byte_by_byte_is_ended_by_the_timeout(begun: bytes) -> None:
    """Otherwise a task waits for hours. The next server of the registry is asked."""
    why = r"did not answer: ReadTimeout: no whole answer within 0\.5 s"
    with service(dripping(begun, DROPS)) as slow, pytest.raises(UnreachableError, match=why):
        ask(slow, 0.5)
    with service(dripping(begun, DROPS)) as slow, service(answering(whole(SCHEMA))) as other:
        found = ask(f"{slow},{other}", 5.0)
    assert found is not None and found.text == '"long"'


def test_token_that_arrives_byte_by_byte_is_ended_by_the_timeout() -> None:
    with service(dripping(HEAD + b"Content-Length: 1000\r\n\r\n", DROPS)) as slow:
        own = {"client.id": "reader", "client.secret": "s", "issuer.endpoint.url": slow}
        made = ClientCredentials(own, None, 0.5)
        try:
            with pytest.raises(
                UnreachableError, match=r"token endpoint .* did not answer: ReadTimeout: no whole answer"
            ):
                made.fields()
        finally:
            made.close()


def test_compressed_answer_is_read() -> None:
    with service(answering(whole(gzip.compress(SCHEMA), b"Content-Encoding: gzip"))) as url:
        found = ask(url)
    assert found is not None and found.text == '"long"'


def test_answer_of_too_many_bytes_is_an_error_of_its_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6. Also of bytes that decompress to many times as many."""
    monkeypatch.setattr(bounded, "ANSWER_BYTES_MAX", 10_000)
    large = json.dumps({"schema": '"long"', "more": "x" * 10_000}).encode()
    compressed = gzip.compress(large)
    assert len(compressed) < 1_000
    for answer in (whole(large), whole(compressed, b"Content-Encoding: gzip")):
        with (
            service(answering(answer)) as url,
            pytest.raises(SchemaError, match="the answer has more than 10000 bytes"),
        ):
            ask(url)


@pytest.mark.parametrize(
    "answer", [whole(b"<html>"), whole(SCHEMA, b"Content-Encoding: gzip")], ids=["page", "damaged"]
)
def test_answer_of_another_server_is_refused_with_the_option(answer: bytes) -> None:
    why = r"gave no answer of a schema registry: .*; check schema\.registry\.url"
    with service(answering(answer)) as url, pytest.raises(UsageError, match=why):
        ask(url)
