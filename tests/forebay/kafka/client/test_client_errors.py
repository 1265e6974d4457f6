"""An unreachable broker: the error has librdkafka's reason, and what to check."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as WirePartition

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.client.client_errors import REASONS_MAX, ClientErrors
from forebay.kafka.client.group_offsets import GroupOffsets
from forebay.kafka.embedded.broker import MockBroker
from forebay.model.errors import UnreachableError
from forebay.process.clock import SystemClock

#: timeout of requests here; their errors occur within milliseconds
SECONDS = 1.0


def refused(**options: str) -> str:
    """Return the error of a request by a client with ``options``."""
    with KafkaAdmin(options, timeout_seconds=SECONDS) as admin, pytest.raises(UnreachableError) as caught:
        admin.topics()
    return str(caught.value)


@contextmanager
def http_server() -> Iterator[str]:
    """The address of an HTTP server, which closes other connections."""
    with answering(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n") as address:
        yield address


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """The address of a server that reads one request of a connection, sends ``answer`` and closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1000)
                    connection.sendall(answer)

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        serving.join()


def test_error_names_unresolvable_host() -> None:
    message = refused(**{"bootstrap.servers": "no-such-host.invalid:9092"})
    assert message.startswith("Kafka at no-such-host.invalid:9092 did not answer: reading the cluster's topics: ")
    assert "Failed to resolve 'no-such-host.invalid:9092'" in message
    assert message.endswith('check the names in "bootstrap.servers"')
    assert message.count("Failed to resolve") == 1


def test_error_names_refused_connection() -> None:
    text = refused(**{"bootstrap.servers": "127.0.0.1:1"})
    assert "127.0.0.1:1: Connect to ipv4#127.0.0.1:1 failed: Connection refused" in text
    assert "in state" not in text and "suppressed" not in text


def test_error_names_port_of_another_service() -> None:
    with http_server() as address:
        message = refused(**{"bootstrap.servers": address})
    assert f"{address}: " in message
    assert "Receive failed" in message or "Invalid response size" in message or "Disconnected" in message


def test_connection_that_the_broker_closes_is_a_reason_without_its_age() -> None:
    """The installed librdkafka writes the lines that ``client_errors`` reads."""
    with answering(b"") as address:
        text = refused(**{"bootstrap.servers": address})
    assert f"{address}: Disconnected" in text
    assert 'check "security.protocol" and the port' in text
    assert "in state" not in text and "suppressed" not in text


def test_error_names_tls_against_plaintext_listener() -> None:
    with MockBroker() as broker:
        message = refused(**{"bootstrap.servers": broker.address, "security.protocol": "ssl"})
    assert "SSL handshake failed" in message
    assert message.endswith('check "security.protocol" and the certificates ("ssl.ca.location")')


def test_error_names_refused_sasl_without_password() -> None:
    sasl = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "canary",
    }
    with MockBroker() as broker:
        message = refused(**{"bootstrap.servers": broker.address, **sasl})
    assert "SASL" in message
    assert 'check "sasl.mechanism", "sasl.username" and "sasl.password"' in message
    assert "canary" not in message


def test_each_reason_is_kept_once_and_first_ones_are_named() -> None:
    errors = ClientErrors()
    for number in range(REASONS_MAX + 1):
        for after in (3, 40):
            errors(KafkaError(KafkaError._TRANSPORT, f"b{number}:9092/1: refused (after {after}ms in state CONNECT)"))
        errors(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    assert errors.text() == "; ".join(f"b{number}:9092/1: refused" for number in range(REASONS_MAX)) + "; and 1 more"
    errors.forget()
    assert errors.text() == ""


def test_text_does_not_depend_on_order_of_reasons() -> None:
    """A name with two addresses is tried at either one, and a changed text would be logged again."""
    brokers = range(2 * REASONS_MAX)
    texts = set()
    for errors, attempts in ((ClientErrors(), (*brokers, *brokers)), (ClientErrors(), (*reversed(brokers), 0))):
        for number in attempts:
            errors(KafkaError(KafkaError._TRANSPORT, f"b{number}:9092: Connect to ipv4#10.0.0.{number} failed"))
        texts.add(errors.text())
    assert len(texts) == 1


def test_request_for_group_offsets_has_reason_of_its_client() -> None:
    errors = ClientErrors()
    group = GroupOffsets({"bootstrap.servers": "127.0.0.1:1"}, group="g", clock=SystemClock(), errors=errors)
    with pytest.raises(KafkaException):
        group.committed([WirePartition("t", 0)], 0.5)
    message = errors.text()
    group.close()
    assert "Connection refused" in message


def test_closed_connection_is_a_reason_unless_it_was_in_use() -> None:
    """librdkafka only logs that a broker closed a connection, also for idle connections, which is normal."""
    errors = ClientErrors()
    line = "[thrd:b:9092/bootstrap]: b:9092/1: Disconnected: connection closed by peer: receive 0 after POLLIN"
    for facility, state in (("FAIL", "600000ms in state UP"), ("OTHER", "1ms in state APIVERSION_QUERY")):
        errors.log(30, "%s [%s] %s", facility, "client", f"{line} (after {state})")
        assert errors.text() == ""
    for state in ("9000ms in state APIVERSION_QUERY", "2ms in state UP"):
        errors.log(30, "%s [%s] %s", "FAIL", "client", f"{line} (after {state})")
        assert errors.text().startswith("b:9092/1: Disconnected: connection closed by peer")
        assert 'check "security.protocol" and the port' in errors.text()
        errors.forget()


def test_second_failed_request_names_the_reason_too() -> None:
    """A client may wait before its next attempt, and report nothing meanwhile."""
    with KafkaAdmin({"bootstrap.servers": "127.0.0.1:1"}, timeout_seconds=0.5) as admin:
        for _ in range(2):
            with pytest.raises(UnreachableError, match="Connection refused"):
                admin.topics()
        assert "Connection refused" in admin.why_silent()
