"""Errors about missing rights and wrong certificates, without a broker."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from forebay.kafka.client.client_errors import ClientErrors
from forebay.kafka.client.denials import denial_in, is_denied, missing_right, next_step
from forebay.kafka.client.handshakes import handshake_fault
from forebay.kafka.options.rights import Right, grant, transaction_rights, writer_rights
from tests.support.servers.certificates import Authority

DENIED = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED, "Broker: Topic authorization failed.")


def milliseconds(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=timezone.utc).timestamp() * 1000)


@pytest.mark.parametrize(
    ("right", "command"),
    [
        (Right("topic", "t", ("Read", "Write")), "User:NAME --operation Read --operation Write --topic t"),
        (Right("group", "g", ("Read",), True), "User:NAME --operation Read --group g --resource-pattern-type prefixed"),
        (Right("cluster", "", ("IdempotentWrite",)), "User:NAME --operation IdempotentWrite --cluster"),
    ],
)
def test_a_right_is_granted_by_kafkas_own_command(right: Right, command: str) -> None:
    assert grant(right) == f"kafka-acls.sh --add --allow-principal {command}"


def test_next_step_names_the_right_of_the_denied_kind() -> None:
    needed = transaction_rights("t", "id")
    denied_id = KafkaError(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    assert next_step(denied_id, needed) == (
        "allow it: kafka-acls.sh --add --allow-principal User:NAME --operation Write --transactional-id id "
        "--resource-pattern-type prefixed"
    )
    # a broker denies the cluster to a producer that may write to no topic
    assert "--operation Write --topic t" in next_step(
        KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED), writer_rights("t")
    )
    assert next_step(KafkaError(KafkaError._TRANSPORT), needed) == ""
    many = [Right("topic", f"t{number}", ("Read",)) for number in range(5)]
    assert next_step(DENIED, many).endswith("--topic t2 (and 2 more)")
    message = str(missing_right(f"reading t: {DENIED.str()}", DENIED, writer_rights("t")))
    assert message.startswith("reading t: Broker: Topic authorization failed; allow it: ")


def test_fatal_error_of_a_client_has_the_code_of_its_denial() -> None:
    """confluent-kafka raises it while callbacks run, and Python makes it a SystemError, with or without its cause."""
    errors = ClientErrors()
    with pytest.raises(SystemError), errors.fatal():
        raise SystemError("of something else")
    with pytest.raises(KafkaException) as caught, errors.fatal():
        raise SystemError("with its cause") from KafkaException(DENIED)
    assert caught.value.args[0] is DENIED
    text = "[thrd:main]: Fatal error: Broker: Cluster authorization failed: Failed to acquire idempotence PID"
    errors.log(50, "%s [%s] %s", "FATAL", "client", text)
    with pytest.raises(KafkaException) as caught, errors.fatal():
        raise SystemError("without its cause")
    assert is_denied(caught.value.args[0]) and caught.value.args[0].str() == text.partition("]: ")[2]
    assert denial_in("Broker: Producer attempted to produce with an old epoch") is None


def test_fault_of_the_clients_own_certificate_is_found_without_a_broker(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    file = authority.issue("client")["cert_file"]
    options = {"security.protocol": "SSL", "ssl.certificate.location": file}
    assert handshake_fault({**options, "security.protocol": "sasl_plaintext"}, milliseconds("2000-01-01")) == ""
    assert handshake_fault(options, milliseconds("2000-01-01")).startswith(
        f'this client\'s certificate "ssl.certificate.location" ({file}) begins on 20'
    )
    text = {"security.protocol": "ssl", "ssl.certificate.pem": Path(file).read_text()}
    assert 'certificate "ssl.certificate.pem" expired on 20' in handshake_fault(text, milliseconds("2099-01-01"))
    torn = tmp_path / "torn.pem"
    torn.write_text("no certificate")
    found = handshake_fault({**options, "ssl.certificate.location": str(torn)}, milliseconds("2026-01-01"))
    assert found.startswith(f'cannot read the certificate of "ssl.certificate.location" ({torn}): ')
