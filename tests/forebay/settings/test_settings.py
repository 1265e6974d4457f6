"""Settings come from a file and from environment variables, over defaults, and show no password."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from forebay.model.errors import SettingsError
from forebay.settings.durability_notes import without_wal
from forebay.settings.reading.load import from_values, load
from forebay.settings.schema import Settings

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


def test_load_fills_in_defaults(tmp_path: Path) -> None:
    settings = loaded(tmp_path, {})
    assert settings.kafka.options == {"bootstrap.servers": "127.0.0.1:9092"}
    assert settings.receiver.block_interval == 0.2
    assert settings.receiver.memory == 64_000_000
    wal = settings.wal
    assert wal.retention == 7 * 24 * 3600.0
    assert wal.retention_size == 10_000_000_000
    assert wal.retention_blocks == 50_000
    assert wal.retention_free == 2_000_000_000
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
def test_environment_variable_overrides_key_of_any_type(
    tmp_path: Path, variable: str, text: str, section: str, key: str, value: object
) -> None:
    settings = loaded(tmp_path, {variable: text})
    assert getattr(getattr(settings, section), key) == value


def test_environment_variable_overrides_stream(tmp_path: Path) -> None:
    assert loaded(tmp_path, {"FOREBAY__STREAM": "other"}).stream == "other"


def test_environment_variable_overrides_pass_through_key_in_any_notation(tmp_path: Path) -> None:
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


def test_pass_through_values_become_text() -> None:
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


def test_store_options_have_the_form_of_their_client(tmp_path: Path) -> None:
    """Hadoop's options are texts whose keys have dots; those of other clients are arguments of a constructor."""
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
def test_secret_in_store_options_is_refused_and_not_shown(tmp_path: Path, line: str) -> None:
    """The file is copied and shown, and its values are sent to tasks."""
    with pytest.raises(SettingsError, match="secrets don't belong") as caught:
        loaded(tmp_path, {}, f"{GOOD}[storage.s3]\n{line}\n")
    assert "hush" not in str(caught.value)
    with pytest.raises(SettingsError, match="FOREBAY__STORAGE__S3__SECRET") as caught:
        loaded(tmp_path, {"FOREBAY__STORAGE__S3__SECRET": "hush"})
    assert "hush" not in str(caught.value)


def test_name_of_a_way_to_log_in_is_no_secret(tmp_path: Path) -> None:
    text = GOOD + '[storage.gs]\ntoken = "google_default"\n'
    assert loaded(tmp_path, {}, text).storage == {"gs": {"token": "google_default"}}
    for value in ('"ya29.hush"', '["anon"]'):
        with pytest.raises(SettingsError, match="GOOGLE_APPLICATION_CREDENTIALS") as caught:
            loaded(tmp_path, {}, text.replace('"google_default"', value))
        assert "hush" not in str(caught.value)


def test_section_of_unknown_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"storage\.ftp.*\[storage\.s3\]"):
        loaded(tmp_path, {}, GOOD + "[storage.ftp]\nx = 1\n")
    with pytest.raises(SettingsError, match="FOREBAY__STORAGE__S3: write"):
        loaded(tmp_path, {"FOREBAY__STORAGE__S3": "x"})


def test_starting_timestamp_accepts_date_with_time_zone(tmp_path: Path) -> None:
    text = GOOD.replace("[wal]", "[kafka.starting_offsets]\ntimestamp = 1970-01-01T00:00:01Z\n[wal]")
    assert loaded(tmp_path, {}, text).kafka.starting_offsets == {"timestamp": 1000}


def test_date_in_options_of_custom_source_stays_a_date(tmp_path: Path) -> None:
    text = GOOD.replace('topics = ["flights"]\n', "") + (
        '[receiver]\nsource = "sources:Tail"\n[receiver.source_options]\ntimestamp = 1970-01-01T00:00:01Z\n'
    )
    moment = datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=datetime.timezone.utc)
    assert loaded(tmp_path, {}, text).receiver.source_options == {"timestamp": moment}


def test_table_in_environment_variable_is_read(tmp_path: Path) -> None:
    text = GOOD.replace('topics = ["flights"]\n', "") + '[receiver]\nsource = "sources:Tail"\n'
    environment = {"FOREBAY__RECEIVER__SOURCE_OPTIONS": '{folder = "/a", limit = 5}'}
    assert loaded(tmp_path, environment, text).receiver.source_options == {"folder": "/a", "limit": 5}


def test_starting_offsets_accept_section_of_partitions(tmp_path: Path) -> None:
    text = GOOD.replace("[wal]", '[kafka.starting_offsets]\n"a.b/0" = 5\n"a.b/1" = 6\n[wal]')
    assert loaded(tmp_path, {}, text).kafka.starting_offsets == {"a.b/0": 5, "a.b/1": 6}


def test_note_without_wal_says_which_losses_it_does_not_survive() -> None:
    assert without_wal(from_values(good_values())) == ""
    alone = without_wal(from_values(good_values(wal__url="none")))
    two = without_wal(from_values(good_values(wal__url="none", receiver__copies=2)))
    assert "there is no WAL" in alone
    assert "only on the disk of its receiver's host" in alone
    assert "two hosts" in two


def test_repr_of_settings_shows_no_password() -> None:
    values = good_values(**{"kafka__sasl.password": "canary", "spark": {"spark.hadoop.fs.s3a.secret.key": "canary"}})
    settings = from_values(values)
    assert (
        settings.kafka.options["sasl.password"] == "canary" == settings.spark.options["spark.hadoop.fs.s3a.secret.key"]
    )
    assert "canary" not in repr(settings) + repr(settings.kafka) + repr(settings.spark) + f"{settings}"
