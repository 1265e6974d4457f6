"""Receivers that only report: ``python -m benchmarks.reporting URL TOPIC RECEIVERS AT_ONCE REPORTS`` prints reports per second.

``RECEIVERS`` receivers, each with one partition and one connection, send ``REPORTS`` reports of one block in total; at any time
``AT_ONCE`` of them wait for an answer. It uses bare sockets, so that the driver is measured and not the client. Environment
variables: the token to send (``REPORTING_TOKEN``), and for https the authority's file (``REPORTING_CA``).
"""

from __future__ import annotations

import asyncio
import functools
import os
import ssl
import sys
import time
import uuid
from collections.abc import Sequence
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec

from forebay import messages as m
from forebay.model.values import Block, BlockMeta, BlockRange, Handle, TopicPartition, block_id

Answer = TypeVar("Answer")

STREAM = "bench"
ROWS = 1_000
#: on which the receivers run
HOSTS = 20
IDLE_SECONDS = 2.0


@functools.cache
def _authority(file: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=file)


class Connection:
    """One kept connection with one request at a time. It is opened again after idle time, before the server closes it."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self._used = float("-inf")
        token = os.environ.get("REPORTING_TOKEN")
        self._headers = f"authorization: Bearer {token}\r\n" if token else ""

    async def open(self) -> None:
        tls = _authority(os.environ["REPORTING_CA"]) if self._parts.scheme == "https" else None
        self._reader, self._writer = await asyncio.open_connection(self._parts.hostname, self._parts.port, ssl=tls)
        self._used = time.monotonic()

    async def post(self, path: str, body: msgspec.Struct, answer: type[Answer]) -> Answer:
        if time.monotonic() > self._used + IDLE_SECONDS:
            self.close()
            await self.open()
        data = msgspec.json.encode(body)
        head = (
            f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n{self._headers}content-type: application/json\r\n"
            f"content-length: {len(data)}\r\n\r\n"
        )
        self._writer.write(head.encode() + data)
        headers = await self._reader.readuntil(b"\r\n\r\n")
        length = int(headers.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        found = await self._reader.readexactly(length)
        self._used = time.monotonic()
        if b" 200 " not in headers[:16]:
            raise RuntimeError(f"{path}: {found!r}")
        return msgspec.json.decode(found, type=answer)

    def close(self) -> None:
        self._writer.close()


class Receiver:
    """One receiver, which owns ``partitions`` of ``topic``. Each of its blocks has a range of each partition."""

    def __init__(self, url: str, topic: str, number: int, partitions: Sequence[int]) -> None:
        self._connection = Connection(url)
        self._topic = topic
        self._partitions = partitions
        self._name = f"r{number}"
        self._host = f"host-{number % HOSTS}"
        self._sequence = 0

    async def open(self) -> None:
        """Connects, registers and claims."""
        await self._connection.open()
        register = m.RegisterRequest(
            stream=STREAM, receiver_id=self._name, host=self._host, instance_id=uuid.uuid4().hex, release="bench"
        )
        self._epoch = (await self._connection.post("/v1/receivers/register", register, m.RegisterAnswer)).epoch
        tps = tuple(TopicPartition(self._topic, partition) for partition in self._partitions)
        look = m.LookupRequest(receiver_id=self._name, epoch=self._epoch, partitions=tps)
        views = (await self._connection.post("/v1/partitions/look", look, m.LookupAnswer)).partitions
        asks = tuple(m.ClaimAsk(topic=v.topic, partition=v.partition, known_token=v.token) for v in views)
        claim = m.ClaimRequest(receiver_id=self._name, epoch=self._epoch, claims=asks, number=1)
        grants = (await self._connection.post("/v1/partitions/claim", claim, m.ClaimAnswer)).claims
        assert all(grant.granted for grant in grants)
        self._tokens = {grant.view.partition: grant.view.token for grant in grants}
        self._position = grants[0].view.position

    async def report(self, blocks: int = 1) -> None:
        """One report, accepted."""
        request = self.blocks(blocks)
        results = (await self._connection.post("/v1/blocks/report", request, m.ReportAnswer)).results
        assert all(result.accepted for result in results), results
        self._sequence += blocks
        self._position += blocks * ROWS

    def blocks(self, count: int) -> m.ReportRequest:
        """The report of the next ``count`` blocks."""
        blocks = tuple(self._block(self._sequence + number, self._position + number * ROWS) for number in range(count))
        return m.ReportRequest(receiver_id=self._name, epoch=self._epoch, blocks=blocks)

    def _block(self, before: int, begin: int) -> Block:
        ranges = tuple(
            BlockRange(
                self._topic, partition, 1, begin, begin + ROWS, ROWS, 0, "0" * 16, self._tokens[partition], ROWS * 200, 1
            )
            for partition in self._partitions
        )  # fmt: skip
        meta = BlockMeta(
            id=block_id(self._name, self._epoch, before + 1), stream=STREAM, receiver_id=self._name,
            epoch=self._epoch, sequence=before + 1, ranges=ranges, records=ROWS * len(ranges), created_ms=1, host=self._host,
        )  # fmt: skip
        path = f"{STREAM}/blocks/{self._name}/{self._epoch:016x}/00000001.seg"
        return Block(meta, Handle(path, before * 200_000, 199_000, 7), True)

    def heartbeat(self) -> m.HeartbeatRequest:
        partitions = tuple(
            m.PartitionStatus(
                topic=self._topic, partition=partition, state="active", position=self._position,
                high_watermark=self._position, token=self._tokens[partition],
            )
            for partition in self._partitions
        )  # fmt: skip
        return m.HeartbeatRequest(
            receiver_id=self._name, epoch=self._epoch, state="active", detail="", acknowledged=0, buffered_bytes=0,
            records=self._position, partitions=partitions, claims_done=1,
        )  # fmt: skip

    def close(self) -> None:
        self._connection.close()


async def reports_per_second(url: str, topic: str, receivers: int, at_once: int, reports: int) -> float:
    group = [Receiver(url, topic, number, (number,)) for number in range(receivers)]
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
