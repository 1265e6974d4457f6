"""Kafka: brokers with their releases, rights on topics and groups, replicas, and times of the newest records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from deploy.commands.setup.doctor.findings import Finding
from deploy.commands.setup.validation import BROKER_TIMEOUT_SECONDS
from forebay.kafka.options.rights import Kind, Right, grant
from forebay.model.errors import ForebayError, MissingRightError
from forebay.settings.schema import Settings

if TYPE_CHECKING:
    from forebay.kafka.client.inspection import Broker, Cluster, Rights

#: version of the Metadata API that returns topic ids
_METADATA_WITH_IDS = 10
_TOPIC_RIGHTS = frozenset({"READ", "DESCRIBE"})
_GROUP_RIGHTS = frozenset({"READ", "DESCRIBE"})
#: a record may be ahead of this machine's clock by this time
AHEAD_MS_MAX = 5_000
_AREA = "kafka"
_NAMES_MAX = 5


def check_brokers(settings: Settings, now_ms: int) -> Iterator[Finding]:
    """Yield the findings about brokers, rights and records. ``now_ms``: this machine's time."""
    from forebay.kafka.client.admin import KafkaAdmin
    from forebay.kafka.client.inspection import inspect_cluster

    options = settings.kafka.options
    try:
        with KafkaAdmin(options, timeout_seconds=BROKER_TIMEOUT_SECONDS) as admin:
            topics = set(settings.kafka.topics)
            with suppress(MissingRightError):  # the findings about rights name what is missing
                topics = {tp.topic for tp in admin.partitions(settings.kafka.topics, settings.kafka.pattern)}
        cluster = inspect_cluster(options, topics, (settings.group, settings.completed_group), BROKER_TIMEOUT_SECONDS)
    except ForebayError as error:
        yield Finding(_AREA, "cluster", "unreachable", str(error), "start the brokers, or correct [kafka]")
        return
    yield from findings_of(cluster, now_ms)


def findings_of(cluster: Cluster, now_ms: int) -> Iterator[Finding]:
    """Yield what ``cluster`` means for a stream. ``now_ms``: this machine's time."""
    for broker in cluster.brokers:
        yield _broker(broker)
    yield from _rights("topic", cluster.topics, _TOPIC_RIGHTS)
    yield from _rights("group", cluster.groups, _GROUP_RIGHTS)
    if cluster.leaderless:
        detail = f"without a leader: {_first(cluster.leaderless)}"
        yield Finding(_AREA, "leaders", "wrong", detail, "start the brokers that hold their replicas")
    if cluster.under_replicated:
        detail = f"with a replica that is not in sync: {_first(cluster.under_replicated)}"
        yield Finding(_AREA, "replicas", "note", detail, "start the missing brokers, or wait until they have caught up")
    yield _clock(cluster, now_ms)


def _broker(broker: Broker) -> Finding:
    from forebay.kafka.client.inspection import release_of

    name = f"broker {broker.number}"
    where = f"{broker.address}{', controller' if broker.controller else ''}"
    if broker.error:
        step = "correct advertised.listeners, or give the name an address here: receivers connect to every broker"
        return Finding(_AREA, name, "unreachable", f"{where}: {broker.error}", step)
    release = release_of(broker.versions)
    text = f"{where}: speaks the protocol of Kafka {release} or newer" if release else f"{where}: older than Kafka 2.0"
    if broker.versions.get("Metadata", (0, 0))[1] < _METADATA_WITH_IDS:
        step = (
            "upgrade to Kafka 2.8 or newer; until then only watermarks show that a topic was deleted and created again"
        )
        return Finding(_AREA, name, "note", f"{text}; it returns no topic ids", step)
    return Finding(_AREA, name, "fine", text)


def _rights(kind: Kind, found: Mapping[str, Rights], needed: frozenset[str]) -> Iterator[Finding]:
    fine = []
    for name, rights in sorted(found.items()):
        if rights.operations is None:
            refused = "authoriz" in rights.error.lower()
            step = _grant(kind, name, needed) if refused else ""
            yield Finding(
                _AREA, f"rights on {kind}", "wrong" if refused else "unknown", f"{name}: {rights.error}", step
            )
        elif missing := needed - rights.operations:
            detail = f"{name}: {', '.join(sorted(missing))} not allowed"
            yield Finding(_AREA, f"rights on {kind}", "wrong", detail, _grant(kind, name, missing))
        else:
            fine.append(name)
    if fine:
        yield Finding(_AREA, f"rights on {kind}", "fine", f"{', '.join(sorted(needed))} allowed on {_first(fine)}")


def _grant(kind: Kind, name: str, operations: frozenset[str]) -> str:
    return grant(Right(kind, name, tuple(operation.capitalize() for operation in sorted(operations))))


def _clock(cluster: Cluster, now_ms: int) -> Finding:
    if not cluster.newest_ms:
        return Finding(_AREA, "record times", "unknown", "no partition has a record with a time")
    name, newest = max(cluster.newest_ms.items(), key=lambda item: item[1])
    ahead = newest - now_ms
    if ahead > AHEAD_MS_MAX:
        step = "set the clocks of this machine, of the brokers and of the producers by NTP; lag in time is wrong until then"
        detail = f"the newest record of {name} is {ahead / 1000:.1f} s ahead of this machine's clock"
        return Finding(_AREA, "record times", "wrong", detail, step)
    return Finding(_AREA, "record times", "fine", f"the newest record is of {name}, {-ahead / 1000:.1f} s ago")


def _first(names: tuple[str, ...] | list[str]) -> str:
    more = len(names) - _NAMES_MAX
    return ", ".join(names[:_NAMES_MAX]) + (f" and {more} more" if more > 0 else "")
