"""Runs one receiver process: composes its parts and starts them."""

from __future__ import annotations

import logging
import os
import random
import socket
import sys
import threading
import uuid
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from typing_extensions import assert_never

from forebay.http.driver_client import DriverClient
from forebay.model.identifiers import check_name
from forebay.process import logs
from forebay.process.clock import Clock, SystemClock
from forebay.process.garbage import freeze_present
from forebay.process.notify import Notifier
from forebay.process.signals import stop_signals
from forebay.security.access import Access
from forebay.settings.durability_notes import without_wal
from forebay.settings.schema import Settings
from forebay.sources.kind import CustomSourceKind, KafkaSourceKind, source_kind
from forebay.traces.sending import spans_of
from receiver.blocks.encoded_block import EncodingOptions
from receiver.channels.driver_channel import DriverChannel
from receiver.inputs import Input
from receiver.machine import ReceiverIdentity, ReceiverMachine
from receiver.metrics import ReceiverMetrics
from receiver.service import Observer, ReceiverService
from receiver.sources.source import Source
from receiver.stores.optional_replicas import REPLICA_SECONDS_MAX, OptionalReplicas
from receiver.stores.replica_store import ReplicaStore
from receiver.stores.replication import AgentReplicaSender
from receiver.stores.store import Store, StoreOptions
from receiver.stores.wal_store import WalStore
from receiver.traces import BlockTraces
from wal.blocks.encryption import load_keys
from wal.segments.writer import SegmentLimits
from wal.storage import Storage, open_storage, past_cache, tried_for
from wal.storage.probe import probe

if TYPE_CHECKING:
    from forebay.traces.spans import Spans

_log = logging.getLogger("forebay.receiver")

#: how long a remote store retries an operation by itself; then it fails, and the receiver logs the error and retries
STORE_RETRY_SECONDS = 2.0
#: default of wal.flush_interval for a store of whole objects, where each write is an object of its own
FLUSH_SECONDS = 0.25
#: how long one thread may keep the interpreter while another one waits for it. Sending an object takes a hundred turns. With
#: Python's default of 5 ms, polling a backlog doubled the time of every object.
SWITCH_SECONDS = 0.0005


def run(settings: Settings, receiver_id: str, host: str | None = None) -> int:
    """Run receiver ``receiver_id`` until it is drained (by SIGTERM, Ctrl-C or the driver) or must end. Return the exit code.

    ``host``: default ``receiver.host``, then this machine's name. It must be the host of the agent whose directory keeps the
    local copies. Exit codes: 0 drained, 1 failed, 2 refused by the driver as wrong use, 4 superseded, 6 drained to be started
    again. If a broker or the driver cannot be reached, the receiver waits and shows it in its status. A second signal ends the
    process immediately. Raises ForebayError.
    """
    logs.configure(
        settings.log.format, settings.log.level, service="receiver", stream=settings.stream, receiver=receiver_id
    )
    # Blocks are allocated and freed several times a second. Arrow's own pools return the pages to the system in between, and
    # getting them zeroed again cost a tenth of the CPU and 80 MB at the peak (docs/PERFORMANCE.md).
    pa.set_memory_pool(pa.system_memory_pool())
    sys.setswitchinterval(SWITCH_SECONDS)
    clock = SystemClock()
    source = source_of(settings, receiver_id, clock)
    storage: Storage | None = None
    if settings.has_wal:
        patient = open_storage(settings.wal.url, settings.storage)
        # with the store's own retries, so that a receiver survives a NameNode that is still starting
        probe(patient, settings.stream, lambda: random.SystemRandom().getrandbits(64))
        storage = tried_for(patient, STORE_RETRY_SECONDS)
        if settings.receiver.local_copies:
            storage = past_cache(storage)  # tasks read the local copies
    else:
        _log.warning("%s", without_wal(settings))
    metrics = ReceiverMetrics(
        stream=settings.stream,
        receiver_id=receiver_id,
        release=version("forebay"),
        memory_bytes=settings.receiver.memory,
        clock=clock,
    )
    spans = spans_of(settings, "receiver", version("forebay"))
    service = compose(
        settings, receiver_id, source=source, storage=storage, clock=clock, host=host, metrics=metrics, spans=spans
    )
    freeze_present()
    notifier = Notifier.of(os.environ, clock, service.service_status, os.getpid())
    notifier.watch("poll")
    service.came_round = lambda: notifier.came_round("poll")
    in_main = threading.current_thread() is threading.main_thread()
    with ExitStack() as opened:
        if spans is not None:
            opened.callback(spans.close)
        if settings.receiver.metrics_url is not None:
            from receiver.serving import serving  # loads an HTTP server

            opened.enter_context(
                serving(settings, settings.receiver.metrics_url, service, metrics, host or own_host(settings))
            )
        opened.enter_context(stop_signals(service.drain) if in_main else nullcontext())
        return service.run()


def own_host(settings: Settings) -> str:
    """Return the name of this host, as the settings or the machine give it."""
    return settings.receiver.host or settings.agent.host or socket.gethostname()


def source_of(settings: Settings, receiver_id: str, clock: Clock) -> Source:
    """Return the source that ``receiver.source`` names. Raises UsageError for a class or an id that cannot be used."""
    match source_kind(settings):
        case CustomSourceKind():
            from receiver.sources.custom_source import custom_source_of

            return custom_source_of(settings, receiver_id, clock)
        case KafkaSourceKind():
            from forebay.kafka.consume.consumer import KafkaSource

            return KafkaSource.of(settings, client_id=f"forebay-{receiver_id}")
        case kind:
            assert_never(kind)


def compose(
    settings: Settings,
    receiver_id: str,
    *,
    source: Source,
    storage: Storage | None,
    clock: Clock,
    host: str | None = None,
    metrics: ReceiverMetrics | None = None,
    spans: Spans | None = None,
) -> ReceiverService:
    """Return the composed parts of one receiver, not started. ``storage``: of the WAL; None for a stream without a WAL.
    ``metrics``: counts what the receiver does; None: nothing is counted. ``spans``: makes traces; None: there are none.

    Each call makes another instance of the receiver id. Its registration ends the instance before it.
    """
    check_name("receiver id", receiver_id)
    host = check_name("host", host or own_host(settings))
    own = settings.receiver
    machine = ReceiverMachine(
        ReceiverIdentity(settings.stream, receiver_id, host, instance_id=uuid.uuid4().hex, version=version("forebay")),
        own,
        by_pattern=settings.kafka.pattern is not None,
    )
    keys = load_keys(settings.wal.key_file)
    encoding = EncodingOptions(
        stream=settings.stream,
        receiver_id=receiver_id,
        host=host,
        headers=settings.kafka.headers,
        compression=settings.wal.compression,
        keys=keys,
    )
    access = Access.of(settings, "receiver", receiver_id)
    observers: list[Observer] = [] if metrics is None else [metrics]
    if spans is not None:
        observers.append(BlockTraces(spans, clock))
    synced = metrics.synced if metrics is not None else lambda seconds: None
    store_of = partial(_wal_store, settings, encoding, storage, clock, synced, access) if storage is not None else None
    service = ReceiverService(
        machine,
        settings,
        clock,
        source=source,
        store_of=store_of or partial(_replica_store, settings, encoding, clock, synced, access),
        channel_of=lambda name, tell: DriverChannel(
            name, DriverClient(settings.driver.all_urls, timeout_seconds=own.report_timeout, access=access), tell
        ),
        observers=observers,
    )
    if metrics is not None:
        metrics.view = service.view
    return service


def _wal_store(
    settings: Settings,
    encoding: EncodingOptions,
    storage: Storage,
    clock: Clock,
    synced: Callable[[float], None],
    access: Access,
    tell: Callable[[Input], None],
) -> Store:
    own, flush = settings.receiver, settings.wal.flush_interval
    return WalStore(
        encoding,
        StoreOptions(
            timeout_seconds=own.store_timeout,
            flush_seconds=flush if flush is not None else 0.0 if storage.appendable else FLUSH_SECONDS,
            gather_bytes=min(settings.wal.segment_size, own.memory // 2),
            synced=synced,
        ),
        clock=clock,
        tell=tell,
        storage=storage,
        limits=SegmentLimits(size_bytes=settings.wal.segment_size, age_seconds=settings.wal.segment_age),
        reserve_bytes=int(settings.wal.reserve),
        local_directory=Path(settings.agent.blocks) if own.local_copies else None,
        local_quota_bytes=settings.agent.quota,
        replicas=OptionalReplicas(AgentReplicaSender(REPLICA_SECONDS_MAX, access, durable=False), clock)
        if own.copies > 1
        else None,
    )


def _replica_store(
    settings: Settings,
    encoding: EncodingOptions,
    clock: Clock,
    synced: Callable[[float], None],
    access: Access,
    tell: Callable[[Input], None],
) -> Store:
    own = settings.receiver
    return ReplicaStore(
        encoding,
        StoreOptions(timeout_seconds=own.store_timeout, gather_bytes=own.memory // 2, synced=synced),
        clock=clock,
        tell=tell,
        directory=Path(settings.agent.blocks),
        quota_bytes=settings.agent.quota,
        sender=AgentReplicaSender(own.report_timeout, access, durable=True) if own.copies > 1 else None,
    )
