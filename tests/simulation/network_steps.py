"""What happens to messages between the processes: which of it may happen next, and what it does."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from tests.simulation.driver_process import DriverProcess, Waiting
from tests.simulation.hosts import Host
from tests.simulation.network import COPIES_MAX, Exchange
from tests.simulation.receiver_process import ReceiverProcess
from tests.simulation.scheduler import Step, as_fault

if TYPE_CHECKING:
    from tests.simulation.world import World


class NetworkSteps:
    """Delivers, loses and repeats messages, which the network holds until then."""

    def __init__(self, world: World) -> None:
        self._world = world

    def steps(self, faults: bool) -> Iterator[Step]:
        serving = [d for d in self._world.drivers if d.leading]
        for exchange in list(self._world.network.exchanges.values()):
            label = exchange.label
            if exchange.copies:
                for driver in serving:
                    yield Step(f"deliver {label} {driver.name}", partial(self._deliver, exchange, driver), 20)
                if faults:
                    yield as_fault(Step(f"lose {label}", partial(self._world.network.lose_request, exchange), 6))
                    if exchange.made < COPIES_MAX:
                        # a late copy of a registration matters only once its process has ended
                        weight = 6 * self._world.options.quiet if "/register" in label else 6
                        yield as_fault(
                            Step(f"repeat {label}", partial(self._world.network.repeat_request, exchange), weight)
                        )
            sender = self._sender(exchange)
            if sender is None or not sender.running:
                continue
            for number in exchange.answers:
                yield Step(f"answer {label} {number}", partial(self._answer, exchange, number), 25)
                if faults:
                    step = Step(
                        f"lose-answer {label} {number}", partial(self._world.network.lose_answer, exchange, number), 6
                    )
                    yield as_fault(step)
            if not exchange.given_up:
                lost = not exchange.copies and not exchange.answers and not exchange.at_driver
                if lost or faults:
                    step = Step(f"give-up {label}", partial(self._world.network.give_up, exchange), 20 if lost else 4)
                    yield step if lost else as_fault(step)

    def calm_steps(self, exchange: Exchange) -> Iterator[Step]:
        sender = self._sender(exchange)
        leading = [driver for driver in self._world.drivers if driver.leading]
        if exchange.copies and leading:
            step = partial(self._deliver, exchange, leading[-1])
            yield Step(f"deliver {exchange.label} {leading[-1].name}", step)
        if sender is None or not sender.running:
            return
        for number in exchange.answers:
            yield Step(f"answer {exchange.label} {number}", partial(self._answer, exchange, number))
        lost = not exchange.copies and not exchange.answers and not exchange.at_driver
        if lost and not exchange.given_up:
            yield Step(f"give-up {exchange.label}", partial(self._world.network.give_up, exchange))

    def _sender(self, exchange: Exchange) -> ReceiverProcess | Host | None:
        name = exchange.label.partition("/")[0]
        if name in self._world.hosts:
            return self._world.hosts[name]
        for process in (*self._world.receivers.values(), *self._world.zombies):
            if process.name == name:
                return process if process.alive else None
        return None

    def _deliver(self, exchange: Exchange, driver: DriverProcess) -> None:
        self._world.network.request_taken(exchange)
        body = msgspec.json.decode(msgspec.json.encode(exchange.body), type=type(exchange.body))
        driver.queue.append(Waiting(body, exchange))

    def _answer(self, exchange: Exchange, number: int) -> None:
        self._world.network.deliver_answer(exchange, number)
