"""docs/MIGRATION.md names only things that exist, and all options."""

from __future__ import annotations

import functools
import inspect
import re
import zipfile
from pathlib import Path

import msgspec
import pyspark

import direct
from driver import context
from driver.listeners import events
from forebay.kafka.consume.planning import PartitionRates
from forebay.kafka.consume.range_reader import Reading
from forebay.settings.schema import Settings
from pyspark_forebay import DefaultSource, progress
from pyspark_forebay.options.source import KNOWN
from pyspark_forebay.sink.options import KNOWN as OF_SINK
from tests.conftest import missing
from tests.support.spark.jvm_spark import CONNECTOR, require_jvm_spark

PAGE = (Path(__file__).parents[2] / "docs" / "MIGRATION.md").read_text()


def rows_of(title: str = "") -> list[list[str]]:
    """The cells of the tables below a heading, or of all."""
    text = PAGE.partition(title)[2].partition("\n## ")[0] if title else PAGE
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    return [[cell.strip() for cell in line.strip("|\n").split(" | ")] for line in lines]


ROWS = rows_of()
#: of the source and of the sink
OPTIONS = {*KNOWN, *OF_SINK}
NAMES = set(re.findall(r"`([^`]+)`", PAGE))


def keys() -> set[str]:
    return {
        f"{section.name}.{own.name}"
        for section in msgspec.structs.fields(Settings)
        if isinstance(section.type, type) and issubclass(section.type, msgspec.Struct)
        for own in msgspec.structs.fields(section.type)
    }


def test_page_names_each_option_of_the_source() -> None:
    assert set(KNOWN) - NAMES == set()


#: options of spark-protobuf
OF_PROTOBUF = {"emit.default.values", "convert.any.fields.to.json", "recursive.fields.max.depth"}


@functools.cache
def text_of_spark() -> str:
    """What the classes of the connector and of receivers hold as text, as far as PySpark and the connector's jars bring
    them."""
    require_jvm_spark(missing)
    folder = Path(pyspark.__file__).parent / "jars"
    jars = [*CONNECTOR.folder().glob("spark-*.jar"), *folder.glob("spark-core_*"), *folder.glob("spark-streaming_*")]
    packages = r"org/apache/spark/(sql/kafka010|kafka010|streaming|internal/config)/.*\.class"
    wanted = re.compile(packages + r"|.*/Spark(Conf|Env)\$?\.class")
    found = []
    for jar in jars:
        with zipfile.ZipFile(jar) as opened:
            found += [opened.read(name) for name in opened.namelist() if wanted.fullmatch(name)]
    return b"\n".join(found).decode("latin-1")


def test_names_of_spark_on_the_page_exist_in_spark() -> None:
    """Except `spark.streaming.kafka.*` and options of Protobuf, whose jars are not installed, and names of Kafka and of
    Spark's API."""
    named = {name for row in ROWS for name in re.findall(r"`([^`]+)`", row[0])}
    settings = {name.removesuffix(".*") for name in named if name.startswith("spark.")}
    settings = {name for name in settings if not name.startswith("spark.streaming.kafka.")} - {"spark.kafka.clusters"}
    own = PAGE.partition("## The Kafka source")[2]
    firsts = (line.split(" | ")[0] for line in own.splitlines() if line.startswith("| `"))
    options = {name.lower() for first in firsts for name in re.findall("`([A-Za-z.]+)`", first)} - {
        "kafka.group.id",
        *OF_PROTOBUF,
    }
    assert len(settings) > 30 and len(options) > 20
    names = text_of_spark()
    assert {name for name in settings if name not in names} == set()
    assert {name for name in options if name not in names.lower()} == set()


def test_settings_on_the_page_exist() -> None:
    sections = {key.partition(".")[0] for key in keys()} - {"kafka", "spark"}  # prefixes of Spark's options
    named = {name for name in NAMES if re.fullmatch(r"[a-z]+\.[a-z_]+", name) and name.partition(".")[0] in sections}
    assert len(named) > 20
    assert named - keys() == set()


def test_names_of_direct_streams_on_the_page_exist() -> None:
    owners = {
        "StreamSettings": direct.StreamSettings, "PartitionRates": PartitionRates, "Reading": Reading,
        "DirectBatch": direct.DirectBatch,
    }  # fmt: skip
    named = {name for name in NAMES if name.partition(".")[0] in owners}
    for name in named:
        owner, _, own = name.partition(".")
        assert owner in direct.__all__
        assert not own or hasattr(owners[owner], own), name
    assert {f"StreamSettings.{name}" for name in ("checkpoint", "backpressure", "initial_rate")} <= named


def of_ours(name: str) -> bool:
    """Whether ``name`` is a setting, an option of ``format("forebay")``, a name or parameter of direct streams or of
    listeners, a function of ``pyspark_forebay.progress``, or a command."""
    if name == 'format("forebay")':
        return name.split('"')[1] == DefaultSource.name()
    if name.startswith("progress."):
        return hasattr(progress, name.removeprefix("progress."))
    if name.startswith("forebay "):
        return True  # scripts/check_docs.py checks commands
    name = name.removeprefix("direct.")
    owner, _, own = name.partition(".")
    calls = (direct.create_direct_stream, direct.create_rdd, direct.StreamSettings, direct.Assign)
    parameters = {parameter for call in calls for parameter in inspect.signature(call).parameters}
    return (
        name in keys()
        or name in OPTIONS
        or (owner in direct.__all__ and (not own or hasattr(getattr(direct, owner), own)))
        or name in parameters
        or name in names_of_listeners()
        or isinstance(getattr(context, name, None), type)
    )


def names_of_listeners() -> set[str]:
    """The methods of listeners, and the events with their fields."""
    made = [own for own in vars(events).values() if isinstance(own, type) and issubclass(own, msgspec.Struct)]
    fields = {field.name for own in made for field in msgspec.structs.fields(own)}
    return {*vars(events.Listener), *(own.__name__ for own in made), *fields}


def test_names_in_the_second_column_exist() -> None:
    """The second column is what a reader writes instead of Spark's name."""
    named = {name for row in ROWS for name in re.findall(r"`([^`]+)`", row[1])}
    assert len(named) > 60
    assert {name for name in named if not of_ours(name)} == set()


def test_options_marked_as_the_same_are_accepted() -> None:
    rows = [row for row in rows_of("## The Kafka source of Structured Streaming") if row[1] == "the same"]
    options = {name for row in rows for name in re.findall(r"`([^`]+)`", row[0])}
    assert len(options) > 20
    assert {name for name in options if not name.startswith("kafka.")} - OPTIONS == set()


def test_each_row_names_an_equivalent_or_none() -> None:
    for row in ROWS:
        assert len(row) == 3 and row[0] and row[1], row
        if row[1] == "none":
            assert row[2], f"{row[0]}: without a reason"
