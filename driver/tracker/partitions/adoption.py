"""The tracker's part in adoption: at a fault, the WAL is searched for blocks that the journal does not name (rule 8)."""

from __future__ import annotations

from collections.abc import Iterable

from driver.journal import events as ev
from driver.journal.state_parts import EndedEpoch
from driver.tracker.decision import Recorder
from driver.tracker.partitions.commands import Commands
from driver.tracker.partitions.faults import Faults
from driver.tracker.partitions.writers import Writers
from driver.tracker.requests import Barred, NothingToAdopt, Search


class Adoption:
    """Decides which partitions wait for a search of the WAL, and records that a search found nothing."""

    def __init__(self, *, recorder: Recorder, commands: Commands, writers: Writers, faults: Faults) -> None:
        self._recorder = recorder
        self._commands = commands
        self._writers = writers
        self._faults = faults

    def searches(self) -> tuple[Search, ...]:
        """Return the searches that faults wait for.

        A receiver that takes in under an outdated token is ordered to claim again: it might never learn otherwise that its token
        is outdated.
        """
        searches = []
        for partition in self._recorder.state.partitions.values():
            fault = partition.fault
            if fault is None or fault.tried == partition.token or partition.position != fault.position:
                continue
            unsettled = self._writers.unsettled(partition)
            for writer in unsettled:
                if writer.token != partition.token and self._writers.is_holding(writer, partition.tp):
                    self._commands.reclaim(writer.receiver_id, partition.tp)
            searches.append(
                Search(
                    tp=partition.tp,
                    incarnation=partition.incarnation.number,
                    topic_id=partition.incarnation.topic_id,
                    position=partition.position,
                    limit=fault.accept_until if fault.kind == "out-of-range" and not fault.new_incarnation else None,
                    token=partition.token,
                    waits_for=tuple(writer.receiver_id for writer in unsettled),
                )
            )
        self._faults.forget_reasons([search.tp for search in searches])
        return tuple(searches)

    def bar(self, request: Barred) -> bool:
        """Journal the ended epochs whose barriers are valid. Return whether all barriers are."""
        segments = {(ended.receiver_id, ended.epoch): ended.segments for ended in self._recorder.state.unbarred}
        barriers = [(p.receiver, p.epoch, p.sequence > segments[p[1:3]]) for p in request.places if p[1:3] in segments]
        barred = [ev.EpochBarred(receiver_id, epoch) for receiver_id, epoch, holds in barriers if holds]
        self._recorder.apply(*barred)
        return len(barred) == len(barriers)

    def _are_as_before(self, epochs: Iterable[EndedEpoch]) -> bool:
        before = {(epoch.receiver_id, epoch.epoch): epoch.segments for epoch in epochs}
        state = self._recorder.state
        return all(
            before.get((ended.receiver_id, ended.epoch), ended.segments) == ended.segments
            for ended in (*state.ended_epochs, *state.unbarred)
        )

    def nothing_found(self, request: NothingToAdopt, now_ms: int) -> bool:
        """Journal that the WAL holds nothing at the fault's position. Return False if the journal has moved on since."""
        search = request.search
        partition = self._recorder.state.partition(search.tp)
        fault = partition.fault if partition is not None else None
        if (
            partition is None
            or fault is None
            or (partition.incarnation.number, partition.position) != (search.incarnation, search.position)
            # the owner of a newer token may write since the search began; all others were settled, and stay so
            or partition.token != search.token
            # a segment that clean-up deleted meanwhile looks like the end of its epoch, and later ones may be there
            or not self._are_as_before(request.epochs)
        ):
            return False
        self._faults.block(search.tp, "")
        self._recorder.apply(
            ev.AdoptionTried(
                topic=search.tp.topic,
                partition=search.tp.partition,
                token=partition.token,
                adoptable_from=request.adoptable_from,
            )
        )
        if self._faults.is_recorded(fault):
            tried = partition.fault
            assert tried is not None
            self._faults.accept(partition, tried, now_ms, f"{fault.kind}, recorded by on_gap")
        return True
