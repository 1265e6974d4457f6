"""A service whose bytes the test writes."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_DRIP_SECONDS = 0.05


@contextmanager
def service(*connections: Callable[[socket.socket], None], files: dict[str, str] | None = None) -> Iterator[str]:
    """A service that handles its connections by ``connections``, one after the other, and accepts no more.

    ``files``: its certificate and key; None: without TLS.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        tls = None
        if files is not None:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(files["cert_file"], files["key_file"])

        def serve() -> None:
            for handle in connections:
                accepted, _ = listener.accept()
                with accepted if tls is None else tls.wrap_socket(accepted, server_side=True) as connection:
                    handle(connection)

        thread = threading.Thread(target=serve, daemon=True)  # a test that fails may leave it in accept
        thread.start()
        yield f"http{'s' if files else ''}://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10)
        assert not thread.is_alive(), "the client made fewer connections than expected"


def answering(*answers: bytes) -> Callable[[socket.socket], None]:
    """Answers a request with each of ``answers``, then closes the connection."""

    def handle(accepted: socket.socket) -> None:
        for answer in answers:
            assert accepted.recv(65_536)
            accepted.sendall(answer)

    return handle


def dripping(whole: bytes, drops: bytes) -> Callable[[socket.socket], None]:
    """Answers a request with ``whole``, then with each byte of ``drops`` after a pause. Ends with the connection."""

    def handle(accepted: socket.socket) -> None:
        assert accepted.recv(65_536)
        accepted.sendall(whole)
        pause = threading.Event()
        with contextlib.suppress(OSError):
            for drop in drops:
                pause.wait(_DRIP_SECONDS)
                accepted.sendall(bytes([drop]))

    return handle
