"""Every mistake in a configuration, not only the first one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from forebay.model.errors import SettingsError

#: required keys, and a value that is right: what is wrong or missing there is named once, and the others are still checked
_RIGHT: dict[str, Any] = {
    "stream": "stream",
    "kafka": {"topics": ["topic"], "bootstrap.servers": "broker"},
    "kafka.topics": ["topic"],
    "kafka.bootstrap.servers": "broker",
    "wal": {"url": "memory://wal"},
    "wal.url": "memory://wal",
    "driver": {"journal": "memory://journal"},
    "driver.journal": "memory://journal",
    "agent": {"blocks": "/blocks"},
    "agent.blocks": "/blocks",
}
#: a file with more mistakes is probably none of ours
_MISTAKES_MAX = 50


def all_mistakes(raw: Mapping[str, Any], check: Callable[[Mapping[str, Any]], object]) -> list[SettingsError]:
    """What ``check`` refuses in ``raw`` (as TOML gives it), each mistake once, in the order found; [] if nothing.

    A key that was refused is left out, or set to a right value where it is required, and ``check`` asked again.
    """
    values = {key: dict(value) if isinstance(value, Mapping) else value for key, value in raw.items()}
    found: list[SettingsError] = []
    for _ in range(_MISTAKES_MAX):
        try:
            check(values)
        except SettingsError as error:
            found.append(error)
            if not _correct(values, error.key):
                break
        else:
            break
    return found


def _correct(values: dict[str, Any], key: str) -> bool:
    """Whether ``values`` could be changed so that ``key`` is not refused again for the same reason."""
    if key in _RIGHT:
        if _get(values, key) == _RIGHT[key]:
            return _leave_out(values, key)
        section, _, name = key.partition(".")
        if not name:
            values[key] = _RIGHT[key]
            return True
        if isinstance(values.get(section), dict):
            _leave_out(values, key)
            if key == "kafka.topics":
                values[section].pop("pattern", None)
            values[section][name] = _RIGHT[key]
            return True
    return _leave_out(values, key)


def _get(values: Mapping[str, Any], key: str) -> Any:
    section, _, name = key.partition(".")
    table = values.get(section)
    return table if not name else table.get(name) if isinstance(table, Mapping) else None


def _leave_out(values: dict[str, Any], key: str) -> bool:
    """Takes ``key`` out, which may be nested or have dots of its own; whether it was there."""
    if key in values:
        del values[key]
        return True
    for name in [name for name in values if key.startswith(f"{name}.")]:
        table = values[name]
        if isinstance(table, Mapping):
            values[name] = inner = dict(table)
            if _leave_out(inner, key.removeprefix(f"{name}.")):
                return True
    return False
