"""Conversion of a file's values to :class:`Settings`, key by key, so that one mistake hides no other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from forebay.settings import data_folder, open_sections, reference
from forebay.settings.fitting import UnfitError, fitted
from forebay.settings.mistakes import Mistakes, shown
from forebay.settings.reference import OPTIONS, REQUIRED, Key
from forebay.settings.schema import LoadedSettings
from forebay.settings.similar import did_you_mean

#: stands for a required key that is missing or wrong; no rule reads it
_PLACEHOLDER = ""
_MISSING = "the section [{}] is missing"


def converted(raw: Mapping[str, Any], mistakes: Mistakes) -> LoadedSettings:
    """Return ``raw``, as TOML gives it, as settings, and add to ``mistakes`` the keys and sections that do not fit.

    A key that does not fit has its default in the result, a required one an empty text.
    """
    _refuse_unknown("", raw, [*reference.keys_by_section()[""], *reference.sections()], mistakes)
    raw = data_folder.filled(raw, mistakes.variables)
    storage = raw.get("storage")
    if isinstance(storage, Mapping):
        raw = {**raw, "storage": open_sections.storage(storage, mistakes)}
    values = _values("", raw, mistakes)
    for name in reference.sections():
        table = raw.get(name, {})
        if name not in raw and name in reference.required_sections():
            mistakes.add(name, _MISSING.format(name) + data_folder.hint(name))
            table = None
        elif not isinstance(table, Mapping):
            mistakes.add_value(name, table, f"is not a section: write [{name}] and its keys below it")
            table = None
        values[name] = _section(name, table, mistakes)
    settings = LoadedSettings(**values, origins={key: mistakes.origin(key) for key in _written(raw)})
    if "kafka" not in raw and not settings.custom_source and not mistakes.concern("receiver.source"):
        mistakes.add("kafka", _MISSING.format("kafka"))
    return settings


def _written(raw: Mapping[str, Any]) -> Iterator[str]:
    """Yield the path of every key that ``raw`` sets."""
    for name, value in raw.items():
        if not isinstance(value, Mapping) or name not in {*reference.sections(), "storage"}:
            yield name
            continue
        keep = reference.keys_by_section().get(name, {})
        yield from (f"{name}.{key}" for key in open_sections.flat(value, keep))


def _section(name: str, table: Mapping[str, Any] | None, mistakes: Mistakes) -> Any:
    """Return the section that ``table`` gives. None: one that is missing or wrong as a whole, with no further mistakes."""
    section = reference.sections()[name]
    if table is None:
        return section(
            **{key.name: _PLACEHOLDER for key in reference.keys_by_section()[name].values() if key.default is REQUIRED}
        )
    options = {}
    if reference.is_open(name):
        table, options[OPTIONS] = open_sections.split(name, table, mistakes)
    else:
        _refuse_unknown(name, table, [*reference.keys_by_section()[name]], mistakes)
    return section(**_values(name, table, mistakes), **options)


def _refuse_unknown(section: str, table: Mapping[str, Any], known: list[str], mistakes: Mistakes) -> None:
    for name in table:
        if name not in known:
            path = f"{section}.{name}" if section else name
            mistakes.add(path, f"unknown key {path}; {did_you_mean(name, known)}allowed are {', '.join(sorted(known))}")


def _values(section: str, table: Mapping[str, Any], mistakes: Mistakes) -> dict[str, Any]:
    """Return the values of the section's keys that are in ``table``."""
    values = {}
    for key in reference.keys_by_section()[section].values():
        if key.name in table:
            try:
                values[key.name] = fitted(key, _toml_value(key, table[key.name]))
                continue
            except UnfitError as error:
                mistakes.add(key.path, _sentence(key, error))
        elif key.default is REQUIRED:
            hint = data_folder.hint(key.path)
            mistakes.add(key.path, f"the key {key.path} is missing ({key.description}){hint}")
        if key.default is REQUIRED:
            values[key.name] = _PLACEHOLDER
    return values


def _sentence(key: Key, error: UnfitError) -> str:
    if key.path == "storage":
        return f"storage = {shown(error.value)}: is not a section: write [storage.SCHEME] and its keys below it"
    value = "" if error.secret else f" = {shown(error.value)}"
    return f"{key.path}{value}: {error.words} ({key.description})"


def _toml_value(key: Key, value: Any) -> Any:
    """Return ``value``; as kafka.starting_offsets, with a ``timestamp`` in milliseconds if TOML gives a date and time."""
    if key.path != "kafka.starting_offsets" or not isinstance(value, Mapping):
        return value
    if not isinstance(moment := value.get("timestamp"), datetime):
        return value
    if moment.tzinfo is None:
        raise UnfitError(value, "write the timestamp with its time zone")
    return {**value, "timestamp": int(moment.timestamp() * 1000)}
