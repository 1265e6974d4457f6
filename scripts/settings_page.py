"""Writes docs/SETTINGS.md from the fields of ``forebay.settings.schema`` and the comment of each."""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

import forebay.settings.schema
from forebay.model.units import Duration, Size
from forebay.settings.schema import Section, Settings

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "SETTINGS.md"

#: units as a setting is written, the largest first
_DURATION_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))
_SIZE_UNITS = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("KB", 10**3), ("B", 1))
_TYPES: dict[object, str] = {
    Duration: "duration",
    Size: "size",
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    tuple: "list of texts",
    dict: "table",
}

HEAD = """\
# Settings

Every key of `forebay.toml`. `scripts/settings_page.py` writes this page from `forebay/settings/schema.py`; change a key, its
default or its meaning there.

- The file is the first of: `--config FILE`, `$FOREBAY_CONFIG`, `./forebay.toml`, `/etc/forebay/forebay.toml`.
- An environment variable overrides a key: `FOREBAY__RECEIVER__BLOCK_INTERVAL=1s`. A list is split by commas,
  and an empty text unsets a key whose default is "unset".
- A **duration** is a text with a unit: `"200ms"`, `"1s"`, `"5m"`, `"1h"`, `"7d"`. A **size** likewise: `"64MB"` is
  64,000,000 bytes, `"64MiB"` is 67,108,864.
- `forebay validate` checks a file and names the key, its value and what is allowed.

[one-machine.toml](../deploy/examples/one-machine.toml) is a file to start from;
[Size, tune, limit](operations/tuning.md) says when to change what.
"""

SECTIONS = {
    "": "Keys above the first section.",
    "kafka": "Source of the records. Other keys go to librdkafka unchanged, as in `\"bootstrap.servers\" = \"broker:9092\"`.",
    "wal": "The durable log of what was taken in.",
    "receiver": "The processes that read Kafka.",
    "driver": "The process that decides, and runs the job.",
    "agent": "The process of each host that serves its local copies of blocks, and runs managed receivers.",
    "spark": "Every other key goes to Spark unchanged, as in `\"spark.master\" = \"local[2]\"`.",
    "dead_letters": "Records that the job can't decode. Without a place for them they fail their batch.",
    "security": "Tokens, certificates, and the limits of each service.",
}  # fmt: skip


class Setting(NamedTuple):
    """``section`` is "" for a key above the first section; ``default`` is as TOML writes it."""

    section: str
    key: str
    type: str
    default: str
    meaning: str


def settings() -> Iterator[Setting]:
    """Every key, in the order of the code; ``options`` stands for the keys that pass through, which no key is named for."""
    comments = _comments()
    for name, hint in get_type_hints(Settings).items():
        if isinstance(hint, type) and issubclass(hint, Section):
            hints = get_type_hints(hint)
            for field in msgspec.structs.fields(hint):
                if field.name != "options":
                    yield _setting(name, field, hints[field.name], comments[hint.__name__, field.name])
    fields = {field.name: field for field in msgspec.structs.fields(Settings)}
    for name, hint in get_type_hints(Settings).items():
        if not (isinstance(hint, type) and issubclass(hint, Section)):
            yield _setting("", fields[name], hint, comments["Settings", name])


def _setting(section: str, field: msgspec.structs.FieldInfo, hint: Any, meaning: str) -> Setting:
    if field.default is not msgspec.NODEFAULT:
        default = "unset" if field.default is None else f"`{_toml(field.default, _kinds(hint))}`"
    elif field.default_factory is not msgspec.NODEFAULT:
        default = f"`{_toml(field.default_factory(), _kinds(hint))}`"
    else:
        default = "required"
    words = " or ".join(dict.fromkeys(_type(kind) for kind in _kinds(hint)))
    return Setting(section, field.name, words, default, meaning[:1].upper() + meaning[1:])


def _kinds(hint: Any) -> list[Any]:
    """The types that a value may have, None left out."""
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return [kind for kind in kinds if kind is not type(None)]


def _type(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return ", ".join(f'`"{choice}"`' for choice in get_args(kind))
    return _TYPES[get_origin(kind) or kind]


def _toml(value: Any, kinds: list[Any]) -> str:
    if Duration in kinds:
        return f'"{_in_units(round(value * 1000), _DURATION_UNITS, "0s")}"'
    if Size in kinds:
        return f'"{_in_units(int(value), _SIZE_UNITS, "0B")}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, dict)):
        if value:
            raise ValueError(f"a default that is not empty: {value}")
        return "[]" if isinstance(value, tuple) else "{}"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _in_units(amount: int, units: tuple[tuple[str, int], ...], nothing: str) -> str:
    return next((f"{amount // size}{unit}" for unit, size in units if amount and amount % size == 0), nothing)


def _comments() -> dict[tuple[str, str], str]:
    """Class and field → its comment: behind it, or in ``#:`` lines above it."""
    path = Path(forebay.settings.schema.__file__)
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    found = {}
    for node in ast.parse(text).body:
        for field in node.body if isinstance(node, ast.ClassDef) else ():
            if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
                continue
            assert isinstance(node, ast.ClassDef) and field.end_lineno is not None
            behind = lines[field.end_lineno - 1][field.end_col_offset :].strip()
            above: list[str] = []
            at = field.lineno - 2
            while not behind and lines[at].strip().startswith("#:"):
                above.insert(0, lines[at].strip()[2:].strip())
                at -= 1
            found[node.name, field.target.id] = behind.lstrip("# ") or " ".join(above)
    return found


def page() -> str:
    """The whole page. Raises ValueError if a key has no comment."""
    rows = list(settings())
    if missing := [f"{row.section}.{row.key}" for row in rows if not row.meaning]:
        raise ValueError(f"forebay/settings/schema.py: without a comment that says what it means: {', '.join(missing)}")
    parts = [HEAD]
    for section, words in SECTIONS.items():
        title = f"[{section}]" if section else "Top level"
        parts.append(f"\n## {title}\n\n{words}\n\n| key | type | default | meaning |\n| --- | --- | --- | --- |\n")
        for row in rows:
            if row.section == section:
                name = f"{section}.{row.key}" if section else row.key
                parts.append(f"| `{name}` | {row.type} | {row.default} | {row.meaning} |\n")
    if forgotten := {row.section for row in rows} - SECTIONS.keys():
        raise ValueError(f"scripts/settings_page.py: no words for the sections {sorted(forgotten)}")
    return "".join(parts)


def problems() -> list[str]:
    """What is wrong with the page as it is; none if it is what the code says."""
    try:
        wanted = page()
    except ValueError as error:
        return [str(error)]
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == wanted:
        return []
    return [
        "docs/SETTINGS.md is not what forebay/settings/schema.py says: run .venv/bin/python scripts/settings_page.py"
    ]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.exit(0)
