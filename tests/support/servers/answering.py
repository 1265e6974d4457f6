"""An HTTP server on loopback, or HTTPS if it has a certificate, whose answers the test makes."""

from __future__ import annotations

import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import TYPE_CHECKING

from tests.support.run.ports import free_port

if TYPE_CHECKING:
    from typing_extensions import Self


class AnsweringHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


class AnsweringServer:
    """It listens from the beginning, and answers while it is entered."""

    def __init__(self, handler: type[AnsweringHandler], files: dict[str, str] | None) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", free_port()), handler)
        self._server.daemon_threads = True
        scheme = "http"
        if files is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(files["cert_file"], files["key_file"])
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            scheme = "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
