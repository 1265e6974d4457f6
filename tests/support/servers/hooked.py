"""A web hook: an HTTP server that keeps the events it is sent."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.kafka.polling import PATIENCE_SECONDS


class Hooked:
    """A real HTTP server that answers with ``status`` and keeps what it was sent."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.requests = 0
        self.statuses: list[int] = []  # of the next requests; 200 when there are no more
        self.hold = threading.Event()
        self.hold.set()
        hooked = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                hooked.requests += 1
                hooked.hold.wait(PATIENCE_SECONDS)
                status = hooked.statuses.pop(0) if hooked.statuses else 200
                if status == 200:
                    hooked.bodies.append(json.loads(body))
                try:
                    self.send_response(status)
                    self.send_header("content-length", "0")
                    self.send_header("location", "http://127.0.0.1:9/")
                    self.end_headers()
                except OSError:
                    pass  # the client no longer waits

            def log_message(self, *_: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook/s3cret?key=s3cret"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    @property
    def events(self) -> list[dict[str, Any]]:
        return [event for body in self.bodies for event in body["events"]]

    def close(self) -> None:
        self.hold.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
