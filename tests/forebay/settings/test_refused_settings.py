"""Each wrong value is refused in one sentence with the file or variable, the key, the value and what is allowed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from forebay.model.errors import SettingsError
from forebay.settings.reading.load import from_values, load
from forebay.settings.redaction import HIDDEN
from forebay.settings.schema import Section, Settings
from tests.forebay.settings.test_settings import good_values, loaded, write

NO_TEXT = (7, "write a text")
NO_LIST = ("a", "write a list")
NO_BOOL = ("yes", "write true or false")
NO_DURATION = ("200", "is not a duration: write a number and one of ms, s, m, h, d")
NO_SIZE = ("64Mb", "is not a size: write a number and one of B, KB, MB, GB, TB, KiB, MiB, GiB, TiB")
NO_TIME = ("0s", "must be longer than 0ms")
NEGATIVE = (-1, "must be at least 0")
NONE_AT_ALL = (0, "must be at least 1")
NO_BYTES = ("0B", 'must be at least "1B"')

#: each setting → a refused value (out of bounds, if it has bounds), and the text of the error
REFUSED: dict[str, tuple[object, str]] = {
    "stream": ("a/b", "a name has 1 to 64 letters"),
    "data": ("data", "write an absolute path of a folder"),
    "kafka.topics": ("flights", "write a list"),
    "kafka.pattern": NO_TEXT,
    "kafka.starting_offsets": ("newest", 'allowed are "earliest", "latest", "committed", {timestamp = MS}'),
    "kafka.on_gap": ("skip", 'allowed are "stop", "record"'),
    "kafka.group": (" ", "write a name, or remove the key"),
    "kafka.headers": NO_BOOL,
    "kafka.read_blocks": NO_BOOL,
    "kafka.read_timeout": NO_TIME,
    "kafka.read_prefetch": ("1000000B", 'must be at least "1MiB"'),
    "kafka.discovery_interval": NO_TIME,
    "wal.url": ("/var/lib", 'write it as "file:///folder"'),
    "wal.segment_size": NO_BYTES,
    "wal.segment_age": NO_TIME,
    "wal.retention": NO_DURATION,
    "wal.retention_size": NO_SIZE,
    "wal.retention_blocks": NEGATIVE,
    "wal.retention_free": NO_SIZE,
    "wal.reserve": NO_SIZE,
    "wal.cleanup_interval": NO_TIME,
    "wal.compression": ("gzip", 'allowed are "none", "lz4", "zstd"'),
    "wal.key_file": ("keys", 'write an absolute path, or "credential:NAME"'),
    "wal.flush_interval": NO_DURATION,
    "receiver.mode": ("auto", 'allowed are "static", "managed"'),
    "receiver.count": NONE_AT_ALL,
    "receiver.host": ("a/../b", "a name has 1 to 64 letters"),
    "receiver.preferred_hosts": NO_LIST,
    "receiver.hosts_wait": NO_DURATION,
    "receiver.moves_max": NEGATIVE,
    "receiver.start_timeout": NO_DURATION,
    "receiver.host_failures_max": NONE_AT_ALL,
    "receiver.avoid_host": NO_DURATION,
    "receiver.block_interval": NO_TIME,
    "receiver.block_size": NO_BYTES,
    "receiver.source": ("files", 'write "kafka", or module:Class, as in "sources:Tail"'),
    "receiver.source_options": ("a", "write a table"),
    "receiver.memory": ("1000000B", 'must be at least receiver.block_size ("16MB")'),
    "receiver.poll_records": NONE_AT_ALL,
    "receiver.store_timeout": NO_TIME,
    "receiver.drain_timeout": NO_TIME,
    "receiver.heartbeat_interval": NO_TIME,
    "receiver.report_timeout": NO_TIME,
    "receiver.reclaim_delay": NO_TIME,
    "receiver.local_copies": NO_BOOL,
    "receiver.copies": (3, "allowed are 1 and 2"),
    "receiver.max_rate": NEGATIVE,
    "receiver.max_rate_bytes": NO_SIZE,
    "receiver.max_rate_per_partition": NEGATIVE,
    "receiver.max_rate_per_partition_bytes": NO_SIZE,
    "receiver.min_rate_per_partition": NONE_AT_ALL,
    "receiver.initial_rate": NEGATIVE,
    "driver.url": ("127.0.0.1:7080", 'write it as "http://host:port"'),
    "driver.urls": NO_LIST,
    "driver.journal": ("x", 'write it as "file:///folder"'),
    "driver.batch_interval": NO_DURATION,
    "driver.job": ("jobs.process", 'write module:function, as in "jobs:process"'),
    "driver.joins": NO_LIST,
    "driver.warm_standby": ("sometimes", 'allowed are "auto", "always", "never"'),
    "driver.engine": ("flink", 'allowed are "spark", "local"'),
    "driver.job_max_failures": NONE_AT_ALL,
    "driver.job_retry_delay": NO_DURATION,
    "driver.old_tasks_timeout": NO_DURATION,
    "driver.unreadable_retry": NO_TIME,
    "driver.max_queued_batches": NONE_AT_ALL,
    "driver.concurrent_jobs": NONE_AT_ALL,
    "driver.batch_history": NONE_AT_ALL,
    "driver.window": NO_DURATION,
    "driver.window_batches": NEGATIVE,
    "driver.empty_batches": ("drop", 'allowed are "skip", "deliver"'),
    "driver.stop": ("now", 'allowed are "leave", "drain"'),
    "driver.stop_timeout": NO_TIME,
    "driver.tasks_per_batch": NEGATIVE,
    "driver.tasks_min": NONE_AT_ALL,
    "driver.lease_duration": NO_TIME,
    "driver.receiver_timeout": NO_TIME,
    "driver.cursor_timeout": NO_TIME,
    "driver.cursor_lease": NO_TIME,
    "driver.placing_interval": NO_TIME,
    "driver.journal_segment_size": NO_BYTES,
    "driver.journal_reserve": NO_SIZE,
    "driver.journal_flush_interval": NO_DURATION,
    "driver.snapshot_copy_interval": NO_DURATION,
    "driver.max_batch_records": NEGATIVE,
    "driver.max_batch_bytes": NO_SIZE,
    "driver.backpressure": NO_BOOL,
    "driver.backpressure_proportional": (-0.5, "must be at least 0"),
    "driver.backpressure_integral": (-0.5, "must be at least 0"),
    "driver.backpressure_derivative": (-0.5, "must be at least 0"),
    "driver.backpressure_min_rate": NONE_AT_ALL,
    "driver.listeners": (["watch"], 'write module:Class, as in "watch:Pager"'),
    "driver.web_hook": NO_TEXT,
    "driver.web_hook_timeout": NO_TIME,
    "driver.listener_queue": NONE_AT_ALL,
    "driver.listener_queue_bytes": NO_BYTES,
    "driver.metrics_partitions": NONE_AT_ALL,
    "receiver.metrics_url": ("http://h", 'write it as "http://host:port"'),
    "agent.url": ("http://h", 'write it as "http://host:port"'),
    "agent.blocks": ("blocks", "write an absolute path of a folder"),
    "spark.class_archive": ("classes", "write an absolute path of a folder"),
    "agent.quota": NO_BYTES,
    "agent.host": ("", "a name has 1 to 64 letters"),
    "agent.heartbeat_interval": NO_TIME,
    "agent.connections_max": (1, "must be at least 2"),
    "agent.idle_timeout": NO_TIME,
    "agent.drain_timeout": NO_DURATION,
    "agent.store_back": NO_BOOL,
    "agent.labels": NO_LIST,
    "agent.capacity": NEGATIVE,
    "spark.small_batch": NO_SIZE,
    "spark.executors_timeout": NO_DURATION,
    "spark.ship": ("always", 'allowed are "auto", "installed"'),
    "spark.modules": NO_LIST,
    "storage": ("s3", "is not a section"),
    "traces.endpoint": NO_TEXT,
    "traces.share": (1.5, "write a number from 0 to 1"),
    "dead_letters.url": ("/letters", 'write it as "file:///folder"'),
    "dead_letters.topic": ("a b", "a topic's name has 1 to 249 letters"),
    "dead_letters.max_fraction": (1.5, "write a number from 0 to 1"),
    "dead_letters.records_allowed": NEGATIVE,
    "log.format": ("text", 'allowed are "console", "json"'),
    "log.level": ("trace", 'allowed are "debug", "info"'),
    "security.token_file": ("t", 'write an absolute path, or "credential:NAME"'),
    "security.ca_file": ("ca.pem", "write an absolute path of a file"),
    "security.cert_file": ("c.pem", "write an absolute path of a file"),
    "security.key_file": ("k.pem", "write an absolute path of a file"),
    "security.request_size": ("1000B", 'must be at least "64KiB"'),
    "security.request_timeout": NO_TIME,
    "security.connections_max": (7, "must be at least 8"),
    "security.hosts": (["http://proxy"], 'write a host name alone, as in "forebay.example.com"'),
}


def all_settings() -> Iterator[str]:
    for section, hint in get_type_hints(Settings).items():
        if isinstance(hint, type) and issubclass(hint, Section):
            # Kafka and Spark refuse wrong options themselves
            yield from (f"{section}.{key}" for key in hint.__struct_fields__ if key != "options")
        else:
            yield section


@pytest.mark.parametrize(("key", "value", "allowed"), [(key, *row) for key, row in REFUSED.items()], ids=REFUSED)
def test_wrong_value_of_each_setting_is_refused_with_what_is_allowed(key: str, value: object, allowed: str) -> None:
    with pytest.raises(SettingsError) as caught:
        from_values(good_values(**{key.replace(".", "__"): value}), source="f.toml")
    sentence = str(caught.value)
    place, shown, message = sentence.split(": ", 2)
    assert place == "f.toml"
    one = value[0] if isinstance(value, list) else value
    assert shown in (f"{key} = {json.dumps(one)}", f"{key} {one!r}", f"{key} = {HIDDEN}")
    assert message.startswith(allowed)
    assert "\n" not in sentence


def test_each_setting_has_a_refused_value_here() -> None:
    assert REFUSED.keys() == set(all_settings())


WRONG: list[tuple[dict[str, Any], list[str]]] = [
    ({"receiver__copies": 3, "wal__url": "none"}, ["receiver.copies = 3", "1 and 2"]),
    ({"spark": {"modules": ["a.b"]}}, ['spark.modules = "a.b"', "jobs"]),
    ({"spark": {"modules": ["jobs"], "ship": "installed"}}, ["spark.modules", "installed"]),
    ({"wal__url": "none", "receiver__local_copies": False}, ["receiver.local_copies", "none"]),
    (
        {"driver__batch_interval": "0s", "driver__empty_batches": "deliver"},
        ["driver.empty_batches", 'with driver.batch_interval = "0s" there is no interval'],
    ),
    ({"wal__url": "none", "wal__retention": "1h"}, ["wal.retention", "none"]),
    ({"wal__url": "none", "wal__retention_size": "1GB"}, ["wal.retention_size", "none"]),
    ({"wal__url": "none", "wal__retention_blocks": 7}, ["wal.retention_blocks", "none"]),
    ({"wal__url": "none", "wal__retention_free": "1GB"}, ["wal.retention_free", "none"]),
    ({"receiver__preferred_hosts": ["a b"]}, ["receiver.preferred_hosts", "key=value"]),
    ({"agent__labels": ["fast"]}, ['agent.labels = "fast"', "key=value"]),
    ({"stream": "s" * 63, "receiver__mode": "managed"}, ["stream", "managed receivers' ids"]),
    ({"stream": "forebay-x", "receiver__mode": "managed"}, ['stream = "forebay-x"', "managed receivers' ids"]),
    ({"receiver__mode": "managed", "receiver__count": 1001}, ["receiver.count = 1001", "at most 1000"]),
    ({"streams": "x"}, ["unknown key streams", "allowed are", "stream"]),
    ({"receiver__cuont": 3}, ["unknown key receiver.cuont", "allowed are", "count"]),
    ({"kafka__topic": ["t"]}, ["unknown key kafka.topic", "allowed are", "topics"]),
    ({"kafka__options": "x"}, ["unknown key kafka.options"]),
    ({"kafka__topics": [1]}, ["kafka.topics = [1]", "write a text"]),
    ({"kafka__topics": []}, ["kafka", "one of the two"]),
    ({"kafka__topics": ["a", "a"]}, ["kafka.topics", "twice"]),
    ({"kafka__topics": ["a b"]}, ['kafka.topics = "a b"', "letters"]),
    ({"kafka__pattern": "^x"}, ["kafka", "one of the two"]),
    ({"kafka": {"pattern": "x", "bootstrap.servers": "b"}}, ['kafka.pattern = "x"', "begin with ^"]),
    ({"kafka": {"pattern": "^(", "bootstrap.servers": "b"}}, ['kafka.pattern = "^("', "not a regular expression"]),
    (
        {"kafka": {"pattern": "^" + 101 * "(" + 101 * ")", "bootstrap.servers": "b"}},
        ["101 opening parentheses; at most 100 are allowed"],
    ),
    ({"kafka": {"topics": ["t"]}}, ['kafka."bootstrap.servers" is missing']),
    ({"kafka": 3}, ["kafka = 3", "is not a section"]),
    ({"kafka__starting_offsets": 3}, ["kafka.starting_offsets = 3", '"earliest"']),
    ({"kafka__starting_offsets": {}}, ["kafka.starting_offsets", '"earliest"']),
    ({"kafka__starting_offsets": {"flights": 3}}, ["kafka.starting_offsets", "topic/partition"]),
    ({"kafka__starting_offsets": {"flights/0": -1}}, ["kafka.starting_offsets", "topic/partition"]),
    ({"kafka__starting_offsets": {"flights/0": "x"}}, ["kafka.starting_offsets", "topic/partition"]),
    ({"kafka__starting_offsets": {"timestamp": -1}}, ["kafka.starting_offsets", "the timestamp is before 1970"]),
    ({"kafka__starting_offsets": {"timestamp": 1, "flights/0": 1}}, ["kafka.starting_offsets", "topic/partition"]),
    ({"kafka__debug.x": {"y": None}}, ["kafka", "write a text"]),
    ({"stream": 7}, ["stream = 7", "write a text"]),
    ({"receiver__count": "x"}, ['receiver.count = "x"', "whole number"]),
    ({"receiver__count": 1.5}, ["receiver.count = 1.5", "whole number"]),
    ({"receiver__count": True}, ["receiver.count = true", "whole number"]),
    ({"receiver__local_copies": 1}, ["receiver.local_copies = 1", "true or false"]),
    ({"receiver__block_interval": "200"}, ['receiver.block_interval = "200"', "not a duration", "ms, s, m, h, d"]),
    ({"receiver__block_interval": 200}, ["receiver.block_interval = 200", "not a duration"]),
    ({"receiver__block_interval": "-1s"}, ['receiver.block_interval = "-1s"', "not a duration"]),
    ({"receiver__drain_timeout": "40000d"}, ['receiver.drain_timeout = "40000d"', "100 years"]),
    ({"receiver__memory": "64Mb"}, ['receiver.memory = "64Mb"', "not a size", "MB"]),
    ({"receiver__memory": "0.5B"}, ['receiver.memory = "0.5B"', "whole number of bytes"]),
    ({"receiver__memory": "99999999999TB"}, ["receiver.memory", "larger than any store"]),
    (
        {"receiver__max_rate_per_partition": 5, "receiver__min_rate_per_partition": 6},
        ["receiver.min_rate_per_partition = 6", "at most receiver.max_rate_per_partition (5)"],
    ),
    ({"receiver__initial_rate": 500}, ["receiver.initial_rate = 500", "driver.backpressure = true"]),
    ({"driver__backpressure_derivative": math.nan}, ["driver.backpressure_derivative = nan", "write a number"]),
    ({"driver__backpressure_proportional": "much"}, ["driver.backpressure_proportional", "write a number, as in 0.2"]),
    ({"wal": {}}, ["the key wal.url is missing"]),
    ({"wal__url": "file://var/lib"}, ['wal.url = "file://var/lib"', "absolute path after file://"]),
    ({"driver__job": "1jobs:process"}, ["driver.job", "module:function"]),
    ({"driver__urls": ["http://h:1", "h:2"]}, ['driver.urls = "h:2"', "http://host:port"]),
    ({"driver__urls": ["http://h:1", "http://h:1/"]}, ["driver.urls", "names a driver twice"]),
    ({"driver__urls": ["http://h:0"]}, ["driver.urls", "name the port"]),
    ({"driver__url": "http://h:x"}, ['driver.url = "http://h:x"', "http://host:port"]),
    ({"driver__url": "http://h:70000"}, ['driver.url = "http://h:70000"', "http://host:port"]),
    ({"driver__url": "http://h:1/path"}, ["driver.url", "http://host:port"]),
    ({"driver__url": "ftp://h:1"}, ["driver.url", "http://host:port"]),
    ({"driver__url": "http://127.0.0.1:7081"}, ["agent.url", "is the address of driver.url too"]),
    (
        {"receiver__metrics_url": "http://127.0.0.1:7000"},
        ["receiver.metrics_url", "one of the 100 ports from 7000 on", "7080 is that of driver.url"],
    ),
    ({"spark": {"master": "local"}}, ["'master'", '"spark.master"', "Spark's own"]),
    ({"spark": "local"}, ['spark = "local"', "is not a section"]),
    ({"dead_letters": {"url": "file:///a", "topic": "b"}}, ["dead_letters", "a url or a topic, not both"]),
    ({"dead_letters": {"topic": "flights"}}, ["dead_letters.topic", "the stream reads this topic"]),
    ({"dead_letters": {"topic": "a b"}}, ["dead_letters.topic", '"a b"', "letters, digits"]),
    ({"driver__web_hook": "ftp://a"}, ["driver.web_hook", '"http://host:port/path"']),
    ({"driver__web_hook": "http://user:word@a"}, ["driver.web_hook", "remove user and password"]),
    ({"security__token_file": "credential:../t"}, ["security.token_file", "letters, digits"]),
    ({"security__cert_file": "/c.pem"}, ["security.cert_file and security.key_file belong together"]),
    (
        {"security": {"cert_file": "/c.pem", "key_file": "/k.pem"}},
        ['driver.url = "http://', "with security.cert_file it must begin with https://"],
    ),
]


@pytest.mark.parametrize(("changes", "parts"), WRONG, ids=[str(changes) for changes, _ in WRONG])
def test_wrong_configuration_is_refused_in_one_sentence(changes: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(SettingsError) as caught:
        from_values(good_values(**changes), source="f.toml")
    sentence = str(caught.value)
    assert sentence.startswith("f.toml: ")
    assert "\n" not in sentence
    for part in parts:
        assert part in sentence


@pytest.mark.parametrize("section", ["kafka", "wal", "driver", "agent"])
def test_missing_section_is_named(section: str) -> None:
    values = good_values()
    del values[section]
    with pytest.raises(SettingsError, match=rf"the section \[{section}\] is missing"):
        from_values(values)


@pytest.mark.parametrize(
    ("variable", "text", "parts"),
    [
        ("FOREBAY__RECEIVER__COUNT", "many", ['receiver.count = "many"', "whole number"]),
        ("FOREBAY__RECEIVER__COUNTS", "1", ["unknown key receiver.counts", "count"]),
        ("FOREBAY__RECEIVER__BLOCK_INTERVAL", "soon", ['receiver.block_interval = "soon"', "not a duration"]),
        ("FOREBAY__RECEIVER__LOCAL_COPIES", "yes", ['receiver.local_copies = "yes"', "true or false"]),
        ("FOREBAY__KAFKA__STARTING_OFFSETS", "{x", ["not valid TOML"]),
        ("FOREBAY__RECEIVERS__COUNT", "1", ["no section [receivers]", "receiver"]),
        ("FOREBAY__RECEIVER", "1", ["names a section", "FOREBAY__RECEIVER__KEY"]),
        ("FOREBAY__STREAM", "a b", ['stream = "a b"']),
    ],
)
def test_error_in_override_names_the_variable_instead_of_the_file(
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
    ("text", "place"),
    [
        ("stream = x", "line 1, column 10"),
        ('stream = "a"\nstream = "b"\n', "line 2, column 13"),
        ('[wal]\n\nurl = "a\n', "line 3, column 9"),
        ("stream = ", "end of document"),
    ],
)
def test_invalid_toml_is_refused_with_line_and_column(tmp_path: Path, text: str, place: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load(write(tmp_path, text), {})
    assert re.fullmatch(rf".*/forebay\.toml: is not valid TOML: .* \(at {place}\)", str(caught.value))


def test_missing_file_is_named_with_the_config_option(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"missing\.toml: can't be read: .*--config FILE"):
        load(tmp_path / "missing.toml", {})


def test_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "forebay.toml"
    path.write_bytes(b'stream = "\xff"')
    with pytest.raises(SettingsError, match="is not valid TOML"):
        load(path, {})


#: a key, a value that does not fit and has a secret in it
SECRETS = [
    *(
        (section, key, value)
        for section, key in [
            ("wal", "key_file"), ("security", "token_file"), ("security", "key_file"), ("security", "cert_file"),
            ("security", "ca_file"), ("driver", "web_hook"),
        ]
        for value in ("2026-11 canary/canary=", "operator canary", "credential:canary/", ["canary"], {"canary": "canary"})
    ),
    ("driver", "url", "http://me:canary@host"),
    ("driver", "urls", ["http://me:canary@host"]),
    ("dead_letters", "url", {"password": "canary"}),
    ("receiver", "source_options", ["https://me:canary@host"]),
    ("kafka", "sasl.password", ["canary", {"b": "canary"}]),
    ("spark", "spark.a", [{"password": "canary"}]),
]  # fmt: skip


@pytest.mark.parametrize(("section", "key", "value"), SECRETS)
def test_refused_value_that_may_be_a_secret_is_not_shown(section: str, key: str, value: object) -> None:
    values = good_values()
    values[section] = {**values.get(section, {}), key: value}
    with pytest.raises(SettingsError) as caught:
        from_values(values)
    assert "canary" not in str(caught.value)
    assert section in str(caught.value) and key.partition(".")[0] in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("FOREBAY__WAL__KEY_FILE", "2026-11 canary"),
        ("FOREBAY__SECURITY__TOKEN_FILE", "operator canary"),
        ("FOREBAY__STORAGE__S3__CLIENT_KWARGS", "{aws_secret_access_key = canary"),
        ("FOREBAY__RECEIVER__SOURCE_OPTIONS", "{password = canary"),
    ],
)
def test_variable_that_may_be_a_secret_is_not_shown(tmp_path: Path, variable: str, text: str) -> None:
    with pytest.raises(SettingsError, match=variable) as caught:
        loaded(tmp_path, {variable: text})
    assert "canary" not in str(caught.value)
