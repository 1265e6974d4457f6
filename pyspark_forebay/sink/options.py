"""The options of a query that writes with ``format("forebay")``: those of Spark's Kafka sink, and ``transactional``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from forebay.kafka.options.java import translate
from forebay.model.bounds import INT32_MAX
from forebay.model.errors import UsageError
from forebay.model.numbers import whole_number
from pyspark_forebay.options import catalog
from pyspark_forebay.options.values import by_name, flag, kafka_options, unknown_options

KNOWN = catalog.names(catalog.WRITING)
_REFUSED = {
    "key.serializer": "keys are written as bytes or text: serialise them by DataFrame operations",
    "value.serializer": "values are written as bytes or text: serialise them by DataFrame operations",
    "transactional.id": "the query's id determines it: set the option transactional to true, and groupIdPrefix for its prefix",
}
#: default timeout of a transaction; brokers allow 15 minutes by default
_TRANSACTION_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """The options of one query that writes, checked.

    ``topic``: None if each row names its topic. ``prefix``: the first part of the transactional id.
    ``transaction_seconds``: the timeout of a transaction. ``kafka``: options for librdkafka; they may hold passwords,
    so ``repr`` omits them. ``warnings``: a sentence for each option that has no effect or another one than in Spark.
    """

    topic: str | None
    transactional: bool
    prefix: str
    transaction_seconds: float
    kafka: Mapping[str, str] = field(repr=False)
    warnings: tuple[str, ...]


def read_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Return ``options``, checked. Raises UsageError for each option that Spark's Kafka sink refuses."""
    given = by_name(options)
    translated = translate(kafka_options(given, _REFUSED))
    kafka = dict(translated.options)
    warnings = [*unknown_options(given, KNOWN), *translated.changes]
    transactional = flag(given, "transactional", False)
    seconds = _TRANSACTION_SECONDS
    if transactional:
        text = kafka.pop("transaction.timeout.ms", str(round(seconds * 1000))).strip()
        milliseconds = whole_number(text, INT32_MAX)
        if not milliseconds:
            allowed = f"allowed are whole numbers from 1 to {INT32_MAX}"
            raise UsageError(f"option kafka.transaction.timeout.ms: {text!r}: {allowed}")
        seconds = milliseconds / 1000
        ignored = [name for name in ("delivery.timeout.ms", "message.timeout.ms") if kafka.pop(name, None) is not None]
        warnings += [f"option kafka.{name} is ignored: kafka.transaction.timeout.ms is the limit" for name in ignored]
    elif kafka.get("acks", "all").strip() not in ("all", "-1") and "enable.idempotence" not in kafka:
        warnings.append(
            "enable.idempotence is false, because kafka.acks is not all: a record that is sent again may be stored twice"
        )
    return SinkOptions(
        topic=given.get("topic", "").strip() or None,
        transactional=transactional,
        prefix=given.get("groupidprefix", "forebay-sink").strip(),
        transaction_seconds=seconds,
        kafka=kafka,
        warnings=tuple(warnings),
    )
