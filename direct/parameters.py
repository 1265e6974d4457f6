"""The Kafka parameters that users pass to direct streams and RDDs."""

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
    """Return ``kafka_params`` under librdkafka's names, checked.

    Raises UsageError and SettingsError for an invalid parameter.
    """
    translated = translate({name: _text(name, value) for name, value in kafka_params.items()})
    safe = safe_options(translated.options)
    check_options(safe.options)
    return SafeOptions(
        options=safe.options,
        group=safe.group,
        task_group=safe.task_group,
        reset=safe.reset,
        changes=(*translated.changes, *safe.changes),
    )


@cache
def warn_once(warning: str) -> None:
    """Log ``warning``, about a parameter that was changed. A process that makes many RDDs logs it once."""
    log.warning("%s", warning)


def _text(name: str, value: object) -> str:
    if name.startswith("kafka."):
        raise UsageError(
            f"{name!r}: write {name.removeprefix('kafka.')!r}: only options of a DataFrame's source have the prefix kafka."
        )
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int, float)):
        return str(value)
    raise UsageError(
        f"kafka.{name!r}: the value is a {type(value).__name__}: allowed are texts, numbers, True and False"
    )
