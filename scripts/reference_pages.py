"""Writes docs/reference from the code: commands, options of ``format("forebay")``, and the classes that users call.

python scripts/reference_pages.py
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import command_reference
import msgspec
import python_reference

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the packages of this tree

from driver.listeners import events
from pyspark_forebay.options import catalog

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "reference"
_RUN = ".venv/bin/python scripts/reference_pages.py"


class Page(NamedTuple):
    """One page: its file, title, introduction, and what makes the rest of it."""

    file: str
    title: str
    introduction: str
    body: Callable[[], str]

    @property
    def path(self) -> Path:
        return FOLDER / self.file

    def text(self) -> str:
        return f"# {self.title}\n\n{self.introduction.strip()}\n\n{self.body().strip()}\n"


class Api(NamedTuple):
    """The public names of a package: ``names``, or all of ``__all__``. ``received``: classes that users never make objects of."""

    package: str
    names: tuple[str, ...] = ()
    received: tuple[str, ...] = ()

    def values(self) -> Iterator[tuple[str, object]]:
        module = importlib.import_module(self.package)
        for name in self.names or module.__all__:
            yield name, getattr(module, name)

    def body(self) -> str:
        return "\n".join(
            part
            for name, value in self.values()
            for part in python_reference.value_section(name, value, made_by_users=name not in self.received)
        )


BATCH = Api("driver", ("Batch", "KafkaRecord", "KeyedState"), received=("Batch", "KafkaRecord", "KeyedState"))
CONTEXT = Api("driver", ("IngestContext",))
OUTPUTS = Api("driver.outputs")
SOURCES = Api("forebay.sources")
CLIENT = Api("forebay.client", received=("Event",))
DIRECT = Api("direct", received=("DirectBatch", "DirectStream", "KafkaRDD", "KafkaRecord", "StreamMetrics"))


def events_body() -> str:
    """Return a table of all events, and the fields of each."""
    rows = ["| kind | class | method of `Listener` |", "| --- | --- | --- |"]
    rows += [
        f"| `{kind.__struct_config__.tag}` | [`{kind.__name__}`](#{kind.__name__.lower()}) | `{method}` |"
        for kind, method in events.METHODS.items()
    ]
    parts = ["\n".join(rows) + "\n", "## Listener\n", python_reference.markdown(events.Listener.__doc__ or "") + "\n"]
    parts += ["## Fields of several events\n", python_reference.markdown(events._Happened.__doc__ or "") + "\n"]
    for kind in events.METHODS:
        parts += python_reference.class_section(kind.__name__, kind, made_by_users=False)
    return "\n".join(parts)


def options_body() -> str:
    """Return the tables of options."""
    parts = []
    for title, about, options in (
        (
            "Reading",
            "Options of queries that read Kafka itself. They also apply [over an intake](#over-an-intake).",
            catalog.READING,
        ),
        (
            "Over an intake",
            "With `tracker`, a query reads [an intake](../STREAMING.md#over-an-intake) instead of Kafka. Then the address of the "
            "brokers is not required, and without `subscribe` the query reads all topics of the intake.",
            catalog.INTAKE,
        ),
        (
            "Keys and values as columns",
            "With `keyFormat` or `valueFormat`, the query [decodes](../STREAMING.md#keys-and-values-as-columns) keys or values.",
            catalog.DECODING,
        ),
        ("Writing", "Options of queries that [write](../STREAMING.md#writing).", catalog.WRITING),
    ):
        rows = ["| option | queries | default | meaning |", "| --- | --- | --- | --- |"]
        rows += [
            f"| `{option.name}` | {option.queries} | {_default(option.default)} | {option.meaning.replace('|', chr(92) + '|')} |"
            for option in options
        ]
        parts.append(f"## {title}\n\n{about}\n\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _default(default: str) -> str:
    if not default:
        return "unset"
    return default if default == catalog.REQUIRED else f"`{default}`"


PAGES = (
    Page(
        "commands.md", "Commands",
        "Every command of `forebay`, with its options. `forebay COMMAND --help` prints the same text. Data goes to stdout, "
        "messages to stderr. [Start, stop and drain](../operations/start.md#exit-codes) explains the exit codes.",
        command_reference.page,
    ),
    Page(
        "batch.md", "Batch",
        "What a job gets: `def process(batch): …`. Import it with `from driver import Batch` for type annotations. "
        "[A failing job and bad records](../operations/failing-job.md) says what happens when a job raises.",
        BATCH.body,
    ),
    Page(
        "ingest-context.md", "IngestContext",
        "A stream's driver inside your own program. Import it with `from driver import IngestContext`. Receivers and agents run "
        "beside it, as they do with `forebay driver`.",
        CONTEXT.body,
    ),
    Page(
        "client.md", "Python client",
        "A typed client of a running stream: the names of the package `forebay.client`. The answers are the messages of the "
        "[HTTP API](../HTTP.md#messages), as classes of `forebay.messages`.",
        CLIENT.body,
    ),
    Page(
        "events.md", "Events",
        "What listeners and the web hook receive. [Get events as they happen](../operations/status.md#get-events-as-they-happen) "
        "says how to register them. Import the classes from `driver.listeners`.",
        events_body,
    ),
    Page(
        "options.md", "Options of format(\"forebay\")",
        "[Structured Streaming](../STREAMING.md) explains how to use them. Names are matched without regard to case. An unknown "
        "option has no effect, as in Spark, but a warning in the log names it. In the column *queries*, *both* means batch and "
        "streaming queries.",
        options_body,
    ),
    Page(
        "direct.md", "Direct streams and batch RDDs",
        "The names of the package `direct`. [Without receivers](../DIRECT.md) explains how to use them.",
        DIRECT.body,
    ),
    Page(
        "outputs.md", "Output helpers",
        "The names of the package `driver.outputs`. [Outputs](../OUTPUTS.md) explains how to use them.",
        OUTPUTS.body,
    ),
    Page(
        "sources.md", "Base classes of custom sources",
        "The names of the package `forebay.sources`. [Custom sources](../SOURCES.md) explains how to write one.",
        SOURCES.body,
    ),
)  # fmt: skip


def undocumented() -> Iterator[str]:
    """Yield each public name, field, command or option without a description."""
    yield from command_reference.undocumented()
    for api in (BATCH, CLIENT, CONTEXT, OUTPUTS, SOURCES, DIRECT):
        for name, value in api.values():
            yield from (f"{api.package}.{found}" for found in python_reference.undocumented(name, value))
    for kind in events.METHODS:
        described = described_fields(kind)
        if not python_reference.own_docstring(kind):
            yield f"driver.listeners.{kind.__name__}"
        for field in msgspec.structs.fields(kind):
            if f"``{field.name}``" not in described:
                yield f"driver.listeners.{kind.__name__}.{field.name}"


def described_fields(kind: type[object]) -> str:
    """Return the docstrings that may describe an event's fields: its own, that of all events, and of classes it refers to."""
    own = kind.__doc__ or ""
    others = [getattr(events, name).__doc__ or "" for name in re.findall(r":class:`(\w+)`", own)]
    return " ".join((own, events._Happened.__doc__ or "", *others))


def problems() -> list[str]:
    """Return what is wrong with the generated pages; [] if they are what the code says and describe every public name."""
    missing = [f"{name}: a public name without a description" for name in undocumented()]
    stale = [
        f"docs/reference/{page.file} is not what the code says: run {_RUN}"
        for page in PAGES
        if not page.path.is_file() or page.path.read_text(encoding="utf-8") != page.text()
    ]
    return missing + stale


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for page in PAGES:
        page.path.write_text(page.text(), encoding="utf-8")
    sys.exit(0)
