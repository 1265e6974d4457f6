"""Paths into a JSON document, such as ``order.lines[0].price``, and conditions on the value there. No I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec

from forebay.model.wire import UNDECODABLE

#: a step of a path: a name, a number in brackets, a quoted name in brackets, or ``*``
_STEP = re.compile(r"\.?([^.\[\]=]+)|\[(\d{1,9})\]|\[\"((?:\\.|[^\"\\])*)\"\]|\[(\*)\]")
#: maximum number of values that ``*`` leads to
_VALUES_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Path:
    """A path: names of keys, numbers of items, and None for every item."""

    text: str
    steps: tuple[str | int | None, ...]

    def values(self, document: Any) -> list[Any]:
        """Return the values that the path leads to; [] if there is none."""
        found = [document]
        for step in self.steps:
            found = [value for one in found for value in _below(one, step)][:_VALUES_MAX]
        return found


@dataclass(frozen=True, slots=True)
class Condition:
    """That a path leads to a value; with ``wanted``, that one of its values is that one."""

    path: Path
    wanted: str | None

    def holds(self, document: Any) -> bool:
        found = self.path.values(document)
        return bool(found) if self.wanted is None else any(_same(value, self.wanted) for value in found)


def parse_path(text: str) -> Path:
    """Return the path that ``text`` writes; a leading ``$`` is allowed. Raises ValueError with what is allowed."""
    rest = text.removeprefix("$").removeprefix(".")
    steps: list[str | int | None] = []
    at = 0
    while at < len(rest):
        found = _STEP.match(rest, at)
        if found is None:
            raise ValueError("write a path as in order.lines[0].price, or lines[*].price for every item")
        name, number, quoted, _ = found.groups()
        if name is not None:
            steps.append(None if name == "*" else name)
        elif number is not None:
            steps.append(int(number))
        elif quoted is not None:
            steps.append(msgspec.json.decode(f'"{quoted}"', type=str))
        else:
            steps.append(None)
        at = found.end()
    if not steps:
        raise ValueError("write a path as in order.lines[0].price")
    return Path(text, tuple(steps))


def parse_condition(text: str) -> Condition:
    """Return the condition ``PATH`` or ``PATH=VALUE``. Raises ValueError as :func:`parse_path`."""
    path, equals, wanted = text.partition("=")
    return Condition(parse_path(path.strip()), wanted if equals else None)


def _below(value: Any, step: str | int | None) -> list[Any]:
    if step is None:
        return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    if isinstance(step, int):
        return value[step : step + 1] if isinstance(value, list) else []
    return [value[step]] if isinstance(value, dict) and step in value else []


def _same(value: Any, wanted: str) -> bool:
    """Return whether ``value`` is what a person wrote: a text as it is, anything else as JSON (3, true, null)."""
    if isinstance(value, str):
        return value == wanted
    try:
        written = msgspec.json.decode(wanted)
    except UNDECODABLE:
        return False
    return (
        type(written) in (type(value), int, float)
        and not isinstance(value, bool) ^ isinstance(written, bool)
        and (written == value)
    )
