"""The settings in force: each key has its value and its origin, and no secret is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.settings.in_force import DEFAULT, in_force
from forebay.settings.reading.load import load
from forebay.settings.redaction import HIDDEN, is_secret_name, redacted

FILE = """
stream = "flights"
[kafka]
topics = ["flights"]
bootstrap.servers = "127.0.0.1:9092"
"sasl.password" = "canary-1"
"sasl.username" = "forebay"
"ssl.key.location" = "/etc/forebay/kafka.key"
[wal]
url = "s3://bucket/wal"
[driver]
journal = "file:///var/lib/forebay/journal"
web_hook = "https://pager.example/canary-2"
urls = ["http://me:canary-3@driver-1:7080"]
[agent]
blocks = "/var/lib/forebay/blocks"
[spark]
"spark.hadoop.fs.s3a.secret.key" = "canary-4"
"spark.driver.extraJavaOptions" = "-Xmx1g -Djavax.net.ssl.keyStorePassword=canary-5 -Da=b"
[receiver]
source_options = {}
[storage.s3]
endpoint_url = "https://me:canary-6@store.example"
client_kwargs = {region_name = "eu-1", aws_secret_access_key_2 = "canary-7"}
config_kwargs = {proxies = {https = "http://me:canary-8@proxy:3128"}}
"""
ENVIRONMENT = {
    "FOREBAY__DRIVER__BATCH_INTERVAL": "2s",
    "FOREBAY__KAFKA__SSL_KEY_PASSWORD": "canary-9",
    "FOREBAY__STORAGE__S3__CONFIG_KWARGS": '{proxies = {https = "http://me:canary-10@proxy:3128"}}',
}


def test_each_setting_has_its_value_its_origin_and_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "forebay.toml"
    path.write_text(FILE)
    every = list(in_force(load(path, ENVIRONMENT)))
    assert "canary" not in repr(every)
    found = {one.key: (one.value, one.origin) for one in every}
    assert len(found) == len(every)
    assert found["driver.batch_interval"] == ("2s", "FOREBAY__DRIVER__BATCH_INTERVAL")
    assert found["kafka.bootstrap.servers"] == ("127.0.0.1:9092", str(path))
    assert found["kafka.sasl.username"] == ("forebay", str(path))
    assert found["kafka.sasl.password"] == (HIDDEN, str(path))
    assert found["kafka.ssl.key.location"] == ("/etc/forebay/kafka.key", str(path))
    assert found["kafka.ssl.key.password"] == (HIDDEN, "FOREBAY__KAFKA__SSL_KEY_PASSWORD")
    assert found["driver.web_hook"] == (HIDDEN, str(path))
    assert found["driver.urls"] == ([f"http://{HIDDEN}@driver-1:7080"], str(path))
    assert found["wal.retention"] == ("7d", DEFAULT)
    assert found["wal.key_file"] == (None, DEFAULT)
    assert found["spark.spark.driver.extraJavaOptions"][0] == (
        f"-Xmx1g -Djavax.net.ssl.keyStorePassword={HIDDEN} -Da=b"
    )
    assert found["storage.s3.endpoint_url"] == (f"https://{HIDDEN}@store.example", str(path))
    assert found["storage.s3.client_kwargs.region_name"] == ("eu-1", str(path))
    assert found["storage.s3.config_kwargs.proxies.https"] == (
        f"http://{HIDDEN}@proxy:3128",
        "FOREBAY__STORAGE__S3__CONFIG_KWARGS",
    )


def test_every_key_of_the_schema_is_shown_once(tmp_path: Path) -> None:
    from forebay.settings import reference

    path = tmp_path / "forebay.toml"
    path.write_text(FILE)
    keys = [key.path for section in reference.keys_by_section().values() for key in section.values()]
    shown = [one.key for one in in_force(load(path, {}))]
    assert [key for key in keys if key != "storage"] == [key for key in shown if key in keys]


@pytest.mark.parametrize(
    "name",
    [
        "sasl.password", "ssl.key.pem", "ssl.keystore.password", "sasl.oauthbearer.config", "sasl.jaas.config", "key",
        "secret", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "spark.hadoop.fs.azure.account.key.name",
        "FOREBAY_TOKENS", "sas_token", "connection_string", "spark.authenticate.secret", "PGPASSWORD", "API_KEY",
    ],
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "sasl.username", "ssl.key.location", "token_file", "key_file", "sasl.oauthbearer.token.endpoint.url", "topics",
        "spark.master", "partitioner", "keyed", "monkey",
    ],
)  # fmt: skip
def test_names_that_hold_no_secret(name: str) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('{"password": "a\\"b", "user": "me"}', f'{{"password": "{HIDDEN}", "user": "me"}}'),
        ("Authorization: Bearer abc.def-123456", f"Authorization: {HIDDEN} {HIDDEN}"),
        ("got Bearer abcdef123", f"got Bearer {HIDDEN}"),
        (
            "GET https://user:pw@host/a?sig=1&access_token=abc",
            f"GET https://{HIDDEN}@host/a?sig=1&access_token={HIDDEN}",
        ),
        ("abfs://container@account/prefix", "abfs://container@account/prefix"),
        ("s3://key:secret@bucket", f"s3://{HIDDEN}@bucket"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nnext",
            f"-----BEGIN RSA PRIVATE KEY-----{HIDDEN}\nnext",
        ),
        ("cut off -----BEGIN PRIVATE KEY-----\nMIIE", f"cut off -----BEGIN PRIVATE KEY-----{HIDDEN}"),
        ("claim token 7 of t/0", "claim token 7 of t/0"),
        ('{"token": 7, "tokens": {"a": 1}}', '{"token": 7, "tokens": {"a": 1}}'),
        ('"{\\"password\\": \\"abc\\"}"', f'"{{\\"password\\": \\"{HIDDEN}\\"}}"'),
        ("token_file = /etc/forebay/tokens", "token_file = /etc/forebay/tokens"),
        ("db.password: abc, user: me", f"db.password: {HIDDEN}, user: me"),
        ("--conf spark.authenticate.secret=abc next", f"--conf spark.authenticate.secret={HIDDEN} next"),
    ],
)
def test_secrets_in_a_text_are_replaced(text: str, left: str) -> None:
    assert redacted(text) == left


def test_a_long_text_is_searched_in_linear_time() -> None:
    text = "a" * 2_000_000 + " password=abc " + "password" * 100_000
    assert redacted(text).count(HIDDEN) == 1


def test_known_secrets_are_replaced_anywhere_the_longest_first() -> None:
    assert redacted("xabcy ab", ["ab", "abc", ""]) == f"x{HIDDEN}y {HIDDEN}"
