"""Which topics ``kafka.pattern`` matches; the only place that decides it."""

from __future__ import annotations

import re

#: prefix of the names of Kafka's own topics
INTERNAL_PREFIX = "__"


def matches(pattern: str, topic: str) -> bool:
    """Return whether ``pattern``, a regular expression in Python's syntax, matches the whole name ``topic``.

    A name that begins with ``__`` never matches: Kafka's own topics have such names. Raises ``re.error``.
    """
    return not topic.startswith(INTERNAL_PREFIX) and re.fullmatch(pattern, topic) is not None
