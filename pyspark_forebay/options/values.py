"""How one option is read: flags, numbers, durations, ``kafka.*`` options and unknown names.

``given`` is always the options by their names in lower case, as :func:`by_name` returns them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from forebay.model.errors import UsageError
from forebay.model.text import split_url
from forebay.model.units import parse_duration

#: greatest numbers of options, as of Java's int and long
INT_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1


def by_name(options: Mapping[str, str]) -> dict[str, str]:
    """Return ``options`` by their names in lower case."""
    return {name.lower(): value for name, value in options.items()}


def flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    """Return whether the option ``name`` is ``true``. Raises UsageError for a value other than ``true`` and ``false``."""
    value = given.get(name.lower(), str(default)).strip().lower()
    if value not in ("true", "false"):
        raise UsageError(f'option {name}: {value!r}: allowed are "true" and "false"')
    return value == "true"


def column_names(given: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names in the option ``columns``; none if it is not set. Raises UsageError for no name, and a repeated one."""
    if "columns" not in given:
        return ()
    names = tuple(name.strip() for name in given["columns"].split(","))
    if not all(names) or len(set(names)) < len(names):
        raise UsageError(
            f"option columns: {given['columns']!r}: name each column once, separated by commas, such as value,offset"
        )
    return names


def whole_number(
    given: Mapping[str, str],
    name: str,
    *,
    at_least: int | None = None,
    at_most: int = LONG_MAX,
    default: int | None = None,
) -> int | None:
    """Return the option ``name`` as a whole number, ``default`` if it is not set. Raises UsageError."""
    if name.lower() not in given:
        return default
    text = given[name.lower()].strip()
    number = _whole(text)
    if number is None or number > at_most or (at_least is not None and number < at_least):
        least = "" if at_least is None else f" from {at_least}"
        most = "" if at_most == LONG_MAX else f" to {at_most}"
        raise UsageError(f"option {name}: {text!r}: allowed are whole numbers{least}{most}")
    return number


def seconds(given: Mapping[str, str], name: str, default: str) -> float:
    """Return the duration ``name`` in seconds. A bare number means milliseconds, as in Spark. Raises UsageError."""
    text = given.get(name.lower(), default).strip().lower()
    if _whole(text) is not None:
        text += "ms"
    try:
        return float(parse_duration(re.sub("min$", "m", text)))  # Spark accepts both
    except ValueError:
        raise UsageError(f"option {name}: {text!r} is not a duration: allowed are 500ms, 30s, 15m, 2h") from None


def _whole(text: str) -> int | None:
    number = int(text) if re.fullmatch(r"[+-]?[0-9]{1,19}", text) else None
    return None if number is None or abs(number) > LONG_MAX else number


def kafka_options(given: Mapping[str, str], refused: Mapping[str, str]) -> dict[str, str]:
    """Return the ``kafka.*`` options without the prefix.

    ``refused``: option names without the prefix, each with the reason. Raises UsageError for these, and if neither
    ``kafka.bootstrap.servers`` nor ``tracker`` is set.
    """
    kafka = {name[len("kafka.") :]: value for name, value in given.items() if name.startswith("kafka.")}
    for name, reason in refused.items():
        if name in kafka:
            raise UsageError(f"option kafka.{name} is not supported: {reason}")
    if not kafka.get("bootstrap.servers") and "tracker" not in given:
        raise UsageError("option kafka.bootstrap.servers must say where Kafka is: host:port, or several with commas")
    return kafka


def tracker_urls(text: str, name: str) -> tuple[str, ...]:
    """Return the drivers' urls that ``text`` lists, separated by commas.

    Raises UsageError that begins with ``name``. The error does not contain ``text``, which may hold a password.
    """
    urls = tuple(url.strip() for url in text.split(",") if url.strip())
    for url in urls or ("",):
        parts = split_url(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise UsageError(
                f"{name}: write where the stream's driver is, as in http://driver:7080, or all of them with commas"
            )
    return urls


def unknown_options(given: Mapping[str, str], known: Sequence[str]) -> list[str]:
    """Return a sentence for each option that is not in ``known``; ``kafka.*`` and ``schema.registry.*`` count as known."""
    names = {name.lower() for name in known} | {"path"}
    return [
        f"option {name} is not known and is ignored"
        for name in sorted(given)
        if name not in names and not name.startswith(("kafka.", "schema.registry."))
    ]
