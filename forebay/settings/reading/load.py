"""Reading of ``forebay.toml``: one file and the environment, nothing else."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forebay.model.errors import SettingsError, StoreError
from forebay.process.os_errors import failure
from forebay.settings.reading import rules
from forebay.settings.reading.conversion import converted
from forebay.settings.reading.environment import override
from forebay.settings.reading.mistakes import Mistakes
from forebay.settings.schema import Settings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]


def load(path: str | Path, environment: Mapping[str, str] | None = None) -> Settings:
    """Read and check ``path``, with overrides from ``environment`` (default: the process's).

    Raises:
        SettingsError: The first mistake, as one sentence: the file or environment variable, the key, its value, and what is
            allowed.
        StoreError: The file could not be read, but may be at a new attempt, as after an I/O error.
    """
    return _only_right(*_read(path, environment))


def mistakes(path: str | Path, environment: Mapping[str, str] | None = None) -> list[SettingsError]:
    """Return all mistakes in ``path``; [] if there is none. :func:`load` raises the first one. Raises StoreError as it does."""
    try:
        return _read(path, environment)[1].found
    except SettingsError as error:
        return [error]


def load_if_right(path: str | Path) -> Settings | None:
    """Return the settings as :func:`load` does; None if there is a mistake in ``path``, or if it can't be read."""
    try:
        return load(path)
    except (SettingsError, StoreError):
        return None


def from_text(text: str, source: str) -> Settings:
    """Return the settings of a file's ``text``, without the environment. Raises SettingsError as :func:`load`."""
    return from_values(_toml(text, source), source)


def from_values(raw: Mapping[str, Any], source: str = "settings") -> Settings:
    """Return the settings that ``raw`` gives, as TOML would. Raises SettingsError as :func:`load`, naming ``source``."""
    return _only_right(*_checked(raw, Mistakes(source)))


def _read(path: str | Path, environment: Mapping[str, str] | None) -> tuple[Settings, Mistakes]:
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise failure(f"{path}: can't be read", error, "name the file with --config FILE") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: is not valid TOML: {error}") from None
    raw = _toml(text, str(path))
    collected = Mistakes(str(path))
    override(raw, os.environ if environment is None else environment, collected)
    return _checked(raw, collected)


def _toml(text: str, source: str) -> dict[str, Any]:
    try:
        text.encode()  # a lone surrogate, which no file has
        raw: dict[str, Any] = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also for a number of thousands of digits, and for deep nesting
        raise SettingsError(f"{source}: is not valid TOML: {error}") from None
    return raw


def _checked(raw: Mapping[str, Any], collected: Mistakes) -> tuple[Settings, Mistakes]:
    settings = converted(raw, collected)
    rules.check(settings, raw, collected)
    return settings, collected


def _only_right(settings: Settings, collected: Mistakes) -> Settings:
    if collected.found:
        raise collected.found[0]
    return settings
