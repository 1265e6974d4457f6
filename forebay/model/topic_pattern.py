"""Patterns of topics: which are valid, and which topics ``kafka.pattern`` matches."""

from __future__ import annotations

import re

#: prefix of the names of Kafka's own topics
INTERNAL_PREFIX = "__"
GROUPS_MAX = 100


def matches(pattern: str, topic: str) -> bool:
    """Return whether ``pattern``, a regular expression in Python's syntax, matches the whole name ``topic``.

    A name that begins with ``__`` never matches: Kafka's own topics have such names. ``pattern`` is valid
    (:func:`check_pattern`).
    """
    return not topic.startswith(INTERNAL_PREFIX) and re.fullmatch(pattern, topic) is not None


def check_pattern(pattern: str) -> None:
    """Raise ValueError with the reason if ``pattern`` is not a regular expression in Python's syntax, or has too many groups."""
    if pattern.count("(") > GROUPS_MAX:  # each within another, they would be too deep for Python's recursion
        raise ValueError(f"has {pattern.count('('):,} opening parentheses; at most {GROUPS_MAX} are allowed")
    try:
        re.compile(pattern)
    except (re.error, OverflowError) as error:  # OverflowError: a number of repetitions is too large
        raise ValueError(f"is not a regular expression in Python's syntax: {error}") from None
