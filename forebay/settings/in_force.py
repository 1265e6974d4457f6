"""The settings in force, each with its origin and without secrets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from forebay.model.units import Duration, Size
from forebay.settings import reference
from forebay.settings.reading.open_sections import flat
from forebay.settings.redaction import HIDDEN, shown_value
from forebay.settings.reference import OPTIONS
from forebay.settings.schema import LoadedSettings, Settings
from forebay.settings.toml_text import toml_text

#: origin of a key that neither the file nor the environment sets
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class SettingInForce:
    """One setting.

    ``value``: as in ``forebay.toml`` (durations and sizes are texts); None if unset, HIDDEN for what can be a secret. ``origin``:
    DEFAULT, the name of the file, or the name of the environment variable. ``description``: "" for a pass-through option.
    """

    key: str
    value: Any
    origin: str
    description: str = ""


def in_force(settings: Settings) -> Iterator[SettingInForce]:
    """Yield every setting in the order of docs/SETTINGS.md; pass-through options follow the keys of their section."""
    origins = settings.origins if isinstance(settings, LoadedSettings) else {}
    for section, keys in reference.keys_by_section().items():
        holder = getattr(settings, section) if section else settings
        for key in keys.values():
            if key.path == "storage":
                continue
            value = getattr(holder, key.name)
            shown = HIDDEN if value is not None and key.is_secret else shown_value("", _as_in_toml(value))
            yield SettingInForce(key.path, shown, origins.get(key.path, DEFAULT), key.description)
        if section and reference.is_open(section):
            yield from _options(section, getattr(holder, OPTIONS), origins)
    for scheme, options in settings.storage.items():
        yield from _options(f"storage.{scheme}", flat(options), origins)


def _options(section: str, options: dict[str, Any], origins: dict[str, str]) -> Iterator[SettingInForce]:
    for name, value in sorted(options.items()):
        path = f"{section}.{name}"
        yield SettingInForce(path, shown_value(name, value), origins.get(path, DEFAULT))


def _as_in_toml(value: Any) -> Any:
    if isinstance(value, (Duration, Size)):
        return toml_text(value).strip('"')
    if isinstance(value, tuple):
        return [_as_in_toml(item) for item in value]
    if isinstance(value, dict):
        return {key: _as_in_toml(of) for key, of in value.items()}
    return value
