"""A broker that can't be reached: the error says why, in librdkafka's words, and what to check."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import KafkaError

from forebay.errors import UnreachableError
from forebay.kafka.admin import KafkaAdmin
from forebay.kafka.broker import MockBroker
from forebay.kafka.client_errors import REASONS_MAX, ClientErrors

#: so long a question is asked here; what it meets is met within milliseconds
SECONDS = 3.0


def refused(**options: str) -> str:
    """What a question says by a client with ``options``."""
    with KafkaAdmin(options, timeout_seconds=SECONDS) as admin, pytest.raises(UnreachableError) as caught:
        admin.topics()
    return str(caught.value)


@contextmanager
def http_server() -> Iterator[str]:
    """The address of a service that is no Kafka, and hangs up on what is no HTTP."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1000)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        serving.join()


def test_name_that_does_not_resolve_is_named() -> None:
    words = refused(**{"bootstrap.servers": "no-such-host.invalid:9092"})
    assert words.startswith("Kafka at no-such-host.invalid:9092 did not answer: reading the cluster's topics: ")
    assert "Failed to resolve 'no-such-host.invalid:9092'" in words
    assert words.endswith('check the names in "bootstrap.servers"')
    assert words.count("Failed to resolve") == 1


def test_refused_connection_is_named() -> None:
    assert "127.0.0.1:1: Connect to ipv4#127.0.0.1:1 failed: Connection refused" in refused(
        **{"bootstrap.servers": "127.0.0.1:1"}
    )


def test_port_that_is_no_kafka_is_named() -> None:
    with http_server() as address:
        words = refused(**{"bootstrap.servers": address})
    assert f"{address}: " in words
    assert "Receive failed" in words or "Invalid response size" in words or "Disconnected" in words


def test_tls_against_a_broker_without_is_named() -> None:
    with MockBroker() as broker:
        words = refused(**{"bootstrap.servers": broker.address, "security.protocol": "ssl"})
    assert "SSL handshake failed" in words
    assert words.endswith('check "security.protocol" and the certificates ("ssl.ca.location")')


def test_sasl_that_the_broker_refuses_is_named_without_the_password() -> None:
    sasl = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "canary",
    }
    with MockBroker() as broker:
        words = refused(**{"bootstrap.servers": broker.address, **sasl})
    assert "SASL" in words
    assert 'check "sasl.mechanism", "sasl.username" and "sasl.password"' in words
    assert "canary" not in words


def test_each_reason_is_kept_once_and_only_the_latest() -> None:
    errors = ClientErrors()
    for number in range(REASONS_MAX + 1):
        for after in (3, 40):
            errors(KafkaError(KafkaError._TRANSPORT, f"b{number}:9092/1: refused (after {after}ms in state CONNECT)"))
        errors(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    assert errors.words() == "; ".join(f"b{number}:9092/1: refused" for number in range(1, REASONS_MAX + 1))
    errors.forget()
    assert errors.words() == ""
