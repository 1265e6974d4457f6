"""Settings of Kafka's Java client: every row of the table; and safe parameters."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from forebay.kafka.options.java import TABLE, translate
from forebay.kafka.options.safe import safe_options
from forebay.model.errors import SettingsError

PEM = b"-----BEGIN CERTIFICATE-----\n"
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"

#: Java's setting, its value → librdkafka's
TRANSLATED: list[tuple[str, str, dict[str, str]]] = [
    ("fetch.max.wait.ms", "250", {"fetch.wait.max.ms": "250"}),
    ("receive.buffer.bytes", "65536", {"socket.receive.buffer.bytes": "65536"}),
    ("receive.buffer.bytes", "-1", {"socket.receive.buffer.bytes": "0"}),
    ("send.buffer.bytes", "131072", {"socket.send.buffer.bytes": "131072"}),
    ("request.timeout.ms", "30000", {"socket.timeout.ms": "30000"}),
    ("max.request.size", "1048576", {"message.max.bytes": "1048576"}),
    ("buffer.memory", "33554432", {"queue.buffering.max.kbytes": "32768"}),
    ("auto.offset.reset", "none", {"auto.offset.reset": "error"}),
    ("auto.offset.reset", "Earliest", {"auto.offset.reset": "earliest"}),
    (
        "partition.assignment.strategy",
        "org.apache.kafka.clients.consumer.RangeAssignor,roundrobin",
        {"partition.assignment.strategy": "range,roundrobin"},
    ),
    ("ssl.endpoint.identification.algorithm", "", {"ssl.endpoint.identification.algorithm": "none"}),
    ("ssl.truststore.location", "/ca.pem", {"ssl.ca.location": "/ca.pem"}),
    ("ssl.truststore.certificates", "text", {"ssl.ca.pem": "text"}),
    ("ssl.keystore.location", "/k.pem", {"ssl.certificate.location": "/k.pem", "ssl.key.location": "/k.pem"}),
    ("ssl.keystore.location", "/k.p12", {"ssl.keystore.location": "/k.p12"}),
    ("ssl.keystore.certificate.chain", "text", {"ssl.certificate.pem": "text"}),
    ("ssl.keystore.key", "text", {"ssl.key.pem": "text"}),
    (
        "sasl.jaas.config",
        f'{PLAIN} username="u" password=\'a "b" c;\';',
        {"sasl.username": "u", "sasl.password": 'a "b" c;'},
    ),
    (
        "sasl.jaas.config",
        'org.apache.kafka.common.security.scram.ScramLoginModule required username=u password="a\\"b";',
        {"sasl.username": "u", "sasl.password": 'a"b'},
    ),
    (
        "sasl.jaas.config",
        'com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true keyTab="/k" principal="p" serviceName="kafka";',
        {"sasl.kerberos.keytab": "/k", "sasl.kerberos.principal": "p", "sasl.kerberos.service.name": "kafka"},
    ),
    (
        "sasl.jaas.config",
        'org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required clientId="c" clientSecret="s";',
        {
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": "c",
            "sasl.oauthbearer.client.secret": "s",
        },
    ),
    *[
        (f"{what}.{kind}serializer", f"org.apache.kafka.common.serialization.ByteArray{name}", {})
        for what in ("key", "value")
        for kind, name in (("de", "Deserializer"), ("", "Serializer"))
    ],
]


def read(path: str) -> bytes:
    return b"PKCS12" if path.endswith("p12") else PEM


def test_every_row_that_translates_has_an_example_here() -> None:
    assert {name for name, _, _ in TRANSLATED} == {name for name, row in TABLE.items() if row.outcome == "translated"}


@pytest.mark.parametrize(("name", "value", "found"), TRANSLATED)
def test_setting_is_passed_under_librdkafkas_name(name: str, value: str, found: dict[str, str]) -> None:
    made = translate({"client.id": "c", name: value}, read)
    assert made.options == {"client.id": "c", **found}
    assert len(made.changes) == (found != {name: value})
    assert not made.changes or name in made.changes[0]


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row.outcome == "left out"])
def test_harmless_setting_is_left_out_and_reported(name: str) -> None:
    made = translate({name: "s3cret"})
    assert made.options == {}
    assert f"kafka.{name!r} is left out" in made.changes[0]
    assert "s3cret" not in made.changes[0]


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row.outcome == "refused"])
def test_setting_without_counterpart_is_refused_with_reason(name: str) -> None:
    with pytest.raises(SettingsError) as refused:
        translate({name: "s3cret"})
    assert name in str(refused.value)
    assert TABLE[name].becomes in str(refused.value)
    assert "s3cret" not in str(refused.value)


def taken(options: Mapping[str, str]) -> None:
    """Whether librdkafka accepts the options, as a consumer or a producer."""
    Consumer({**options, "group.id": "g", "log_level": "0"}).close()
    Producer({**options, "log_level": "0"})


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        row
        for row in TRANSLATED
        if row[2] and not any(k in str(row[2]) for k in ("/k", "text", "/ca", "oauth", "kerberos"))
    ],
)
def test_librdkafka_accepts_translated_settings(name: str, value: str, found: dict[str, str]) -> None:
    taken(found)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("auto.offset.reset", "by_duration:P1D", "allowed are earliest, latest and none"),
        ("partition.assignment.strategy", "a.StickyAssignor", "librdkafka only has"),
        (
            "key.deserializer",
            "org.apache.kafka.common.serialization.StringDeserializer",
            "keys and values are read and written as bytes",
        ),
        ("buffer.memory", "much", "is not a whole number"),
        ("ssl.truststore.location", "/a.jks", "JKS store, which only Java can read: convert it with `keytool"),
        ("ssl.truststore.location", "/a.p12", "neither PEM nor a PKCS#12 store"),
        ("ssl.truststore.location", "/absent", "cannot read /absent: No such file"),
        ("sasl.jaas.config", "username=s3cret", "expected `MODULE required"),
        ("sasl.jaas.config", "a.LdapLoginModule required;", "login module LdapLoginModule"),
        ("sasl.jaas.config", f'{PLAIN} tokenauth="s3cret";', "option 'tokenauth' of PlainLoginModule: allowed are"),
        ("sasl.jaas.config", f'{PLAIN} password="s3cret"', "the text must end with ;"),
        ("sasl.jaas.config", f'{PLAIN} password="s3cret;', "the text must end with ;"),
    ],
)
def test_untranslatable_setting_is_refused_without_secrets(name: str, value: str, message: str) -> None:
    def stores(path: str) -> bytes:
        if path == "/absent":
            raise FileNotFoundError(2, "No such file or directory")
        return b"\xfe\xed\xfe\xed" if path.endswith("jks") else b"\x30\x82"

    with pytest.raises(SettingsError, match=re.escape(message)) as refused:
        translate({name: value, "ssl.truststore.password": "s3cret"}, stores)
    assert name in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_both_names_of_one_setting_must_agree() -> None:
    both = {"fetch.max.wait.ms": "1", "fetch.wait.max.ms": "1"}
    assert translate(both).options == {"fetch.wait.max.ms": "1"}
    with pytest.raises(SettingsError, match="remove one of them"):
        translate({**both, "fetch.wait.max.ms": "2"})


@pytest.mark.parametrize("password", ["changeit", "wrong1"])
def test_certificates_are_read_from_keytool_store(tmp_path: Path, password: str) -> None:
    store = tmp_path / "trust.jks"  # PKCS#12, whatever its name says, since Java 9
    tool = ["keytool", "-keystore", str(store), "-storepass", "changeit", "-noprompt"]
    made = subprocess.run(
        [*tool, "-genkeypair", "-alias", "k", "-keyalg", "EC", "-dname", "CN=broker"], capture_output=True, check=False
    )
    assert made.returncode == 0, made.stderr
    certificate = subprocess.run([*tool, "-exportcert", "-rfc", "-alias", "k"], capture_output=True, check=True).stdout
    (tmp_path / "c.pem").write_bytes(certificate)
    trusted = tmp_path / "only-trusted.p12"
    subprocess.run(
        ["keytool", "-keystore", str(trusted), "-storepass", "changeit", "-noprompt", "-importcert", "-alias", "ca",
         "-file", str(tmp_path / "c.pem")], capture_output=True, check=True,
    )  # fmt: skip
    for path in (store, trusted):
        options = {"ssl.truststore.location": str(path), "ssl.truststore.password": password}
        if password == "changeit":
            found = translate(options).options
            assert found["ssl.ca.pem"].split() == certificate.decode().replace("\r", "").split()
            taken({**found, "security.protocol": "ssl"})
        else:
            with pytest.raises(SettingsError, match="neither PEM nor a PKCS#12"):
                translate(options)


def test_page_shows_the_table() -> None:
    page = (Path(__file__).parents[4] / "docs" / "KAFKA_OPTIONS.md").read_text()
    shown = re.findall(r"^\| `([^`]+)` \| ([a-z ]+) \| (.*) \|$", page, re.MULTILINE)
    assert shown == [(name, row.outcome, row.becomes) for name, row in sorted(TABLE.items())]


# ---- made safe -------------------------------------------------------------------------------------------------------

SERVERS = {"bootstrap.servers": "b:1"}


def test_no_parameter_lets_task_commit_or_seek_and_changes_are_reported() -> None:
    """INV-1, INV-5."""
    unsafe = {
        **SERVERS, "group.id": "g", "enable.auto.commit": "true", "enable.auto.offset.store": "true", "check.crcs": "false",
        "auto.offset.reset": "earliest", "enable.partition.eof": "no", "sasl.password": "s3cret", "client.rack": "r",
    }  # fmt: skip
    safe = safe_options(unsafe)
    assert safe.options == {**SERVERS, "sasl.password": "s3cret", "client.rack": "r"}
    assert (safe.group, safe.task_group, safe.reset) == ("g", "forebay-executor-g", "earliest")
    for name in ("auto.commit", "offset.store", "check.crcs", "offset.reset", "partition.eof", "forebay-executor-g"):
        assert any(name in sentence for sentence in safe.changes), name
    assert "s3cret" not in f"{safe} {safe.changes}"


def test_safe_parameters_are_unchanged() -> None:
    safe = safe_options({**SERVERS, "enable.auto.commit": "False", "check.crcs": "1"})
    assert (safe.group, safe.task_group, safe.reset, len(safe.changes)) == ("", "forebay-executor", "latest", 1)


@pytest.mark.parametrize(
    ("options", "message"), [({}, "bootstrap.servers"), ({**SERVERS, "auto.offset.reset": "smallest"}, "'smallest'")]
)
def test_invalid_parameters_are_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        safe_options(options)
