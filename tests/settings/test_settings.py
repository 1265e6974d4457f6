"""Every wrong value is one sentence that names where it was written, the key, the value and what is allowed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import SettingsError
from forebay.promises import without_wal
from forebay.settings import Settings, from_values, load

GOOD = """
stream = "flights"
[kafka]
topics = ["flights"]
bootstrap.servers = "127.0.0.1:9092"
[wal]
url = "file:///var/lib/forebay/wal"
[driver]
journal = "file:///var/lib/forebay/journal"
job = "jobs:process"
[agent]
blocks = "/var/lib/forebay/blocks"
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "forebay.toml"
    path.write_text(text, encoding="utf-8")
    return path


def loaded(tmp_path: Path, environment: dict[str, str], text: str = GOOD) -> Settings:
    return load(write(tmp_path, text), environment)


def good_values(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "stream": "flights",
        "kafka": {"topics": ["flights"], "bootstrap.servers": "127.0.0.1:9092"},
        "wal": {"url": "file:///w"},
        "driver": {"journal": "file:///j"},
        "agent": {"blocks": "/b"},
    }
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if name:
            values.setdefault(section, {})[name] = value
        else:
            values[section] = value
    return values


def test_a_whole_file_gives_settings_with_defaults(tmp_path: Path) -> None:
    settings = loaded(tmp_path, {})
    assert settings.kafka.options == {"bootstrap.servers": "127.0.0.1:9092"}
    assert settings.receiver.block_interval == 0.2
    assert settings.receiver.memory == 64_000_000
    assert settings.group == "forebay.flights"
    assert settings.completed_group == "forebay.flights.completed"


@pytest.mark.parametrize(
    ("variable", "text", "section", "key", "value"),
    [
        ("FOREBAY__RECEIVER__BLOCK_INTERVAL", "1s", "receiver", "block_interval", 1.0),
        ("FOREBAY__RECEIVER__BLOCK_SIZE", "2MiB", "receiver", "block_size", 2 * 2**20),
        ("FOREBAY__RECEIVER__COUNT", "3", "receiver", "count", 3),
        ("FOREBAY__RECEIVER__MODE", "managed", "receiver", "mode", "managed"),
        ("FOREBAY__RECEIVER__PREFERRED_HOSTS", "h1,rack=a", "receiver", "preferred_hosts", ("h1", "rack=a")),
        ("FOREBAY__AGENT__LABELS", "rack=a, disk=nvme", "agent", "labels", ("rack=a", "disk=nvme")),
        ("FOREBAY__RECEIVER__LOCAL_COPIES", "False", "receiver", "local_copies", False),
        ("FOREBAY__RECEIVER__HOST", "h-1", "receiver", "host", "h-1"),
        ("FOREBAY__RECEIVER__HOST", "", "receiver", "host", None),
        ("FOREBAY__DRIVER__JOB", "", "driver", "job", None),
        ("FOREBAY__DRIVER__ENGINE", "local", "driver", "engine", "local"),
        ("FOREBAY__KAFKA__TOPICS", "a, b", "kafka", "topics", ("a", "b")),
        ("FOREBAY__KAFKA__TOPICS", '["a", "b"]', "kafka", "topics", ("a", "b")),
        ("FOREBAY__KAFKA__ON_GAP", "record", "kafka", "on_gap", "record"),
        ("FOREBAY__KAFKA__STARTING_OFFSETS", "latest", "kafka", "starting_offsets", "latest"),
        ("FOREBAY__KAFKA__STARTING_OFFSETS", '{"flights/0" = 7}', "kafka", "starting_offsets", {"flights/0": 7}),
        ("FOREBAY__KAFKA__STARTING_OFFSETS", "{timestamp = 5}", "kafka", "starting_offsets", {"timestamp": 5}),
        ("FOREBAY__RECEIVER__MAX_RATE_BYTES", "2MB", "receiver", "max_rate_bytes", 2_000_000),
        ("FOREBAY__DRIVER__BACKPRESSURE", "true", "driver", "backpressure", True),
        ("FOREBAY__DRIVER__BACKPRESSURE_INTEGRAL", "0.35", "driver", "backpressure_integral", 0.35),
        ("FOREBAY__DRIVER__BACKPRESSURE_PROPORTIONAL", "2", "driver", "backpressure_proportional", 2.0),
        ("forebay_not_ours", "x", "receiver", "count", 1),
    ],
)
def test_an_environment_variable_overrides_a_key_of_any_type(
    tmp_path: Path, variable: str, text: str, section: str, key: str, value: object
) -> None:
    settings = loaded(tmp_path, {variable: text})
    assert getattr(getattr(settings, section), key) == value


def test_an_environment_variable_overrides_the_stream(tmp_path: Path) -> None:
    assert loaded(tmp_path, {"FOREBAY__STREAM": "other"}).stream == "other"


def test_pass_through_keys_are_overridden_however_the_file_writes_them(tmp_path: Path) -> None:
    text = GOOD + '[spark]\n"spark.driver.bindAddress" = "a"\nspark.ui.enabled = true\n'
    settings = loaded(
        tmp_path,
        {
            "FOREBAY__KAFKA__BOOTSTRAP_SERVERS": "b:1",
            "FOREBAY__SPARK__SPARK_DRIVER_BINDADDRESS": "b",
            "FOREBAY__SPARK__SPARK_UI_ENABLED": "false",
            "FOREBAY__SPARK__spark_driver_extraClassPath": "p",
            "FOREBAY__KAFKA__SSL_SOME__KEY": "u",
        },
        text,
    )
    assert settings.kafka.options == {"bootstrap.servers": "b:1", "ssl.some_key": "u"}
    assert settings.spark.options == {
        "spark.driver.bindAddress": "b",
        "spark.ui.enabled": "false",
        "spark.driver.extraClassPath": "p",
    }


def test_pass_through_values_become_the_text_their_reader_wants() -> None:
    settings = from_values(
        good_values(
            kafka={"topics": ["t"], "bootstrap": {"servers": ["a:1", "b:2"]}, "socket.keepalive.enable": True},
            spark={"spark": {"executor": {"cores": 2}}},
        )
    )
    assert settings.kafka.options == {"bootstrap.servers": "a:1,b:2", "socket.keepalive.enable": "true"}
    assert settings.spark.options == {"spark.executor.cores": "2"}


STORES = """
[storage.s3]
endpoint_url = "http://127.0.0.1:9"
client_kwargs = { region_name = "eu" }
[storage.hdfs]
dfs.replication = 2
"""


def test_settings_of_stores_go_to_their_clients_as_those_take_them(tmp_path: Path) -> None:
    """Hadoop's keys have dots and texts; the others' are a constructor's arguments."""
    assert loaded(tmp_path, {}, GOOD + STORES).storage == {
        "s3": {"endpoint_url": "http://127.0.0.1:9", "client_kwargs": {"region_name": "eu"}},
        "hdfs": {"dfs.replication": "2"},
    }
    overrides = {
        "FOREBAY__STORAGE__S3__ENDPOINT_URL": "http://b:1",
        "FOREBAY__STORAGE__S3__ANON": "true",
        "FOREBAY__STORAGE__S3__CLIENT_KWARGS": '{ region_name = "us" }',
        "FOREBAY__STORAGE__S3__REQUEST_TIMEOUT": "3s",
        "FOREBAY__STORAGE__HDFS__DFS_REPLICATION": "3",
    }
    assert loaded(tmp_path, overrides, GOOD + STORES).storage == {
        "s3": {
            "endpoint_url": "http://b:1",
            "client_kwargs": {"region_name": "us"},
            "anon": True,
            "request_timeout": "3s",
        },
        "hdfs": {"dfs.replication": "3"},
    }


@pytest.mark.parametrize(
    "line", ['secret = "hush"', 'client_kwargs = { aws_secret_access_key = "hush" }', 'token = "hush"', 'key = "hush"']
)
def test_secrets_of_stores_are_refused_and_not_repeated(tmp_path: Path, line: str) -> None:
    """The file is copied and shown, and its values go to tasks."""
    with pytest.raises(SettingsError, match="secrets don't belong") as caught:
        loaded(tmp_path, {}, f"{GOOD}[storage.s3]\n{line}\n")
    assert "hush" not in str(caught.value)
    with pytest.raises(SettingsError, match="FOREBAY__STORAGE__S3__SECRET") as caught:
        loaded(tmp_path, {"FOREBAY__STORAGE__S3__SECRET": "hush"})
    assert "hush" not in str(caught.value)


def test_the_settings_of_an_unknown_store_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"storage\.ftp.*\[storage\.s3\]"):
        loaded(tmp_path, {}, GOOD + "[storage.ftp]\nx = 1\n")
    with pytest.raises(SettingsError, match="FOREBAY__STORAGE__S3: write"):
        loaded(tmp_path, {"FOREBAY__STORAGE__S3": "x"})


def test_a_starting_moment_may_be_a_date_with_a_time_zone(tmp_path: Path) -> None:
    text = GOOD.replace("[wal]", "[kafka.starting_offsets]\ntimestamp = 1970-01-01T00:00:01Z\n[wal]")
    assert loaded(tmp_path, {}, text).kafka.starting_offsets == {"timestamp": 1000}


def test_starting_offsets_may_be_a_section_of_partitions(tmp_path: Path) -> None:
    text = GOOD.replace("[wal]", '[kafka.starting_offsets]\n"a.b/0" = 5\n"a.b/1" = 6\n[wal]')
    assert loaded(tmp_path, {}, text).kafka.starting_offsets == {"a.b/0": 5, "a.b/1": 6}


WRONG: list[tuple[dict[str, Any], list[str]]] = [
    ({"receiver__copies": 3, "wal__url": "none"}, ["receiver.copies = 3", "1 and 2"]),
    ({"receiver__copies": 2}, ["receiver.copies = 2", "WAL"]),
    ({"wal__url": "none", "receiver__local_copies": False}, ["receiver.local_copies", "none"]),
    ({"wal__url": "none", "wal__retention": "1h"}, ["wal.retention", "none"]),
    ({"wal__url": "none", "wal__retention_size": "1GB"}, ["wal.retention_size", "none"]),
    ({"receiver__mode": "auto"}, ['receiver.mode = "auto"', 'allowed are "static", "managed"']),
    ({"receiver__preferred_hosts": ["a b"]}, ["receiver.preferred_hosts", "key=value"]),
    ({"receiver__moves_max": -1}, ["receiver.moves_max = -1", "at least 0"]),
    ({"agent__labels": ["fast"]}, ['agent.labels = "fast"', "key=value"]),
    ({"agent__capacity": -1}, ["agent.capacity = -1", "at least 0"]),
    ({"stream": "s" * 63, "receiver__mode": "managed"}, ["stream", "managed receivers' ids"]),
    ({"stream": "forebay-x", "receiver__mode": "managed"}, ['stream = "forebay-x"', "managed receivers' ids"]),
    ({"receiver__mode": "managed", "receiver__count": 1001}, ["receiver.count = 1001", "at most 1000"]),
    ({"streams": "x"}, ["unknown key streams", "allowed are", "stream"]),
    ({"receiver__cuont": 3}, ["unknown key receiver.cuont", "allowed are", "count"]),
    ({"kafka__topic": ["t"]}, ["unknown key kafka.topic", "allowed are", "topics"]),
    ({"kafka__options": "x"}, ["unknown key kafka.options"]),
    ({"kafka__topics": "flights"}, ['kafka.topics = "flights"', "write a list"]),
    ({"kafka__topics": [1]}, ["kafka.topics = [1]", "write a text"]),
    ({"kafka__topics": []}, ["kafka", "one of the two"]),
    ({"kafka__topics": ["a", "a"]}, ["kafka.topics", "twice"]),
    ({"kafka__topics": ["a b"]}, ['kafka.topics = "a b"', "letters"]),
    ({"kafka__pattern": "^x"}, ["kafka", "one of the two"]),
    ({"kafka": {"pattern": "x", "bootstrap.servers": "b"}}, ['kafka.pattern = "x"', "begin with ^"]),
    ({"kafka": {"pattern": "^(", "bootstrap.servers": "b"}}, ['kafka.pattern = "^("', "no regular expression"]),
    ({"kafka": {"topics": ["t"]}}, ['kafka."bootstrap.servers" is missing']),
    ({"kafka": 3}, ["kafka = 3", "is no section"]),
    ({"kafka__on_gap": "skip"}, ['kafka.on_gap = "skip"', 'allowed are "stop", "record"']),
    ({"kafka__starting_offsets": "newest"}, ['kafka.starting_offsets = "newest"', '"earliest"']),
    ({"kafka__starting_offsets": 3}, ["kafka.starting_offsets = 3", '"earliest"']),
    ({"kafka__starting_offsets": {}}, ["kafka.starting_offsets", '"earliest"']),
    ({"kafka__starting_offsets": {"flights": 3}}, ["kafka.starting_offsets", "topic/partition"]),
    ({"kafka__starting_offsets": {"flights/0": -1}}, ["kafka.starting_offsets", "topic/partition"]),
    ({"kafka__starting_offsets": {"flights/0": "x"}}, ["kafka.starting_offsets", "topic/partition"]),
    ({"kafka__starting_offsets": {"timestamp": 1, "flights/0": 1}}, ["kafka.starting_offsets", "topic/partition"]),
    ({"kafka__debug.x": {"y": None}}, ["kafka", "write a text"]),
    ({"stream": "a/b"}, ["stream 'a/b'", "letters"]),
    ({"stream": 7}, ["stream = 7", "write a text"]),
    ({"receiver__host": "a/../b"}, ["receiver.host 'a/../b'", "letters"]),
    ({"agent__host": ""}, ["agent.host ''", "letters"]),
    ({"receiver__count": 0}, ["receiver.count = 0", "at least 1"]),
    ({"receiver__count": "x"}, ['receiver.count = "x"', "whole number"]),
    ({"receiver__count": 1.5}, ["receiver.count = 1.5", "whole number"]),
    ({"receiver__count": True}, ["receiver.count = true", "whole number"]),
    ({"receiver__local_copies": 1}, ["receiver.local_copies = 1", "true or false"]),
    ({"receiver__block_interval": "200"}, ['receiver.block_interval = "200"', "no duration", "ms, s, m, h, d"]),
    ({"receiver__block_interval": 200}, ["receiver.block_interval = 200", "no duration"]),
    ({"receiver__block_interval": "-1s"}, ['receiver.block_interval = "-1s"', "no duration"]),
    ({"receiver__block_interval": "0ms"}, ["receiver.block_interval", "longer than 0ms"]),
    ({"receiver__drain_timeout": "40000d"}, ['receiver.drain_timeout = "40000d"', "100 years"]),
    ({"receiver__memory": "64Mb"}, ['receiver.memory = "64Mb"', "no size", "MB"]),
    ({"receiver__memory": "0.5B"}, ['receiver.memory = "0.5B"', "whole number of bytes"]),
    ({"receiver__memory": "99999999999TB"}, ["receiver.memory", "larger than any store"]),
    ({"receiver__memory": "1MB"}, ["receiver.memory", "at least receiver.block_size"]),
    ({"receiver__max_rate": -1}, ["receiver.max_rate = -1", "at least 0"]),
    ({"receiver__min_rate_per_partition": 0}, ["receiver.min_rate_per_partition = 0", "at least 1"]),
    (
        {"receiver__max_rate_per_partition": 5, "receiver__min_rate_per_partition": 6},
        ["receiver.min_rate_per_partition = 6", "at most receiver.max_rate_per_partition (5)"],
    ),
    ({"receiver__initial_rate": 500}, ["receiver.initial_rate = 500", "driver.backpressure = true"]),
    ({"driver__backpressure_integral": -0.5}, ["driver.backpressure_integral = -0.5", "at least 0"]),
    ({"driver__backpressure_derivative": math.nan}, ["driver.backpressure_derivative = nan", "write a number"]),
    ({"driver__backpressure_proportional": "much"}, ["driver.backpressure_proportional", "write a number, as in 0.2"]),
    ({"driver__backpressure_min_rate": 0}, ["driver.backpressure_min_rate = 0", "at least 1"]),
    ({"driver__max_batch_records": -1}, ["driver.max_batch_records = -1", "at least 0"]),
    ({"kafka__read_timeout": "0ms"}, ["kafka.read_timeout", "longer than 0ms"]),
    ({"kafka__read_prefetch": "1MB"}, ["kafka.read_prefetch = 1000000", "at least 1048576"]),
    ({"agent__quota": "0B"}, ["agent.quota = 0", "at least 1"]),
    ({"wal": {}}, ["the key wal.url is missing"]),
    ({"wal__compression": "gzip"}, ['wal.compression = "gzip"', '"none", "lz4", "zstd"']),
    ({"wal__url": "/var/lib"}, ['wal.url = "/var/lib"', "file:///"]),
    ({"wal__url": "file://var/lib"}, ['wal.url = "file://var/lib"', "three slashes"]),
    ({"driver__journal": "x"}, ['driver.journal = "x"', "file:///"]),
    ({"agent__blocks": "blocks"}, ['agent.blocks = "blocks"', "whole path"]),
    ({"driver__job": "jobs.process"}, ['driver.job = "jobs.process"', "module:function"]),
    ({"driver__job": "1jobs:process"}, ["driver.job", "module:function"]),
    ({"driver__engine": "flink"}, ['driver.engine = "flink"', '"spark", "local"']),
    ({"driver__urls": ["http://h:1", "h:2"]}, ['driver.urls = "h:2"', "http://host:port"]),
    ({"driver__urls": ["http://h:1", "http://h:1/"]}, ["driver.urls", "names a driver twice"]),
    ({"driver__urls": ["http://h:0"]}, ["driver.urls", "name the port"]),
    ({"driver__url": "127.0.0.1:7080"}, ['driver.url = "127.0.0.1:7080"', "http://host:port"]),
    ({"driver__url": "http://h"}, ['driver.url = "http://h"', "http://host:port"]),
    ({"driver__url": "http://h:x"}, ['driver.url = "http://h:x"', "http://host:port"]),
    ({"driver__url": "http://h:70000"}, ['driver.url = "http://h:70000"', "http://host:port"]),
    ({"driver__url": "http://h:1/path"}, ["driver.url", "http://host:port"]),
    ({"driver__url": "ftp://h:1"}, ["driver.url", "http://host:port"]),
    ({"driver__url": "http://127.0.0.1:7081"}, ["agent.url", "the host and port of driver.url"]),
    ({"spark": {"master": "local"}}, ["'master'", '"spark.master"', "Spark's own"]),
    ({"spark": "local"}, ['spark = "local"', "is no section"]),
    ({"dead_letters": {"url": "/letters"}}, ["dead_letters.url", '"file:///folder"']),
    ({"dead_letters": {"url": "file:///a", "topic": "b"}}, ["dead_letters", "a url or a topic, not both"]),
    ({"dead_letters": {"topic": "flights"}}, ["dead_letters.topic", "the stream takes this topic in"]),
    ({"dead_letters": {"topic": "a b"}}, ["dead_letters.topic", '"a b"', "letters, digits"]),
    ({"dead_letters": {"max_fraction": 2}}, ["dead_letters.max_fraction = 2", "from 0 to 1"]),
    ({"driver__listeners": ["watch"]}, ["driver.listeners", '"watch"', '"watch:Pager"']),
    ({"driver__web_hook": "ftp://a"}, ["driver.web_hook", '"http://host:port/path"']),
    ({"driver__web_hook": "http://user:word@a"}, ["driver.web_hook", "no user and password"]),
    ({"driver__listener_queue": 0}, ["driver.listener_queue = 0", "at least 1"]),
    ({"security__token_file": "t"}, ["security.token_file", "credential:NAME"]),
    ({"security__token_file": "credential:../t"}, ["security.token_file", "letters, digits"]),
    ({"security__ca_file": "ca.pem"}, ["security.ca_file", "whole path"]),
    ({"security__cert_file": "/c.pem"}, ["security.cert_file and security.key_file belong together"]),
    (
        {"security": {"cert_file": "/c.pem", "key_file": "/k.pem"}},
        ['driver.url = "http://', "with security.cert_file it must begin with https://"],
    ),
    ({"security__request_size": "1KB"}, ["security.request_size", "at least 65536"]),
    ({"security__request_timeout": "0s"}, ["security.request_timeout", "longer than 0"]),
]


@pytest.mark.parametrize(("changes", "parts"), WRONG, ids=[str(changes) for changes, _ in WRONG])
def test_each_wrong_value_is_refused_in_one_sentence(changes: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        from_values(good_values(**changes), source="f.toml")
    sentence = str(caught.value)
    assert sentence.startswith("f.toml: ")
    assert "\n" not in sentence
    for part in parts:
        assert part in sentence


@pytest.mark.parametrize("section", ["kafka", "wal", "driver", "agent"])
def test_a_missing_section_is_named(section: str) -> None:
    values = good_values()
    del values[section]
    with pytest.raises(SettingsError, match=rf"the section \[{section}\] is missing"):
        from_values(values)


@pytest.mark.parametrize(
    ("variable", "text", "parts"),
    [
        ("FOREBAY__RECEIVER__COUNT", "many", ['receiver.count = "many"', "whole number"]),
        ("FOREBAY__RECEIVER__COUNTS", "1", ["unknown key receiver.counts", "count"]),
        ("FOREBAY__RECEIVER__BLOCK_INTERVAL", "soon", ['receiver.block_interval = "soon"', "no duration"]),
        ("FOREBAY__RECEIVER__LOCAL_COPIES", "yes", ['receiver.local_copies = "yes"', "true or false"]),
        ("FOREBAY__KAFKA__STARTING_OFFSETS", "{x", ["not valid TOML"]),
        ("FOREBAY__RECEIVERS__COUNT", "1", ["no section [receivers]", "receiver"]),
        ("FOREBAY__RECEIVER", "1", ["names a section", "FOREBAY__RECEIVER__KEY"]),
        ("FOREBAY__STREAM", "a b", ["stream 'a b'"]),
    ],
)
def test_a_wrong_override_is_blamed_on_its_variable_and_not_on_the_file(
    tmp_path: Path, variable: str, text: str, parts: list[str]
) -> None:
    with pytest.raises(SettingsError) as caught:
        loaded(tmp_path, {variable: text})
    sentence = str(caught.value)
    assert sentence.startswith(f"{variable}: ")
    assert "forebay.toml" not in sentence
    for part in parts:
        assert part in sentence


@pytest.mark.parametrize(
    ("text", "part"),
    [("stream = ", "is not valid TOML"), ('stream = "a"\nstream = "b"\n', "is not valid TOML")],
)
def test_what_is_no_toml_is_refused_with_the_place(tmp_path: Path, text: str, part: str) -> None:
    with pytest.raises(SettingsError, match=part) as caught:
        load(write(tmp_path, text), {})
    assert "line" in str(caught.value) or "at" in str(caught.value)


def test_a_file_that_is_not_there_is_named_with_the_option_that_names_another(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"missing\.toml: can't be read: .*--config FILE"):
        load(tmp_path / "missing.toml", {})


def test_bytes_that_are_not_utf8_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "forebay.toml"
    path.write_bytes(b'stream = "\xff"')
    with pytest.raises(SettingsError, match="is not valid TOML"):
        load(path, {})


def test_a_stream_without_a_wal_is_said_to_be_one_with_what_it_does_not_survive() -> None:
    assert without_wal(from_values(good_values())) == ""
    alone = without_wal(from_values(good_values(wal__url="none")))
    two = without_wal(from_values(good_values(wal__url="none", receiver__copies=2)))
    assert "there is no WAL" in alone
    assert "alone" in alone
    assert "two hosts" in two


def test_what_can_be_printed_of_settings_shows_no_password() -> None:
    values = good_values(**{"kafka__sasl.password": "canary", "spark": {"spark.hadoop.fs.s3a.secret.key": "canary"}})
    settings = from_values(values)
    assert (
        settings.kafka.options["sasl.password"] == "canary" == settings.spark.options["spark.hadoop.fs.s3a.secret.key"]
    )
    assert "canary" not in repr(settings) + repr(settings.kafka) + repr(settings.spark) + f"{settings}"
