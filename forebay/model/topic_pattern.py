"""What ``kafka.pattern`` matches: the one place that decides it."""

from __future__ import annotations

import re

#: Kafka's own topics begin with it
INTERNAL_PREFIX = "__"


def matches(pattern: str, topic: str) -> bool:
    """Whether ``pattern``, a regular expression in Python's syntax, matches the whole name ``topic``.

    A name that begins with ``__`` never matches: Kafka's own topics have such names. Raises ``re.error``.
    """
    return not topic.startswith(INTERNAL_PREFIX) and re.fullmatch(pattern, topic) is not None
