"""One receiver process, put together: the only place that knows which parts it is made of."""

from __future__ import annotations

import logging
import os
import random
import socket
import sys
import threading
import uuid
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa

from forebay.http.driver_client import DriverClient
from forebay.model.values import check_name
from forebay.process.clock import Clock, SystemClock
from forebay.process.notify import Notifier
from forebay.process.signals import stop_signals
from forebay.security.access import Access
from forebay.settings.durability_notes import without_wal
from forebay.settings.schema import Settings
from receiver.block_store import BlockStore
from receiver.copy_store import AgentCopies, CopyStore
from receiver.draft_store import DraftStore
from receiver.driver_line import DriverLine
from receiver.encoded_block import BlockWriting
from receiver.inputs import Input
from receiver.machine import ReceiverMachine
from receiver.service import ReceiverService
from receiver.source import Source
from wal.blocks.encryption import load_keys
from wal.segments.writer import SegmentLimits
from wal.storage import Storage, open_storage, tried_for
from wal.storage.probe import probe

_log = logging.getLogger("forebay.receiver")

#: a remote store tries again by itself for so long; then the receiver does, and says why
STORE_RETRY_SECONDS = 2.0
#: between two writes where each is an object of its own; [wal] flush_interval says otherwise
FLUSH_SECONDS = 0.25
#: how long the polling thread may keep the interpreter from one that waits for it: sending an object takes a hundred turns,
#: and at Python's 5 ms each the polling of a backlog doubled the time of every object
SWITCH_SECONDS = 0.0005


def run(settings: Settings, receiver_id: str, host: str | None = None) -> int:
    """Runs receiver ``receiver_id`` until it is drained (SIGTERM, Ctrl-C, the driver's order) or must end.

    ``host``: default ``receiver.host``, then this machine's name; it must be the agent's, whose directory keeps the
    local copies. Returns the exit code: 0 drained, 1 failed, 2 refused by the driver as wrong use, 4 superseded. An
    unreachable broker or driver is waited for, visibly. A second signal ends the process at once. Raises ForebayError.
    """
    if not logging.getLogger().handlers:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # blocks come and go several times a second: Arrow's own pools give their pages back to the system in between, and
    # getting them zeroed again cost a tenth of the CPU and 80 MB at the peak (docs/PERFORMANCE.md)
    pa.set_memory_pool(pa.system_memory_pool())
    sys.setswitchinterval(SWITCH_SECONDS)
    clock = SystemClock()
    source = source_of(settings, receiver_id, clock)
    storage: Storage | None = None
    if settings.has_wal:
        patient = open_storage(settings.wal.url, settings.storage)
        # with the store's own patience: a receiver that starts while a NameNode does must not end for it
        probe(patient, settings.stream, lambda: random.SystemRandom().getrandbits(64))
        storage = tried_for(patient, STORE_RETRY_SECONDS)
    else:
        _log.warning("%s", without_wal(settings))
    service = compose(settings, receiver_id, source, storage, clock, host)
    notifier = Notifier.of(os.environ, clock, service.service_status, os.getpid())
    notifier.watch("poll")
    service.came_round = lambda: notifier.came_round("poll")
    in_main = threading.current_thread() is threading.main_thread()
    with stop_signals(service.drain) if in_main else nullcontext():
        return service.run()


def source_of(settings: Settings, receiver_id: str, clock: Clock) -> Source:
    """What ``receiver.source`` names. Raises UsageError for a class, or an id, that can't be."""
    if settings.custom_source:
        from receiver.own_source import custom_source_of

        return custom_source_of(settings, receiver_id, clock)
    from forebay.kafka.consume.consumer import KafkaSource

    return KafkaSource.of(settings, client_id=f"forebay-{receiver_id}")


def compose(
    settings: Settings, receiver_id: str, source: Source, storage: Storage | None, clock: Clock, host: str | None = None
) -> ReceiverService:
    """The parts of one receiver, not started. Each call is another instance, whose registration ends the one before.
    ``storage``: the WAL's; None where there is none."""
    check_name("receiver id", receiver_id)
    host = check_name("host", host or settings.receiver.host or settings.agent.host or socket.gethostname())
    own = settings.receiver
    machine = ReceiverMachine(
        settings.stream,
        receiver_id,
        host,
        uuid.uuid4().hex,
        version("forebay"),
        own,
        by_pattern=settings.kafka.pattern is not None,
    )
    keys = load_keys(settings.wal.key_file)
    writing = BlockWriting(settings.stream, receiver_id, host, settings.kafka.headers, settings.wal.compression, keys)
    access = Access.of(settings, "receiver", receiver_id)
    store_of = partial(_wal_store, settings, writing, storage, clock) if storage is not None else None
    return ReceiverService(
        machine,
        source,
        store_of or partial(_copy_store, settings, writing, clock, access),
        lambda name, tell: DriverLine(name, DriverClient(settings.driver.all_urls, own.report_timeout, access), tell),
        settings,
        clock,
    )


def _wal_store(
    settings: Settings, writing: BlockWriting, storage: Storage, clock: Clock, tell: Callable[[Input], None]
) -> DraftStore:
    own, flush = settings.receiver, settings.wal.flush_interval
    return BlockStore(
        writing,
        storage,
        SegmentLimits(settings.wal.segment_size, settings.wal.segment_age),
        Path(settings.agent.blocks) if own.local_copies else None,
        settings.agent.quota,
        own.store_timeout,
        clock,
        tell,
        flush if flush is not None else 0.0 if storage.appendable else FLUSH_SECONDS,
        min(settings.wal.segment_size, own.memory // 2),
        int(settings.wal.reserve),
    )


def _copy_store(
    settings: Settings, writing: BlockWriting, clock: Clock, access: Access, tell: Callable[[Input], None]
) -> DraftStore:
    own = settings.receiver
    return CopyStore(
        writing,
        Path(settings.agent.blocks),
        settings.agent.quota,
        AgentCopies(own.report_timeout, access) if own.copies > 1 else None,
        own.store_timeout,
        clock,
        tell,
        own.memory // 2,
    )
