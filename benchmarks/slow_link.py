"""A link that is far away: forwards TCP, and holds back what comes from the server for a fixed time. Run as a process.

Latency, not bandwidth: bytes that follow each other stay as close as they were sent.
"""

from __future__ import annotations

import asyncio
import sys

_PIECE_BYTES = 1 << 20


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(_PIECE_BYTES):
        writer.write(piece)
        await writer.drain()
    writer.close()


async def _delayed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def take() -> None:
        while piece := await reader.read(_PIECE_BYTES):
            waiting.put_nowait((loop.time() + seconds, piece))
        waiting.put_nowait((loop.time() + seconds, b""))

    taking = asyncio.create_task(take())
    try:
        while True:
            due, piece = await waiting.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if not piece:
                break
            writer.write(piece)
            await writer.drain()
    finally:
        taking.cancel()
        writer.close()


async def serve(target_port: int, seconds: float) -> None:
    """Listens on a free port of the loopback, prints it, and forwards to ``target_port`` until it is ended."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target_port, limit=_PIECE_BYTES)
        await asyncio.gather(
            _forward(reader, far_writer), _delayed(far_reader, writer, seconds), return_exceptions=True
        )

    server = await asyncio.start_server(connected, "127.0.0.1", 0, limit=_PIECE_BYTES)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2])))
