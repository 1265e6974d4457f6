"""Makes a user's Kafka parameters safe for reading exact ranges, as Spark does, and reports each change. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from forebay.kafka.options.librdkafka import FORCED
from forebay.model.errors import SettingsError

#: prefix of the tasks' group ids, so that they differ from the group that commits
TASK_GROUP_PREFIX = "forebay-executor-"
#: other reasons than those of an intake
_WHY = {"enable.auto.commit": "only your own commits are made"}
_SPELT = {"t": "true", "1": "true", "f": "false", "0": "false"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SafeOptions:
    """Parameters for reading exact ranges.

    ``options``: without the parameters below and those with only one allowed value. ``group``: the user's ("" for none).
    ``task_group``: the group id of tasks, which never join it. ``reset``: where a partition without an offset begins ("earliest",
    "latest" or "error"). ``changes``: one sentence for each change, without a value that could be secret.
    """

    options: Mapping[str, str] = field(repr=False)
    group: str
    task_group: str
    reset: str
    changes: tuple[str, ...]


def safe_options(options: Mapping[str, str], prefix: str = TASK_GROUP_PREFIX) -> SafeOptions:
    """Return ``options``, which have librdkafka's names (after ``java.translate``), made safe.

    Raises SettingsError if brokers are missing or the reset policy is invalid.
    """
    if not options.get("bootstrap.servers", "").strip():
        raise SettingsError("kafka.'bootstrap.servers' is missing: name the brokers, as host:port,host:port")
    made = dict(options)
    changes: list[str] = []
    group = made.pop("group.id", "")
    task_group = f"{prefix}{group}" if group else prefix.rstrip("-")
    changes.append(f"tasks read with group id {task_group!r}, and never join that group")
    reset = made.pop("auto.offset.reset", "latest").strip().lower()
    if reset not in ("earliest", "latest", "error"):
        raise SettingsError(f"kafka.'auto.offset.reset': {reset!r}: allowed are earliest, latest and error")
    if "auto.offset.reset" in options:
        changes.append(
            f"kafka.'auto.offset.reset' ({reset}) only decides where a stream begins: an offset that Kafka does not hold is an "
            "error in each task"
        )
    made, forced = without_forced(made)
    return SafeOptions(options=made, group=group, task_group=task_group, reset=reset, changes=(*changes, *forced))


def without_forced(options: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return ``options`` without those that have only one allowed value, and a sentence for each that had another value."""
    made, changes = dict(options), []
    for name, (wanted, why) in FORCED.items():
        given = made.pop(name, wanted).strip().lower()
        if _SPELT.get(given, given) != wanted:
            changes.append(f"kafka.{name!r} is {wanted}, not {given}: {_WHY.get(name, why)}")
    return made, changes
