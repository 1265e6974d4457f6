"""The options of ``format("forebay")``: names, meanings and refusals of Spark's Kafka source. Pure, but for stores
of certificates that ``kafka.ssl.*`` options name.

Names are taken without regard to case. What Spark refuses is refused with Spark's reason; an option that nobody knows is
ignored there, and so it is here, but for a warning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from forebay.kafka.options.java import translate
from forebay.kafka.options.safe import without_forced
from forebay.model.errors import UsageError
from forebay.model.units import parse_duration
from forebay.model.values import TopicPartition, check_name
from forebay.security.access import Access
from pyspark_forebay.offsets import EARLIEST, LATEST, parse_numbers, parse_offsets, parse_partitions

if TYPE_CHECKING:
    from pyspark_forebay.decoding import Decoding

STRATEGIES = ("subscribe", "subscribePattern", "assign")
#: only for streaming queries; ignored by a batch query
_STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")
#: only for batch queries; refused by a streaming query
_BATCH_ONLY = {
    "endingOffsets": "ending offset not valid in streaming queries",
    "endingOffsetsByTimestamp": "ending timestamp not valid in streaming queries",
}
#: only for queries over an intake
_INTAKE_ONLY = ("cursor", "progressGroup", "tokenFile", "caFile", "certFile", "keyFile")
#: of each column that is decoded
_DECODING = ("Format", "Subject", "Record", "SchemaVersion", "SchemaId")
KNOWN = (
    *STRATEGIES, *_STREAM_ONLY, *_BATCH_ONLY, "endingTimestamp", "startingOffsets", "startingOffsetsByTimestamp",
    "startingTimestamp", "startingOffsetsByTimestampStrategy", "failOnDataLoss", "minPartitions", "maxRecordsPerPartition",
    "includeHeaders", "groupIdPrefix", "kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs", "tracker", *_INTAKE_ONLY, "mode", "subjectNameStrategy",
    *(f"{column}{what}" for column in ("key", "value") for what in _DECODING),
)  # fmt: skip
_REFUSED_KAFKA = {
    "auto.offset.reset": (
        "set the option startingOffsets to 'earliest' or 'latest' instead to say where a new query starts: which offsets are "
        "read is the query's affair, so that nothing is missed when topics and partitions are added"
    ),
    "key.deserializer": "keys are given as bytes: deserialise them by DataFrame operations",
    "value.deserializer": "values are given as bytes: deserialise them by DataFrame operations",
    "enable.auto.commit": "the query's own checkpoint says what was read",
    "interceptor.classes": "an interceptor could change what is read",
}
#: seconds that a broker may be silent in a task, where neither the option nor Spark's network time-out is at hand
POLL_TIMEOUT_SECONDS = 120.0
_MAX_TRIGGER_DELAY = "15m"
#: of the option ``cursor``: what makes it unique comes behind
CURSOR_LENGTH_MAX = 48


@dataclass(frozen=True, slots=True)
class Subscription:
    """What is read: exactly one of the three is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: frozenset[TopicPartition] = frozenset()

    def __str__(self) -> str:
        if self.pattern is not None:
            return f"subscribePattern {self.pattern}"
        return ", ".join(self.topics) or ", ".join(str(tp) for tp in sorted(self.partitions))


@dataclass(frozen=True, slots=True)
class Limit:
    """Where a query starts, or a batch query ends, as the options say it: exactly one is set.

    ``policy``: "earliest" or "latest". ``offsets``: of every partition, ``EARLIEST`` and ``LATEST`` among them.
    ``timestamps``: milliseconds, of every partition; ``timestamp``: one for all.
    """

    policy: str = ""
    offsets: Mapping[TopicPartition, int] | None = None
    timestamps: Mapping[TopicPartition, int] | None = None
    timestamp: int | None = None


@dataclass(frozen=True, slots=True)
class IntakeOptions:
    """``urls``: of the stream's drivers. ``cursor``: how a new query's cursor is named, before a part that makes it unique.
    ``progress_group``: the consumer group that shows how far the query is."""

    urls: tuple[str, ...]
    cursor: str
    progress_group: str | None
    access: Access


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """``kafka``: the ``kafka.*`` options for librdkafka; they may hold passwords, so nothing shows them. ``told``: a sentence for
    each option that does nothing or something else here. ``intake``: what is read instead of Kafka; the subscription may then be
    empty, for all that is taken in, and ``kafka`` for what the intake says. ``decoding``: what tasks make of keys and values;
    they read headers then, wanted or not, as these may name schemas."""

    subscription: Subscription
    kafka: Mapping[str, str] = field(repr=False)
    group: str
    starting: Limit
    ending: Limit
    latest_without_match: bool
    fail_on_data_loss: bool
    include_headers: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_seconds: float
    poll_timeout_seconds: float
    offset_retries: int
    offset_retry_seconds: float
    told: tuple[str, ...]
    intake: IntakeOptions | None = None
    decoding: Decoding | None = None


def check(options: Mapping[str, str]) -> Subscription:
    """Refuses what neither kind of query takes. Raises UsageError."""
    given = by_name(options)
    _common(given)
    return _subscription(given)


def read_options(options: Mapping[str, str], *, streaming: bool, decoding: Decoding | None = None) -> SourceOptions:
    """Raises UsageError for whatever Spark's Kafka source refuses of such a query."""
    given = by_name(options)
    if streaming:
        for name, reason in _BATCH_ONLY.items():
            if name.lower() in given:
                raise UsageError(f"option {name}: {reason}")
    starting = _limit(given, "starting", "latest" if streaming else "earliest")
    ending = _limit(given, "ending", "latest")
    if not streaming:
        _check_batch(starting, ending)
    subscription = _subscription(given)
    kafka = translate(_common(given))
    client, forced = without_forced(kafka.options)
    intake = _intake(given)
    prefix = given.get("groupidprefix", "forebay-source" if streaming else "forebay-relation")
    return SourceOptions(
        subscription=subscription,
        # as the Java client has it where nothing is said
        kafka={**({} if intake else {"isolation.level": "read_uncommitted"}), **_without_group(client)},
        group=client.get("group.id", prefix),
        starting=starting,
        ending=ending,
        latest_without_match=_strategy(given) == "latest",
        fail_on_data_loss=flag(given, "failOnDataLoss", True),
        include_headers=flag(given, "includeHeaders", False) or decoding is not None,
        min_partitions=whole_number(given, "minPartitions", at_least=1),
        max_records_per_partition=whole_number(given, "maxRecordsPerPartition", at_least=1),
        max_offsets_per_trigger=whole_number(given, "maxOffsetsPerTrigger", at_least=1) if streaming else None,
        min_offsets_per_trigger=whole_number(given, "minOffsetsPerTrigger", at_least=0) if streaming else None,
        max_trigger_delay_seconds=_delay(given) if streaming else 0.0,
        poll_timeout_seconds=(
            whole_number(given, "kafkaConsumer.pollTimeoutMs", at_least=1) or POLL_TIMEOUT_SECONDS * 1000
        ) / 1000,
        offset_retries=whole_number(given, "fetchOffset.numRetries", at_least=0, default=3) or 0,
        offset_retry_seconds=(whole_number(given, "fetchOffset.retryIntervalMs", at_least=0, default=1000) or 0) / 1000,
        told=(*_notes(given, streaming), *kafka.changes, *forced),
        intake=intake,
        decoding=decoding,
    )  # fmt: skip


def _without_group(kafka: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in kafka.items() if name != "group.id"}


def _notes(given: Mapping[str, str], streaming: bool) -> list[str]:
    """What a query should be told of its options, though nothing is refused."""
    told = [
        f"option {name} is ignored in batch queries" for name in _STREAM_ONLY if not streaming and name.lower() in given
    ]
    if streaming and "endingtimestamp" in given:
        told.append("option endingTimestamp is ignored in streaming queries")
    told += unknown_options(given, KNOWN)
    if "tracker" not in given:
        told += [f"option {name} is ignored without tracker" for name in _INTAKE_ONLY if name.lower() in given]
    if "keyformat" not in given and "valueformat" not in given:
        only = [name for name in given if name.startswith("schema.registry.")]
        told += [f"option {name} is ignored without keyFormat or valueFormat" for name in sorted(only)]
    if "kafka.group.id" in given and "groupidprefix" in given:
        told.append("option groupIdPrefix is ignored, as option kafka.group.id is set")
    return told


def unknown_options(given: Mapping[str, str], known: Sequence[str]) -> list[str]:
    """A sentence for each option that nobody knows; ``given`` by names in lower case."""
    names = {name.lower() for name in known} | {"path"}
    return [
        f"option {name} is not known and is ignored"
        for name in sorted(given)
        if name not in names and not name.startswith(("kafka.", "schema.registry."))
    ]


def _intake(given: Mapping[str, str]) -> IntakeOptions | None:
    if "tracker" not in given:
        return None
    urls = tracker_urls(given["tracker"], "option tracker")
    cursor = given.get("cursor", "query").strip()
    try:
        check_name("option cursor:", cursor)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if len(cursor) > CURSOR_LENGTH_MAX:
        raise UsageError(f"option cursor: {cursor!r} has more than {CURSOR_LENGTH_MAX} characters")
    files = {
        name: given.get(name.lower(), "").strip() or None for name in ("caFile", "certFile", "keyFile", "tokenFile")
    }
    return IntakeOptions(
        urls=urls,
        cursor=cursor,
        progress_group=given.get("progressgroup", "").strip() or None,
        access=Access(
            role="query",
            token_file=files["tokenFile"],
            ca_file=files["caFile"],
            cert_file=files["certFile"],
            key_file=files["keyFile"],
        ),
    )


def tracker_urls(text: str, name: str) -> tuple[str, ...]:
    """Where a stream's drivers are. Raises UsageError that begins with ``name`` and shows nothing of ``text``."""
    urls = tuple(url.strip() for url in text.split(",") if url.strip())
    for url in urls or ("",):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise UsageError(
                f"{name}: write where the stream's driver is, as in http://driver:7080, or all of them with commas"
            )
    return urls


def by_name(options: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in options.items()}


def _subscription(given: Mapping[str, str]) -> Subscription:
    named = [name for name in STRATEGIES if name.lower() in given]
    if not named and "tracker" in given:
        return Subscription()
    if not named:
        raise UsageError(f"one of the options {', '.join(STRATEGIES)} must say what to read")
    if len(named) > 1:
        raise UsageError(f"only one of the options {', '.join(STRATEGIES)} may be set, not {' and '.join(named)}")
    (name,) = named
    value = given[name.lower()].strip()
    if name == "assign":
        if not value.startswith("{"):
            raise UsageError(f'option assign: {value!r} names no partitions: {{"topic": [0, 1]}} would')
        return Subscription(partitions=frozenset(parse_partitions(value, "assign")))
    if name == "subscribe":
        topics = tuple(dict.fromkeys(topic.strip() for topic in value.split(",") if topic.strip()))
        if not topics:
            raise UsageError(f"option subscribe: {value!r} names no topics to subscribe to")
        return Subscription(topics=topics)
    if not value:
        raise UsageError("option subscribePattern: the pattern is empty")
    try:
        re.compile(value)
    except re.error as error:
        raise UsageError(f"option subscribePattern: {value!r} is no regular expression of Python's: {error}") from None
    return Subscription(pattern=value)


def _common(given: Mapping[str, str]) -> dict[str, str]:
    """The ``kafka.*`` options without the prefix."""
    for name in ("minPartitions", "maxRecordsPerPartition"):
        whole_number(given, name, at_least=1)
    least, most = (whole_number(given, name) for name in ("minOffsetsPerTrigger", "maxOffsetsPerTrigger"))
    if least is not None and most is not None and least > most:
        raise UsageError(f"option minOffsetsPerTrigger: {least} is higher than maxOffsetsPerTrigger, {most}")
    return kafka_options(given, _REFUSED_KAFKA)


def kafka_options(given: Mapping[str, str], refused: Mapping[str, str]) -> dict[str, str]:
    """The ``kafka.*`` options without the prefix; ``given`` by names in lower case. Raises UsageError for the names in
    ``refused``, which says why."""
    kafka = {name[len("kafka.") :]: value for name, value in given.items() if name.startswith("kafka.")}
    for name, reason in refused.items():
        if name in kafka:
            raise UsageError(f"option kafka.{name} is not supported: {reason}")
    if not kafka.get("bootstrap.servers") and "tracker" not in given:
        raise UsageError("option kafka.bootstrap.servers must say where Kafka is: host:port, or several with commas")
    return kafka


def _limit(given: Mapping[str, str], end: str, default: str) -> Limit:
    """``end``: "starting" or "ending". One timestamp wins over one per partition, and that over offsets."""
    name = f"{end}Timestamp"
    if name.lower() in given:
        return Limit(timestamp=whole_number(given, name))
    name = f"{end}OffsetsByTimestamp"
    if name.lower() in given:
        return Limit(timestamps=parse_numbers(given[name.lower()].strip(), name))
    name = f"{end}Offsets"
    value = given.get(name.lower(), default).strip()
    if value.lower() in ("earliest", "latest"):
        return Limit(policy=value.lower())
    if not value.startswith("{"):
        raise UsageError(
            f'option {name}: {value!r}: allowed are "earliest", "latest", or JSON: {{"topic": {{"0": 23, "1": -2}}}}'
        )
    return Limit(offsets=parse_offsets(value, name).at)


def _check_batch(starting: Limit, ending: Limit) -> None:
    for limit, forbidden, end, word in (
        (starting, LATEST, "starting", "latest"),
        (ending, EARLIEST, "ending", "earliest"),
    ):
        if limit.policy == word:
            raise UsageError(f"option {end}Offsets: {end} offset can't be {word} for batch queries on Kafka")
        for tp, offset in (limit.offsets or {}).items():
            if offset == forbidden:
                raise UsageError(f"option {end}Offsets: {tp} can't be {word} for batch queries on Kafka")


def _strategy(given: Mapping[str, str]) -> str:
    name = "startingOffsetsByTimestampStrategy"
    value = given.get(name.lower(), "error").strip().lower()
    if value not in ("error", "latest"):
        raise UsageError(f'option {name}: {value!r}: allowed are "error" and "latest"')
    return value


def flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    """``given`` by names in lower case. Raises UsageError."""
    value = given.get(name.lower(), str(default)).strip().lower()
    if value not in ("true", "false"):
        raise UsageError(f'option {name}: {value!r}: allowed are "true" and "false"')
    return value == "true"


def whole_number(
    given: Mapping[str, str], name: str, *, at_least: int | None = None, default: int | None = None
) -> int | None:
    """``given`` by names in lower case. Raises UsageError."""
    if name.lower() not in given:
        return default
    text = given[name.lower()].strip()
    number = _whole(text)
    if number is None or (at_least is not None and number < at_least):
        raise UsageError(
            f"option {name}: {text!r}: allowed are whole numbers{'' if at_least is None else f' from {at_least}'}"
        )
    return number


def _whole(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,19}", text) else None


def _delay(given: Mapping[str, str]) -> float:
    """Seconds; a number alone counts milliseconds, as Spark has it."""
    name = "maxTriggerDelay"
    text = given.get(name.lower(), _MAX_TRIGGER_DELAY).strip().lower()
    if _whole(text) is not None:
        text += "ms"
    try:
        return float(parse_duration(re.sub("min$", "m", text)))  # Spark has both
    except ValueError:
        raise UsageError(f"option {name}: {text!r} is no time: allowed are 500ms, 30s, 15m, 2h") from None
