"""What an operator may request from the driver next, and the requests."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from driver.decisions.replay import Horizon, RewindTo, needed
from driver.journal import history
from driver.journal.events import IncarnationStart
from driver.journal.state import ADOPTER
from driver.journal.state_parts import Partition
from driver.tracker.requests import BeginReplay, EndHold, HoldForReset, Request, Reset
from forebay import messages as m
from forebay.model.errors import CorruptionError, NewerVersionError, RefusedError, StoreError
from forebay.model.values import TopicPartition
from tests.simulation.driver_process import DriverProcess, Waiting
from tests.simulation.scheduler import Step, as_fault

if TYPE_CHECKING:
    from tests.simulation.world import World

#: maximum number of replays requested in one run
REPLAYS_MAX = 4
#: errors of a replay that the operator gets as its answer
_SHOWN = (CorruptionError, NewerVersionError, RefusedError, StoreError, MemoryError)


class Operator:
    """Accepts gaps, fences receivers, resets and replays, as the status suggests."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._replays = 0

    def steps(self) -> Iterator[Step]:
        """An operator accepts the gap that the status shows."""
        for driver in self._world.drivers:
            if not driver.leading or driver.paused:
                continue
            for key, partition in driver.tracker.state.partitions.items():
                if partition.fault is not None and not any(
                    isinstance(w.request, m.AcceptGapRequest) for w in driver.queue
                ):
                    yield Step(f"{driver.name} accept-gap {key}", partial(self._accept_gap, driver, key), 5)
                if partition.fault is not None and self._world.options.ids:
                    yield from self._fence_steps(driver, partition)

    def _fence_steps(self, driver: DriverProcess, partition: Partition) -> Iterator[Step]:
        """An operator says that a receiver whose id may never return was removed for good.

        The status shows what waits for it.
        """
        alive = {process.receiver_id for process in self._world.processes()}
        for writer in partition.writers:
            if writer.receiver_id not in alive and writer.receiver_id != ADOPTER:
                tp = partition.tp
                request = m.FenceRequest(topic=tp.topic, partition=tp.partition, receiver_id=writer.receiver_id)
                fence = partial(driver.queue.append, Waiting(request))
                yield Step(f"{driver.name} fence {tp} {writer.receiver_id}", fence, 2)

    def reset_steps(self) -> Iterator[Step]:
        for driver in self._world.drivers:
            if self._world.options.resets and driver.leading and not driver.paused:
                for held in driver.tracker.state.partitions.values():
                    yield from self._reset_steps(driver, held.tp)

    def _reset_steps(self, driver: DriverProcess, tp: TopicPartition) -> Iterator[Step]:
        """Reset to the first offset: what ``driver.background.resetting`` requests from the decision loop, one by one."""
        start = IncarnationStart(
            tp.topic, tp.partition, self._world.kafka.log(tp).low, self._world.kafka.topic_id(tp.topic)
        )
        asked: dict[str, Request] = {
            "hold-reset": HoldForReset((tp,)),
            "reset": Reset((start,), "reset to earliest", "simulated"),
            "let-go": EndHold((tp,)),
        }
        for name, request in asked.items():
            yield as_fault(Step(f"{driver.name} {name} {tp}", partial(driver.queue.append, Waiting(request)), 1))

    def replay_steps(self) -> Iterator[Step]:
        """An operator rewinds to one of the completed batches. This is refused if the WAL does not hold all of it."""
        for driver in self._world.drivers:
            if (
                driver.leading
                and not driver.paused
                and driver.tracker.state.completed_number
                and self._replays < REPLAYS_MAX
            ):
                weight = max(2, self._world.options.quiet // 2)
                yield as_fault(Step(f"{driver.name} replay", partial(self._replay, driver), weight, range(1, 4)))

    def _accept_gap(self, driver: DriverProcess, key: str) -> None:
        partition = driver.tracker.state.partitions[key]
        fault = partition.fault
        assert fault is not None
        request = m.AcceptGapRequest(
            topic=partition.topic,
            partition=partition.partition,
            from_offset=fault.position,
            until_offset=fault.accepted_until,
        )
        driver.queue.append(Waiting(request))

    def _replay(self, driver: DriverProcess, back: int) -> None:
        """Rewind to the ``back``-th newest completed batch."""
        self._replays += 1
        state = driver.tracker.state
        to = RewindTo(batch=max(1, state.completed_number + 1 - back))
        try:
            archived = needed(history.read_back(self._world.journal, self._world.stream), Horizon.of(state), to)
        except _SHOWN:
            return
        driver.queue.append(Waiting(BeginReplay(to, archived, state.archived_number, "simulated")))
