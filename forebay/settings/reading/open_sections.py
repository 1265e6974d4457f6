"""Sections whose keys pass through: to librdkafka, to Spark, and to the stores' clients."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from forebay.settings import reference
from forebay.settings.reading.mistakes import Mistakes, shown
from forebay.settings.reading.similar import did_you_mean
from forebay.settings.schema.kafka import UNDOTTED_OPTIONS
from forebay.settings.schema.spark import FREQUENT_OPTIONS
from forebay.settings.schema.storage import SECRET_KEYS
from forebay.settings.stores import SCHEMES_WITH_OPTIONS, STORE_KINDS, has_text_options


def flat(table: Mapping[str, Any], keep: Collection[str] = (), prefix: str = "") -> dict[str, Any]:
    """Return ``table`` with nested tables joined by dots, since TOML reads an unquoted ``bootstrap.servers = …`` as a table.

    Tables of the keys in ``keep`` stay.
    """
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and not (not prefix and key in keep):
            found.update(flat(value, keep, f"{prefix}{key}."))
        else:
            found[prefix + key] = value
    return found


def split(section: str, table: Mapping[str, Any], mistakes: Mistakes) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the section's own keys of ``table``, and the options that pass through, as texts."""
    own_keys = reference.keys_by_section()[section]
    all_keys = flat(table, own_keys)
    own = {key: value for key, value in all_keys.items() if key in own_keys}
    options = {}
    for key, value in all_keys.items():
        if key in own_keys:
            continue
        if refusal := _REFUSALS[section](key, sorted(own_keys)):
            mistakes.add(f"{section}.{key}", refusal)
        elif (text := _text(value)) is None:
            mistakes.add(f"{section}.{key}", f'{section}."{key}" = {shown(value, key)}: {_TEXTS}')
        else:
            options[key] = text
    return own, options


def _refused_by_kafka(key: str, own_keys: list[str]) -> str:
    if "." in key or key in UNDOTTED_OPTIONS:
        return ""
    return (
        f"unknown key kafka.{key}; {did_you_mean(key, own_keys)}allowed are {', '.join(own_keys)} and librdkafka's own, as in "
        '"bootstrap.servers"'
    )


def _refused_by_spark(key: str, own_keys: list[str]) -> str:
    if key.startswith("spark."):
        return ""
    return (
        f"unknown key {key!r} in [spark]; {did_you_mean(key, [*own_keys, *FREQUENT_OPTIONS])}allowed are {', '.join(own_keys)} "
        'and Spark\'s own, as in "spark.master"'
    )


_REFUSALS = {"kafka": _refused_by_kafka, "spark": _refused_by_spark}
_TEXTS = "write a text, a number, true, false or a list of them"


def _text(value: Any) -> str | None:
    """Return a value as librdkafka, Spark and Hadoop want it, or None if they can't take it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int, float)):
        return str(value)
    if isinstance(value, list):
        parts = [part for item in value if (part := _text(item)) is not None]
        return ",".join(parts) if len(parts) == len(value) else None
    return None


def storage(table: Mapping[str, Any], mistakes: Mistakes) -> dict[str, dict[str, Any]]:
    """Return the options of the stores' clients: as texts for Hadoop, as TOML gives them for the others."""
    found: dict[str, dict[str, Any]] = {}
    for scheme, options in table.items():
        key = f"storage.{scheme}"
        if scheme not in SCHEMES_WITH_OPTIONS:
            known = ", ".join(f"[storage.{name}]" for name in SCHEMES_WITH_OPTIONS)
            mistakes.add(
                key, f"unknown section [{key}]; {did_you_mean(scheme, SCHEMES_WITH_OPTIONS)}allowed are {known}"
            )
        elif not isinstance(options, Mapping):
            mistakes.add(key, f"{key} is not a section: write [{key}]")
        else:
            found[scheme] = _store_options(scheme, options, mistakes)
    return found


def _store_options(scheme: str, options: Mapping[str, Any], mistakes: Mistakes) -> dict[str, Any]:
    texts: dict[str, Any] = {}
    for key, value in flat(options).items():
        path = f"storage.{scheme}.{key}"
        kind = STORE_KINDS[scheme]
        is_way = isinstance(value, str) and value in kind.ways.get(key, ())
        if key.rpartition(".")[2].lower() in SECRET_KEYS and not is_way:
            mistakes.add(
                path, f"{path}: secrets don't belong in this file; the client finds them elsewhere: {kind.credentials}"
            )
        elif has_text_options(scheme):
            if (text := _text(value)) is None:
                mistakes.add(path, f'storage.{scheme}."{key}" = {shown(value, key)}: {_TEXTS}')
            else:
                texts[key] = text
    return texts if has_text_options(scheme) else dict(options)
