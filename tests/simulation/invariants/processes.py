"""INV-4 and INV-7: decisions, answers and ends of drivers and receivers agree with the durable journal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from driver.background.discovery import LostJournal
from driver.journal import events as ev
from driver.journal.files import newest_claim
from driver.journal.leadership.timeline import TimelineFound
from driver.journal.state import ADOPTER, BrokenInvariant, State
from driver.tracker import Decision
from driver.tracker.requests import Request
from forebay import messages as m
from forebay.model.errors import (
    CorruptionError,
    FencedError,
    ForebayError,
    NewerVersionError,
    StoreError,
    UnreadableBlockError,
)
from forebay.model.identifiers import count_of, timeline_of
from tests.simulation.invariants.record import Record
from tests.simulation.invariants.violation import InvariantViolation, named

if TYPE_CHECKING:
    from tests.simulation.driver_process import DriverProcess
    from tests.simulation.receiver_process import ReceiverProcess
    from tests.simulation.world import World


class Processes:
    """Checks what drivers decide and answer, and why processes end."""

    def __init__(self, world: World, record: Record) -> None:
        self._world = world
        self._record = record
        #: receiver id and process → epoch of the driver that registered it, and of the one that answered
        self._registered: dict[tuple[str, str], int] = {}
        self._answered: dict[tuple[str, str], int] = {}

    def check(self, state: State) -> None:
        """INV-4: the journal holds every block that a driver answered as accepted, until it is cleaned up."""
        for block_id, driver in self._record.accepted.items():
            if block_id not in state.blocks and block_id not in self._record.cleaned:
                raise InvariantViolation("INV-4", f"{driver} accepted block {block_id}, the journal does not hold it")

    def opened(self, driver: DriverProcess) -> None:
        """INV-7: the opened state is the one in the durable journal."""
        self._same_as_durable(driver)

    def checked(self, driver: DriverProcess) -> None:
        """INV-7: the state of a driver that is not superseded, and whose events are durable, equals the journal's."""
        self._same_as_durable(driver)

    def _same_as_durable(self, driver: DriverProcess) -> None:
        self._record.refresh()
        if self._record.knows_no_loss(driver):
            return
        if self._record.state is None or _encoded(self._record.state) != _encoded(driver.tracker.state):
            raise InvariantViolation("INV-7", f"{driver.name}'s state is not what the durable journal replays to")
        if driver.tracker.state.index != self._record.state.build_index():
            raise InvariantViolation("INV-7", f"{driver.name}'s index of blocks is not that of its state")

    def decide(self, driver: DriverProcess, request: Request, now: float, now_ms: int) -> Decision:
        """Let the tracker decide by the driver's clock, and check the decision (INV-4)."""
        is_claim = isinstance(request, m.ClaimRequest)
        tokens = {key: p.token for key, p in driver.tracker.state.partitions.items()} if is_claim else {}
        try:
            decision = driver.tracker.decide(request, now, now_ms)
        except BrokenInvariant as error:
            raise InvariantViolation(named(error), f"{driver.name} decided it: {error}") from error
        except ForebayError as refusal:
            self._world.coverage.refused(driver.name, request, refusal)
            raise
        self._world.coverage.decided(driver.name, request, decision.events)
        self._world.reached.update(type(event).__name__ for event in decision.events)
        if isinstance(request, m.ReportRequest) and request.receiver_id == ADOPTER and decision.events:
            self._world.reached["adopted"] += 1
        for event in decision.events:
            if isinstance(event, ev.ReceiverRegistered):
                self._check_registration(driver, event)
        if isinstance(request, m.ClaimRequest):
            # an odd request may ask twice for one partition
            asked = {(f"{ask.topic}/{ask.partition}", ask.known_token) for ask in request.claims}
            for event in decision.events:
                if isinstance(event, ev.ClaimGiven):
                    key = f"{event.topic}/{event.partition}"
                    if (key, tokens[key]) not in asked:
                        raise InvariantViolation("INV-4", f"a claim of {key} that names an outdated token was granted")
        return decision

    def _check_registration(self, driver: DriverProcess, event: ev.ReceiverRegistered) -> None:
        """INV-4: a process that registered once gets no new epoch after another process of its id did."""
        if self._world.options.ids_kept or self._record.knows_no_loss(driver):
            return  # ids are forgotten, with the processes that had them
        process, epoch = (event.receiver_id, event.instance_id), driver.journal.epoch
        answered = self._answered.get(process, epoch + 1)  # a newer driver knows it too
        if self._registered.get(process) == epoch or (
            answered <= epoch and timeline_of(answered) == timeline_of(epoch)
        ):
            raise InvariantViolation("INV-4", f"{event.instance_id} is registered anew as {event.receiver_id}")
        self._registered[process] = epoch

    def released(self, driver: DriverProcess, request: Request, answer: Any) -> None:
        """Check an answer that leaves: what it says must be in the durable journal, now and from now on."""
        self._record.refresh()
        state = self._record.state
        if self._record.lost:
            if isinstance(answer, m.ReportAnswer):
                self._record.accepted.update({r.block_id: driver.name for r in answer.results if r.accepted})
            return
        if self._record.knows_no_loss(driver) and not isinstance(answer, m.ReportAnswer):
            return
        if isinstance(answer, m.ReportAnswer):
            for result in answer.results:
                if not result.accepted:
                    continue
                if state is None or (
                    result.block_id not in state.blocks and result.block_id not in self._record.cleaned
                ):
                    outdated = newest_claim(self._world.journal, self._world.stream) > driver.journal.epoch
                    raise InvariantViolation(
                        "INV-4" if outdated else "INV-1",
                        f"{driver.name} accepts block {result.block_id}, the journal does not durably hold it",
                    )
                self._record.accepted[result.block_id] = driver.name
        elif isinstance(answer, m.RegisterAnswer) and isinstance(request, m.RegisterRequest):
            if state is None or state.epochs < count_of(answer.epoch):
                raise InvariantViolation("INV-4", f"{driver.name} gives epoch {answer.epoch:x}, which is not durable")
            self._answered[request.receiver_id, request.instance_id] = driver.journal.epoch
        elif isinstance(answer, m.ClaimAnswer):
            if state is not None and not state.copies and not self._world.options.copies:
                raise InvariantViolation(
                    "INV-1", f"{driver.name} answers a claim, and no snapshot copy is beside the WAL"
                )
            for grant in answer.claims:
                if grant.granted and (state is None or state.tokens < count_of(grant.view.token)):
                    raise InvariantViolation("INV-4", f"{driver.name} gives token {grant.view.token:x}: not durable")
        elif isinstance(answer, m.LookupAnswer):
            for view in answer.partitions:
                if view.known and view.position > self._record.position(view.tp, view.incarnation):
                    raise InvariantViolation("INV-1", f"{driver.name} shows {view.tp} at {view.position}: not durable")

    def driver_ended(self, driver: DriverProcess, error: BaseException, was_faulty: bool) -> None:
        """A driver may end when it is fenced and when its journal's store fails. Every other end is a violation.

        ``was_faulty``: a store gave a faulty answer. A driver survives every fault of the WAL once it leads.
        """
        if was_faulty and isinstance(error, StoreError) and driver.leading and self._world.wal.url in str(error):
            raise InvariantViolation("progress", f"{driver.name} ended by a fault of the WAL: {error}") from error
        refused = (CorruptionError, NewerVersionError, FileNotFoundError, MemoryError)
        if was_faulty and isinstance(error, refused):
            return
        if isinstance(error, FencedError | StoreError) or (isinstance(error, TimelineFound) and self._record.lost):
            return
        if isinstance(error, LostJournal):
            raise InvariantViolation("INV-1", f"{driver.name} ended: {error}") from error
        if isinstance(error, BrokenInvariant):
            raise InvariantViolation(named(error), f"{driver.name} ended: {error}") from error
        if isinstance(error, FileNotFoundError | CorruptionError | UnreadableBlockError) and driver.leading:
            raise InvariantViolation("INV-8", f"{driver.name} can't read what a batch needs: {error}") from error
        raise InvariantViolation("progress", f"{driver.name} ended by {type(error).__name__}: {error}") from error

    def receiver_ended(self, process: ReceiverProcess) -> None:
        """INV-4: only a newer process of the same id ends a receiver as superseded; an outdated driver cannot."""
        if process.exit_code == 4:
            self._record.refresh()
            known = self._record.state.receivers.get(process.receiver_id) if self._record.state is not None else None
            if known is not None and known.epoch == process.machine.epoch:
                raise InvariantViolation(
                    "INV-4", f"{process.name} was ended, and is not superseded: {process.exit_reason}"
                )
        elif process.exit_code == 2:
            raise InvariantViolation("progress", f"{process.name} was refused: {process.exit_reason}")

    def agent_started(self, host: str, stored: int, epoch: int) -> None:
        """INV-4: a new process of an agent obeys no driver before the newest one whose epoch a process of it stored."""
        if epoch < stored:
            raise InvariantViolation(
                "INV-4", f"the agent of {host} obeys drivers from {epoch:x} on, and stored {stored:x}"
            )

    def damage_reported(self, host: str, damaged: set[str], reported: Iterable[str]) -> None:
        """INV-5: an agent reports every damaged copy that it does not serve any more."""
        silent = damaged.difference(reported)
        if silent:
            raise InvariantViolation(
                "INV-5", f"the agent of {host} does not report the damaged copies {sorted(silent)}"
            )


def _encoded(state: State) -> bytes:
    return msgspec.msgpack.encode(state)
