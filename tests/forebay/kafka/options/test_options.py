"""The options for librdkafka."""

from __future__ import annotations

import pytest

from forebay.kafka.options.access import KafkaAccess
from forebay.kafka.options.librdkafka import FORCED, check_options, client_options, consumer_options, is_cooperative
from forebay.model.errors import SettingsError
from forebay.settings.schema import KafkaSettings

SERVERS = {"bootstrap.servers": "127.0.0.1:9092"}


def made(options: dict[str, str], memory_bytes: int = 64_000_000) -> dict[str, str]:
    return consumer_options({**SERVERS, **options}, group="g", memory_bytes=memory_bytes, client_id="c")


@pytest.mark.parametrize("key", FORCED)
def test_forced_option_with_other_value_is_refused_with_reason(key: str) -> None:
    """INV-1 and INV-5 rest on these."""
    wanted, why = FORCED[key]
    other = {"true": "false", "false": "true"}.get(wanted, "earliest")
    with pytest.raises(SettingsError) as refused:
        check_options({**SERVERS, key: other})
    assert key in str(refused.value)
    assert wanted in str(refused.value)
    assert why in str(refused.value)
    assert made({key: wanted})[key] == wanted


def test_other_spellings_of_forced_value_are_accepted() -> None:
    assert made({"enable.auto.commit": "False", "check.crcs": "1"})["check.crcs"] == "true"
    assert made({"auto.offset.reset": "none"})["auto.offset.reset"] == "error"


def test_group_has_separate_key() -> None:
    with pytest.raises(SettingsError, match=r"kafka\.group instead"):
        made({"group.id": "mine"})


def test_unknown_option_and_bad_value_are_refused() -> None:
    with pytest.raises(SettingsError, match=r"no\.such\.option"):
        check_options({**SERVERS, "no.such.option": "1"})
    with pytest.raises(SettingsError, match=r"session\.timeout\.ms"):
        check_options({**SERVERS, "session.timeout.ms": "soon"})


def test_the_prefetch_queue_is_bounded_by_the_receivers_memory() -> None:
    """INV-6: it gets half of the memory, even if the user sets more; a smaller value is kept."""
    assert int(made({})["queued.max.messages.kbytes"]) * 1024 <= 32_000_000
    assert int(made({}, 128_000_000)["queued.max.messages.kbytes"]) > 60_000
    assert made({"queued.max.messages.kbytes": "2000"})["queued.max.messages.kbytes"] == "2000"
    assert int(made({"queued.max.messages.kbytes": "1000000"})["queued.max.messages.kbytes"]) * 1024 <= 32_000_000
    with pytest.raises(SettingsError, match="not a whole number"):
        made({"fetch.max.bytes": "1MB"})


def test_defaults_are_read_committed_and_cooperative() -> None:
    assert made({})["isolation.level"] == "read_committed"
    assert made({"isolation.level": "read_uncommitted"})["isolation.level"] == "read_uncommitted"
    assert is_cooperative(made({}))
    assert not is_cooperative(made({"partition.assignment.strategy": "range,roundrobin"}))
    assert is_cooperative(made({"group.protocol": "consumer"}))


def test_admin_client_gets_no_consumer_options() -> None:
    options = client_options(
        {**SERVERS, "sasl.username": "u", "fetch.max.bytes": "1", "isolation.level": "read_committed"}
    )
    assert options == {**SERVERS, "sasl.username": "u", "client.id": "forebay"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"security.protocol": "tls"}, "kafka.'security.protocol': 'tls': allowed are plaintext, ssl, sasl_plaintext"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM"}, "kafka.'sasl.mechanism': 'SCRAM': allowed are"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanisms": "PLAIN", "sasl.username": "u"},
            "kafka.'sasl.password' is missing: PLAIN needs it",
        ),
        (
            {"security.protocol": "sasl_plaintext", "sasl.mechanism": "scram-sha-512", "sasl.password": "canary"},
            "kafka.'sasl.username' is missing: SCRAM-SHA-512 needs it",
        ),
        ({"security.protocol": "ssl", "ssl.ca.location": "/no/ca.pem"}, "kafka.'ssl.ca.location': '/no/ca.pem'"),
    ],
)
def test_invalid_security_option_is_named_without_a_broker(options: dict[str, str], message: str) -> None:
    for use in (made, client_options, lambda options: check_options({**SERVERS, **options})):
        with pytest.raises(SettingsError) as refused:
            use(options)
        assert message in str(refused.value) and "canary" not in str(refused.value)


def test_valid_security_options_pass_through() -> None:
    options = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p"}
    assert made(options).items() >= options.items()
    assert client_options({"security.protocol": "SSL", "ssl.ca.location": "probe"})["ssl.ca.location"] == "probe"


def test_access_without_settings_has_the_defaults_of_the_settings() -> None:
    """A Spark task imports no settings."""
    access, section = KafkaAccess({}, "g"), KafkaSettings()
    assert (access.timeout_seconds, access.prefetch_bytes) == (section.read_timeout, section.read_prefetch)
