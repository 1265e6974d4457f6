"""``forebay.toml`` as values: every key, its default, what is allowed. Loading reads one file and the environment only.

Every key can be overridden by ``FOREBAY__SECTION__KEY`` (``FOREBAY__RECEIVER__BLOCK_INTERVAL=1s``); a pass-through key
of librdkafka or Spark is written with underscores for dots (``FOREBAY__KAFKA__BOOTSTRAP_SERVERS``), one of a store's client
below its scheme (``FOREBAY__STORAGE__S3__ENDPOINT_URL``). Lists are split by
commas (``FOREBAY__KAFKA__TOPICS=a,b``), tables are written as in TOML, and an empty text unsets an optional key.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints
from urllib.parse import urlsplit

import msgspec

from forebay.model.errors import SettingsError
from forebay.model.topic_pattern import matches
from forebay.model.units import Duration, Size, parse_duration, parse_size
from forebay.model.values import OFFSET_MAX, RESERVED_PREFIX, check_name, is_reserved, managed_id
from forebay.process.secret_file import check_secret_path
from forebay.settings.mistakes import all_mistakes
from forebay.settings.similar import did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]


#: wal.url of a stream without a WAL
NO_WAL = "none"


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class KafkaSettings(Section, frozen=True, kw_only=True):
    topics: tuple[str, ...] = ()  # names of the topics; either these or pattern
    #: regular expression in Python's syntax, beginning with ^, that matches whole topic names (never one that begins with __)
    pattern: str | None = None
    #: first offset of partitions that exist when the stream is created or the topic is added: "earliest", "latest",
    #: "committed", {timestamp = MS} or {"topic/partition" = OFFSET, …}; partitions added later start at their beginning
    starting_offsets: str | dict[str, int] = "earliest"
    #: reaction to records that Kafka dropped before they were taken in: "stop" pauses the partition until `forebay
    #: offsets accept-gap`, "record" records the gap and goes on
    on_gap: Literal["stop", "record"] = "stop"
    group: str | None = None  # consumer group of the receivers; if unset, forebay.STREAM
    headers: bool = False  # whether record headers are taken in
    read_blocks: bool = True  # whether a batch may read records again from Kafka when no copy of their block is left
    read_timeout: Duration = Duration(20.0)  # maximum time a broker may return no data or leave a request unanswered
    read_prefetch: Size = Size(8_000_000)  # maximum size of the messages that a task's Kafka client holds in advance
    discovery_interval: Duration = Duration(30.0)  # time between two checks for new topics and partitions
    options: dict[str, str] = {}  # every other key, passed to librdkafka unchanged

    def __repr__(self) -> str:
        """Without the options, which may hold passwords."""
        return f"<KafkaSettings of {self.pattern or ', '.join(self.topics)}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("of", self.pattern or self.topics)]


class WalSettings(Section, frozen=True, kw_only=True):
    #: URL of the folder that holds the WAL; "none": no WAL, and the only copies of a block are those on hosts' disks
    url: str
    segment_size: Size = Size(128_000_000)  # size after which a WAL segment is sealed
    segment_age: Duration = Duration(300.0)  # age after which a WAL segment is sealed
    #: rewind horizon: how long completed batches stay readable; 0s: they are deleted as soon as they are completed
    retention: Duration = Duration(7 * 86_400.0)
    #: size of the WAL above which the oldest completed batches are deleted earlier; 0B: no limit
    retention_size: Size = Size(10_000_000_000)
    #: number of blocks in the WAL above which the oldest completed batches are deleted earlier, because the driver
    #: holds 1 to 2 KB of memory for each; 0: no limit
    retention_blocks: int = 50_000
    #: free space of the WAL's store below which the oldest completed batches are deleted earlier; 0B: no limit
    retention_free: Size = Size(2_000_000_000)
    #: free space of the WAL's store that receivers leave for completing and deleting batches; 0B: none
    reserve: Size = Size(64_000_000)
    #: time between two rounds of deleting from the WAL; if unset, 2s where files are appended to and 60s on other
    #: stores
    cleanup_interval: Duration | None = None
    compression: Literal["none", "lz4", "zstd"] = "none"  # compression of the Arrow buffers inside a block
    #: path of the file with the keys that encrypt blocks, the current one first; if unset, blocks are not encrypted
    key_file: str | None = None
    #: minimum time between two writes of one receiver; if unset, 0ms where files are appended to and 250ms on other
    #: stores
    flush_interval: Duration | None = None


class ReceiverSettings(Section, frozen=True, kw_only=True):
    #: "static": systemd or `forebay up` runs the receivers; "managed": agents run them where the driver places them
    mode: Literal["static", "managed"] = "static"
    #: number of receivers that `forebay up` runs on this machine; managed: number of receivers of the stream, over all
    #: hosts
    count: int = 1
    host: str | None = None  # name of this host; if unset, this machine's name
    preferred_hosts: tuple[str, ...] = ()  # managed: hosts, or their labels as key=value, the best first
    #: managed: maximum time the driver waits at its start for a separate host for each receiver
    hosts_wait: Duration = Duration(30.0)
    moves_max: int = 1  # managed: maximum number of receivers that move to a better host at a time
    #: managed: maximum time from the start of a receiver to its first heartbeat; at least driver.receiver_timeout
    start_timeout: Duration = Duration(90.0)
    #: managed: number of failures in a row after which a receiver is started on another host with room
    host_failures_max: int = 3
    #: managed: how long a receiver avoids a host where it failed that often, or hung
    avoid_host: Duration = Duration(600.0)
    block_interval: Duration = Duration(0.2)  # age after which the open block is sealed
    block_size: Size = Size(16_000_000)  # size after which the open block is sealed
    source: str = "kafka"  # "kafka", or "module:Class" of a custom source (SOURCES.md)
    source_options: dict[str, Any] = {}  # arguments of the custom source
    #: maximum size of the records that a receiver holds: open block, blocks being stored, blocks waiting for the
    #: driver's answer
    memory: Size = Size(64_000_000)
    poll_records: int = 10_000  # maximum number of records of one poll
    store_timeout: Duration = Duration(30.0)  # how long writes to the WAL may fail before the receiver exits with 1
    drain_timeout: Duration = Duration(20.0)  # maximum time a receiver takes to drain when it is stopped
    heartbeat_interval: Duration = Duration(1.0)  # time between two heartbeats to the driver
    report_timeout: Duration = Duration(10.0)  # maximum time the driver may take to answer a report
    reclaim_delay: Duration = Duration(0.5)  # pause before a partition is claimed again after a refused claim or report
    local_copies: bool = True  # whether blocks are also written to agent.blocks of this host
    copies: int = 1  # without a WAL: number of hosts that hold a block before it is reported, 1 or 2
    max_rate: int = 0  # maximum number of records per second of one receiver; 0: no limit
    max_rate_bytes: Size = Size(0)  # maximum size of keys and values per second of one receiver; 0B: no limit
    max_rate_per_partition: int = 0  # maximum number of records per second of one partition; 0: no limit
    #: maximum size of keys and values per second of one partition; 0B: no limit
    max_rate_per_partition_bytes: Size = Size(0)
    #: number of records per second that each partition gets, however low the learned rate is
    min_rate_per_partition: int = 1
    #: maximum number of records per second of one receiver until backpressure has learned a rate; 0: no limit
    initial_rate: int = 0


class DriverSettings(Section, frozen=True, kw_only=True):
    url: str = "http://127.0.0.1:7080"  # URL at which this driver listens
    urls: tuple[str, ...] = ()  # URLs of all drivers of the stream, standbys included; if empty, driver.url alone
    journal: str  # URL of the folder that holds the journal
    batch_interval: Duration = Duration(1.0)  # time between two batches
    #: "module:function" of the job, or a list of them: the outputs of each batch, made in this order
    job: str | tuple[str, ...] | None = None
    #: "spark", or "local": the job runs in the driver process, without Spark
    engine: Literal["spark", "local"] = "spark"
    #: number of attempts at a batch, job_retry_delay apart, after which it is failed; later attempts follow after 10s,
    #: doubling up to 10m
    job_max_failures: int = 4
    job_retry_delay: Duration = Duration(1.0)  # pause between the first job_max_failures attempts at a batch
    #: maximum time a retry waits for the end of the cancelled tasks of the attempt before it; after that the retry
    #: fails
    old_tasks_timeout: Duration = Duration(120.0)
    unreadable_retry: Duration = Duration(30.0)  # pause before a batch with a block that can't be read is tried again
    max_queued_batches: int = 4  # maximum number of batches that wait or run beyond the completed ones
    #: number of batches that run at the same time; they begin in order and may end in any order
    concurrent_jobs: int = 1
    window_batches: int = 0  # number of past batches that stay readable for batch.window()
    #: what an interval without blocks gives: "skip" no batch, "deliver" a batch without records
    empty_batches: Literal["skip", "deliver"] = "skip"
    #: what a stop does: "leave" ends after the running job, "drain" drains the receivers and completes all that was
    #: taken in
    stop: Literal["leave", "drain"] = "leave"
    #: maximum time of a drain; batches that are not completed then wait for the next driver
    stop_timeout: Duration = Duration(60.0)
    tasks_per_batch: int = 0  # number of tasks of a batch; 0: Spark's default parallelism, and at least tasks_min
    tasks_min: int = 1  # minimum number of tasks of a batch where tasks_per_batch is 0
    lease_duration: Duration = Duration(10.0)  # time without renewal after which a standby takes the lead
    #: silence after which a receiver or a host counts as lost; a managed receiver is then started elsewhere
    receiver_timeout: Duration = Duration(30.0)
    #: how long after its last heartbeat the WAL holds what a query over the intake has not read
    cursor_timeout: Duration = Duration(7 * 86_400.0)
    cursor_lease: Duration = Duration(10.0)  # how long after its last heartbeat a cursor stays locked to its user
    placing_interval: Duration = Duration(1.0)  # managed: time between two decisions on where receivers run
    journal_segment_size: Size = Size(64_000_000)  # size after which a journal segment is sealed
    #: free space of the journal's store below which nothing new is taken in; 0B: no limit
    journal_reserve: Size = Size(64_000_000)
    #: minimum time between two writes of the journal; if unset, 0ms where files are appended to and 100ms on other
    #: stores
    journal_flush_interval: Duration | None = None
    #: minimum time between two snapshot copies that deletion from the WAL waits for
    snapshot_copy_interval: Duration = Duration(30.0)
    max_batch_records: int = 0  # maximum number of records of a batch, in whole blocks; 0: no limit
    max_batch_bytes: Size = Size(0)  # maximum size of a batch as its blocks are stored, in whole blocks; 0B: no limit
    backpressure: bool = False  # whether receivers take in no more than the job was seen to process
    #: share of the difference between intake rate and processing rate that is corrected
    backpressure_proportional: float = 1.0
    backpressure_integral: float = 0.2  # share of the accumulated backlog that is corrected
    backpressure_derivative: float = 0.0  # share of the change of that difference that is corrected
    backpressure_min_rate: int = 100  # minimum rate of the stream that backpressure sets, in records per second
    #: "module:Class" names of subclasses of driver.listeners.Listener that receive events
    listeners: tuple[str, ...] = ()
    web_hook: str | None = None  # URL to which events are posted as JSON
    #: maximum time of one request to the web hook; it is tried again a few times
    web_hook_timeout: Duration = Duration(5.0)
    #: maximum number of events that wait for a listener; later ones are dropped and counted
    listener_queue: int = 10_000

    @property
    def all_urls(self) -> tuple[str, ...]:
        """Where the stream's drivers are, at least one."""
        return self.urls or (self.url,)

    @property
    def jobs(self) -> tuple[str, ...]:
        """The outputs of each batch, in order; () if none is named."""
        return (self.job,) if isinstance(self.job, str) else self.job or ()


class AgentSettings(Section, frozen=True, kw_only=True):
    url: str = "http://127.0.0.1:7081"  # URL at which this agent listens
    blocks: str  # path of the folder that holds this host's local copies of blocks
    quota: Size = Size(10_000_000_000)  # maximum size of the local copies
    host: str | None = None  # name of this host, as Spark knows it; if unset, this machine's name
    heartbeat_interval: Duration = Duration(1.0)  # time between two heartbeats to the driver
    #: maximum number of authenticated connections; the same number of unauthenticated ones is allowed
    connections_max: int = 512
    #: maximum time a connection may make no progress on a block before it is closed
    idle_timeout: Duration = Duration(30.0)
    drain_timeout: Duration = Duration(10.0)  # maximum time a stopping agent takes to finish requests under way
    store_back: bool = False  # whether an agent keeps a copy of what a task on its host had to read from the WAL
    labels: tuple[str, ...] = ()  # labels of this host as key=value, for receiver.preferred_hosts
    capacity: int = 4  # maximum number of managed receivers on this host; 0: none


class DeadLetterSettings(Section, frozen=True, kw_only=True):
    """Where records go that a job can't decode; with neither ``url`` nor ``topic`` the first of them fails its batch."""

    url: str | None = None  # URL of a folder for records that the job can't decode; every host's tasks write there
    topic: str | None = None  # topic for them, at the brokers of [kafka], instead of a URL
    #: share of undecodable records above which a batch fails, if there are more than records_allowed
    max_fraction: float = 0.5
    records_allowed: int = 100  # number of undecodable records up to which a batch never fails


class SparkSettings(Section, frozen=True, kw_only=True):
    #: how Spark's executors get Forebay: "auto" the driver sends it; "installed" it is installed where they run
    ship: Literal["auto", "installed"] = "auto"
    modules: tuple[str, ...] = ()  # names of your own modules and packages that the driver sends as well
    options: dict[str, str] = {}  # every other key, passed to Spark unchanged

    def __repr__(self) -> str:
        """Without the options, which may hold passwords."""
        return f"<SparkSettings: {', '.join(self.options)}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("keys", tuple(self.options))]


class SecuritySettings(Section, frozen=True, kw_only=True):
    """Who may ask the services (``forebay.security.roles``), and by which certificates they know each other."""

    #: path of the file with tokens, or "credential:NAME" from systemd; if unset, services listen on loopback alone
    token_file: str | None = None
    #: path of the certificate authorities, in PEM form; a service that has it asks each client for a certificate
    ca_file: str | None = None
    cert_file: str | None = None  # path of this process's certificate, in PEM form; if set, URLs begin with https://
    key_file: str | None = None  # path of the certificate's private key, in PEM form
    request_size: Size = Size(8_000_000)  # maximum size of a request's body
    request_timeout: Duration = Duration(30.0)  # maximum time for a TLS handshake, and for a request to arrive
    #: maximum number of authenticated connections of one service; the same number of unauthenticated ones is allowed
    connections_max: int = 1_000
    hosts: tuple[str, ...] = ()  # further host names of the services: aliases, and proxies in front of them


class Settings(Section, frozen=True, kw_only=True):
    stream: str  # name of the stream: of its folders in WAL and journal, and of its consumer group
    kafka: KafkaSettings = KafkaSettings()  # may be left out with a source of the user's own
    wal: WalSettings
    receiver: ReceiverSettings = ReceiverSettings()
    driver: DriverSettings
    agent: AgentSettings
    spark: SparkSettings = SparkSettings()
    #: options of a store's client, in a section per URL scheme: [storage.s3], [storage.hdfs], … (docs/operations/stores.md)
    storage: dict[str, dict[str, Any]] = {}
    dead_letters: DeadLetterSettings = DeadLetterSettings()
    security: SecuritySettings = SecuritySettings()

    def __repr__(self) -> str:
        """Without what passes through to Kafka, Spark and stores, which may hold passwords."""
        return f"<Settings of stream {self.stream}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("of stream", self.stream)]

    @property
    def custom_source(self) -> bool:
        """Whether receivers read from a class of the user's own, not from Kafka."""
        return self.receiver.source != "kafka"

    @property
    def has_wal(self) -> bool:
        return self.wal.url != NO_WAL

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
    "spark": SparkSettings,
    "dead_letters": DeadLetterSettings,
    "security": SecuritySettings,
}
#: sections whose other keys pass through unchanged, to librdkafka and to Spark
_OPEN_SECTIONS = ("kafka", "spark")
#: [storage.SCHEME]: the stores whose clients take settings
_STORES = ("s3", "gs", "abfs", "hdfs")
#: keys of stores' clients that hold secrets: these belong in the environment, a profile or the instance's role, because
#: a file is copied, shown and sent to tasks
_SECRET_KEYS = frozenset(
    {
        "key", "secret", "token", "password", "account_key", "sas_token", "client_secret", "connection_string",
        "aws_access_key_id", "aws_secret_access_key", "aws_session_token",
    }
)  # fmt: skip
#: what is written without the "spark." that Spark's keys begin with, more often than other keys
_SPARK_KEYS = ("spark.master", "spark.app.name", "spark.executor.memory", "spark.driver.memory")
_ENVIRONMENT_PREFIX = "FOREBAY__"

#: librdkafka's only keys for a consumer or an admin client that have no dot: any other such key in [kafka] is a slip
_UNDOTTED_OPTIONS = frozenset({"debug", "retries"})

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_TOPIC_PARTITION = re.compile(r"[A-Za-z0-9._-]{1,249}/[0-9]{1,9}")
_STARTING_OFFSETS = (
    'allowed are "earliest", "latest", "committed", {timestamp = MS} and {"topic/partition" = OFFSET, …}'
)

_LABEL = re.compile(r"[A-Za-z0-9_.-]{1,64}=[A-Za-z0-9_.-]{0,64}")
#: module:function or module:Class
_MODULE = re.compile(r"[^\W\d]\w*")
_IMPORT = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_DNS_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252}")
#: receivers that one driver keeps at most
MANAGED_COUNT_MAX = 1000

#: section.key → the least value allowed; units as in the settings
_MINIMA: dict[str, int] = {
    "kafka.read_prefetch": 1 << 20,  # librdkafka fetches no less
    "wal.segment_size": 1,
    "wal.retention_blocks": 0,
    "receiver.count": 1,
    "receiver.moves_max": 0,
    "receiver.host_failures_max": 1,
    "receiver.block_size": 1,
    "receiver.poll_records": 1,
    "driver.job_max_failures": 1,
    "driver.max_queued_batches": 1,
    "driver.concurrent_jobs": 1,
    "driver.window_batches": 0,
    "driver.tasks_per_batch": 0,
    "driver.tasks_min": 1,
    "driver.journal_segment_size": 1,
    "driver.max_batch_records": 0,
    "driver.backpressure_proportional": 0,
    "driver.backpressure_integral": 0,
    "driver.backpressure_derivative": 0,
    "driver.backpressure_min_rate": 1,
    "receiver.max_rate": 0,
    "receiver.max_rate_per_partition": 0,
    "receiver.min_rate_per_partition": 1,
    "receiver.initial_rate": 0,
    "agent.quota": 1,
    "agent.capacity": 0,
    "agent.connections_max": 2,
    "dead_letters.records_allowed": 0,
    "driver.listener_queue": 1,
    "security.request_size": 65_536,
    "security.connections_max": 8,
}
#: section.key of the durations that can't be 0
_POSITIVE = (
    "kafka.discovery_interval",
    "kafka.read_timeout",
    "wal.segment_age",
    "wal.cleanup_interval",
    "receiver.block_interval",
    "receiver.store_timeout",
    "receiver.drain_timeout",
    "receiver.heartbeat_interval",
    "receiver.report_timeout",
    "receiver.reclaim_delay",
    "driver.batch_interval",
    "driver.lease_duration",
    "driver.stop_timeout",
    "driver.receiver_timeout",
    "driver.unreadable_retry",
    "driver.placing_interval",
    "driver.cursor_timeout",
    "driver.cursor_lease",
    "agent.heartbeat_interval",
    "agent.idle_timeout",
    "driver.web_hook_timeout",
    "security.request_timeout",
)


def load(path: str | Path, environment: Mapping[str, str] | None = None) -> Settings:
    """Reads and checks ``path``, with overrides from ``environment`` (default: the process's).

    Raises SettingsError with one sentence that names the file (or the environment variable), the key, its value and
    what is allowed.
    """
    raw, variables = _read(path, environment)
    return _from_values(raw, str(path), variables)


def mistakes(path: str | Path, environment: Mapping[str, str] | None = None) -> list[SettingsError]:
    """All that :func:`load` would refuse in ``path``, one after another; [] if nothing."""
    try:
        raw, variables = _read(path, environment)
    except SettingsError as error:
        return [error]
    return all_mistakes(raw, lambda values: _from_values(values, str(path), variables))


def _read(path: str | Path, environment: Mapping[str, str] | None) -> tuple[dict[str, Any], dict[str, str]]:
    path = Path(path)
    try:
        raw: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: can't be read: {error.strerror}; name the file with --config FILE") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: is not valid TOML: {error}") from None
    return raw, _override(raw, os.environ if environment is None else environment)


def from_values(raw: Mapping[str, Any], source: str = "settings") -> Settings:
    """Checks ``raw`` (as TOML would give it) and makes Settings of it. Raises SettingsError as :func:`load`."""
    return _from_values(raw, source, {})


class _Refusals:
    """Makes the sentences: each names where the value was written, the key, the value and what is allowed."""

    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        self._source = source
        self._variables = variables  # key → the environment variable that set it

    def __call__(self, key: str, words: str) -> SettingsError:
        return SettingsError(f"{self._variables.get(key, self._source)}: {words}", key)

    def value(self, key: str, value: object, words: str) -> SettingsError:
        return self(key, f"{key} = {_shown(value)}: {words}")


def _from_values(raw: Mapping[str, Any], source: str, variables: Mapping[str, str]) -> Settings:
    refuse = _Refusals(source, variables)
    values = {key: (dict(value) if isinstance(value, Mapping) else value) for key, value in raw.items()}
    if isinstance(values.get("kafka"), dict):
        values["kafka"] = _kafka_values(values["kafka"], refuse)
    if isinstance(values.get("spark"), dict):
        values["spark"] = _spark_values(values["spark"], refuse)
    if isinstance(values.get("storage"), dict):
        values["storage"] = _storage_values(values["storage"], refuse)
    try:
        settings = msgspec.convert(values, Settings, dec_hook=_decode)
    except msgspec.ValidationError as error:
        raise _explain(refuse, values, str(error)) from None
    if "kafka" not in values and not settings.custom_source:
        raise refuse("kafka", "the section [kafka] is missing")
    _check(settings, refuse)
    return settings


def _kafka_values(table: Mapping[str, Any], refuse: _Refusals) -> dict[str, Any]:
    own_keys = _fields(KafkaSettings) - {"options"}
    flat = _flatten(table, keep=own_keys)
    own = {key: value for key, value in flat.items() if key in own_keys}
    options = {key: value for key, value in flat.items() if key not in own_keys}
    for key in options:
        if "." not in key and key not in _UNDOTTED_OPTIONS:
            raise refuse(
                f"kafka.{key}",
                f"unknown key kafka.{key}; {did_you_mean(key, own_keys)}allowed are {', '.join(sorted(own_keys))} and "
                "librdkafka's own, as in "
                '"bootstrap.servers"',
            )
    starting = own.get("starting_offsets")
    if isinstance(starting, Mapping) and isinstance(starting.get("timestamp"), datetime):
        moment: datetime = starting["timestamp"]
        if moment.tzinfo is None:
            raise refuse("kafka.starting_offsets", "kafka.starting_offsets: write the timestamp with its time zone")
        own["starting_offsets"] = {**starting, "timestamp": int(moment.timestamp() * 1000)}
    return {**own, "options": {key: _text(f'kafka."{key}"', value, refuse) for key, value in options.items()}}


def _spark_values(table: Mapping[str, Any], refuse: _Refusals) -> dict[str, Any]:
    own_keys = _fields(SparkSettings) - {"options"}
    flat = _flatten(table, keep=own_keys)
    own = {key: value for key, value in flat.items() if key in own_keys}
    options = {key: _text(f"spark.{key!r}", value, refuse) for key, value in flat.items() if key not in own_keys}
    for key in options:
        if not key.startswith("spark."):
            raise refuse(
                f"spark.{key}",
                f"unknown key {key!r} in [spark]; {did_you_mean(key, {*own_keys, *_SPARK_KEYS})}allowed are "
                f"{', '.join(sorted(own_keys))} and Spark's own, as in "
                '"spark.master"',
            )
    return {**own, "options": options}


def _storage_values(table: Mapping[str, Any], refuse: _Refusals) -> dict[str, Any]:
    """Hadoop's keys have dots and are texts; those of the others' clients are as their constructors take them."""
    values: dict[str, Any] = {}
    for scheme, options in table.items():
        if scheme not in _STORES:
            allowed = ", ".join(f"[storage.{name}]" for name in _STORES)
            raise refuse(
                f"storage.{scheme}",
                f"unknown section [storage.{scheme}]; {did_you_mean(scheme, _STORES)}allowed are {allowed}",
            )
        if not isinstance(options, Mapping):
            raise refuse(f"storage.{scheme}", f"storage.{scheme} is no section: write [storage.{scheme}]")
        flat = _flatten(options, keep=frozenset())
        for key in flat:
            if key.rpartition(".")[2].lower() in _SECRET_KEYS:
                raise refuse(
                    f"storage.{scheme}.{key}",
                    f"storage.{scheme}.{key}: secrets don't belong in this file; give them by the client's environment "
                    "variables (AWS_ACCESS_KEY_ID, …), a profile or the instance's role",
                )
        hadoop = scheme == "hdfs"
        values[scheme] = (
            {k: _text(f"storage.hdfs.{k!r}", v, refuse) for k, v in flat.items()} if hadoop else dict(options)
        )
    return values


def _decode(wanted: type, value: Any) -> Any:
    if wanted is Duration:
        return parse_duration(value)
    if wanted is Size:
        return parse_size(value)
    raise TypeError(f"no setting has type {wanted}")


def _fields(section: type[Section]) -> frozenset[str]:
    return frozenset(section.__struct_fields__)


def _flatten(table: Mapping[str, Any], keep: frozenset[str], prefix: str = "") -> dict[str, Any]:
    """Joins nested tables with dots: TOML reads an unquoted ``bootstrap.servers = …`` as a table."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and not (not prefix and key in keep):
            flat.update(_flatten(value, keep, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def _text(key: str, value: Any, refuse: _Refusals) -> str:
    """A value of an open section as its reader wants it: text, ``true``/``false``, lists joined by commas."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int, float)):
        return str(value)
    if isinstance(value, list):
        return ",".join(_text(key, part, refuse) for part in value)
    raise refuse.value(key, value, "write a text, a number, true, false or a list of them")


# ---- the environment -------------------------------------------------------------------------------------------------


def _override(raw: dict[str, Any], environment: Mapping[str, str]) -> dict[str, str]:
    """Writes the overrides into ``raw`` and returns which variable set which key."""
    variables: dict[str, str] = {}
    for name, text in sorted(environment.items()):
        if not name.startswith(_ENVIRONMENT_PREFIX):
            continue
        first, _, rest = name.removeprefix(_ENVIRONMENT_PREFIX).partition("__")
        section = first.lower()
        if section == "stream" and not rest:
            raw["stream"] = text
            variables["stream"] = name
            continue
        if section not in _SECTIONS and section != "storage":
            raise SettingsError(
                f"{name}: there is no section [{section}]; sections are {', '.join([*_SECTIONS, 'storage'])}"
            )
        if not rest:
            raise SettingsError(f"{name}: names a section; write {name}__KEY")
        table = raw.setdefault(section, {})
        if not isinstance(table, dict):
            raise SettingsError(f"{name}: the file's {section} = {_shown(table)} is no section")
        known = _SECTIONS.get(section)
        if known is not None and rest.lower() in _fields(known):
            key = rest.lower()
            table[key] = _value(name, text, get_type_hints(known)[key])
        elif section == "storage":
            key = _override_store(name, table, rest, text)
        elif section in _OPEN_SECTIONS:
            key = _open_key(table, rest)
            table[key] = text
        else:
            key = rest.lower()
            table[key] = text  # refused as an unknown key, with what is allowed
        variables[f"{section}.{key}"] = name
    return variables


def _override_store(name: str, table: dict[str, Any], written: str, text: str) -> str:
    """Sets the key of a store's section that ``S3__ENDPOINT_URL`` means, and returns it."""
    first, _, rest = written.partition("__")
    scheme = first.lower()
    options = table.setdefault(scheme, {})
    if not rest or not isinstance(options, dict):
        raise SettingsError(f"{name}: write FOREBAY__STORAGE__SCHEME__KEY, as in FOREBAY__STORAGE__S3__ENDPOINT_URL")
    if scheme == "hdfs":
        key = _open_key(options, rest)
        options[key] = text
    else:
        key = rest.lower()
        typed = text in ("true", "false") or text.startswith("{") or re.fullmatch(r"[0-9]{1,18}", text)
        options[key] = _toml(name, text) if typed else text
    return f"{scheme}.{key}"


def _open_key(table: dict[str, Any], written: str) -> str:
    """The key of an open section that ``BOOTSTRAP_SERVERS`` means: one of the file's, or the same with dots.

    All capitals are read as small letters; otherwise letters stay (``spark_driver_bindAddress``). A double underscore
    stands for one underscore. A key of the file that differs in such signs alone is the one meant, and is taken out of
    ``table`` wherever it was nested.
    """

    def plain(key: str) -> str:
        return re.sub(r"[._]+", "_", key).lower()

    for key in _flatten(table, keep=frozenset()):
        if plain(key) == plain(written):
            _remove(table, key)
            return key
    letters = written.lower() if written.isupper() else written
    return "_".join(part.replace("_", ".") for part in letters.split("__"))


def _remove(table: dict[str, Any], flat_key: str) -> None:
    for key, value in list(table.items()):
        if key == flat_key:
            del table[key]
        elif isinstance(value, dict) and flat_key.startswith(f"{key}."):
            _remove(value, flat_key.removeprefix(f"{key}."))


def _value(name: str, text: str, wanted: Any) -> Any:
    """The text of an environment variable as the type its key has in TOML; what does not fit is refused later."""
    choices = get_args(wanted)
    if type(None) in choices and not text:
        return None
    if wanted is int:
        return int(text) if re.fullmatch(r"[+-]?[0-9]{1,18}", text) else text
    if wanted is float:
        return float(text) if re.fullmatch(r"[+-]?[0-9]{1,18}(\.[0-9]{1,18})?", text) else text
    if wanted is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    takes_list = get_origin(wanted) is tuple or ("," in text and any(get_origin(choice) is tuple for choice in choices))
    if text[:1] in ("{", "[") and (takes_list or any(get_origin(choice) is dict for choice in choices)):
        return _toml(name, text)
    if takes_list:
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def _toml(name: str, text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{name}: {text!r} is not valid TOML: {error}") from None


# ---- sentences -------------------------------------------------------------------------------------------------------

_AT = re.compile(r" - at `(?:key in )?\$\.?(.*)`$")
_EXPECTED = re.compile(r"Expected `(.*?)`, got `(.*?)`")
_WORDS = {
    "int": "write a whole number",
    "float": "write a number, as in 0.2",
    "bool": "write true or false",
    "str": 'write a text, as in "text"',
    "array": 'write a list, as in ["flights"]',
    "object": "write a table, as in { name = 1 }",
}


def _shown(value: object) -> str:
    """The value as its file would have it, shortened."""
    if isinstance(value, bool):
        text = str(value).lower()
    elif isinstance(value, Duration):
        text = f'"{value:g}s"'
    elif isinstance(value, Size):
        text = f'"{value}B"'
    elif isinstance(value, str):
        text = msgspec.json.encode(value).decode()
    else:
        text = str(value)
    return text if len(text) <= 80 else text[:79] + "…"


def _explain(refuse: _Refusals, values: Mapping[str, Any], message: str) -> SettingsError:
    """msgspec's words for what did not fit, as a sentence for whoever wrote the file."""
    place = _AT.search(message)
    path = re.sub(r"\[.*", "", place[1]) if place else ""
    words = _AT.sub("", message)
    unknown = re.search(r"unknown field `(.*?)`", words)
    missing = re.search(r"missing required field `(.*?)`", words)
    if unknown:
        section = _SECTIONS.get(path)
        allowed = _fields(section) if section else _fields(Settings)
        key = f"{path}.{unknown[1]}" if path else unknown[1]
        allowed -= {"options"}
        meant = did_you_mean(unknown[1], allowed)
        return refuse(key, f"unknown key {key}; {meant}allowed are {', '.join(sorted(allowed))}")
    if missing:
        if missing[1] in _SECTIONS:
            return refuse(missing[1], f"the section [{missing[1]}] is missing")
        key = f"{path}.{missing[1]}" if path else missing[1]
        return refuse(key, f"the key {key} is missing")
    value: Any = values
    for part in filter(None, path.split(".")):
        value = value.get(part) if isinstance(value, Mapping) else None
    return refuse.value(path, value, _allowed(path, words, value))


def _allowed(path: str, words: str, value: object) -> str:
    section, _, key = path.partition(".")
    if not key and (section in _SECTIONS or section == "storage"):
        return f"is no section: write [{section}] and its keys below it"
    if path == "kafka.starting_offsets":
        return _STARTING_OFFSETS
    hint = get_type_hints(_SECTIONS[section]).get(key) if section in _SECTIONS else None
    if get_origin(hint) is Literal:
        choices = get_args(hint)
        return f"{did_you_mean(str(value), choices)}allowed are {', '.join(_shown(choice) for choice in choices)}"
    expected = _EXPECTED.search(words)
    if expected:
        return _WORDS.get(expected[1].split(" | ")[0], f"must be {expected[1]}")
    return words[:1].lower() + words[1:]


# ---- what types alone can't say --------------------------------------------------------------------------------------


def _check(settings: Settings, refuse: _Refusals) -> None:
    for key, name in (
        ("stream", settings.stream),
        ("receiver.host", settings.receiver.host),
        ("agent.host", settings.agent.host),
    ):
        if name is not None:
            try:
                check_name(key, name)
            except ValueError as error:
                raise refuse(key, str(error)) from None
    if settings.custom_source:
        _check_custom_source(settings, refuse)
    else:
        _check_kafka(settings.kafka, refuse)
        if settings.receiver.source_options:
            raise refuse(
                "receiver.source_options", "receiver.source_options are of a source of your own: name its class"
            )
    _check_placing(settings, refuse)
    for key, least in _MINIMA.items():
        if (value := _get(settings, key)) < least:
            shown = _shown(Size(least) if isinstance(value, Size) else least)
            raise refuse.value(key, value, f"must be at least {shown}")
    for key in _POSITIVE:
        if (duration := _get(settings, key)) is not None and duration <= 0:
            raise refuse.value(key, duration, "must be longer than 0ms")
    for key in ("proportional", "integral", "derivative"):
        if not math.isfinite(gain := _get(settings, f"driver.backpressure_{key}")):
            raise refuse.value(f"driver.backpressure_{key}", gain, "write a number, as in 0.2")
    receiver = settings.receiver
    if receiver.initial_rate and not settings.driver.backpressure:
        raise refuse.value(
            "receiver.initial_rate",
            receiver.initial_rate,
            "it lasts until a rate is learned, so set driver.backpressure = true, or use receiver.max_rate",
        )
    if 0 < receiver.max_rate_per_partition < receiver.min_rate_per_partition:
        raise refuse.value(
            "receiver.min_rate_per_partition",
            receiver.min_rate_per_partition,
            f"must be at most receiver.max_rate_per_partition ({receiver.max_rate_per_partition})",
        )
    if receiver.memory < receiver.block_size:
        raise refuse.value(
            "receiver.memory", receiver.memory, f"must be at least receiver.block_size ({_shown(receiver.block_size)})"
        )
    _check_security(settings.security, refuse)
    _check_addresses(settings, refuse)
    _check_dead_letters(settings, refuse)
    _check_listeners(settings.driver, refuse)
    _check_copies(settings, refuse)
    _check_modules(settings.spark, refuse)
    for key in ("wal.url", "driver.journal") if settings.has_wal else ("driver.journal",):
        url = _get(settings, key)
        if "://" not in url:
            raise refuse.value(key, url, 'write it as "file:///folder"')
        if url.startswith("file://") and not url.startswith("file:///"):
            raise refuse.value(key, url, 'write the whole path after three slashes, as in "file:///var/lib/forebay"')
    if not os.path.isabs(settings.agent.blocks):
        raise refuse.value("agent.blocks", settings.agent.blocks, "write the whole path of a folder, from / on")
    _check_secret_path("wal.key_file", settings.wal.key_file, refuse)
    for job in settings.driver.jobs:
        if not _IMPORT.fullmatch(job):
            raise refuse.value("driver.job", job, 'write module:function, as in "jobs:process", or a list of them')
    if len(set(settings.driver.jobs)) != len(settings.driver.jobs):
        raise refuse.value("driver.job", list(settings.driver.jobs), "names a function twice")
    if settings.driver.job == ():
        raise refuse("driver.job", "driver.job: the list is empty; name a function, or leave the key out")


def _check_copies(settings: Settings, refuse: _Refusals) -> None:
    receiver, wal = settings.receiver, settings.wal
    if receiver.copies not in (1, 2):
        raise refuse.value("receiver.copies", receiver.copies, "allowed are 1 and 2")
    if settings.has_wal:
        if receiver.copies != 1:
            words = f'with a WAL every block is in it; 2 is for wal.url = "{NO_WAL}"'
            raise refuse.value("receiver.copies", receiver.copies, words)
        return
    if not receiver.local_copies:
        words = f'wal.url = "{NO_WAL}" leaves nothing but local copies; set it to true'
        raise refuse.value("receiver.local_copies", receiver.local_copies, words)
    for key in ("retention", "retention_size", "retention_blocks", "retention_free"):
        if (kept := getattr(wal, key)) and kept != getattr(WalSettings(url=NO_WAL), key):
            words = f'wal.url = "{NO_WAL}" keeps nothing of completed batches; leave it out'
            raise refuse.value(f"wal.{key}", kept, words)


def _check_modules(spark: SparkSettings, refuse: _Refusals) -> None:
    for name in spark.modules:
        if not _MODULE.fullmatch(name):
            raise refuse.value(
                "spark.modules", name, 'write the name of a module or package as it is imported, as in "jobs"'
            )
    if spark.modules and spark.ship == "installed":
        words = 'with spark.ship = "installed" the driver brings nothing; install them there, and leave this out'
        raise refuse.value("spark.modules", list(spark.modules), words)


def _check_placing(settings: Settings, refuse: _Refusals) -> None:
    for label in settings.agent.labels:
        if not _LABEL.fullmatch(label):
            raise refuse.value("agent.labels", label, 'write key=value, as in "rack=a"')
    for preferred in settings.receiver.preferred_hosts:
        if not _LABEL.fullmatch(preferred) and not _HOST.fullmatch(preferred):
            words = 'write a host\'s name, or a label of hosts as key=value, as in "rack=a"'
            raise refuse.value("receiver.preferred_hosts", preferred, words)
    if settings.receiver.mode == "managed" or settings.custom_source:
        if settings.receiver.count > MANAGED_COUNT_MAX:
            words = f"with managed receivers, or a source of your own, at most {MANAGED_COUNT_MAX}"
            raise refuse.value("receiver.count", settings.receiver.count, words)
        if is_reserved(settings.stream):
            raise refuse.value(
                "stream", settings.stream, f"managed receivers' ids begin with it: not {RESERVED_PREFIX!r}"
            )
        try:
            check_name("receiver id", managed_id(settings.stream, settings.receiver.count - 1))
        except ValueError as error:
            raise refuse("stream", f"stream: its name is a part of managed receivers' ids: {error}") from None


def _check_custom_source(settings: Settings, refuse: _Refusals) -> None:
    source, kafka = settings.receiver.source, settings.kafka
    if not _IMPORT.fullmatch(source):
        raise refuse.value("receiver.source", source, 'write "kafka", or module:Class, as in "sources:Tail"')
    if kafka.topics or kafka.pattern is not None:
        key = "kafka.topics" if kafka.topics else "kafka.pattern"
        raise refuse(key, f"{key}: receiver.source = {_shown(source)} reads no topics of Kafka; leave it out")
    if kafka.starting_offsets not in ("earliest", "latest"):
        words = 'with a source of your own allowed are "earliest" and "latest"'
        raise refuse.value("kafka.starting_offsets", kafka.starting_offsets, words)
    if settings.dead_letters.topic is not None and not kafka.options.get("bootstrap.servers", "").strip():
        raise refuse("dead_letters.topic", 'dead_letters.topic needs a broker: kafka."bootstrap.servers" is missing')


def _check_kafka(kafka: KafkaSettings, refuse: _Refusals) -> None:
    if bool(kafka.topics) == (kafka.pattern is not None):
        raise refuse("kafka", 'kafka: name topics = ["…"] or pattern = "^…", one of the two')
    for topic in kafka.topics:
        if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
            raise refuse.value("kafka.topics", topic, "a topic's name has 1 to 249 letters, digits, '.', '_' and '-'")
    if len(set(kafka.topics)) != len(kafka.topics):
        raise refuse.value("kafka.topics", list(kafka.topics), "names a topic twice")
    if kafka.pattern is not None:
        if not kafka.pattern.startswith("^"):
            raise refuse.value("kafka.pattern", kafka.pattern, "must begin with ^")
        try:
            re.compile(kafka.pattern)
        except re.error as error:
            raise refuse.value("kafka.pattern", kafka.pattern, f"is no regular expression: {error}") from None
    if not kafka.options.get("bootstrap.servers", "").strip():
        raise refuse(
            "kafka.bootstrap.servers", 'kafka."bootstrap.servers" is missing: name a broker, as in "127.0.0.1:9092"'
        )
    if kafka.group is not None and not kafka.group.strip():
        raise refuse.value("kafka.group", kafka.group, "write a name, or leave it out")
    starting = kafka.starting_offsets
    if isinstance(starting, str):
        fine = starting in ("earliest", "latest", "committed")
    else:
        names_fine = set(starting) == {"timestamp"} or all(_TOPIC_PARTITION.fullmatch(key) for key in starting)
        fine = bool(starting) and names_fine and all(0 <= value <= OFFSET_MAX for value in starting.values())
    if not fine:
        raise refuse.value("kafka.starting_offsets", starting, _STARTING_OFFSETS)


def _check_security(security: SecuritySettings, refuse: _Refusals) -> None:
    _check_secret_path("security.token_file", security.token_file, refuse)
    for key in ("ca_file", "cert_file", "key_file"):
        path = getattr(security, key)
        if path is not None and not os.path.isabs(path):
            raise refuse.value(f"security.{key}", path, "write the whole path of a file, from / on")
    if (security.cert_file is None) != (security.key_file is None):
        raise refuse(
            "security.cert_file", "security.cert_file and security.key_file belong together: name both, or none"
        )
    for host in security.hosts:
        if not _DNS_NAME.fullmatch(host):
            raise refuse.value("security.hosts", host, 'write a host name alone, as in "forebay.example.com"')


def _check_secret_path(key: str, written: str | None, refuse: _Refusals) -> None:
    try:
        check_secret_path(written or "/")
    except ValueError as error:
        raise refuse.value(key, written, str(error)) from None


def _check_addresses(settings: Settings, refuse: _Refusals) -> None:
    addresses: dict[tuple[str, int], str] = {}
    for key, url in (("driver.url", settings.driver.url), ("agent.url", settings.agent.url)):
        address = _address(key, url, refuse)
        if settings.security.cert_file is not None and not url.startswith("https:"):
            raise refuse.value(key, url, "with security.cert_file it must begin with https://")
        other = addresses.setdefault(address, key)
        if other != key and address[1] != 0:
            raise refuse.value(key, url, f"has the host and port of {other}: each service needs a port of its own")
    urls = settings.driver.urls
    for url in urls:
        if _address("driver.urls", url, refuse)[1] == 0:
            raise refuse.value("driver.urls", url, "name the port: 0 can't be asked")
    if len({url.rstrip("/") for url in urls}) != len(urls):
        raise refuse.value("driver.urls", list(urls), "names a driver twice")


def _address(key: str, url: str, refuse: _Refusals) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # a port that is no number, or above 65535
        host, port, parts = None, None, urlsplit("")
    if parts.scheme not in ("http", "https") or not host or port is None or parts.path not in ("", "/") or parts.query:
        raise refuse.value(key, url, 'write it as "http://host:port"')
    return host, port


def _check_dead_letters(settings: Settings, refuse: _Refusals) -> None:
    letters = settings.dead_letters
    if letters.url is not None and letters.topic is not None:
        raise refuse("dead_letters.topic", "dead_letters: name a url or a topic, not both")
    if letters.url is not None and "://" not in letters.url:
        raise refuse.value("dead_letters.url", letters.url, 'write it as "file:///folder"')
    if not 0 <= letters.max_fraction <= 1:
        raise refuse.value("dead_letters.max_fraction", letters.max_fraction, "write a number from 0 to 1, as in 0.5")
    topic = letters.topic
    if topic is None:
        return
    if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        words = "a topic's name has 1 to 249 letters, digits, '.', '_' and '-'"
        raise refuse.value("dead_letters.topic", topic, words)
    kafka = settings.kafka
    if not kafka.options.get("bootstrap.servers", "").strip():
        raise refuse.value("dead_letters.topic", topic, 'name its brokers by kafka."bootstrap.servers", or use a url')
    if topic in kafka.topics or (kafka.pattern is not None and matches(kafka.pattern, topic)):
        raise refuse.value("dead_letters.topic", topic, "the stream takes this topic in: name another one")


def _check_listeners(driver: DriverSettings, refuse: _Refusals) -> None:
    for name in driver.listeners:
        module, _, attribute = name.partition(":")
        if not module.strip() or not attribute.strip():
            raise refuse.value("driver.listeners", name, 'write module:Class, as in "watch:Pager"')
    if driver.web_hook is None:
        return
    try:
        parts = urlsplit(driver.web_hook)
        fine = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        fine, parts = False, urlsplit("")
    if not fine:  # the value is not shown: what is secret in such a url may stand anywhere in it
        raise refuse("driver.web_hook", 'driver.web_hook: write it as "http://host:port/path"')
    if parts.username is not None or parts.password is not None:
        raise refuse("driver.web_hook", "driver.web_hook: no user and password in the url, please")


def _get(settings: Settings, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(settings, section), name)
