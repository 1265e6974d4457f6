"""All options of a query that reads with ``format("forebay")``.

Reads no files, except certificate stores of ``kafka.ssl.*``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from forebay.kafka.options.java import translate
from forebay.kafka.options.safe import without_forced
from forebay.model.errors import UsageError
from forebay.model.identifiers import check_name
from forebay.security.access import Access
from pyspark_forebay.options import catalog
from pyspark_forebay.options.limits import Limit, check_batch_limits, latest_without_match, read_limit
from pyspark_forebay.options.subscription import Subscription, read_subscription
from pyspark_forebay.options.values import (
    INT_MAX,
    by_name,
    column_names,
    flag,
    kafka_options,
    seconds,
    tracker_urls,
    unknown_options,
    whole_number,
)

if TYPE_CHECKING:
    import pyarrow as pa

#: options of streaming queries; a batch query ignores them
_STREAM_ONLY = tuple(option.name for option in catalog.READING if option.queries == catalog.STREAMING)
#: options of batch queries; a streaming query refuses them
_BATCH_ONLY = {
    "endingOffsets": "ending offset not valid in streaming queries",
    "endingOffsetsByTimestamp": "ending timestamp not valid in streaming queries",
}
#: options of queries over an intake
_INTAKE_ONLY = tuple(name for name in catalog.names(catalog.INTAKE) if name != "tracker")
KNOWN = catalog.names(catalog.READING, catalog.INTAKE, catalog.DECODING)
_REFUSED_KAFKA = {
    "auto.offset.reset": (
        "set the option startingOffsets to 'earliest' or 'latest' instead to say where a new query starts: the query itself "
        "tracks the offsets that it has read, so that no data is missed when topics and partitions are added"
    ),
    "key.deserializer": "keys are given as bytes: deserialise them by DataFrame operations",
    "value.deserializer": "values are given as bytes: deserialise them by DataFrame operations",
    "enable.auto.commit": "the query's own checkpoint says what was read",
    "interceptor.classes": "an interceptor could change what is read",
}
#: default of kafkaConsumer.pollTimeoutMs: seconds in which a broker may return nothing to a task
POLL_TIMEOUT_SECONDS = 120.0
_MAX_TRIGGER_DELAY = "15m"
#: longest value of the option ``cursor``, to which a unique part is appended
CURSOR_LENGTH_MAX = 48

#: the end of an error about lost data, as Spark's Kafka source writes it
FAIL_ON_DATA_LOSS = (
    "Some data may have been lost because they are not available in Kafka any more: either the data was aged out by Kafka or "
    "the topic may have been deleted before all the data in the topic was processed. If you don't want your query to fail "
    'on such cases, set the source option "failOnDataLoss" to "false"'
)


class ColumnDecoder(Protocol):
    """Decodes keys or values into columns. A query sends it to its tasks, pickled."""

    @property
    def headers(self) -> bool:
        """Whether decoded rows keep the column ``headers``."""
        ...

    def decoded(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return ``batches``, which have the source's columns with headers, with decoded columns."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class IntakeOptions:
    """The options of a query over an intake.

    ``urls``: all drivers of the stream. ``cursor``: the first part of a new cursor's name; a unique part is appended.
    ``progress_group``: the consumer group that shows the query's progress, None for none.
    """

    urls: tuple[str, ...]
    cursor: str
    progress_group: str | None
    access: Access


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of one query, checked.

    ``kafka``: the ``kafka.*`` options under librdkafka's names. They may hold passwords, so ``repr`` omits them.
    ``warnings``: a sentence for each option that has no effect or another one than in Spark. ``intake``: the intake to
    read instead of Kafka. Then the subscription may be empty, which means everything that the intake takes in, and
    ``kafka`` may be empty, which means the intake's own options. ``decoding``: how tasks decode keys and values. Then
    tasks read headers in any case, because headers may name schemas. ``columns``: those that rows have, in this order; () for
    all.
    """

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
    warnings: tuple[str, ...]
    intake: IntakeOptions | None = None
    decoding: ColumnDecoder | None = None
    columns: tuple[str, ...] = ()

    def rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Return ``batches``, as a task reads them, decoded and with the query's columns alone."""
        found = batches if self.decoding is None else self.decoding.decoded(batches)
        return (batch.select(self.columns) for batch in found) if self.columns else found


def check(options: Mapping[str, str]) -> Subscription:
    """Check what both batch and streaming queries require of ``options``, and return the subscription. Raises UsageError."""
    given = by_name(options)
    _common(given)
    return read_subscription(given)


def read_options(
    options: Mapping[str, str], *, streaming: bool, decoding: ColumnDecoder | None = None
) -> SourceOptions:
    """Return ``options``, checked. Raises UsageError for each option that Spark's Kafka source refuses in such a query."""
    given = by_name(options)
    if streaming:
        for name, reason in _BATCH_ONLY.items():
            if name.lower() in given:
                raise UsageError(f"option {name}: {reason}")
    starting = read_limit(given, "starting", "latest" if streaming else "earliest")
    ending = read_limit(given, "ending", "latest")
    if not streaming:
        check_batch_limits(starting, ending)
    subscription = read_subscription(given)
    kafka = translate(_common(given))
    client, forced = without_forced(kafka.options)
    intake = _intake(given)
    prefix = given.get("groupidprefix", "forebay-source" if streaming else "forebay-relation")
    return SourceOptions(
        subscription=subscription,
        # the default of Kafka's Java client
        kafka={**({} if intake else {"isolation.level": "read_uncommitted"}), **_without_group(client)},
        group=client.get("group.id", prefix),
        starting=starting,
        ending=ending,
        latest_without_match=latest_without_match(given),
        fail_on_data_loss=flag(given, "failOnDataLoss", True),
        include_headers=flag(given, "includeHeaders", False) or decoding is not None,
        min_partitions=whole_number(given, "minPartitions", at_least=1),
        max_records_per_partition=whole_number(given, "maxRecordsPerPartition", at_least=1),
        max_offsets_per_trigger=whole_number(given, "maxOffsetsPerTrigger", at_least=1) if streaming else None,
        min_offsets_per_trigger=whole_number(given, "minOffsetsPerTrigger", at_least=0) if streaming else None,
        max_trigger_delay_seconds=seconds(given, "maxTriggerDelay", _MAX_TRIGGER_DELAY) if streaming else 0.0,
        poll_timeout_seconds=(
            whole_number(given, "kafkaConsumer.pollTimeoutMs", at_least=1) or POLL_TIMEOUT_SECONDS * 1000
        ) / 1000,
        offset_retries=whole_number(given, "fetchOffset.numRetries", at_least=0, default=3) or 0,
        offset_retry_seconds=(whole_number(given, "fetchOffset.retryIntervalMs", at_least=0, default=1000) or 0) / 1000,
        warnings=(*_warnings(given, streaming), *kafka.changes, *forced),
        intake=intake,
        decoding=decoding,
        columns=column_names(given),
    )  # fmt: skip


def _without_group(kafka: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in kafka.items() if name != "group.id"}


def _warnings(given: Mapping[str, str], streaming: bool) -> list[str]:
    """Return a sentence for each option that is allowed but has no effect."""
    found = [
        f"option {name} is ignored in batch queries" for name in _STREAM_ONLY if not streaming and name.lower() in given
    ]
    if streaming and "endingtimestamp" in given:
        found.append("option endingTimestamp is ignored in streaming queries")
    found += unknown_options(given, KNOWN)
    if "tracker" not in given:
        found += [f"option {name} is ignored without tracker" for name in _INTAKE_ONLY if name.lower() in given]
    if "keyformat" not in given and "valueformat" not in given:
        only = [name for name in given if name.startswith("schema.registry.")]
        found += [f"option {name} is ignored without keyFormat or valueFormat" for name in sorted(only)]
    if "kafka.group.id" in given and "groupidprefix" in given:
        found.append("option groupIdPrefix is ignored, as option kafka.group.id is set")
    return found


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


def _common(given: Mapping[str, str]) -> dict[str, str]:
    """Check what both kinds of query require, and return the ``kafka.*`` options without the prefix."""
    whole_number(given, "minPartitions", at_least=1, at_most=INT_MAX)
    whole_number(given, "maxRecordsPerPartition", at_least=1)
    least, most = (whole_number(given, name) for name in ("minOffsetsPerTrigger", "maxOffsetsPerTrigger"))
    if least is not None and most is not None and least > most:
        raise UsageError(f"option minOffsetsPerTrigger: {least} is higher than maxOffsetsPerTrigger, {most}")
    return kafka_options(given, _REFUSED_KAFKA)
