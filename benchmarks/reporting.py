"""Receivers that report: ``python -m benchmarks.reporting URL TOPIC RECEIVERS AT_ONCE REPORTS`` prints reports per second.

``RECEIVERS`` receivers, each with a partition and a connection of its own, send ``REPORTS`` reports of one block in all,
``AT_ONCE`` of them waiting for their answers at any time. Written on bare sockets, so that what is measured is the driver.
"""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from benchmarks.receiving import STREAM
from forebay import messages as m
from forebay.values import Block, BlockMeta, Handle, OffsetRange, TopicPartition, block_id

Answer = TypeVar("Answer")

ROWS = 1_000


class Receiver:
    """One receiver, which owns partition ``number`` of ``topic``."""

    def __init__(self, url: str, topic: str, number: int) -> None:
        self._parts = urlsplit(url)
        self._topic = topic
        self._number = number
        self._name = f"r{number}"
        self._sequence = 0

    async def open(self) -> None:
        """Connects, registers and claims."""
        self._reader, self._writer = await asyncio.open_connection(self._parts.hostname, self._parts.port)
        register = m.RegisterRequest(
            stream=STREAM, receiver_id=self._name, host="bench", instance_id=uuid.uuid4().hex, release="bench"
        )
        self._epoch = (await self._post("/v1/receivers/register", register, m.RegisterAnswer)).epoch
        tp = TopicPartition(self._topic, self._number)
        look = m.LookRequest(receiver_id=self._name, epoch=self._epoch, partitions=(tp,))
        (view,) = (await self._post("/v1/partitions/look", look, m.LookAnswer)).partitions
        ask = m.ClaimAsk(topic=self._topic, partition=self._number, known_token=view.token)
        claim = m.ClaimRequest(receiver_id=self._name, epoch=self._epoch, claims=(ask,))
        (grant,) = (await self._post("/v1/partitions/claim", claim, m.ClaimAnswer)).claims
        assert grant.granted
        self._token, self._position = grant.view.token, grant.view.position

    async def report(self) -> None:
        """One block, accepted."""
        self._sequence += 1
        until = self._position + ROWS
        range_ = OffsetRange(
            self._topic, self._number, 1, self._position, until, ROWS, 0, "0" * 16, self._token, ROWS * 200, 1
        )
        meta = BlockMeta(
            id=block_id(self._name, self._epoch, self._sequence), stream=STREAM, receiver_id=self._name,
            epoch=self._epoch, sequence=self._sequence, ranges=(range_,), records=ROWS, created_ms=1, host="bench",
        )  # fmt: skip
        path = f"{STREAM}/blocks/{self._name}/{self._epoch:016x}/00000001.seg"
        block = Block(meta, Handle(path, self._sequence * 200_000, 199_000, 7), True)
        request = m.ReportRequest(receiver_id=self._name, epoch=self._epoch, blocks=(block,))
        (result,) = (await self._post("/v1/blocks/report", request, m.ReportAnswer)).results
        assert result.accepted, result
        self._position = until

    async def _post(self, path: str, body: msgspec.Struct, answer: type[Answer]) -> Answer:
        data = msgspec.json.encode(body)
        head = (
            f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        )
        self._writer.write(head.encode() + data)
        headers = await self._reader.readuntil(b"\r\n\r\n")
        length = int(headers.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        found = await self._reader.readexactly(length)
        if b" 200 " not in headers[:16]:
            raise RuntimeError(f"{path}: {found!r}")
        return msgspec.json.decode(found, type=answer)

    def close(self) -> None:
        self._writer.close()


async def reports_per_second(url: str, topic: str, receivers: int, at_once: int, reports: int) -> float:
    group = [Receiver(url, topic, number) for number in range(receivers)]
    for receiver in group:
        await receiver.open()
    each = max(1, reports // receivers)

    async def in_turn(part: list[Receiver]) -> None:
        for _ in range(each):
            for receiver in part:
                await receiver.report()

    begun = time.monotonic()
    await asyncio.gather(*(in_turn(group[number::at_once]) for number in range(at_once)))
    seconds = time.monotonic() - begun
    for receiver in group:
        receiver.close()
    return each * receivers / seconds


if __name__ == "__main__":
    url, topic, *numbers = sys.argv[1:]
    print(asyncio.run(reports_per_second(url, topic, *map(int, numbers))))
