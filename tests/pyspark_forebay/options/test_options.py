"""The options of ``format("forebay")``: Spark's names, meanings and refusals."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from forebay.model.errors import SettingsError, UsageError
from forebay.model.values import TopicPartition
from pyspark_forebay import DefaultSource
from pyspark_forebay.kafka.questions import Questions
from pyspark_forebay.options import catalog
from pyspark_forebay.options.limits import Limit
from pyspark_forebay.options.source import KNOWN, check, read_options
from pyspark_forebay.sink.options import KNOWN as OF_SINK

PACKAGE = Path(__file__).parents[3] / "pyspark_forebay"
BASE = {"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "t"}
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def refusal(options: dict[str, str | None], *, streaming: bool = True) -> str:
    merged = {name: value for name, value in {**BASE, **options}.items() if value is not None}
    with pytest.raises(UsageError) as caught:
        read_options(merged, streaming=streaming)
    assert "\n" not in str(caught.value)
    return str(caught.value)


#: what is set over BASE, and a word of the refusal: each is refused by Spark's Kafka source too, in both kinds of query
REFUSED: list[tuple[dict[str, str | None], str]] = [
    ({"subscribe": None}, "subscribe, subscribePattern, assign"),
    ({"subscribePattern": "t.*"}, "only one of"),
    ({"subscribe": " , "}, "names no topics"),
    ({"subscribe": None, "subscribePattern": " "}, "pattern is empty"),
    ({"subscribe": None, "subscribePattern": "t("}, "is not a regular expression in Python's syntax"),
    ({"subscribe": None, "subscribePattern": "t{4294967296}"}, "repetition number is too large"),
    ({"subscribe": None, "assign": "t"}, "names no partitions"),
    ({"subscribe": None, "assign": '{"t": 0}'}, '{"topic": [0, 1]}'),
    ({"subscribe": None, "assign": '{"t": [-1]}'}, "-1 is not allowed"),
    ({"subscribe": None, "assign": '{"t": [0'}, '{"topic": [0, 1]}'),
    ({"startingOffsetsByTimestamp": "soon"}, 'expected JSON like {"topicA": {"0": 1700000000000}}'),
    ({"kafka.bootstrap.servers": None}, "kafka.bootstrap.servers"),
    ({"kafka.auto.offset.reset": "latest"}, "startingOffsets"),
    ({"kafka.key.deserializer": "x"}, "key.deserializer is not supported"),
    ({"kafka.value.deserializer": "x"}, "value.deserializer is not supported"),
    ({"kafka.enable.auto.commit": "false"}, "enable.auto.commit is not supported"),
    ({"kafka.interceptor.classes": "x"}, "interceptor.classes is not supported"),
    ({"minPartitions": "0"}, "minPartitions"),
    ({"minPartitions": "many"}, "minPartitions"),
    ({"maxRecordsPerPartition": "0"}, "maxRecordsPerPartition"),
    ({"startingOffsets": "middle"}, '"earliest", "latest"'),
    ({"startingOffsets": '{"t": {"0": -3}}'}, "-3 of t/0"),
    ({"startingOffsets": '{"t": {"zero": 1}}'}, "'zero' is not allowed"),
    ({"startingOffsets": '{"t": {"0": true}}'}, "True is not allowed"),
    ({"startingOffsets": '{"t": [0]}'}, "expected JSON"),
    ({"startingOffsets": '{"a b": {"0": 1}}'}, "name of a topic"),
    ({"startingOffsets": "{" * 100_000}, "expected JSON"),
    ({"startingTimestamp": "yesterday"}, "startingTimestamp"),
    ({"startingOffsetsByTimestamp": "7"}, "startingOffsetsByTimestamp"),
    ({"startingOffsetsByTimestampStrategy": "earliest"}, '"error" and "latest"'),
    ({"failOnDataLoss": "no"}, '"true" and "false"'),
    ({"includeHeaders": "1"}, '"true" and "false"'),
    ({"kafkaConsumer.pollTimeoutMs": "0"}, "pollTimeoutMs"),
    ({"fetchOffset.numRetries": "-1"}, "numRetries"),
    ({"minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"}, "6 is higher than maxOffsetsPerTrigger, 5"),
]


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(("options", "word"), REFUSED, ids=lambda value: str(value)[:60])
def test_options_that_spark_refuses_are_refused(options: dict[str, str | None], word: str, streaming: bool) -> None:
    assert word in refusal(options, streaming=streaming)


STREAMING_REFUSED = [
    ({"endingOffsets": "latest"}, "ending offset not valid in streaming queries"),
    ({"endingOffsetsByTimestamp": "{}"}, "ending timestamp not valid in streaming queries"),
    ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger"),
    ({"maxTriggerDelay": "soon"}, "maxTriggerDelay"),
]
BATCH_REFUSED = [
    ({"startingOffsets": "latest"}, "starting offset can't be latest for batch queries"),
    ({"startingOffsets": '{"t": {"0": -1}}'}, "t/0 can't be latest"),
    ({"endingOffsets": "earliest"}, "ending offset can't be earliest for batch queries"),
    ({"endingOffsets": '{"t": {"0": -2}}'}, "t/0 can't be earliest"),
]


@pytest.mark.parametrize(("options", "word"), STREAMING_REFUSED)
def test_streaming_query_refuses_an_end_and_invalid_limits(options: dict[str, str | None], word: str) -> None:
    assert word in refusal(options)


@pytest.mark.parametrize(("options", "word"), BATCH_REFUSED)
def test_batch_query_refuses_to_start_at_latest_or_end_at_earliest(options: dict[str, str | None], word: str) -> None:
    assert word in refusal(options, streaming=False)


@pytest.mark.parametrize("assign", ["t", "{}", '{"t": []}', ' {"t": [], "u": []} '])
@pytest.mark.parametrize("over", [{"kafka.bootstrap.servers": "127.0.0.1:9"}, {"tracker": "http://driver:7080"}])
def test_assign_without_partitions_does_not_read_everything(assign: str, over: dict[str, str]) -> None:
    """Over an intake, a query without a subscription reads everything that it takes in."""
    with pytest.raises(UsageError, match=r"option assign: .* names no partitions; write, for example"):
        read_options({**over, "assign": assign}, streaming=True)


@pytest.mark.parametrize("end", ["starting", "ending"])
@pytest.mark.parametrize(
    ("option", "value", "word"),
    [
        ("Timestamp", "-1", "'-1': allowed are whole numbers from 0"),
        ("Timestamp", " -2 ", "'-2': allowed are whole numbers from 0"),
        (
            "OffsetsByTimestamp",
            '{"t": {"0": 5, "1": -1}}',
            "-1 of t/1: allowed are milliseconds since 1970 UTC, from 0",
        ),
    ],
)
def test_negative_time_is_refused(end: str, option: str, value: str, word: str) -> None:
    """Kafka takes it as one of the ends of the partition."""
    assert f"option {end}{option}: {word}" in refusal({f"{end}{option}": value}, streaming=False)


def test_columns_are_chosen_in_the_order_of_the_option() -> None:
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "a", "COLUMNS": " offset, value "}
    assert read_options(given, streaming=False).columns == ("offset", "value")
    assert DefaultSource(given).schema().simpleString() == "struct<offset:bigint,value:binary>"


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("", "separated by commas"),
        ("value,", "separated by commas"),
        ("value,value", "name each column once"),
        ("value,Offset", "no column Offset, only key, value, topic"),
        ("headers", "set includeHeaders to true"),
        ("value,decodeError", "no column decodeError"),
    ],
)
def test_columns_that_no_row_has_are_refused(columns: str, message: str) -> None:
    given = {"kafka.bootstrap.servers": "h:1", "subscribe": "a", "columns": columns}
    with pytest.raises(UsageError, match=f"option columns: .*{message}"):
        DefaultSource(given).schema()


def test_option_names_ignore_case() -> None:
    options = read_options(
        {"KAFKA.bootstrap.SERVERS": "h:1", "SUBSCRIBE": "a, b,a", "MinPartitions": "3", "FAILONDATALOSS": "False"},
        streaming=True,
    )
    assert options.subscription.topics == ("a", "b")
    assert (options.min_partitions, options.fail_on_data_loss) == (3, False)
    assert options.kafka["bootstrap.servers"] == "h:1"


def test_one_timestamp_overrides_timestamps_per_partition_and_these_offsets() -> None:
    given = {**BASE, "startingOffsets": "earliest"}
    assert read_options(given, streaming=True).starting == Limit(policy="earliest")
    given["startingOffsetsByTimestamp"] = '{"t": {"0": 5, "1": 6}}'
    assert read_options(given, streaming=True).starting == Limit(timestamps={T0: 5, T1: 6})
    given["startingTimestamp"] = " 7 "
    assert read_options(given, streaming=True).starting == Limit(timestamp=7)


def test_stream_starts_at_latest_and_batch_at_earliest_by_default() -> None:
    assert read_options(BASE, streaming=True).starting.policy == "latest"
    batch = read_options(BASE, streaming=False)
    assert (batch.starting.policy, batch.ending.policy) == ("earliest", "latest")


def test_isolation_level_defaults_to_that_of_the_java_client() -> None:
    assert read_options(BASE, streaming=True).kafka["isolation.level"] == "read_uncommitted"
    given = {**BASE, "kafka.isolation.level": "read_committed"}
    assert read_options(given, streaming=True).kafka["isolation.level"] == "read_committed"


def test_group_is_the_given_one_or_the_prefix() -> None:
    assert read_options({**BASE, "groupIdPrefix": "team"}, streaming=True).group == "team"
    both = {**BASE, "groupIdPrefix": "team", "kafka.group.id": "own"}
    assert read_options(both, streaming=True).group == "own"
    warnings = read_options(both, streaming=True).warnings
    assert warnings == ("option groupIdPrefix is ignored, as option kafka.group.id is set",)


def test_delay_without_a_unit_is_in_milliseconds() -> None:
    assert read_options({**BASE, "maxTriggerDelay": "250"}, streaming=True).max_trigger_delay_seconds == 0.25
    assert read_options({**BASE, "maxTriggerDelay": "2h"}, streaming=True).max_trigger_delay_seconds == 7200
    assert read_options({**BASE, "maxTriggerDelay": "10min"}, streaming=True).max_trigger_delay_seconds == 600
    assert read_options(BASE, streaming=True).max_trigger_delay_seconds == 900


def test_options_without_effect_have_a_warning() -> None:
    given = {**BASE, "maxOffsetsPerTrigger": "5", "startingOffset": "earliest"}
    assert read_options(given, streaming=False).warnings == (
        "option maxOffsetsPerTrigger is ignored in batch queries",
        "option startingoffset is not known and is ignored",
    )
    assert read_options(BASE, streaming=True).warnings == ()


def test_settings_of_the_java_client_are_translated_or_refused_by_name() -> None:
    jaas = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="s3cret";'
    options = read_options({**BASE, "kafka.sasl.jaas.config": jaas}, streaming=True)
    assert (options.kafka["sasl.username"], options.kafka["sasl.password"]) == ("u", "s3cret")
    assert len(options.warnings) == 1 and "s3cret" not in options.warnings[0]
    assert "ssl.provider" in refusal({"kafka.ssl.provider": "x"})
    forced = read_options({**BASE, "kafka.check.crcs": "false", "kafka.enable.partition.eof": "true"}, streaming=True)
    assert [warning for warning in forced.warnings if "'check.crcs' is true, not false" in warning] == list(
        forced.warnings
    )
    assert not {"check.crcs", "enable.partition.eof"} & forced.kafka.keys()


@pytest.mark.parametrize("options", [{"kafka.fetch.min.bytes": "one"}, {"kafka.fetch.min.byte": "1"}])
def test_options_that_only_tasks_use_are_checked_when_the_query_is_planned(options: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match=next(iter(options)).removeprefix("kafka.")):
        Questions(read_options({**BASE, **options}, streaming=False))


def test_refused_streaming_query_raises_the_reason_in_its_first_call() -> None:
    """If the reader's constructor raises, PySpark hides the error behind an UnboundLocalError."""
    source = DefaultSource({**BASE, "endingOffsets": "latest"})
    reader = source.streamReader(source.schema())
    with pytest.raises(UsageError, match="ending offset not valid in streaming queries"):
        reader.initialOffset()


def test_repr_of_options_shows_no_secret() -> None:
    given = {**BASE, "kafka.sasl.password": "s3cret"}
    assert "s3cret" not in repr(read_options(given, streaming=True))
    check(given)


def test_catalog_describes_every_option_that_the_code_reads() -> None:
    """So every option is in docs/reference/options.md, which is written from the catalog."""
    code = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    read = re.findall(r'(?:flag|whole_number|seconds)\(\w+, "(\w[\w.]*)"', code)
    assert len(read) > 10
    assert {*read, "cursor", "progressGroup", "tracker", "topic", "mode"} - {*KNOWN, *OF_SINK} == set()


def test_each_option_is_described_once_per_table() -> None:
    for table in (catalog.READING, catalog.INTAKE, catalog.DECODING, catalog.WRITING):
        assert len({option.name for option in table}) == len(table)
        assert all(option.meaning and option.queries in ("both", "streaming", "batch") for option in table)
