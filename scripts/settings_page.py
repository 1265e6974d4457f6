"""Writes docs/SETTINGS.md and deploy/examples/one-machine.toml from the types, defaults and descriptions of the schema."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.inspect import (
    BoolType,
    CustomType,
    DictType,
    FloatType,
    IntType,
    LiteralType,
    Metadata,
    NoneType,
    StrType,
    Type,
    UnionType,
    VarTupleType,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the packages of this tree

from forebay.model.units import Duration, Size
from forebay.settings import reference
from forebay.settings.reference import REQUIRED, Key
from forebay.settings.schema import Settings
from forebay.settings.toml_text import toml_text

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "SETTINGS.md"
EXAMPLE = ROOT / "deploy" / "examples" / "one-machine.toml"

PAGE_HEAD = """\
# Settings

Every key of `forebay.toml`. `scripts/settings_page.py` writes this page from `forebay/settings/schema/`. To change a key, its
default or its meaning, change it there.

- The file is the first of: `--config FILE`, `$FOREBAY_CONFIG`, `./forebay.toml`, `/etc/forebay/forebay.toml`.
- An environment variable overrides a key: `FOREBAY__RECEIVER__BLOCK_INTERVAL=1s`. Commas separate the items of a list.
  An empty text unsets a key whose default is "unset".
- A **duration** is a text with a unit: `"200ms"`, `"1s"`, `"5m"`, `"1h"`, `"7d"`. A **size** likewise: `"64MB"` is
  64,000,000 bytes, `"64MiB"` is 67,108,864.
- `forebay validate` checks a file and names each wrong key, its value and what is allowed.

[one-machine.toml](../deploy/examples/one-machine.toml) is a file to start from;
[Size, tune, limit](operations/tuning.md) says when to change what.
"""

EXAMPLE_HEAD = """\
# One machine: `forebay --config one-machine.toml up` runs the driver, the agent and the receivers, and restarts those that end.
# This file lists every key. A key after a # has the default that it shows, or none: remove the # to change it.
# Durations and sizes have units: "200ms", "64MB". An environment variable overrides a key: FOREBAY__RECEIVER__BLOCK_INTERVAL=1s
# scripts/settings_page.py writes this file from forebay/settings/schema/; docs/SETTINGS.md shows the same keys as tables.
"""

#: what one-machine.toml sets; options that pass through have no description but the comment here
EXAMPLE_VALUES: dict[str, object] = {
    "stream": "orders",
    "kafka.topics": ["orders"],
    "wal.url": "file:///var/lib/forebay/wal",
    "receiver.count": 2,
    "driver.journal": "file:///var/lib/forebay/journal",
    "driver.job": "jobs:process",
    "agent.blocks": "/var/lib/forebay/blocks",
    "dead_letters.url": "file:///var/lib/forebay/dead-letters",
}
EXAMPLE_OPTIONS = {
    "kafka": ("addresses of the brokers", '"bootstrap.servers" = "127.0.0.1:9092"'),
    "spark": ("where Spark runs", '"spark.master" = "local[2]"'),
}
_EXAMPLE_WIDTH = 120


class Row(NamedTuple):
    """One row of the page. ``section`` is "" for a key above the first section; ``default`` is as TOML writes it."""

    section: str
    key: str
    type: str
    default: str
    meaning: str


def rows() -> Iterator[Row]:
    """Every key, in the order of the schema."""
    for section, keys in reference.keys_by_section().items():
        for key in keys.values():
            meaning = key.description[:1].upper() + key.description[1:]
            yield Row(section, key.name, _type(key, key.type), _default(key), meaning)


def _default(key: Key) -> str:
    if key.default is REQUIRED:
        return "required"
    return "unset" if key.default is None else f"`{toml_text(key.default)}`"


def _type(key: Key, kind: Type) -> str:
    """Return the type of a key as text, with its bounds."""
    match kind:
        case Metadata(type=inner, extra=extra):
            text = _type(key, inner)
            least = (extra or {}).get("least")
            text = f"{text}, at least `{toml_text(least)}`" if least is not None and least > 1 else text
            return f"{text} above 0" if extra and ("positive" in extra or least == 1) else text
        case UnionType(types=members):
            return " or ".join(_type(key, member) for member in members if not isinstance(member, NoneType))
        case LiteralType():
            return ", ".join(f"`{toml_text(choice)}`" for choice in key.choices)
        case IntType(ge=least, le=most):
            return f"whole number{_bounds(least, most)}"
        case FloatType(ge=least, le=most):
            return f"number{_bounds(least, most)}"
        case VarTupleType(item_type=inner):
            return f"list of {_type(key, inner)}s"
        case CustomType(cls=cls) if cls is Duration:
            return "duration"
        case CustomType(cls=cls) if cls is Size:
            return "size"
        case BoolType():
            return "true or false"
        case StrType():
            return "text"
        case DictType():
            return "table"
    raise TypeError(f"{key.path}: no setting has type {kind}")


def _bounds(least: float | None, most: float | None) -> str:
    if most is not None:
        return f" from {least} to {most}"
    return f", at least {least}"


def page() -> str:
    """Return the whole page."""
    parts = [PAGE_HEAD]
    for section in reference.keys_by_section():
        title = f"[{section}]" if section else "Top level"
        parts.append(
            f"\n## {title}\n\n{_about(section)}\n\n| key | type | default | meaning |\n| --- | --- | --- | --- |\n"
        )
        for row in rows():
            if row.section == section:
                name = f"{section}.{row.key}" if section else row.key
                parts.append(f"| `{name}` | {row.type} | {row.default} | {row.meaning} |\n")
    return "".join(parts)


def example() -> str:
    """Return the whole file one-machine.toml."""
    parts = [EXAMPLE_HEAD]
    for section, keys in reference.keys_by_section().items():
        if section:
            parts.append(f"\n\n{_comment(_about(section))}[{section}]\n")
        parts += [f"\n{_comment(f'{key.description}.')}{_example_line(key)}\n" for key in keys.values()]
        if section in EXAMPLE_OPTIONS:
            text, line = EXAMPLE_OPTIONS[section]
            parts.append(f"\n{_comment(f'{text}.')}{line}\n")
    return "".join(parts)


def _example_line(key: Key) -> str:
    if key.path in EXAMPLE_VALUES:
        return f"{key.name} = {toml_text(EXAMPLE_VALUES[key.path])}"
    shown = key.example if key.default is None else key.default
    return f"#{key.name} = {toml_text(shown)}"


def _comment(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return (
        textwrap.fill(text, _EXAMPLE_WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False) + "\n"
    )


def _about(section: str) -> str:
    """Return the first paragraph of a section's docstring."""
    documented: Any = reference.sections()[section] if section else Settings
    return " ".join((documented.__doc__ or "").partition("\n\n")[0].split())


def problems() -> list[str]:
    """Return what is wrong with the generated files; [] if they are what the schema says."""
    keys = [key for keys in reference.keys_by_section().values() for key in keys.values()]
    if missing := [key.path for key in keys if not key.description]:
        return [f"forebay/settings/schema: without a description: {', '.join(missing)}"]
    if missing := [key.path for key in keys if key.default is None and key.example is None]:
        return [f"forebay/settings/schema: without a default and without an example: {', '.join(missing)}"]
    return [
        f"{path.name} is not what forebay/settings/schema says: run .venv/bin/python scripts/settings_page.py"
        for path, wanted in ((PAGE, page()), (EXAMPLE, example()))
        if not path.is_file() or path.read_text(encoding="utf-8") != wanted
    ]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    EXAMPLE.write_text(example(), encoding="utf-8")
    sys.exit(0)
