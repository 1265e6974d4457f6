"""Rules that relate several keys of a configuration to each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from forebay.model.identifiers import RESERVED_PREFIX, check_name, is_reserved, managed_id
from forebay.model.topic_pattern import matches
from forebay.settings.reading.mistakes import Mistakes, shown
from forebay.settings.schema import MANAGED_COUNT_MAX, METRICS_PORTS, NO_WAL, Settings, WalSettings
from forebay.settings.schema.constraints import service_address


@dataclass(frozen=True, slots=True)
class BrokenRule:
    """A broken rule. ``message`` says what is allowed for the value of ``key``; with ``whole``, it is the whole sentence."""

    key: str
    message: str
    whole: bool = False


Rule = Callable[[Settings], Iterator[BrokenRule]]


def check(settings: Settings, raw: Mapping[str, Any], mistakes: Mistakes) -> None:
    """Add the broken rules to ``mistakes``, except those that read a key with a mistake. ``raw`` holds the values as written."""
    rules = [rule for rule, keys in RULES.items() if not any(map(mistakes.concern, keys))]
    for broken in chain.from_iterable(rule(settings) for rule in rules):
        if broken.whole:
            mistakes.add(broken.key, broken.message)
        else:
            mistakes.add_value(broken.key, _written(settings, raw, broken.key), broken.message)


def _written(settings: Settings, raw: Mapping[str, Any], key: str) -> Any:
    """Return the value of ``key`` as it is written, or its default."""
    section, _, name = key.rpartition(".")
    table = raw.get(section, {}) if section else raw
    return table[name] if name in table else getattr(getattr(settings, section), name)


# ---- source of the records -------------------------------------------------------------------------------------------
# these rules are about receiver.source itself, and a kind of source (forebay.sources.kind) exists only after they hold


def _topics_or_pattern(settings: Settings) -> Iterator[BrokenRule]:
    kafka = settings.kafka
    if not settings.custom_source and bool(kafka.topics) == (kafka.pattern is not None):
        yield BrokenRule("kafka", 'kafka: name topics = ["…"] or pattern = "^…", one of the two', whole=True)
    if settings.custom_source and (kafka.topics or kafka.pattern is not None):
        key = "kafka.topics" if kafka.topics else "kafka.pattern"
        message = (
            f"{key}: receiver.source = {shown(settings.receiver.source)} reads no topics of Kafka; remove this key"
        )
        yield BrokenRule(key, message, whole=True)


def _topics_once(settings: Settings) -> Iterator[BrokenRule]:
    if len(set(settings.kafka.topics)) != len(settings.kafka.topics):
        yield BrokenRule("kafka.topics", "names a topic twice")


def _broker(settings: Settings) -> Iterator[BrokenRule]:
    if not settings.custom_source and not _has_broker(settings):
        message = 'kafka."bootstrap.servers" is missing: name a broker, as in "127.0.0.1:9092"'
        yield BrokenRule("kafka.bootstrap.servers", message, whole=True)


def _starting_offsets(settings: Settings) -> Iterator[BrokenRule]:
    if settings.custom_source and settings.kafka.starting_offsets not in ("earliest", "latest"):
        yield BrokenRule("kafka.starting_offsets", 'with a custom source, allowed are "earliest" and "latest"')


def _source_options(settings: Settings) -> Iterator[BrokenRule]:
    if not settings.custom_source and settings.receiver.source_options:
        message = "receiver.source_options are arguments of a custom source: name its class in receiver.source"
        yield BrokenRule("receiver.source_options", message, whole=True)


def _has_broker(settings: Settings) -> bool:
    return bool(settings.kafka.options.get("bootstrap.servers", "").strip())


# ---- receivers -------------------------------------------------------------------------------------------------------


def _managed(settings: Settings) -> Iterator[BrokenRule]:
    if settings.receiver.mode != "managed" and not settings.custom_source:
        return
    count = settings.receiver.count
    if count > MANAGED_COUNT_MAX:
        yield BrokenRule("receiver.count", f"with managed receivers, or a custom source, at most {MANAGED_COUNT_MAX}")
    if is_reserved(settings.stream):
        yield BrokenRule(
            "stream", f"managed receivers' ids begin with this name, which must not begin with {RESERVED_PREFIX!r}"
        )
    try:
        check_name("receiver id", managed_id(settings.stream, min(count, MANAGED_COUNT_MAX) - 1))
    except ValueError as error:
        yield BrokenRule("stream", f"stream: the name is part of managed receivers' ids: {error}", whole=True)


def _initial_rate(settings: Settings) -> Iterator[BrokenRule]:
    if settings.receiver.initial_rate and not settings.driver.backpressure:
        message = (
            "it applies until backpressure learns a rate: set driver.backpressure = true, or use receiver.max_rate"
        )
        yield BrokenRule("receiver.initial_rate", message)


def _partition_rates(settings: Settings) -> Iterator[BrokenRule]:
    most = settings.receiver.max_rate_per_partition
    if 0 < most < settings.receiver.min_rate_per_partition:
        yield BrokenRule("receiver.min_rate_per_partition", f"must be at most receiver.max_rate_per_partition ({most})")


def _memory(settings: Settings) -> Iterator[BrokenRule]:
    if settings.receiver.memory < settings.receiver.block_size:
        yield BrokenRule(
            "receiver.memory", f"must be at least receiver.block_size ({shown(settings.receiver.block_size)})"
        )


def _local_copies(settings: Settings) -> Iterator[BrokenRule]:
    if not settings.has_wal and not settings.receiver.local_copies:
        yield BrokenRule(
            "receiver.local_copies", f'wal.url = "{NO_WAL}" keeps blocks only as local copies: set it to true'
        )


def _retention(settings: Settings) -> Iterator[BrokenRule]:
    if settings.has_wal:
        return
    for key in ("retention", "retention_size", "retention_blocks", "retention_free"):
        if (kept := getattr(settings.wal, key)) and kept != getattr(WalSettings(url=NO_WAL), key):
            yield BrokenRule(f"wal.{key}", f'wal.url = "{NO_WAL}" keeps no completed batches: remove this key')


# ---- services --------------------------------------------------------------------------------------------------------


def _certificate(settings: Settings) -> Iterator[BrokenRule]:
    if (settings.security.cert_file is None) != (settings.security.key_file is None):
        message = "security.cert_file and security.key_file belong together: set both, or neither"
        yield BrokenRule("security.cert_file", message, whole=True)


def _https(settings: Settings) -> Iterator[BrokenRule]:
    urls = {
        "driver.url": settings.driver.url,
        "agent.url": settings.agent.url,
        "receiver.metrics_url": settings.receiver.metrics_url,
    }
    for key, url in urls.items():
        if settings.security.cert_file is not None and url is not None and not url.startswith("https:"):
            yield BrokenRule(key, "with security.cert_file it must begin with https://")


def _ports(settings: Settings) -> Iterator[BrokenRule]:
    address = service_address(settings.agent.url)
    if address[1] != 0 and address == service_address(settings.driver.url):
        yield BrokenRule("agent.url", "is the address of driver.url too: give each service its own port")
    if settings.receiver.metrics_url is None:
        return
    host, port = service_address(settings.receiver.metrics_url)
    for key, url in (("driver.url", settings.driver.url), ("agent.url", settings.agent.url)):
        other, taken = service_address(url)
        if port and host == other and port <= taken < port + METRICS_PORTS:
            message = f"receivers take one of the {METRICS_PORTS} ports from {port} on, and {taken} is that of {key}"
            yield BrokenRule("receiver.metrics_url", message)


def _urls_once(settings: Settings) -> Iterator[BrokenRule]:
    if len({url.rstrip("/") for url in settings.driver.urls}) != len(settings.driver.urls):
        yield BrokenRule("driver.urls", "names a driver twice")


# ---- jobs ------------------------------------------------------------------------------------------------------------


def _jobs(settings: Settings) -> Iterator[BrokenRule]:
    jobs = settings.driver.jobs
    if len(set(jobs)) != len(jobs):
        yield BrokenRule("driver.job", "names a function twice")
    if settings.driver.job == ():
        yield BrokenRule("driver.job", "driver.job: the list is empty; name a function, or remove the key", whole=True)


def _empty_batches(settings: Settings) -> Iterator[BrokenRule]:
    if settings.driver.empty_batches == "deliver" and settings.driver.batch_interval <= 0:
        message = 'with driver.batch_interval = "0s" there is no interval without blocks: set it to "skip"'
        yield BrokenRule("driver.empty_batches", message)


def _modules(settings: Settings) -> Iterator[BrokenRule]:
    if settings.spark.modules and settings.spark.ship == "installed":
        message = 'with spark.ship = "installed" the driver sends no modules: install them on the executors, and remove this key'
        yield BrokenRule("spark.modules", message)


def _dead_letter_place(settings: Settings) -> Iterator[BrokenRule]:
    if settings.dead_letters.url is not None and settings.dead_letters.topic is not None:
        yield BrokenRule("dead_letters.topic", "dead_letters: name a url or a topic, not both", whole=True)


def _dead_letter_topic(settings: Settings) -> Iterator[BrokenRule]:
    topic, kafka = settings.dead_letters.topic, settings.kafka
    if topic is None:
        return
    if not _has_broker(settings):
        yield BrokenRule("dead_letters.topic", 'name its brokers by kafka."bootstrap.servers", or use a url')
    if topic in kafka.topics or (kafka.pattern is not None and matches(kafka.pattern, topic)):
        yield BrokenRule("dead_letters.topic", "the stream reads this topic: name another one")


#: each rule, and the keys that it reads
RULES: dict[Rule, tuple[str, ...]] = {
    _topics_or_pattern: ("receiver.source", "kafka.topics", "kafka.pattern"),
    _topics_once: ("kafka.topics",),
    _broker: ("receiver.source", "kafka.bootstrap.servers"),
    _starting_offsets: ("receiver.source", "kafka.starting_offsets"),
    _source_options: ("receiver.source", "receiver.source_options"),
    _managed: ("stream", "receiver.source", "receiver.mode", "receiver.count"),
    _initial_rate: ("receiver.initial_rate", "driver.backpressure"),
    _partition_rates: ("receiver.min_rate_per_partition", "receiver.max_rate_per_partition"),
    _memory: ("receiver.memory", "receiver.block_size"),
    _local_copies: ("wal.url", "receiver.local_copies"),
    _retention: ("wal.url", "wal.retention", "wal.retention_size", "wal.retention_blocks", "wal.retention_free"),
    _certificate: ("security.cert_file", "security.key_file"),
    _https: ("security.cert_file", "driver.url", "agent.url", "receiver.metrics_url"),
    _ports: ("driver.url", "agent.url", "receiver.metrics_url"),
    _urls_once: ("driver.urls",),
    _jobs: ("driver.job",),
    _empty_batches: ("driver.empty_batches", "driver.batch_interval"),
    _modules: ("spark.modules", "spark.ship"),
    _dead_letter_place: ("dead_letters.url", "dead_letters.topic"),
    _dead_letter_topic: ("dead_letters.topic", "kafka.topics", "kafka.pattern", "kafka.bootstrap.servers"),
}
