"""What happens to messages between the processes: which of it may happen next, and what it does."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from tests.simulation.driver_process import DriverProcess
from tests.simulation.http_answers import CUTS, OTHER_ANSWERS
from tests.simulation.network import COPIES_MAX, Exchange
from tests.simulation.scheduler import Step

if TYPE_CHECKING:
    from tests.simulation.world import World


#: seconds for which all answers are late: more than a receiver waits, and more than a lease lasts
LATE_SECONDS = (7.0, 40.0)
#: how often they are late in one run
LATE_MAX = 3


class NetworkSteps:
    """Delivers, loses and repeats messages, which the network holds until then."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._late = 0

    def steps(self, faults: bool) -> Iterator[Step]:
        serving = [d for d in self._world.drivers if d.leading]
        senders = self._senders()
        network = self._world.network
        for exchange in list(network.exchanges.values()):
            label = exchange.label
            if exchange.copies:
                for driver in serving:
                    # before a driver admits claims, their senders would wait longer and longer
                    weight = 20 if driver.has_discovered or not label.split("/")[1].startswith(("look", "claim")) else 1
                    yield Step(f"deliver {label} {driver.name}", partial(self._deliver, exchange, driver), weight)
                if faults:
                    yield Step(f"lose {label}", partial(network.lose_request, exchange), 6, fault=True)
                    if exchange.made < COPIES_MAX:
                        yield Step(f"repeat {label}", partial(network.repeat_request, exchange), 6, fault=True)
            if exchange.sender not in senders:
                continue
            for number in exchange.answers:
                yield Step(f"answer {label} {number}", partial(self._answer, exchange, number), 25)
                if faults:
                    lose = partial(network.lose_answer, exchange, number)
                    yield Step(f"lose-answer {label} {number}", lose, 6, fault=True)
                    cut = partial(self._cut, exchange, number)
                    yield Step(f"cut-answer {label} {number}", cut, 4, range(CUTS), fault=True)
            if not exchange.abandoned:
                lost = exchange.is_lost
                if lost or faults:
                    give_up = partial(network.end, exchange)
                    yield Step(f"give-up {label}", give_up, 20 if lost else 4, fault=not lost)
                if faults:
                    other = partial(self._answer_otherwise, exchange)
                    yield Step(f"other-answer {label}", other, 4, range(len(OTHER_ANSWERS)), fault=True)
        if faults:
            yield from self._late_registrations()
            if network.exchanges and self._late < LATE_MAX:
                yield Step("answers-late", self._pass_time, 2, range(len(LATE_SECONDS)), fault=True)

    def _late_registrations(self) -> Iterator[Step]:
        """Offer a copy of a registration when it matters: another process has registered under its id, and it has ended."""
        network = self._world.network
        running = list(self._world.processes())
        for exchange in network.registrations:
            if exchange.made == COPIES_MAX or exchange.label in network.exchanges:
                continue
            of_id = [process for process in running if process.receiver_id == exchange.body.receiver_id]
            if any(process.machine.epoch for process in of_id) and all(p.name != exchange.sender for p in of_id):
                again = partial(network.repeat_request, exchange)
                yield Step(f"repeat {exchange.label}", again, 6 * self._world.options.quiet, fault=True)

    def calm_steps(self, exchange: Exchange) -> Iterator[Step]:
        if exchange.copies:
            leading = [driver for driver in self._world.drivers if driver.leading]
            if leading:
                step = partial(self._deliver, exchange, leading[-1])
                yield Step(f"deliver {exchange.label} {leading[-1].name}", step)
        if not (exchange.answers or exchange.is_lost) or exchange.sender not in self._senders():
            return
        for number in exchange.answers:
            yield Step(f"answer {exchange.label} {number}", partial(self._answer, exchange, number))
        if exchange.is_lost and not exchange.abandoned:
            yield Step(f"give-up {exchange.label}", partial(self._world.network.end, exchange))

    def _senders(self) -> set[str]:
        """Return the names of the processes that run, and of the agents."""
        return {process.name for process in self._world.processes() if process.running} | self._world.hosts.keys()

    def _deliver(self, exchange: Exchange, driver: DriverProcess) -> None:
        self._world.network.request_taken(exchange)
        body = msgspec.json.decode(msgspec.json.encode(exchange.body), type=type(exchange.body))
        driver.receive(body, exchange)

    def _answer(self, exchange: Exchange, number: int) -> None:
        self._world.network.deliver_answer(exchange, number)

    def _pass_time(self, number: int) -> None:
        self._late += 1
        self._world.clock.advance(LATE_SECONDS[number])

    def _cut(self, exchange: Exchange, number: int, at: int) -> None:
        self._world.reached["answer cut"] += 1
        self._world.network.deliver_answer(exchange, number, at)

    def _answer_otherwise(self, exchange: Exchange, number: int) -> None:
        """A proxy answers in place of the driver, which may get the request all the same."""
        self._world.reached["answer of another program"] += 1
        self._world.network.end(exchange, OTHER_ANSWERS[number])
