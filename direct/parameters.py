"""A user's Kafka parameters, as everything in ``direct`` takes them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache

from forebay.kafka.options.java import translate
from forebay.kafka.options.librdkafka import check_options
from forebay.kafka.options.safe import SafeOptions, safe_options
from forebay.model.errors import UsageError

log = logging.getLogger(__name__)


def checked_options(kafka_params: Mapping[str, object]) -> SafeOptions:
    """Raises UsageError and SettingsError for a parameter that can't be."""
    translated = translate({name: _text(name, value) for name, value in kafka_params.items()})
    safe = safe_options(translated.options)
    check_options(safe.options)
    return SafeOptions(safe.options, safe.group, safe.task_group, safe.reset, (*translated.changes, *safe.changes))


@cache
def tell(sentence: str) -> None:
    """Of a parameter that is not taken as it was given: once in a process, which may make many RDDs."""
    log.warning("%s", sentence)


def _text(name: str, value: object) -> str:
    if name.startswith("kafka."):
        raise UsageError(
            f"{name!r}: write {name.removeprefix('kafka.')!r}: only the options of a DataFrame's source begin so"
        )
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int, float)):
        return str(value)
    raise UsageError(f"kafka.{name!r}: a {type(value).__name__}: allowed are texts, numbers, and True and False")
