"""Options for librdkafka: the user's, those that Forebay needs for its guarantees, and bounds computed from a memory limit."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from forebay.model.errors import SettingsError
from forebay.process.os_errors import failure
from forebay.settings.redaction import redacted

if TYPE_CHECKING:
    from confluent_kafka import KafkaException

#: option → (its only allowed value, the reason)
FORCED: dict[str, tuple[str, str]] = {
    "enable.auto.commit": ("false", "offsets are committed only after the driver has accepted their records (INV-1)"),
    "enable.auto.offset.store": ("false", "a stored offset can rewind a group; each commit names its offset"),
    "auto.offset.reset": (
        "error",
        "a position that Kafka no longer holds is a gap, never a silent reset (INV-5)",
    ),
    "check.crcs": ("true", "a damaged record batch must stop its partition (INV-5)"),
    "enable.partition.eof": ("true", "only this event shows the true end of a partition"),
}
#: options that have a separate key in [kafka]
_ELSEWHERE = {"group.id": "kafka.group"}
#: prefixes of consumer options; admin clients and producers are created without them
_CONSUMER_ONLY = (
    "group.", "partition.assignment.strategy", "session.timeout.ms", "heartbeat.interval.ms", "max.poll.interval.ms",
    "auto.offset.reset", "auto.commit.interval.ms", "enable.auto.", "enable.partition.eof", "check.crcs", "fetch.",
    "queued.m", "max.partition.fetch.bytes", "isolation.level", "coordinator.query.interval.ms", "allow.auto.create.topics",
)  # fmt: skip
_PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
#: mechanism → other options that it needs
_MECHANISMS: dict[str, tuple[str, ...]] = {
    "GSSAPI": (),
    "PLAIN": ("sasl.username", "sasl.password"),
    "SCRAM-SHA-256": ("sasl.username", "sasl.password"),
    "SCRAM-SHA-512": ("sasl.username", "sasl.password"),
    "OAUTHBEARER": (),
}
_FILES = (
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.keystore.location",
    "ssl.crl.location",
)
_TRUE = {"true": "true", "t": "true", "1": "true", "false": "false", "f": "false", "0": "false"}
_RESET = {"none": "error"}

#: share of the receiver's memory bound for messages that librdkafka has fetched and that are not polled yet
PREFETCH_SHARE = 0.5


def consumer_options(
    options: Mapping[str, str],
    *,
    group: str,
    memory_bytes: int,
    client_id: str,
    metadata_refresh_seconds: float | None = None,
) -> dict[str, str]:
    """Return librdkafka's options for a receiver's consumer.

    ``memory_bytes``: the receiver's bound (``receiver.memory``). The prefetch queue gets half of it, for any number of
    partitions; a smaller bound of the user is kept. Raises SettingsError for an option that must have another value.
    """
    check_forced(options)
    prefetch_kib = max(1024, int(memory_bytes * PREFETCH_SHARE) // 1024)
    fetch_bytes = max(1_000_000, prefetch_kib * 1024 // 4)
    bounds = {
        "queued.max.messages.kbytes": prefetch_kib,
        "fetch.max.bytes": fetch_bytes,
        "max.partition.fetch.bytes": min(fetch_bytes, 4_000_000),
    }
    made = {
        "isolation.level": "read_committed",
        "partition.assignment.strategy": "cooperative-sticky",
        # only the byte bound limits the queue, since message sizes are unknown
        "queued.min.messages": "1000000",
        "client.id": client_id,
        "allow.auto.create.topics": "false",
        # a start or resume waits for the current fetch of its broker, which at the end of a log takes this long
        "fetch.wait.max.ms": "100",
        # a full queue of this size becomes empty within a fraction of librdkafka's default of one second
        "fetch.queue.backoff.ms": "10",
    }
    if options.get("group.protocol", "classic").lower() == "consumer":
        del made["partition.assignment.strategy"]  # the broker assigns
    if metadata_refresh_seconds is not None:
        made["topic.metadata.refresh.interval.ms"] = str(max(1000, int(metadata_refresh_seconds * 1000)))
    made.update(options)
    if "fetch.message.max.bytes" in made:  # librdkafka's other name for the same option
        made["max.partition.fetch.bytes"] = made.pop("fetch.message.max.bytes")
    for key, bound in bounds.items():
        made[key] = str(min(_number(key, made[key]), bound) if key in made else bound)
    made["group.id"] = group
    made.update({key: value for key, (value, _) in FORCED.items()})
    return made


def client_options(options: Mapping[str, str], client_id: str = "forebay") -> dict[str, str]:
    """Return ``options`` without those of consumers, for admin clients and producers.

    Raises SettingsError as :func:`check_security`.
    """
    check_security(options)
    made = {key: value for key, value in options.items() if not key.startswith(_CONSUMER_ONLY)}
    made.setdefault("client.id", client_id)
    return made


def is_cooperative(options: Mapping[str, str]) -> bool:
    """Whether the group rebalances incrementally, so that assignments may only change by adding and removing."""
    return (
        options.get("group.protocol", "classic").lower() == "consumer"
        or "cooperative" in options.get("partition.assignment.strategy", "cooperative-sticky")
    )  # fmt: skip


def check_forced(options: Mapping[str, str]) -> None:
    """Raises SettingsError if ``options`` sets one of FORCED otherwise, or one that has a key of its own; or as
    :func:`check_security`."""
    check_security(options)
    for key, text in options.items():
        if key in _ELSEWHERE:
            raise SettingsError(f"kafka.{key!r}: not allowed here; set {_ELSEWHERE[key]} instead")
        if key in FORCED:
            wanted, why = FORCED[key]
            given = text.strip().lower()
            if _TRUE.get(given, _RESET.get(given, given)) != wanted:
                raise SettingsError(f"kafka.{key!r}: must be {wanted!r}, not {text!r}: {why}")


def check_security(options: Mapping[str, str]) -> None:
    """Raise SettingsError if these security options can't work. The error names the key and shows no secret."""
    protocol = options.get("security.protocol", "plaintext").lower()
    if protocol not in _PROTOCOLS:
        raise SettingsError(f"kafka.'security.protocol': {protocol!r}: allowed are {', '.join(_PROTOCOLS)}")
    if protocol.startswith("sasl_"):
        key = "sasl.mechanisms" if "sasl.mechanisms" in options else "sasl.mechanism"
        mechanism = options.get(key, "GSSAPI").upper()
        if mechanism not in _MECHANISMS:
            raise SettingsError(f"kafka.{key!r}: {options[key]!r}: allowed are {', '.join(_MECHANISMS)}")
        for needed in _MECHANISMS[mechanism]:
            if not options.get(needed):
                raise SettingsError(f"kafka.{needed!r} is missing: {mechanism} needs it")
    for key in _FILES:
        path = options.get(key, "")
        if not path or (key == "ssl.ca.location" and path == "probe"):
            continue
        where = f"kafka.{key!r}: {redacted(path)!r}"  # the value may be the key itself
        try:
            os.stat(path)
        except FileNotFoundError:
            raise SettingsError(f"{where}: no such file") from None
        except OSError as error:
            raise failure(where, error) from None
        if not os.access(path, os.R_OK):
            raise SettingsError(f"{where}: this user has no right to read it")


def check_options(options: Mapping[str, str]) -> None:
    """Check the pass-through options of ``[kafka]`` without a broker.

    Raises SettingsError for an option that must have another value, an option unknown to librdkafka, or a value that it refuses.
    """
    from confluent_kafka import Consumer, KafkaException  # planners of queries import this module, and check without it

    made = consumer_options(options, group="check", memory_bytes=64_000_000, client_id="forebay-validate")
    made.setdefault("log_level", "0")  # the consumer begins to connect immediately; its errors are irrelevant here
    try:
        Consumer(made).close()
    except KafkaException as error:
        raise SettingsError(f"cannot create a Kafka client: {_reason(error)}; correct the Kafka options") from None


def _reason(error: KafkaException) -> str:
    return str(error.args[0].str()) if error.args and hasattr(error.args[0], "str") else str(error)


def _number(key: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise SettingsError(f"kafka.{key!r}: {text!r} is not a whole number") from None
