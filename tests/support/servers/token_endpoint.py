"""An OAuth token endpoint for tests: it gives tokens to one authenticated client, and knows which tokens are valid."""

from __future__ import annotations

import base64
import json
import secrets
import time
from urllib.parse import parse_qs

from tests.support.servers.answering import AnsweringHandler, AnsweringServer


class TokenEndpoint(AnsweringServer):
    """``lives_seconds``: how long a token holds, and is said to; None: for ever, and nothing is said. ``answers``: status and
    body of the next answers instead, used up one by one. ``given``: the tokens, in order. ``pages``: path → answer to a GET."""

    def __init__(
        self,
        client: str,
        secret: str,
        scope: str = "",
        lives_seconds: float | None = 3600.0,
        files: dict[str, str] | None = None,
    ) -> None:
        self.given: dict[str, float] = {}
        self.answers: list[tuple[int, str]] = []
        self.pages: dict[str, str] = {}
        endpoint = self
        who = "Basic " + base64.b64encode(f"{client}:{secret}".encode()).decode()

        class Handler(AnsweringHandler):
            def do_GET(self) -> None:  # noqa: N802 - its library's name
                page = endpoint.pages.get(self.path)
                self.answer(404 if page is None else 200, (page or "").encode())

            def do_POST(self) -> None:  # noqa: N802 - its library's name
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                if endpoint.answers:
                    status, body = endpoint.answers.pop(0)
                    self.answer(status, body.encode())
                elif self.headers["Authorization"] != who:
                    self.answer(401, b'{"error": "invalid_client", "error_description": "who are you?"}')
                elif form.get("grant_type") != ["client_credentials"] or form.get("scope", [""]) != [scope]:
                    self.answer(400, b'{"error": "invalid_scope"}')
                else:
                    self.answer(200, json.dumps(endpoint._issued(lives_seconds)).encode())

        super().__init__(Handler, files)
        self.url += "/token"

    def _issued(self, lives_seconds: float | None) -> dict[str, object]:
        token = secrets.token_hex(16)
        self.given[token] = time.monotonic() + (lives_seconds or float("inf"))
        more = {} if lives_seconds is None else {"expires_in": lives_seconds}
        return {"access_token": token, "token_type": "Bearer", **more}

    def holds(self, authorization: str) -> bool:
        """Whether this header has a token of ours."""
        return self.given.get(authorization.removeprefix("Bearer "), 0.0) > time.monotonic()
