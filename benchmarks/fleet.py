"""Many receivers in one process, over HTTP: ``python -m benchmarks.fleet URL TOPIC RECEIVERS PARTITIONS``.

They register, divide the partitions evenly, claim them and send heartbeats. Then each line on stdin is a command, answered by one
line of JSON:

- ``report REPORTS BLOCKS PERIOD``: all together send ``REPORTS`` reports of ``BLOCKS`` blocks, each receiver one per
  ``PERIOD`` seconds, or as soon as the previous one is answered (0). → ``Latencies`` of the reports
- ``raw URL REPORTS PERIOD``: the same number of bodies, of the size of a report of one block, posted to ``URL``. → ``Latencies``
- ``beats``: → ``Latencies`` of the heartbeats since the last ``beats``
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from statistics import quantiles

import msgspec

from benchmarks.reporting import Connection, Receiver
from forebay import messages as m

BEAT_SECONDS = 1.0


class Latencies(msgspec.Struct, frozen=True):
    """The latencies of ``count`` requests, from sending until the answer is read."""

    count: int
    seconds: float
    median_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, taken_seconds: Sequence[float], seconds: float) -> Latencies:
        cuts = quantiles(taken_seconds, n=100) if len(taken_seconds) > 1 else [0.0] * 99
        return cls(
            len(taken_seconds), seconds, cuts[49] * 1000, cuts[98] * 1000, max(taken_seconds, default=0.0) * 1000
        )


class Fleet:
    def __init__(self, url: str, topic: str, receivers: int, partitions: int) -> None:
        self._receivers = [
            Receiver(url, topic, number, range(number, partitions, receivers)) for number in range(receivers)
        ]
        self._beating = [Connection(url) for _ in range(receivers)]
        self._beats: list[float] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        for receiver, connection in zip(self._receivers, self._beating, strict=True):
            await receiver.open()
            await connection.open()
        self._tasks = [
            asyncio.create_task(self._beat(*pair)) for pair in zip(self._receivers, self._beating, strict=True)
        ]

    async def report(self, reports: int, blocks: int, period_seconds: float) -> Latencies:
        async def one(receiver: Receiver) -> None:
            await receiver.report(blocks)

        return await _spread(self._receivers, one, reports, period_seconds)

    async def raw(self, url: str, reports: int, period_seconds: float) -> Latencies:
        connections = {receiver: Connection(url) for receiver in self._receivers}
        for connection in connections.values():
            await connection.open()

        async def one(receiver: Receiver) -> None:
            await connections[receiver].post("/", receiver.blocks(1), m.Done)

        try:
            return await _spread(self._receivers, one, reports, period_seconds)
        finally:
            for connection in connections.values():
                connection.close()

    def beats(self) -> Latencies:
        beats, self._beats = self._beats, []
        return Latencies.of(beats, 0.0)

    async def _beat(self, receiver: Receiver, connection: Connection) -> None:
        while True:
            began = time.monotonic()
            await connection.post("/v1/receivers/heartbeat", receiver.heartbeat(), m.HeartbeatAnswer)
            self._beats.append(time.monotonic() - began)
            await asyncio.sleep(BEAT_SECONDS)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for receiver, connection in zip(self._receivers, self._beating, strict=True):
            receiver.close()
            connection.close()


async def _spread(
    receivers: Sequence[Receiver], one: Callable[[Receiver], Awaitable[None]], reports: int, period_seconds: float
) -> Latencies:
    """Each receiver does its share of ``reports``, beginning at its own place within the period."""
    taken: list[float] = []
    begun = time.monotonic()

    async def each(place: int, receiver: Receiver) -> None:
        due = begun + period_seconds * place / len(receivers)
        for _ in range(max(1, reports // len(receivers))):
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            due += period_seconds
            began = time.monotonic()
            await one(receiver)
            taken.append(time.monotonic() - began)

    await asyncio.gather(*(each(place, receiver) for place, receiver in enumerate(receivers)))
    return Latencies.of(taken, time.monotonic() - begun)


async def main(url: str, topic: str, receivers: int, partitions: int) -> None:
    fleet = Fleet(url, topic, receivers, partitions)
    await fleet.open()
    print("{}", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        order, *arguments = line.split()
        if order == "report":
            found = await fleet.report(int(arguments[0]), int(arguments[1]), float(arguments[2]))
        elif order == "raw":
            found = await fleet.raw(arguments[0], int(arguments[1]), float(arguments[2]))
        else:
            found = fleet.beats()
        print(msgspec.json.encode(found).decode(), flush=True)
    await fleet.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
