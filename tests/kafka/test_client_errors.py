"""A broker that can't be reached: the error says why, in librdkafka's words, and what to check."""

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

#: so long a question is asked here; what it meets is met within milliseconds
SECONDS = 1.0


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


def test_each_reason_is_kept_once_and_the_first_ones_are_named() -> None:
    errors = ClientErrors()
    for number in range(REASONS_MAX + 1):
        for after in (3, 40):
            errors(KafkaError(KafkaError._TRANSPORT, f"b{number}:9092/1: refused (after {after}ms in state CONNECT)"))
        errors(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    assert errors.words() == "; ".join(f"b{number}:9092/1: refused" for number in range(REASONS_MAX)) + "; and 1 more"
    errors.forget()
    assert errors.words() == ""


def test_reasons_that_come_in_another_order_give_the_same_text() -> None:
    """A name with two addresses is tried at either one; a text that changed would be logged again."""
    brokers = range(2 * REASONS_MAX)
    told = set()
    for errors, attempts in ((ClientErrors(), (*brokers, *brokers)), (ClientErrors(), (*reversed(brokers), 0))):
        for number in attempts:
            errors(KafkaError(KafkaError._TRANSPORT, f"b{number}:9092: Connect to ipv4#10.0.0.{number} failed"))
        told.add(errors.words())
    assert len(told) == 1


def test_question_for_a_groups_offsets_has_the_reason_of_its_own_client() -> None:
    errors = ClientErrors()
    group = GroupOffsets({"bootstrap.servers": "127.0.0.1:1"}, "g", SystemClock(), errors)
    with pytest.raises(KafkaException):
        group.committed([WirePartition("t", 0)], 0.5)
    words = errors.words()
    group.close()
    assert "Connection refused" in words


def test_closed_connection_is_a_reason_unless_it_was_in_use() -> None:
    """librdkafka writes only to its log that a broker closed the connection, also where an idle one is closed as usual."""
    errors = ClientErrors()
    line = "[thrd:b:9092/bootstrap]: b:9092/1: Disconnected: connection closed by peer: receive 0 after POLLIN"
    for facility, state in (("FAIL", "600000ms in state UP"), ("OTHER", "1ms in state APIVERSION_QUERY")):
        errors.log(30, "%s [%s] %s", facility, "client", f"{line} (after {state})")
        assert errors.words() == ""
    for state in ("9000ms in state APIVERSION_QUERY", "2ms in state UP"):
        errors.log(30, "%s [%s] %s", "FAIL", "client", f"{line} (after {state})")
        assert errors.words().startswith("b:9092/1: Disconnected: connection closed by peer")
        assert 'check "security.protocol" and the port' in errors.words()
        errors.forget()


def test_each_of_two_questions_in_a_row_names_the_reason() -> None:
    """The client that is asked again may wait before its next attempt, and report nothing."""
    with KafkaAdmin({"bootstrap.servers": "127.0.0.1:1"}, timeout_seconds=0.5) as admin:
        for _ in range(2):
            with pytest.raises(UnreachableError, match="Connection refused"):
                admin.topics()
        assert "Connection refused" in admin.why_silent()
