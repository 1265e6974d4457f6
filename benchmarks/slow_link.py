"""A process that forwards TCP and delays the server's answers by a fixed time, like a long link.

It adds latency but does not limit bandwidth: bytes keep the distance at which they were sent. What the client sends goes through
the kernel alone (Linux).
"""

from __future__ import annotations

import fcntl
import os
import queue
import socket
import sys
import threading
import time

_PIECE_BYTES = 1 << 20


def _forward(source: socket.socket, target: socket.socket) -> None:
    taken, given = os.pipe()
    fcntl.fcntl(given, fcntl.F_SETPIPE_SZ, _PIECE_BYTES)
    try:
        while left := os.splice(source.fileno(), given, _PIECE_BYTES):
            while left:
                left -= os.splice(taken, target.fileno(), left)
    finally:
        os.close(taken)
        os.close(given)


def _delayed(source: socket.socket, target: socket.socket, seconds: float) -> None:
    waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def take() -> None:
        piece = b"-"
        while piece:
            try:
                piece = source.recv(_PIECE_BYTES)
            except OSError:
                piece = b""
            waiting.put((time.monotonic() + seconds, piece))

    threading.Thread(target=take, daemon=True).start()
    while True:
        due, piece = waiting.get()
        time.sleep(max(0.0, due - time.monotonic()))
        if not piece:
            return
        target.sendall(piece)


def _until_closed(near: socket.socket, target_port: int, seconds: float) -> None:
    with near, socket.create_connection(("127.0.0.1", target_port)) as far:
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def up() -> None:
            try:
                _forward(near, far)
                far.shutdown(socket.SHUT_WR)
            except OSError:  # either end broke the connection: the other direction sees it as well
                near.close()

        threading.Thread(target=up, daemon=True).start()
        try:
            _delayed(far, near, seconds)
        except OSError:
            return


def serve(target_port: int, seconds: float) -> None:
    """Listen on a free loopback port, print it, and forward to ``target_port`` until the process ends."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        while True:
            near, _ = server.accept()
            threading.Thread(target=_until_closed, args=(near, target_port, seconds), daemon=True).start()


if __name__ == "__main__":
    serve(int(sys.argv[1]), float(sys.argv[2]))
