"""``forebay.toml`` as values: every key, its default, what is allowed. Loading reads one file and the environment only.

Every key can be overridden by ``FOREBAY__SECTION__KEY`` (``FOREBAY__RECEIVER__BLOCK_INTERVAL=1s``); a pass-through key of
librdkafka or Spark is written with underscores for dots (``FOREBAY__KAFKA__BOOTSTRAP_SERVERS``).
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_type_hints
from urllib.parse import urlsplit

import msgspec

from forebay.errors import SettingsError
from forebay.units import Duration, Size, parse_duration, parse_size
from forebay.values import check_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class KafkaSettings(Section, frozen=True, kw_only=True):
    topics: tuple[str, ...] = ()
    pattern: str | None = None  # a regular expression over whole topic names, beginning with ^
    #: "earliest" | "latest" | "committed" | {"timestamp": ms} | {"topic/partition": offset, …}; for partitions that exist
    #: when the stream is created or the topic is added; later ones start at their beginning
    starting_offsets: str | dict[str, int] = "earliest"
    on_gap: Literal["stop", "record"] = "stop"
    group: str | None = None  # default: forebay.<stream>
    headers: bool = False  # take record headers in
    discovery_interval: Duration = Duration(30.0)  # how often the driver looks for new partitions and topics
    options: dict[str, str] = {}  # everything else, to librdkafka unchanged


class WalSettings(Section, frozen=True, kw_only=True):
    url: str
    segment_size: Size = Size(128_000_000)
    segment_age: Duration = Duration(300.0)
    retention: Duration = Duration(0.0)  # the rewind horizon: how long completed batches stay readable
    compression: Literal["none", "lz4", "zstd"] = "none"  # of the Arrow buffers inside a block


class ReceiverSettings(Section, frozen=True, kw_only=True):
    count: int = 1  # receivers that `forebay up` runs
    host: str | None = None  # default: this machine's name
    block_interval: Duration = Duration(0.2)
    block_size: Size = Size(16_000_000)
    memory: Size = Size(64_000_000)  # bound on records held: open block, being stored, waiting for the driver's answer
    poll_records: int = 10_000
    store_timeout: Duration = Duration(30.0)
    drain_timeout: Duration = Duration(20.0)
    heartbeat_interval: Duration = Duration(1.0)
    report_timeout: Duration = Duration(10.0)
    reclaim_delay: Duration = Duration(0.5)
    local_copies: bool = True  # write blocks to [agent].blocks of this host as well


class DriverSettings(Section, frozen=True, kw_only=True):
    url: str = "http://127.0.0.1:7080"
    journal: str
    batch_interval: Duration = Duration(1.0)
    job: str | None = None  # module:function
    engine: Literal["spark", "local"] = "spark"  # local: the job runs in the driver process, without Spark
    job_max_failures: int = 4
    job_retry_delay: Duration = Duration(1.0)
    max_queued_batches: int = 4
    tasks_per_batch: int = 0  # 0: as many as Spark's default parallelism
    lease_duration: Duration = Duration(10.0)
    receiver_timeout: Duration = Duration(30.0)  # silence after which a receiver is shown as lost
    journal_segment_size: Size = Size(64_000_000)
    history_batches: int = 100  # completed and cleaned batches kept in the journal's state before they move to the history


class AgentSettings(Section, frozen=True, kw_only=True):
    url: str = "http://127.0.0.1:7081"
    blocks: str
    quota: Size = Size(10_000_000_000)
    host: str | None = None  # default: this machine's name
    heartbeat_interval: Duration = Duration(1.0)


class SecuritySettings(Section, frozen=True, kw_only=True):
    token_file: str | None = None


class Settings(Section, frozen=True, kw_only=True):
    stream: str
    kafka: KafkaSettings
    wal: WalSettings
    receiver: ReceiverSettings = ReceiverSettings()
    driver: DriverSettings
    agent: AgentSettings
    spark: dict[str, str] = {}
    security: SecuritySettings = SecuritySettings()

    @property
    def group(self) -> str:
        return self.kafka.group or f"forebay.{self.stream}"

    @property
    def completed_group(self) -> str:
        """The second consumer group, which shows how far batches are completed."""
        return f"{self.group}.completed"


_SECTIONS: dict[str, type[Section]] = {
    "kafka": KafkaSettings,
    "wal": WalSettings,
    "receiver": ReceiverSettings,
    "driver": DriverSettings,
    "agent": AgentSettings,
    "security": SecuritySettings,
}
_ENVIRONMENT_PREFIX = "FOREBAY__"


def load(path: str | Path, environment: Mapping[str, str] | None = None) -> Settings:
    """Reads and checks ``path``, with overrides from ``environment`` (default: the process's).

    Raises SettingsError with one sentence that names the file, the key and what is allowed.
    """
    path = Path(path)
    try:
        raw: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: can't be read: {error.strerror}; name the file with --config FILE") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: is not valid TOML: {error}") from None
    _override(raw, os.environ if environment is None else environment)
    return from_values(raw, source=str(path))


def from_values(raw: Mapping[str, Any], source: str = "settings") -> Settings:
    """Checks ``raw`` (as TOML would give it) and makes Settings of it. Raises SettingsError as :func:`load`."""
    values = {key: (dict(value) if isinstance(value, Mapping) else value) for key, value in raw.items()}
    kafka = values.get("kafka")
    if isinstance(kafka, dict):
        kafka = _flatten(kafka, keep=_fields(KafkaSettings))
        own = {key: kafka.pop(key) for key in list(kafka) if key in _fields(KafkaSettings) and key != "options"}
        values["kafka"] = {**own, "options": {key: _text(value) for key, value in kafka.items()}}
    if isinstance(values.get("spark"), dict):
        values["spark"] = {key: _text(value) for key, value in _flatten(values["spark"], keep=set()).items()}
    try:
        settings = msgspec.convert(values, Settings, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise SettingsError(_explain(source, values, str(error))) from None
    _check(settings, source)
    return settings


def _decode(wanted: type, value: Any) -> Any:
    if wanted is Duration:
        return parse_duration(value)
    if wanted is Size:
        return parse_size(value)
    raise TypeError(f"no setting has type {wanted}")


def _fields(section: type[Section]) -> set[str]:
    return set(section.__struct_fields__)


def _flatten(table: Mapping[str, Any], keep: set[str], prefix: str = "") -> dict[str, Any]:
    """Joins nested tables with dots: TOML reads an unquoted ``bootstrap.servers = …`` as a table."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and not (not prefix and key in keep):
            flat.update(_flatten(value, keep, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _override(raw: dict[str, Any], environment: Mapping[str, str]) -> None:
    for name, text in sorted(environment.items()):
        if not name.startswith(_ENVIRONMENT_PREFIX):
            continue
        section, _, key = name.removeprefix(_ENVIRONMENT_PREFIX).lower().partition("__")
        if not key:
            raw[section] = text
            continue
        if section in _SECTIONS or section == "spark":
            known = _SECTIONS.get(section)
            if section in ("kafka", "spark") and (known is None or key not in _fields(known)):
                key = key.replace("_", ".")
            raw.setdefault(section, {})[key] = _value(text, known, key)
        else:
            raise SettingsError(f"{name}: there is no section [{section}]; sections are {', '.join([*_SECTIONS, 'spark'])}")


def _value(text: str, section: type[Section] | None, key: str) -> Any:
    """The text of an environment variable as the type its key has in TOML."""
    wanted = get_type_hints(section).get(key, str) if section is not None else str
    if wanted is int and re.fullmatch(r"-?\d+", text):
        return int(text)
    if wanted is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if key == "topics":
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


_AT = re.compile(r" - at `\$\.?(.*)`$")


def _explain(source: str, values: Mapping[str, Any], message: str) -> str:
    place = _AT.search(message)
    where = place[1] if place else ""
    words = _AT.sub("", message)
    unknown = re.search(r"unknown field `(.*?)`", words)
    missing = re.search(r"missing required field `(.*?)`", words)
    section = _SECTIONS.get(where)
    if unknown:
        allowed = _fields(section) if section else {*Settings.__struct_fields__}
        key = f"{where}.{unknown[1]}" if where else unknown[1]
        return f"{source}: unknown key {key}; allowed are {', '.join(sorted(allowed))}"
    if missing:
        if missing[1] in _SECTIONS:
            return f"{source}: the section [{missing[1]}] is missing"
        return f"{source}: the key {f'{where}.' if where else ''}{missing[1]} is missing"
    value: Any = values
    for part in filter(None, where.split(".")):
        value = value.get(part) if isinstance(value, Mapping) else None
    return f"{source}: {where} = {value!r}: {words[0].lower() + words[1:]}"


def _check(settings: Settings, source: str) -> None:
    def refuse(key: str, words: str) -> SettingsError:
        return SettingsError(f"{source}: {key}: {words}")

    try:
        check_name("stream", settings.stream)
    except ValueError as error:
        raise refuse("stream", str(error)) from None
    kafka = settings.kafka
    if bool(kafka.topics) == (kafka.pattern is not None):
        raise refuse("kafka", 'name topics = ["…"] or pattern = "^…", one of the two')
    if kafka.pattern is not None:
        if not kafka.pattern.startswith("^"):
            raise refuse("kafka.pattern", f"{kafka.pattern!r} must begin with ^")
        try:
            re.compile(kafka.pattern)
        except re.error as error:
            raise refuse("kafka.pattern", f"{kafka.pattern!r} is no regular expression: {error}") from None
    if "bootstrap.servers" not in kafka.options:
        raise refuse('kafka."bootstrap.servers"', 'is missing: name a broker, as in "127.0.0.1:9092"')
    if isinstance(kafka.starting_offsets, str) and kafka.starting_offsets not in ("earliest", "latest", "committed"):
        raise refuse(
            "kafka.starting_offsets",
            f'{kafka.starting_offsets!r}: allowed are "earliest", "latest", "committed", {{timestamp = MS}} '
            'or {"topic/partition" = OFFSET, …}',
        )
    for key, minimum in (("count", 1), ("poll_records", 1)):
        if getattr(settings.receiver, key) < minimum:
            raise refuse(f"receiver.{key}", f"must be at least {minimum}")
    if settings.receiver.memory < settings.receiver.block_size:
        raise refuse("receiver.memory", "must be at least receiver.block_size")
    if settings.receiver.block_interval <= 0:
        raise refuse("receiver.block_interval", "must be longer than 0ms")
    if settings.driver.batch_interval <= 0:
        raise refuse("driver.batch_interval", "must be longer than 0ms")
    for key, minimum in (("job_max_failures", 1), ("max_queued_batches", 1), ("tasks_per_batch", 0)):
        if getattr(settings.driver, key) < minimum:
            raise refuse(f"driver.{key}", f"must be at least {minimum}")
    if settings.driver.job is not None and not re.fullmatch(r"[\w.]+:[\w.]+", settings.driver.job):
        raise refuse("driver.job", f"{settings.driver.job!r}: write module:function")
    for key, url in (("driver.url", settings.driver.url), ("agent.url", settings.agent.url)):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise refuse(key, f'{url!r}: write it as "http://host:port"')
