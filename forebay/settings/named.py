"""What a setting names in the user's own code, as in ``jobs:process``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from forebay.model.errors import SettingsError
from forebay_start import NAMES


def refuse_own_name(key: str, written: str, module: str) -> None:
    """Raises SettingsError if ``module`` has the name of a package of Forebay's own, which hides it."""
    if module in NAMES:
        raise SettingsError(
            f"{key}: {written!r}: {module!r} is a package of Forebay's own, and would be imported instead: give your module "
            "another name"
        )


def find(key: str, name: str, kind: str, fits: Callable[[Any], bool] = callable) -> Any:
    """What ``module:attribute`` names. ``key``: the setting that says so; ``kind``: what is looked for (function, class),
    and ``fits`` whether something is that. Imports the module. Raises SettingsError that says what is wrong with it."""
    module, _, attribute = name.partition(":")
    refuse_own_name(key, name, module)
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:  # whatever its top level does
        words = f"{type(error).__name__}: {error}"
        raise SettingsError(f"{key}: {name!r}: module {module!r} can't be imported: {words}") from error
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not fits(found):
        raise SettingsError(f"{key}: {name!r}: module {module!r} has no {kind} {attribute!r}")
    return found
