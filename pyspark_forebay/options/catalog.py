"""Every option of ``format("forebay")``: name, queries, default and meaning.

``docs/reference/options.md`` is written from these tables by ``scripts/reference_pages.py``.
"""

from __future__ import annotations

from typing import NamedTuple


class Option(NamedTuple):
    """One option of a query.

    ``queries``: the queries in which it has an effect. ``default``: as a user would write it; "" if the option is not set,
    "required" if it must be set. ``meaning``: a phrase in Markdown.
    """

    name: str
    queries: str
    default: str
    meaning: str


BOTH, STREAMING, BATCH = "both", "streaming", "batch"
REQUIRED = "required"

#: options that read Kafka itself; most of them also apply to an intake
READING = (
    Option("subscribe", BOTH, "", "topics, separated by commas. Set exactly one of `subscribe`, `subscribePattern` and `assign`"),
    Option(
        "subscribePattern", BOTH, "",
        "regular expression of Python that matches any part of a topic's name; `^flights$` matches a whole name",
    ),
    Option("assign", BOTH, "", 'partitions, as `{"topic": [0, 1]}`'),
    Option("kafka.bootstrap.servers", BOTH, REQUIRED, "addresses of the brokers, separated by commas"),
    Option(
        "startingOffsets", BOTH, "earliest; streaming: latest",
        '`earliest`, `latest`, or `{"topic": {"0": 23, "1": -2}}` with every partition: -2 is earliest, -1 is latest',
    ),
    Option("endingOffsets", BATCH, "latest", "like `startingOffsets`"),
    Option(
        "startingTimestamp", BOTH, "",
        "milliseconds since 1970 UTC: the first record at or after that time; overrides the other starts",
    ),
    Option("endingTimestamp", BATCH, "", "like `startingTimestamp`; overrides the other ends"),
    Option(
        "startingOffsetsByTimestamp", BOTH, "",
        '`{"topic": {"0": 1700000000000}}`: such a time for each partition; overrides `startingOffsets`',
    ),
    Option("endingOffsetsByTimestamp", BATCH, "", "like `startingOffsetsByTimestamp`; overrides `endingOffsets`"),
    Option(
        "startingOffsetsByTimestampStrategy", BOTH, "error",
        "a partition without a record at or after the starting time: `error` fails the query, `latest` begins at its end",
    ),
    Option("failOnDataLoss", BOTH, "true", "whether lost records fail the query; if not, it reads the remaining records"),
    Option(
        "minPartitions", BOTH, "",
        "minimum number of tasks. Without it, one task of a streaming query reads up to four partitions, with 1,000 offsets in "
        "total",
    ),
    Option("maxRecordsPerPartition", BOTH, "", "maximum number of offsets of a task"),
    Option(
        "maxOffsetsPerTrigger", STREAMING, "",
        "maximum number of offsets of a trigger, divided among partitions in proportion to their lag",
    ),
    Option(
        "minOffsetsPerTrigger", STREAMING, "",
        "number of offsets that a trigger waits for, at most `maxOffsetsPerTrigger`",
    ),
    Option("maxTriggerDelay", STREAMING, "15m", "longest wait for `minOffsetsPerTrigger`"),
    Option("includeHeaders", BOTH, "false", "whether rows have the column `headers`"),
    Option(
        "columns", BOTH, "",
        "the columns of the rows, separated by commas, such as `value,offset`; if unset, all columns. Spark spends time on each "
        "column of each row, so name only the columns that the query uses",
    ),
    Option(
        "kafkaConsumer.pollTimeoutMs", BOTH, "120000",
        "maximum time in which a broker may return nothing to a task, and in which the driver of an intake may be "
        "unavailable. Offsets without records, aborted or compacted, also count as an answer",
    ),
    Option(
        "fetchOffset.numRetries", BOTH, "3",
        "number of retries of each request that plans a batch. If a partition still has no leader after them, the query fails "
        "and names the partition and the brokers that could lead it",
    ),
    Option("fetchOffset.retryIntervalMs", BOTH, "1000", "time between these retries"),
    Option(
        "groupIdPrefix", BOTH, "forebay-relation; streaming: forebay-source",
        "the group that Kafka's access rights are granted to. The query never joins it and commits nothing",
    ),
    Option("kafka.group.id", BOTH, "", "the same group; overrides `groupIdPrefix`"),
    Option(
        "kafka.*", BOTH, "",
        "Kafka's settings, by [Java's names](../KAFKA_OPTIONS.md) or librdkafka's. Refused, as by Spark: `auto.offset.reset`, "
        "`key.deserializer`, `value.deserializer`, `enable.auto.commit`, `interceptor.classes`",
    ),
)  # fmt: skip

#: options of queries over an intake
INTAKE = (
    Option("tracker", BOTH, REQUIRED, "URL of the stream's driver; with standbys all URLs, separated by commas"),
    Option(
        "cursor", STREAMING, "query", "first part of the name of the query's cursor, to which a unique part is appended"
    ),
    Option("progressGroup", STREAMING, "", "consumer group that shows the query's progress to lag tools"),
    Option(
        "tokenFile", BOTH, "",
        "file with a `query` token. The token may also be in `FOREBAY_TOKENS` in the environment of Spark's driver",
    ),
    Option("caFile", BOTH, "", "certificates of the authorities that sign the driver's certificate, as PEM"),
    Option("certFile", BOTH, "", "the query's own certificate, as PEM"),
    Option("keyFile", BOTH, "", "private key of `certFile`, as PEM"),
)  # fmt: skip

#: options that decode keys and values into columns
DECODING = (
    Option("keyFormat", BOTH, "", "`avro`, `json` (JSON Schema) or `protobuf`; without it the column `key` is bytes"),
    Option("valueFormat", BOTH, "", "the same for the column `value`"),
    Option("schema.registry.url", BOTH, REQUIRED, "URL of the registry; several, separated by commas"),
    Option(
        "subjectNameStrategy", BOTH, "topic",
        "the subject whose newest schema the column has: `topic` (`TOPIC-value`, `TOPIC-key`), `record` (by `valueRecord`, "
        "`keyRecord`), or `topicRecord` (both)",
    ),
    Option(
        "keyRecord", BOTH, "",
        "full name of a record in the key, for `record` and `topicRecord`; for Protobuf also which message of the file it is "
        "(the first)",
    ),
    Option("valueRecord", BOTH, "", "the same for the value"),
    Option(
        "keySubject", BOTH, "",
        "the subject itself. This, or an id, is required for several topics, patterns, and an intake without `subscribe`",
    ),
    Option("valueSubject", BOTH, "", "the same for the value"),
    Option("keySchemaVersion", BOTH, "latest", "a version of the key's subject"),
    Option("valueSchemaVersion", BOTH, "latest", "the same for the value"),
    Option("keySchemaId", BOTH, "", "the key's schema by its number, independently of the subject"),
    Option("valueSchemaId", BOTH, "", "the same for the value"),
    Option(
        "mode", BOTH, "FAILFAST",
        "`FAILFAST`: a record that cannot be decoded fails the query, which names topic, partition, offset and schema. "
        "`PERMISSIVE`: the record becomes null, and the column `decodeError` has the reason",
    ),
    Option("schema.registry.basic.auth.user.info", BOTH, "", "`user:password`"),
    Option(
        "schema.registry.bearer.auth.*", BOTH, "",
        "`token`; or for OAuth `client.id`, `client.secret`, `issuer.endpoint.url` (the URL that issues tokens) and optionally "
        "`scope`; for Confluent Cloud `logical.cluster`, `identity.pool.id`. The endpoint's certificate may be signed by the "
        "machine's authorities or by `ca.location`",
    ),
    Option(
        "schema.registry.ssl.*", BOTH, "",
        "`ca.location`, `certificate.location`, `key.location`, `key.password`: PEM files, on every host",
    ),
    Option("schema.registry.proxy", BOTH, "", "URL of a proxy"),
    Option("schema.registry.timeout.ms", BOTH, "10000", "maximum time of each request"),
    Option("schema.registry.retries", BOTH, "5", "number of retries of each request"),
)  # fmt: skip

#: options of queries that write
WRITING = (
    Option("kafka.bootstrap.servers", BOTH, REQUIRED, "addresses of the brokers, separated by commas"),
    Option("topic", BOTH, "", "topic of all rows; without it, each row names its topic in the column `topic`"),
    Option(
        "transactional", BOTH, "false",
        "`false`: each record at least once. `true`: each batch once, in [one transaction](../STREAMING.md#writing)",
    ),
    Option(
        "groupIdPrefix", BOTH, "forebay-sink", "first part of transactional ids and of the groups with their markers"
    ),
    Option("checkpointLocation", STREAMING, REQUIRED, "folder of the query's checkpoint, an option of Spark itself"),
    Option(
        "kafka.*", BOTH, "",
        "Kafka's settings for the producer. Refused: `key.serializer`, `value.serializer`, `transactional.id`",
    ),
)  # fmt: skip


def names(*tables: tuple[Option, ...]) -> tuple[str, ...]:
    """Return the names in ``tables``, without those of Kafka and of the schema registry, which have checks of their own."""
    return tuple(
        option.name
        for table in tables
        for option in table
        if not option.name.startswith(("kafka.", "schema.registry."))
    )
