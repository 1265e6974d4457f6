"""The settings in force: each key has its value and its origin, and no secret is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.settings.in_force import DEFAULT, in_force
from forebay.settings.reading.load import load
from forebay.settings.redaction import HIDDEN, is_secret_name, redacted, shown_value

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
        "spark.hadoop.fs.azure.sas.container.account.blob.core.windows.net", "schema.registry.basic.auth.user.info",
        "basic.auth.user.info", "fs.s3a.secret.key", "fs.s3a.session.token", "fs.azure.account.key.a.blob.core.windows.net",
        "schema.registry.bearer.auth.token", "AZURE_STORAGE_KEY", "AZURE_STORAGE_CONNECTION_STRING", "SharedAccessKey", "DB_PWD",
        "sasl.oauthbearer.client.secret", "fs.gs.auth.service.account.private.key", "client_assertion", "Set-Cookie", "sig",
        "ssl.keystore.key", "basic.auth.user-info",
    ],
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "sasl.username", "ssl.key.location", "token_file", "key_file", "sasl.oauthbearer.token.endpoint.url", "topics",
        "spark.master", "partitioner", "keyed", "monkey", "sasl.mechanism", "PWD", "OLDPWD", "design", "userinfo",
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
            f"GET https://{HIDDEN}@host/a?sig={HIDDEN}&access_token={HIDDEN}",
        ),
        ("abfs://container@account/prefix", "abfs://container@account/prefix"),
        ("s3://key:secret@bucket", f"s3://{HIDDEN}@bucket"),
        ("s3://key:se/cr+et@bucket/path", f"s3://{HIDDEN}@bucket/path"),
        ("https://me:p@ss@host/a?mail=b@c", f"https://{HIDDEN}@host/a?mail=b@c"),
        ('https://me:p#s?s"@host/a', f"https://{HIDDEN}@host/a"),
        ("s3://key:/se@bucket", f"s3://{HIDDEN}@bucket"),
        ('["https://me:pw@host", "a@b"]', f'["https://{HIDDEN}@host", "a@b"]'),
        ("https://host:9092/folder@2", "https://host:9092/folder@2"),
        ("hdfs://a:8020,b:8020/folder@2", "hdfs://a:8020,b:8020/folder@2"),
        (
            "https://a.blob.core.windows.net/c?sv=2022&sp=r&sig=ab%2Fc%3D",
            f"https://a.blob.core.windows.net/c?sv=2022&sp=r&sig={HIDDEN}",
        ),
        ("basic.auth.user.info=me:abc, next", f"basic.auth.user.info={HIDDEN}, next"),
        ("jdbc:sqlserver://host;user=me;pwd=abc;x=1", f"jdbc:sqlserver://host;user=me;pwd={HIDDEN};x=1"),
        ("AccountName=a;AccountKey=abc==;EndpointSuffix=b", f"AccountName=a;AccountKey={HIDDEN};EndpointSuffix=b"),
        ("assertion eyJhbGciOiJub25lIn0.eyJzdWIiOiJtZSJ9.c2ln is refused", f"assertion {HIDDEN} is refused"),
        ("the design=3 of sasl=4", "the design=3 of sasl=4"),
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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.hadoop.fs.azure.sas.container.account.blob.core.windows.net", "sv=2022-11-02&sp=r&sig=canary"),
        ("schema.registry.basic.auth.user.info", "me:canary"),
        ("sasl.jaas.config", 'org.apache.kafka…PlainLoginModule required username="me" password="canary";'),
        ("ssl.key.pem", "-----BEGIN PRIVATE KEY-----canary"),
        ("spark.hadoop.fs.azure.account.key.account.blob.core.windows.net", "canary"),
        ("anything", "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=canary;EndpointSuffix=core.windows.net"),
        ("anything", "BlobEndpoint=https://a.example;SharedAccessSignature=sv=2022&ss=b&sig=canary"),
        ("anything", "https://a.blob.core.windows.net/container?sv=2022&sig=canary"),
        (
            "anything",
            "https://bucket.example/a?X-Amz-Credential=canary&X-Amz-Signature=canary&X-Amz-Security-Token=canary",
        ),
        ("anything", "http://proxy.example:8080 https://me:canary@registry.example"),
        ("anything", "Authorization: Bearer canary-canary"),
        ("anything", ["a", {"sig": "canary"}]),
    ],
)
def test_no_option_is_shown_with_its_secret(name: str, value: object) -> None:
    assert "canary" not in repr(shown_value(name, value))


def test_a_long_text_is_searched_in_linear_time() -> None:
    text = "a" * 2_000_000 + " password=abc " + "password" * 100_000
    assert redacted(text).count(HIDDEN) == 1
    assert redacted("s3://" + "a:" * 500_000 + "https://" * 100_000)


def test_known_secrets_are_replaced_anywhere_the_longest_first() -> None:
    assert redacted("xabcy ab", ["ab", "abc", ""]) == f"x{HIDDEN}y {HIDDEN}"
