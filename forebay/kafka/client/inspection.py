"""What brokers say about themselves and about this client's rights, for diagnosis. Changes nothing in Kafka.

librdkafka has no request for the protocol versions of a broker. It writes them to its log when it connects, and this module reads
them there.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import tenacity
from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclOperation,
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)

from forebay.kafka.client.client_errors import ClientErrors
from forebay.kafka.client.requests import may_pass
from forebay.kafka.options.librdkafka import client_options
from forebay.model.errors import SettingsError

#: API of Kafka's protocol → (lowest, highest) version that a broker accepts
Versions = Mapping[str, tuple[int, int]]

#: A line of librdkafka's log, as no request returns these versions. ``tests/forebay/kafka/client/test_inspection.py`` reads it.
_CONNECTED = re.compile(
    r"\[thrd:.*?\]: (?:\w+://)?(?P<broker>.+?): +ApiKey (?P<api>\w+) \(\d+\) Versions (?P<low>\d+)\.\.(?P<high>\d+)"
)
#: highest version of Fetch → the oldest release of Kafka that has it, the newest first
_RELEASES = (
    (18, "4.1"),
    (17, "3.9"),
    (16, "3.7"),
    (15, "3.5"),
    (13, "3.1"),
    (12, "2.7"),
    (11, "2.3"),
    (10, "2.1"),
    (8, "2.0"),
)
#: pause between two attempts while a coordinator or leader is being elected
_PAUSE_SECONDS = 0.2
#: maximum number of partitions whose newest timestamp is requested
_TIMES_MAX = 1_000
#: lowest version of Fetch since Kafka 4.0, which removed older ones
_FETCH_MIN_SINCE_4 = 4


@dataclass(frozen=True, slots=True)
class Broker:
    """A broker of the cluster. ``address``: as advertised. ``versions``: empty if this machine could not connect to it, with the
    reason in ``error``."""

    number: int
    address: str
    controller: bool
    versions: Versions
    error: str = ""


@dataclass(frozen=True, slots=True)
class Rights:
    """The operations that this client may use on a topic or group, in capitals as Kafka's tools write them (READ, DESCRIBE, …).

    None: the cluster did not say, for the reason in ``error``.
    """

    operations: frozenset[str] | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster as one client sees it.

    ``newest_ms``: partition → largest timestamp of its records, where a broker returns it. ``under_replicated``: partitions with
    a replica that is not in sync; ``leaderless``: without a leader.
    """

    brokers: tuple[Broker, ...]
    topics: Mapping[str, Rights] = field(default_factory=dict)
    groups: Mapping[str, Rights] = field(default_factory=dict)
    newest_ms: Mapping[str, int] = field(default_factory=dict)
    under_replicated: tuple[str, ...] = ()
    leaderless: tuple[str, ...] = ()


def inspect_cluster(
    options: Mapping[str, str], topics: Collection[str], groups: Collection[str], timeout_seconds: float
) -> Cluster:
    """Return the cluster's brokers, and the rights of a client with ``options`` on ``topics`` and ``groups``.

    The client connects to each broker. Waits at most ``timeout_seconds`` for each of three requests. Raises UnreachableError,
    SettingsError for an option that librdkafka refuses.
    """
    seen = _Versions(options)
    made: dict[str, Any] = {**client_options(options, "forebay-doctor"), "debug": "feature", "error_cb": seen.errors}
    try:
        client = AdminClient(made, logger=seen)
    except KafkaException as error:
        raise SettingsError(f"cannot create a Kafka client: {error.args[0].str()}; correct the Kafka options") from None
    try:
        metadata = client.list_topics(timeout=timeout_seconds)
    except KafkaException as error:
        client.poll(0)
        message = f"Kafka at {options.get('bootstrap.servers', '')} did not answer: {error.args[0].str()}"
        raise seen.errors.unreachable(message) from None
    failures = _connect(client, metadata.brokers, timeout_seconds)
    has_controller = (
        metadata.controller_id in metadata.brokers
    )  # librdkafka's mock has none, and answers no such request
    unknown = Rights(None, "the cluster names no controller")
    found_topics = _topic_rights(client, topics, timeout_seconds) if has_controller else dict.fromkeys(topics, unknown)
    found_groups = _group_rights(client, groups, timeout_seconds) if has_controller else dict.fromkeys(groups, unknown)
    client.poll(0)
    brokers = []
    for number, one in sorted(metadata.brokers.items()):
        address = f"{one.host}:{one.port}"
        versions = seen.of(f"{address}/{number}")
        why = "" if versions else failures.get(number, "it did not answer")
        brokers.append(Broker(number, address, number == metadata.controller_id, versions, why))
    partitions = [
        (f"{name}/{number}", partition)
        for name in sorted(topics)
        if name in metadata.topics
        for number, partition in sorted(metadata.topics[name].partitions.items())
    ]
    return Cluster(
        brokers=tuple(brokers),
        topics=found_topics,
        groups=found_groups,
        newest_ms=_newest(client, [name for name, _ in partitions], timeout_seconds) if has_controller else {},
        under_replicated=tuple(name for name, one in partitions if len(one.isrs) < len(one.replicas)),
        leaderless=tuple(name for name, one in partitions if one.leader < 0),
    )


def release_of(versions: Versions) -> str:
    """Return the oldest release of Kafka that accepts ``versions`` of the protocol; "" if it is older than all known ones."""
    low, high = versions.get("Fetch", (0, 0))
    found = next((release for fetch, release in _RELEASES if high >= fetch), "")
    return "4.0" if found == "3.9" and low >= _FETCH_MIN_SINCE_4 else found


class _Versions:
    """The ``logger`` of a client: keeps the protocol versions that the log names for each broker."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.errors = ClientErrors(options=options)
        self._seen: dict[str, dict[str, tuple[int, int]]] = {}

    def log(self, level: int, message: str, facility: str, client: str, text: str) -> None:
        if facility == "APIVERSION" and (found := _CONNECTED.match(text)):
            self._seen.setdefault(found["broker"], {})[found["api"]] = (int(found["low"]), int(found["high"]))
        elif level >= logging.WARNING:
            self.errors.log(level, message, facility, client, text)

    def of(self, broker: str) -> Versions:
        return self._seen.get(broker, {})


def _connect(client: AdminClient, brokers: Iterable[int], timeout_seconds: float) -> dict[int, str]:
    """Send a request to each broker, and return the errors of those that this client can't connect to.

    A broker that refuses to show its configuration has answered.
    """
    resources = [ConfigResource(ResourceType.BROKER, str(number)) for number in brokers]
    futures: dict[ConfigResource, Future[Any]] = {}
    for resource in resources:  # one request each: librdkafka sends a request for several brokers to only one of them
        futures |= client.describe_configs([resource], request_timeout=timeout_seconds)
    failures = {}
    for resource, future in futures.items():
        error = _error_of(future)
        if error is not None and error.args[0].code() < 0:  # librdkafka's own code, not one of a broker
            failures[int(resource.name)] = str(error.args[0].str())
    return failures


def _topic_rights(client: AdminClient, topics: Collection[str], timeout_seconds: float) -> dict[str, Rights]:
    return _rights(
        lambda: (
            client.describe_topics(
                TopicCollection(list(topics)), include_authorized_operations=True, request_timeout=timeout_seconds
            )
            if topics
            else {}
        ),
        timeout_seconds,
    )


def _group_rights(client: AdminClient, groups: Collection[str], timeout_seconds: float) -> dict[str, Rights]:
    return _rights(
        lambda: (
            client.describe_consumer_groups(
                list(groups), include_authorized_operations=True, request_timeout=timeout_seconds
            )
            if groups
            else {}
        ),
        timeout_seconds,
    )


def _rights(ask: Callable[[], Mapping[str, Future[Any]]], timeout_seconds: float) -> dict[str, Rights]:
    """Return the rights that ``ask`` finds. It is called again while a coordinator or leader is being elected."""
    attempts = tenacity.Retrying(
        stop=tenacity.stop_after_delay(timeout_seconds),
        wait=tenacity.wait_fixed(_PAUSE_SECONDS),
        sleep=tenacity.sleep_using_event(threading.Event()),  # never set
        retry=tenacity.retry_if_result(lambda found: any(_may_pass(future) for future in found.values())),
        retry_error_callback=lambda state: state.outcome.result() if state.outcome is not None else {},
    )
    return {name: _rights_in(future) for name, future in attempts(ask).items()}


def _may_pass(future: Future[Any]) -> bool:
    error = _error_of(future)
    return error is not None and may_pass(error.args[0])


def _newest(client: AdminClient, partitions: Collection[str], timeout_seconds: float) -> dict[str, int]:
    specs = {}
    for name in list(partitions)[:_TIMES_MAX]:
        topic, _, number = name.rpartition("/")
        specs[TopicPartition(topic, int(number))] = OffsetSpec.max_timestamp()  # type: ignore[no-untyped-call]
    found = {}
    for partition, future in client.list_offsets(specs, request_timeout=timeout_seconds).items() if specs else ():
        if (
            _error_of(future) is None and future.result().timestamp > 0
        ):  # none: an empty partition, or a broker before Kafka 3.0
            found[f"{partition.topic}/{partition.partition}"] = int(future.result().timestamp)
    return found


def _rights_in(future: Future[Any]) -> Rights:
    error = _error_of(future)
    if error is not None:
        return Rights(None, f"{error.args[0].str()} ({error.args[0].name()})")
    operations: list[AclOperation] | None = future.result().authorized_operations
    if operations is None:
        return Rights(None, "the broker does not say which operations are allowed")
    return Rights(frozenset(operation.name for operation in operations))


def _error_of(future: Future[Any]) -> KafkaException | None:
    try:
        future.result()
    except KafkaException as error:
        return error
    return None
