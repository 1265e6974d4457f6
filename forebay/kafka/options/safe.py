"""A user's Kafka parameters made safe for reading exact ranges, as Spark does it; each change is told. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from forebay.kafka.options.librdkafka import FORCED
from forebay.model.errors import SettingsError

#: groups of tasks begin so, for they shall never be taken for the one that commits
TASK_GROUP_PREFIX = "forebay-executor-"
#: where there is no intake
_WHY = {"enable.auto.commit": "nothing is committed that you do not commit yourself"}
_SPELT = {"t": "true", "1": "true", "f": "false", "0": "false"}


@dataclass(frozen=True, slots=True)
class SafeOptions:
    """``options``: without what they may not say. ``group``: the user's ("" if none); ``task_group``: that of tasks, which is
    never joined. ``reset``: where a partition without any offset begins ("earliest", "latest", or "error"). ``told``: a
    sentence for each change, without any value that could be a secret."""

    options: Mapping[str, str] = field(repr=False)
    group: str
    task_group: str
    reset: str
    told: tuple[str, ...]


def safe_options(options: Mapping[str, str], prefix: str = TASK_GROUP_PREFIX) -> SafeOptions:
    """``options``: librdkafka's names (``java_options.translate`` comes first). Raises SettingsError without brokers, and for a
    reset policy that is none."""
    if not options.get("bootstrap.servers", "").strip():
        raise SettingsError("kafka.'bootstrap.servers': missing: name the brokers, as host:port,host:port")
    made = dict(options)
    told: list[str] = []
    group = made.pop("group.id", "")
    task_group = f"{prefix}{group}" if group else prefix.rstrip("-")
    told.append(f"tasks read as group {task_group!r}, which is never joined")
    reset = made.pop("auto.offset.reset", "latest").strip().lower()
    if reset not in ("earliest", "latest", "error"):
        raise SettingsError(f"kafka.'auto.offset.reset': {reset!r}: allowed are earliest, latest and error")
    if "auto.offset.reset" in options:
        told.append(
            f"kafka.'auto.offset.reset' ({reset}) says only where a stream begins: an offset that Kafka does not hold is an "
            "error in every task"
        )
    made, forced = without_forced(made)
    return SafeOptions(made, group, task_group, reset, (*told, *forced))


def without_forced(options: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """``options`` without those that have one value only, and a sentence for each that was given another one."""
    made, told = dict(options), []
    for name, (wanted, why) in FORCED.items():
        given = made.pop(name, wanted).strip().lower()
        if _SPELT.get(given, given) != wanted:
            told.append(f"kafka.{name!r} is {wanted}, not {given}: {_WHY.get(name, why)}")
    return made, told
