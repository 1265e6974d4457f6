"""Import of the functions and classes that settings name, as in ``jobs:process``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from forebay.model.errors import SettingsError
from forebay_start import NAMES


def refuse_own_name(key: str, written: str, module: str) -> None:
    """Raise SettingsError if ``module`` has the name of one of Forebay's packages, which would hide it."""
    if module in NAMES:
        raise SettingsError(
            f"{key}: {written!r}: Forebay has a package named {module!r}, which would be imported instead: rename your module"
        )


def find(key: str, name: str, kind: str, fits: Callable[[Any], bool] = callable) -> Any:
    """Import and return the object that ``name``, as in ``module:attribute``, names.

    Args:
        key: The setting with this name, for errors.
        kind: What the name must be (function, class), for errors.
        fits: Returns whether an object is of that kind.

    Raises:
        SettingsError: The module can't be imported, or has no such object.
    """
    module, _, attribute = name.partition(":")
    refuse_own_name(key, name, module)
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:  # the module's top level may raise anything
        reason = f"{type(error).__name__}: {error}"
        raise SettingsError(f"{key}: {name!r}: module {module!r} can't be imported: {reason}") from error
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if not fits(found):
        raise SettingsError(f"{key}: {name!r}: module {module!r} has no {kind} {attribute!r}")
    return found
