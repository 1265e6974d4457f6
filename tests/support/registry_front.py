"""What stands before a real schema registry in tests: it wants to know who asks, knows schemas by GUIDs (which the registry
behind does not), and can be out of order for a while. By https if it is given a certificate."""

from __future__ import annotations

import ssl
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

from tests.support.ports import free_port


class RegistryFront:
    """``wanted``: the header Authorization, if any. ``guids``: GUID → number behind. ``failures``: statuses of the next answers,
    used up one by one. ``asked``: the paths of all requests."""

    def __init__(self, behind: str, wanted: str | None = None, files: dict[str, str] | None = None) -> None:
        self.guids: dict[str, int] = {}
        self.failures: list[int] = []
        self.asked: list[str] = []
        front = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                front.asked.append(self.path)
                status, body = 401, b'{"error_code": 401, "message": "who are you?"}'
                if wanted is None or self.headers["Authorization"] == wanted:
                    status, body = front._answer(behind, self.path)
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *words: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", free_port()), Handler)
        self._server.daemon_threads = True
        scheme = "http"
        if files is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(files["cert_file"], files["key_file"])
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            scheme = "https"
        self.url = f"{scheme}://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def _answer(self, behind: str, path: str) -> tuple[int, bytes]:
        if self.failures:
            status = self.failures.pop(0)
            return status, b'{"error_code": %d, "message": "out of order"}' % status
        guid = path.partition("/schemas/guids/")[2].partition("?")[0]
        if guid in self.guids:
            path = f"/schemas/ids/{self.guids[guid]}"
        try:
            with urllib.request.urlopen(behind + path, timeout=30) as answer:
                return int(answer.status), answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()

    def __enter__(self) -> RegistryFront:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
