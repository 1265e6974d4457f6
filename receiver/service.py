"""The threads of a receiver around its machine:

* **polling** (the caller of :meth:`ReceiverService.run`): polls the source and performs every action on it, in order. The
  group's callbacks run within a poll. A revocation waits there until the machine says that it is done.
* **store-encode, store-local, store-write**: see ``receiver.stores.store``.
* **driver-report, driver-claim, driver-beat**: one channel to the driver each, so that a slow report delays no heartbeat.
* **broker**: see ``receiver.channels.broker_channel``.

Each thread gives its inputs to the machine under one lock, and actions are handed out under the same lock. So actions are
performed in the order of the decisions. The machine never waits, so no thread holds the lock for long.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Protocol

import msgspec
from typing_extensions import assert_never

from forebay.model.columns import Columns, EndOfPartition, PartitionFault
from forebay.model.errors import ForebayError, SourceError
from forebay.model.values import TopicPartition
from forebay.process import failpoints
from forebay.process.clock import Clock
from forebay.process.logs import fields
from forebay.process.notify import ServiceStatus
from forebay.process.restarts import RESTART_EXIT_CODE
from forebay.settings.schema import Settings
from receiver import actions as act
from receiver import inputs as inp
from receiver.blocks.encoded_block import cut
from receiver.channels.broker_channel import BrokerChannel
from receiver.channels.driver_channel import DriverChannel
from receiver.machine import ReceiverMachine
from receiver.metrics import ReceiverView
from receiver.sources.source import Source
from receiver.stores.store import Store

_log = logging.getLogger("forebay.receiver")

#: maximum wait of a poll, and so the maximum delay of signals and of actions on the source
POLL_SECONDS_MAX = 0.1
#: maximum wait for a synchronous commit, which delays polling; without an answer the membership in the group is unproven
COMMIT_SECONDS_MAX = 5.0
#: maximum time after a drain, for a write in progress of a slow store and for leaving the group
CLOSE_SECONDS = 15.0

#: makes a store that gives its inputs to the function in the argument
StoreOf = Callable[[Callable[[inp.Input], None]], Store]
#: makes a channel to the driver, from its name and the function that gets its inputs
ChannelOf = Callable[[str, Callable[[inp.Input], None]], DriverChannel]


class Observer(Protocol):
    """Sees the machine's inputs and actions, in order. It must not block, and must raise nothing."""

    def observe(self, event: inp.Input, now: float) -> None:
        """See an input before the machine does. ``now``: monotonic seconds."""

    def acted(self, action: act.Action, now: float) -> None:
        """See an action before it is performed."""


class ReceiverService:
    """Runs one machine over one source, store and driver until it exits. It can be run once.

    ``observers``: see all inputs and actions, as for metrics.
    """

    def __init__(
        self,
        machine: ReceiverMachine,
        settings: Settings,
        clock: Clock,
        *,
        source: Source,
        store_of: StoreOf,
        channel_of: ChannelOf,
        observers: Sequence[Observer] = (),
    ) -> None:
        self._machine = machine
        self._source = source
        self._settings = settings
        self._clock = clock
        self._changed = threading.Condition()
        self._source_actions: deque[act.SourceAction] = deque()
        self._store = store_of(self.tell)
        self._reports = channel_of("report", self.tell)
        self._claims = channel_of("claim", self.tell)
        self._beats = channel_of("beat", self.tell)
        self._broker = BrokerChannel(source, settings.receiver.report_timeout, self.tell)
        self._subscribed = False
        self._source_failed = False
        self._revocation_done = False
        self._drain_wanted = False
        self._exit: act.Exit | None = None
        self._observed_at = 0.0
        self._observers = observers
        #: URL at which this receiver serves its metrics, for heartbeats; "": it does not
        self.metrics_url = ""
        #: called in every round of the polling thread, for the watchdog
        self.came_round: Callable[[], None] = lambda: None

    # ---- from any thread ---------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Request a drain, which begins after the current poll. Safe in a signal handler."""
        self._drain_wanted = True

    def service_status(self) -> ServiceStatus:
        """Return the status for a supervisor. The receiver is ready when it is registered."""
        with self._changed:
            machine = self._machine
            text = f"{machine.state}: {machine.detail}" if machine.detail else machine.state
            stopping = machine.state == "draining"
            stop_seconds = self._settings.receiver.drain_timeout + CLOSE_SECONDS if stopping else None
            return ServiceStatus(bool(machine.epoch), text, stop_seconds)

    def view(self) -> ReceiverView:
        """Return what a scrape of the metrics reads."""
        with self._changed:
            machine = self._machine
            return ReceiverView(
                state=machine.state,
                partitions=len(machine.partitions),
                buffered_bytes=machine.buffered_bytes,
                sealed_blocks=machine.sealed_blocks,
                records=machine.records,
                rate=machine.rate,
                events=dict(machine.counters),
                store_requests=self._store.counters,
            )

    def tell(self, event: inp.Input) -> None:
        """Give ``event`` to the machine and hand out the actions that follow."""
        with self._changed:
            now = self._clock.monotonic()
            for observer in self._observers:
                observer.observe(event, now)
            for action in self._machine.handle(event, now):
                for observer in self._observers:
                    observer.acted(action, now)
                self._hand_out(action)
            self._changed.notify_all()

    def _hand_out(self, action: act.Action) -> None:
        match action:
            case act.StoreBlock():
                self._store.put(action.pending)
            case act.TopicsChecked():
                self._store.checked(action.sequences)
            case act.ReplicateTo():
                self._store.replicate_to(action.host)
            case act.Report():
                self._reports.send(action)
            case act.Heartbeat():
                message = msgspec.structs.replace(
                    action.message,
                    counters={**action.message.counters, **self._store.counters},
                    replica_host=self._store.replica_host,
                    refusing_hosts=self._store.refusing_hosts,
                    metrics_url=self.metrics_url,
                )
                self._beats.send(replace(action, message=message))
            case act.Register() | act.Lookup() | act.Claim() | act.Release() | act.SendFault():
                self._claims.send(action)
            case act.CheckTopicIds() | act.Inspect():
                self._broker.send(action)
            case act.RevocationDone():
                self._revocation_done = True
            case act.Note():
                level = logging.WARNING if action.warning else logging.INFO
                _log.log(level, "%s", action.text, extra=fields(**action.fields))
            case act.Exit():
                self._exit = action
            case (
                act.Subscribe()
                | act.Follow()
                | act.StartPartitions()
                | act.Pause()
                | act.Resume()
                | act.CommitSync()
                | act.CommitAsync()
            ):
                self._source_actions.append(action)
            case _:
                assert_never(action)

    # ---- the polling thread ------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Run until the machine exits and return its exit code. Raises what the source raises, except SourceError."""
        with ExitStack() as parts:
            parts.callback(self._leave_group)
            for part in (self._store, self._reports, self._claims, self._beats, self._broker):
                parts.enter_context(part)
            while self._exit is None:
                try:
                    self._step()
                except SourceError as error:
                    self._source_failed = True
                    _log.error("%s", error, exc_info=error.__cause__)  # the traceback of the user's class
                    self.tell(inp.SourceFailed(str(error)))
        _log.log(
            logging.INFO if self._exit.code in (0, RESTART_EXIT_CODE) else logging.ERROR,
            "receiver exits: code %d, reason: %s",
            self._exit.code,
            self._exit.reason,
            extra=fields(code=self._exit.code),
        )
        return self._exit.code

    def _leave_group(self) -> None:
        if self._subscribed:
            self._source.close()

    def _step(self) -> None:
        self.came_round()
        if self._drain_wanted:
            self._drain_wanted = False
            self.tell(inp.DrainRequested())
        self._act_on_source()
        if not self._subscribed or self._source_failed:
            self.tell(inp.Tick())
            with self._changed:
                if self._exit is None and not self._source_actions:
                    self._changed.wait(POLL_SECONDS_MAX)
            return
        now = self._clock.monotonic()
        with self._changed:
            records_max = self._machine.poll_records_max(now)
            timeout = min(POLL_SECONDS_MAX, max(0.001, self._machine.seconds_until_seal(now)))
            wait = self._machine.seconds_until_poll(now) or timeout
            if not records_max and self._exit is None and not self._source_actions:
                self._changed.wait(min(timeout, wait))
        polled = self._source.poll(records_max, timeout) if records_max else []
        if polled:
            failpoints.hit("receiver.after-poll")
            self.tell(inp.Polled(self._bounded(polled)))
        else:
            self.tell(inp.Tick())
        errors = self._source.poll_commit_errors()
        if errors:
            self.tell(inp.CommitFailed(errors))
        if now - self._observed_at >= self._settings.receiver.heartbeat_interval:
            self._observed_at = now
            self._observe_source()

    def _bounded(
        self, polled: Sequence[Columns | EndOfPartition | PartitionFault]
    ) -> Sequence[Columns | EndOfPartition | PartitionFault]:
        """Cut columns that are larger than a block may be."""
        limit = self._settings.receiver.block_size
        if all(not isinstance(item, Columns) or item.bytes <= limit for item in polled):
            return polled
        return [part for item in polled for part in (cut(item, limit) if isinstance(item, Columns) else [item])]

    def _observe_source(self) -> None:
        with self._changed:
            partitions = self._machine.partitions
        marks = {tp: mark for tp in partitions if (mark := self._source.high_watermark(tp)) >= 0}
        self.tell(inp.SourceSeen(marks, self._source.last_error))

    def _act_on_source(self) -> None:
        """Perform all queued actions on the source, in order."""
        while (action := self._next_action(lambda action: True)) is not None:
            self._do(action)

    def _commit_in_callback(self) -> None:
        """Perform only the asynchronous commits, within a callback of the group.

        librdkafka is about to change the assignment, so starts, pauses and synchronous commits wait until the poll returns.
        """
        while (action := self._next_action(lambda action: isinstance(action, act.CommitAsync))) is not None:
            self._do(action)

    def _next_action(self, wanted: Callable[[act.SourceAction], bool]) -> act.SourceAction | None:
        with self._changed:
            found = next((action for action in self._source_actions if wanted(action)), None)
            if found is None or self._exit is not None:
                return None
            self._source_actions.remove(found)
            return found

    def _do(self, action: act.SourceAction) -> None:
        if self._source_failed:
            if isinstance(
                action, act.CommitSync
            ):  # in a drain: the journal has the position, whether the source learns it or not
                self.tell(inp.CommitSynced(action.request, {}))
            return
        match action:
            case act.CommitAsync():
                if not failpoints.hit("receiver.before-commit"):
                    self._source.commit(action.positions)
            case act.CommitSync():
                self._commit_sync(action)
            case act.StartPartitions():
                with self._changed:  # the group may have revoked some of them since the decision
                    starts = [start for start in action.starts if self._machine.is_current(start.tp, start.generation)]
                if starts:
                    self._source.start(starts)
            case act.Pause():
                self._source.pause(self._owned(action.partitions))
            case act.Resume():
                self._source.resume(self._owned(action.partitions))
            case act.Follow():
                self._source.follow(action.topics)
            case act.Subscribe():
                self._store.open_epoch(action.epoch)
                if action.topics is not None:
                    self._source.follow(action.topics)
                self._source.subscribe(self)
                self._subscribed = True
            case _:
                assert_never(action)

    def _commit_sync(self, action: act.CommitSync) -> None:
        timeout = min(COMMIT_SECONDS_MAX, self._settings.receiver.report_timeout)
        try:
            errors = self._source.commit_sync(action.positions, timeout)
        except SourceError as error:
            self.tell(inp.CommitSynced(action.request, dict.fromkeys(action.positions, str(error))))
            raise
        except ForebayError as error:
            errors = dict.fromkeys(action.positions, str(error))
        self.tell(inp.CommitSynced(action.request, errors))

    def _owned(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        with self._changed:
            return [tp for tp in partitions if self._machine.owns(tp)]

    # ---- the group's callbacks, within a poll ------------------------------------------------------------------------

    def assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self.tell(inp.Assigned(tuple(partitions)))

    def revoked(self, partitions: Sequence[TopicPartition]) -> None:
        """Wait until what was taken in of ``partitions`` is accepted, or the machine's deadline has passed (rule 6)."""
        failpoints.hit("receiver.revoke")
        with self._changed:
            self._revocation_done = False
            self.tell(inp.Revoked(tuple(partitions)))
        while True:
            self.came_round()
            self._commit_in_callback()
            with self._changed:
                if self._revocation_done or self._exit is not None:
                    break
                self._changed.wait(POLL_SECONDS_MAX)
            if self._drain_wanted:
                self._drain_wanted = False
                self.tell(inp.DrainRequested())
            self.tell(inp.Tick())
        self._commit_in_callback()

    def lost(self, partitions: Sequence[TopicPartition]) -> None:
        self.tell(inp.Lost(tuple(partitions)))
