"""Readers of what people and other programs write: settings, secrets, options of queries, files and conditions of commands."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from deploy.commands.debug.group import raw_values
from deploy.commands.inspection.tap import paths
from deploy.commands.inspection.tap.selection import document_of
from deploy.commands.offsets.file import ExportedIncarnation, ExportedOffsets, ExportedPartition, read_file
from deploy.commands.setup.installation import EXAMPLE
from forebay.client.events import decoded, parse_events
from forebay.http.cross_site import CrossSite
from forebay.messages import OverviewAnswer
from forebay.model.errors import SettingsError, UsageError
from forebay.model.units import parse_duration, parse_size
from forebay.security.roles import parse_tokens
from forebay.settings.reading.load import from_text, load
from pyspark_forebay import offsets
from pyspark_forebay.options.source import check
from pyspark_forebay.options.values import tracker_urls
from pyspark_forebay.progress import kafka_offsets
from tests.fuzz.reader import Reader, text_reader
from wal.blocks.encryption import KEYS_VARIABLE, load_keys
from wal.storage import open_storage

_SETTINGS = """
stream = "s"
[kafka]
topics = ["t", "u"]
"bootstrap.servers" = "127.0.0.1:9092"
[wal]
url = "s3://bucket/place"
segment_size = "64MB"
[receiver]
count = 2
block_interval = "200ms"
[driver]
journal = "file:///var/lib/forebay/journal"
job = "jobs:process"
url = "http://127.0.0.1:7080"
web_hook = "http://127.0.0.1:9/hook"
[dead_letters]
url = "file:///var/lib/forebay/dead"
[agent]
url = "http://0.0.0.0:7081"
blocks = "/var/lib/forebay/blocks"
[storage.s3]
endpoint_url = "http://127.0.0.1:1"
"""
_OFFSETS = (
    '{"t": {"0": 23, "1": -1}, "u": {"0": -2}, "#topic-ids": {"t": "an-id"}, "#cursor": "c", "#lives": {"t": {"0": 2}}, '
    '"#leader-epochs": {"t": {"0": 3}}}'
)


def text_readers() -> dict[str, Reader]:
    """Return the readers of texts."""
    usage = (UsageError,)
    return {
        "settings": text_reader(
            lambda text: from_text(text, "p"), _SETTINGS, EXAMPLE.read_text(encoding="utf-8"), allowed=(SettingsError,), cost=8
        ),
        "settings file": _in_a_file(load, _SETTINGS.encode(), allowed=(SettingsError,)),
        "setting in a variable": text_reader(
            _from_a_variable, "RECEIVER__BLOCK_INTERVAL=200ms", "RECEIVER__COUNT=5", 'KAFKA__TOPICS=["a", "b"]',
            "KAFKA__TOPICS=a, b", "SECURITY__HOSTS=", allowed=(SettingsError,), cost=8,
        ),
        "tokens": text_reader(
            lambda text: parse_tokens(text, "p"), f"# all\nreceiver:r1 {'t' * 20}\n{'u' * 20}\n", allowed=(SettingsError,)
        ),
        "keys": text_reader(
            lambda text: load_keys(None, {KEYS_VARIABLE: text}), f"k1 {'A' * 43}=\nk2 {'B' * 43}=\n", allowed=(SettingsError,)
        ),
        "duration": text_reader(parse_duration, "200ms", "1.5 s", "7d", allowed=(ValueError,)),
        "size": text_reader(parse_size, "64MB", "1.5 GiB", allowed=(ValueError,)),
        "offsets of a query": text_reader(lambda text: offsets.parse_offsets(text, "o"), _OFFSETS, allowed=usage),
        "offsets of a checkpoint": text_reader(
            _of_a_checkpoint, _OFFSETS, '{"#start": {"t": {"0": 1}}}', allowed=usage
        ),
        "partitions of a query": text_reader(
            lambda text: offsets.parse_partitions(text, "o"), '{"t": [0, 1], "u": []}', allowed=usage
        ),
        "options of a query": text_reader(
            _options, '{"kafka.bootstrap.servers": "h:1", "subscribe": "t,u", "startingOffsets": "earliest"}',
            '{"tracker": "http://h:1", "subscribePattern": "a.*", "maxOffsetsPerTrigger": "5"}', allowed=usage,
        ),
        "url of a store": text_reader(
            open_storage, "file:///a/b", "s3://bucket/a", "memory://a?objects", "hdfs://h:8020/a", "abfs://a@b/c", allowed=usage
        ),
        "urls of a tracker": text_reader(lambda text: tracker_urls(text, "o"), "http://a:1,https://b:2", allowed=usage),
        "file of offsets": _in_a_file(read_file, msgspec.json.encode(_exported()), allowed=usage),
        "condition of tap": text_reader(
            paths.parse_condition, "order.lines[*].price=5", '$["a b"][0].c', allowed=(ValueError,)
        ),
        "document of tap": Reader(honest=(b'{"a": {"b": [5, "x", null]}}', b'"x"'), read=_document, allowed=()),
        "offsets in a query's progress": text_reader(kafka_offsets, _OFFSETS, allowed=usage),
        "secrets in a settings file": _in_a_file(raw_values, _SETTINGS.encode(), allowed=()),
        "events of a driver": Reader(
            honest=(b'id: 4\nevent: batch-completed\ndata: {"batch_id": 5}\n\n: comment\nevent: end\ndata: {}\n\n',),
            read=_events, allowed=(ValueError,),
        ),
        "headers of a browser": Reader(
            honest=(
                b"127.0.0.1:7080\nhttp://127.0.0.1:7080\nsame-origin\napplication/json",
                b"[::1]:80\nnull\ncross-site\ntext/plain",
            ),
            read=_headers, allowed=(),
        ),
    }  # fmt: skip


def _in_a_file(read: Callable[[Path], object], honest: bytes, allowed: tuple[type[Exception], ...]) -> Reader:
    """Return a reader of a file of any bytes."""

    def written(data: bytes) -> None:
        with tempfile.NamedTemporaryFile() as file:
            file.write(data)
            file.flush()
            read(Path(file.name))

    return Reader(honest=(honest,), read=written, allowed=allowed, cost=8)


def _from_a_variable(text: str) -> None:
    name, _, value = text.partition("=")
    if "\0" not in text:  # no variable of a process can have it
        load(EXAMPLE, {f"FOREBAY__{name}": value})


def _document(data: bytes) -> None:
    """A record's value may be any bytes."""
    document = document_of(data)
    for condition in ("a.b[0]=5", "a.b[1]=x", "a.b[*]=null", "a=[1"):
        paths.parse_condition(condition).holds(document)


def _of_a_checkpoint(text: str) -> None:
    """Spark parses the checkpoint's JSON, and calls the source with the values."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):  # Spark's own parser has refused it
        return
    found = offsets.Offsets.of(given)
    assert offsets.Offsets.of(found.json()) == found


def _options(text: str) -> None:
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        return
    if isinstance(given, dict):
        check({str(name).lower(): str(value) for name, value in given.items()})


def _exported() -> ExportedOffsets:
    incarnation = ExportedIncarnation(1, "id", 0, None, "")
    partition = ExportedPartition("t", 0, 1, "id", 3, 50, 40, 40, (incarnation,))
    return ExportedOffsets(1, "s", 1, 99, 1_700_000_000_000, "g", "g-completed", (partition,))


def _events(data: bytes) -> None:
    half = len(data) // 2
    for kind, body, number in parse_events([data[:half], data[half:]]):
        decoded(kind, body, number, OverviewAnswer)


def _headers(data: bytes) -> None:
    names = (b"host", b"origin", b"sec-fetch-site", b"content-type")
    headers = list(zip(names, data.split(b"\n"), strict=False))
    for guarded in (False, True):
        CrossSite(["h"], proxies=["proxy"], guarded=guarded, pages=["/"]).check("POST", "/v1/x", headers)
