"""A finding of ``forebay doctor``."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from deploy.commands.setup.validation import Check
from driver.http.health import COMMANDS

#: ``note``: worth knowing, needs no action now. ``unknown``: could not be checked. ``wrong`` and ``unreachable`` are problems.
Outcome: TypeAlias = Literal["fine", "note", "wrong", "unreachable", "unknown"]
PROBLEMS: tuple[Outcome, ...] = ("wrong", "unreachable")


class Finding(msgspec.Struct, frozen=True):
    """The result of one check. ``step``: what to do; "" for ``fine``, and if ``detail`` says it."""

    area: str
    name: str
    outcome: Outcome
    detail: str
    step: str = ""


#: check of `forebay validate` → area, and the next step if it fails
_CHECKS: dict[str, tuple[str, str]] = {
    "configuration": ("configuration", "correct this key; `forebay config show` shows all settings and their origin"),
    "names": ("configuration", "rename the module"),
    "wal keys": ("configuration", "correct wal.key_file"),
    "tokens": ("configuration", "correct [security]; docs/operations/tokens.md describes the files"),
    "addresses": ("configuration", ""),
    "job": ("configuration", "correct driver.job, or its module beside the configuration file"),
    "listeners": ("configuration", "correct driver.listeners, or their modules beside the configuration file"),
    "spark master": ("configuration", 'correct "spark.master" in [spark]'),
    "java": ("machine", "install Java 17 or 21, or set JAVA_HOME"),
    "spark address": ("machine", "give this host's name an address"),
    "wal": ("stores", COMMANDS["wal"]),
    "journal": ("stores", COMMANDS["journal"]),
    "blocks": ("stores", "make agent.blocks writable for the user of the services"),
    "dead letters": ("stores", "make dead_letters.url writable for the user of the driver"),
    "kafka options": ("kafka", "correct the options in [kafka]"),
    "broker": ("kafka", COMMANDS["kafka"]),
    "topics": ("kafka", "create the topic, or correct kafka.topics"),
    "source": ("kafka", "correct receiver.source, or its module beside the configuration file"),
    "partitions": ("kafka", "correct the custom source"),
}


def of_check(check: Check) -> Finding:
    """Return the finding that a check of ``forebay validate`` makes."""
    area, step = _CHECKS.get(check.name, ("configuration", ""))
    outcome: Outcome = check.outcome  # type: ignore[assignment]  # Check.outcome names these
    return Finding(area, check.name, outcome, check.detail, step if outcome in PROBLEMS else "")
