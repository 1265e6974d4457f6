"""Functions that make values from the bytes of keys and values."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any, TypeAlias

from forebay.model.errors import UsageError
from forebay.settings.named import find

#: a name of :data:`BY_NAME`, ``module:function``, a function of bytes, or None for unchanged bytes
Deserializer: TypeAlias = str | Callable[[bytes], Any] | None


def _number(layout: str) -> Callable[[bytes], Any]:
    unpack = struct.Struct(layout).unpack
    return lambda data: unpack(data)[0]


#: numbers are big-endian, as the serializers of Kafka's Java client write them
BY_NAME: dict[str, Callable[[bytes], Any] | None] = {
    "bytes": None,
    "string": lambda data: data.decode(),
    "json": json.loads,
    "short": _number(">h"),
    "integer": _number(">i"),
    "long": _number(">q"),
    "float": _number(">f"),
    "double": _number(">d"),
}


def deserializer(what: str, given: Deserializer) -> Callable[[bytes], Any] | None:
    """Return the function that ``given`` names; None for unchanged bytes. ``what``: the parameter's name, for errors.

    Raises UsageError for an unknown name.
    """
    if given is None or callable(given):
        return given
    if isinstance(given, str) and given in BY_NAME:
        return BY_NAME[given]
    if isinstance(given, str) and ":" in given:
        found: Callable[[bytes], Any] = find(what, given, "function")
        return found
    raise UsageError(f"{what}: {given!r}: allowed are {', '.join(BY_NAME)}, `module:function`, or a function")
